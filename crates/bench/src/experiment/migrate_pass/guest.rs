// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A stopped guest: of three pages one is zero, one is compressible and one is random. All were written.

use std::sync::Arc;

use anyhow::Context;
use twofold_machine::arena::{Arena, ArenaOptions, Backing as Kind};
use twofold_machine::fast::{FastMachine, FastPlatform};
use twofold_machine::vm::Vm;
use twofold_memory::dirty::{LogOptions, Tracker};
use twofold_memory::{Backing, Frames, GuestMemory, Pages, Slot, SlotId};
use twofold_migration::ram::GuestRam;
use twofold_migration::stream::{Hello, Name, Slot as SentSlot};
use twofold_stage2::{Geometry, Ipa, Kib4, Vmid};

use super::plan::Plan;
use crate::features::TODAY;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// The guest. Each part is a memslot.
pub struct Guest {
    machine: Arc<FastMachine>,
    vm: Vm<FastPlatform>,
    slots: Vec<(SlotId, SentSlot)>,
    part: u64,
}

impl Guest {
    /// Makes and fills the guest.
    ///
    /// # Errors
    ///
    /// Its memory does not fit.
    pub fn new(plan: &Plan) -> anyhow::Result<Self> {
        let bytes = plan.machine_bytes();
        let arena = Arc::new(Arena::new(&ArenaOptions::new(bytes, Kind::Anonymous))?);
        let mut frames = Frames::new(TODAY);
        frames.add(arena.donate_part(0, bytes).context("the machine's memory is smaller than its plan")?);
        let machine = FastMachine::new(arena, TODAY, 1)?;
        let geometry = Geometry::new(Kib4, ADDRESS_BITS, &TODAY)?;
        let platform = FastPlatform(Arc::clone(&machine));
        let mut memory = GuestMemory::new(platform, geometry, Vmid::new(1), frames, Pages::Largest)?;
        let mut slots = Vec::new();
        for number in 0..plan.parts() {
            let start = Ipa::new(START + number * plan.part);
            let range = start..start + plan.part;
            let id = memory.add_slot(Slot { range, backing: Backing::Ram, writable: true })?;
            let (first, pages) = (start.raw() / PAGE as u64, plan.part / PAGE as u64);
            slots.push((id, SentSlot { number: number as u16, read_only: false, first, pages }));
        }
        let guest = Self { machine, vm: Vm::new(memory), slots, part: plan.part };
        for page in 0..plan.bytes / PAGE as u64 {
            guest.vm.memory().write(Ipa::new(START + page * PAGE as u64), &content(page))?;
        }
        Ok(guest)
    }

    /// One part, as a migration reads it.
    ///
    /// # Errors
    ///
    /// There is no such part.
    pub fn ram(&self, part: usize) -> anyhow::Result<GuestRam<'_, FastPlatform>> {
        let slot = self.slots.get(part).context("no such part")?;
        Ok(GuestRam::new(self.vm.memory(), LogOptions::new(Tracker::Manual), &[*slot])?)
    }

    /// All of it, with this tracker.
    ///
    /// # Errors
    ///
    /// None: the memslots are its own.
    pub fn all(&self, tracker: Tracker) -> anyhow::Result<GuestRam<'_, FastPlatform>> {
        Ok(GuestRam::new(self.vm.memory(), LogOptions::new(tracker), &self.slots)?)
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.part * self.slots.len() as u64
    }

    /// The machine, and the virtual machine on it.
    pub fn vm(&self) -> (&Arc<FastMachine>, &Vm<FastPlatform>) {
        (&self.machine, &self.vm)
    }

    /// What a migration of this part says of it.
    ///
    /// # Errors
    ///
    /// There is no such part.
    pub fn hello(&self, part: usize) -> anyhow::Result<(Hello, SentSlot)> {
        let (_, slot) = self.slots.get(part).context("no such part")?;
        let hello = Hello {
            migration: *b"one pass over it",
            stream: 0,
            streams: 1,
            model: Name::new("virt-1").context("a name that is none")?,
            page_shift: PAGE.trailing_zeros() as u8,
            ipa_bits: ADDRESS_BITS as u8,
            vcpus: 1,
            memory: self.part,
            features: Vec::new(),
        };
        Ok((hello, *slot))
    }

    /// Copies the bytes of a part.
    ///
    /// # Errors
    ///
    /// There is no such part.
    pub fn copy(&self, part: usize, bytes: &mut [u8]) -> anyhow::Result<()> {
        Ok(self.vm.memory().read(Ipa::new(START + part as u64 * self.part), bytes)?)
    }
}

/// The content of a page: zeros; records of a text with a number in each, which lz4 makes about four times smaller; or
/// random words.
pub fn content(page: u64) -> [u8; PAGE] {
    let mut bytes = [0; PAGE];
    let mut random = page;
    let mut next = || {
        // Steele and others' SplitMix64, 2014.
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    };
    match page % 3 {
        0 => {}
        1 => {
            for record in bytes.as_chunks_mut::<RECORD>().0 {
                record.copy_from_slice(TEXT);
                record[8..16].copy_from_slice(&next().to_le_bytes());
            }
        }
        _ => bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = next().to_le_bytes()),
    }
    bytes
}

const RECORD: usize = 64;
const TEXT: &[u8; RECORD] = b"object: 01234567 state: present, owner: the page cache, list: 01";
/// The guest's first address.
pub const START: u64 = 1 << 30;
const ADDRESS_BITS: u32 = 40;
