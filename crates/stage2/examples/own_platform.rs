// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A platform of one's own: it executes each instruction as the CPU does, and passes each invalidation on to an SMMU that
//! walks the same tables but does not take part in broadcast TLB maintenance.
//!
//! ```text
//! cargo run -p twofold-stage2 --example own_platform
//! ```
//!
//! A platform sees every instruction of the engine in program order, so nothing else has to know of the SMMU. What its
//! owner owes besides is on the crate's page about tables that are shared with an SMMU.

#![allow(clippy::print_stdout, reason = "printing is what it does")]

use std::error::Error;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use twofold_stage2::hosted::Hosted;
use twofold_stage2::platform::{Dc, Domain, Ic, Platform, Tlbi};
use twofold_stage2::{Access, Attributes, Geometry, Ipa, Kib4, Level, Pa, Stage2, TableMetadata, Unwatched, Vmid};

/// A command of an SMMUv3's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    /// Stage-2 entries of one address. With `leaf`, walk entries stay.
    TlbiS2Ipa { vmid: u16, ipa: Ipa, leaf: bool },
    /// Stage-1 and combined entries of a VMID.
    TlbiNhAll { vmid: u16 },
    /// All entries of a VMID.
    TlbiS12Vmall { vmid: u16 },
    /// Waits until all commands before it are complete.
    Sync,
}

/// The platform `P`, and the SMMU's queue.
struct WithSmmu<P> {
    cpu: P,
    queue: Mutex<Vec<Command>>,
}

impl<P: Platform> WithSmmu<P> {
    fn issue(&self, command: Command) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push(command);
    }

    fn take(&self) -> Vec<Command> {
        std::mem::take(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

// SAFETY: everything is forwarded to a platform.
unsafe impl<P: Platform> Platform for WithSmmu<P> {
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        // The engine has loaded the guest's own value: an invalidation is of the VMID in it.
        let vmid = (self.cpu.vttbr() >> 48) as u16;
        let ipa = Ipa::new((operand & 0xf_ffff_ffff) << 12);
        match operation {
            Tlbi::Ipas2Le1Is => self.issue(Command::TlbiS2Ipa { vmid, ipa, leaf: true }),
            // The first is for this CPU alone, after an access was widened. A CPU would take one more fault; a device may
            // not be able to try again.
            Tlbi::Ipas2E1 | Tlbi::Ipas2E1Is => self.issue(Command::TlbiS2Ipa { vmid, ipa, leaf: false }),
            Tlbi::VmallE1 | Tlbi::VmallE1Is => self.issue(Command::TlbiNhAll { vmid }),
            // This SMMU has no invalidation by range, so a range takes all of the VMID.
            _ => self.issue(Command::TlbiS12Vmall { vmid }),
        }
        self.cpu.tlbi(operation, operand);
    }

    fn dsb(&self, domain: Domain) {
        self.cpu.dsb(domain);
        // Those for stores alone make changed entries visible to walks. The others end invalidations.
        if matches!(domain, Domain::Ish | Domain::Nsh) {
            self.issue(Command::Sync); // and wait for it
        }
    }

    fn isb(&self) {
        self.cpu.isb();
    }

    unsafe fn dc(&self, operation: Dc, address: usize) {
        // SAFETY: promised by the caller.
        unsafe { self.cpu.dc(operation, address) };
    }

    fn ic(&self, operation: Ic, address: usize) {
        self.cpu.ic(operation, address);
    }

    fn vttbr(&self) -> u64 {
        self.cpu.vttbr()
    }

    fn load_vttbr(&self, value: u64) {
        self.cpu.load_vttbr(value);
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.cpu.pointer(pa)
    }

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        self.cpu.metadata(pa)
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let (cpu, memory) = Hosted::new(4 << 20);
    let features = Hosted::features();
    let geometry = Geometry::new(Kib4, 40, &features)?;
    let (mut tables, root, ram) = cpu.cut(memory, &geometry).ok_or("too little memory")?;
    let platform = WithSmmu { cpu, queue: Mutex::default() };
    let stage2 = Stage2::new(platform, features, geometry, Vmid::new(7), root)?;
    let ipa = Ipa::new(1 << 30);
    let lent = stage2.lend(ram, ipa, ipa.range(2 << 20));

    let grant = stage2.grant(&lent, ipa, 4096).ok_or("not lent")?;
    let _ = grant.map(Level::L3, &Attributes::ram(Access::READ_WRITE), &mut tables)?;
    assert_eq!(stage2.platform().take(), [], "nothing was mapped, so no TLB holds anything");

    let pending = stage2.write_protect(ipa.range(4096))?;
    assert_eq!(stage2.platform().take(), [], "a device may write until the flush");
    let _ = pending.complete();
    let commands = stage2.platform().take();
    for command in &commands {
        println!("{command:?}");
    }
    let expected =
        [Command::TlbiS2Ipa { vmid: 7, ipa, leaf: true }, Command::Sync, Command::TlbiNhAll { vmid: 7 }, Command::Sync];
    assert_eq!(commands, expected);

    let (root, _) = stage2.destroy(&mut tables, Unwatched);
    let _ram = root.reclaim(lent).map_err(|_| "it is another root's")?;
    Ok(())
}
