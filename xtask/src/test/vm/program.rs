// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: a bare-metal program as an ELF file, which goes to the address that it is linked for.

use std::fs;

use anyhow::{Context, ensure};
use twofold_launch::GuestSettings;
use twofold_workspace::build;

use super::machines::{Clock, Machines};

/// The bare-metal guest as its linker made it, but moved from address 0 into RAM, and with the entry behind its header, which
/// it does not need then. It checks all RAM but its own and the device tree, and powers off.
pub fn elf(machines: &Machines) -> anyhow::Result<()> {
    /// 18 MiB and a page into RAM.
    const AT: u64 = 0x4120_1000;
    let directory = tempfile::tempdir()?;
    let linked = build::GUEST.elf(machines.workspace());
    let mut elf = fs::read(&linked).with_context(|| format!("cannot read {}", linked.display()))?;
    move_to(&mut elf, AT).context("the guest is no ELF file as it should be")?;
    let kernel = directory.path().join("guest.elf");
    fs::write(&kernel, elf)?;
    let guest = GuestSettings { kernel, ..machines.bare("elf", 1, "check") };
    // A kernel's Image has its place at the start of RAM, also beside a program.
    let outcome = machines.checked(vec![guest, machines.bare("image", 1, "check")], Clock::Real)?;
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(console.matches("guest check: ok").count() == 2, "{console}");
    Ok(())
}

/// Adds `offset` to the addresses of a 64-bit ELF file's entry and loadable segments. `None`: it has none.
fn move_to(elf: &mut [u8], offset: u64) -> Option<()> {
    const ENTRY: usize = 24;
    const HEADERS: usize = 32;
    const HEADER_SIZE: usize = 56;
    const COUNT: usize = 56;
    const LOAD: u32 = 1;
    /// Bytes of an arm64 Image's header. The code begins behind it.
    const IMAGE_HEADER: u64 = 64;
    let entry = elf.get_mut(ENTRY..ENTRY + 8)?.first_chunk_mut()?;
    *entry = u64::from_le_bytes(*entry).checked_add(IMAGE_HEADER)?.to_le_bytes();
    let mut places = vec![ENTRY];
    let first = u64::from_le_bytes(*elf.get(HEADERS..)?.first_chunk()?) as usize;
    for number in 0..usize::from(u16::from_le_bytes(*elf.get(COUNT..)?.first_chunk()?)) {
        let header = first + number * HEADER_SIZE;
        if u32::from_le_bytes(*elf.get(header..)?.first_chunk()?) == LOAD {
            // The virtual and the physical address.
            places.extend([header + 16, header + 24]);
            // What would start there is undefined now.
            let contents = u64::from_le_bytes(*elf.get(header + 8..)?.first_chunk()?) as usize;
            elf.get_mut(contents..contents + 4)?.fill(0);
        }
    }
    for at in places {
        let address = elf.get_mut(at..at + 8)?.first_chunk_mut()?;
        *address = u64::from_le_bytes(*address).wrapping_add(offset).to_le_bytes();
    }
    Some(())
}
