// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest: one memslot, on either of two parts of the strict machine's memory.

use std::sync::Mutex;

use twofold_machine::arena::{ArenaOptions, Backing as Kind};
use twofold_machine::strict::{Bbm, Hosted, Machine, Options};
use twofold_memory::{Backing, Frames, GuestMemory, Pages, Slot, SlotId};
use twofold_migration::stream::{self, Capabilities, Hello, Name};
use twofold_stage2::{Features, Geometry, Ipa, Kib4, Vmid};
use xxhash_rust::xxh3::xxh3_64;

pub const PAGE: u64 = 4096;
const MIB_2: u64 = 2 << 20;
const PART: u64 = 3 * MIB_2;

const FEATURES: Features = Features::NONE
    .with_pa_bits(48)
    .with_vmid_bits(16)
    .with_hardware_access_flag(true)
    .with_hardware_dirty_state(true)
    .with_forced_write_back(true)
    .with_tlbi_range(true)
    .with_tlbi_level_hint(true)
    .with_data_line(64)
    .with_instruction_line(64)
    .with_zero_block(64);

pub const SLOT: stream::Slot = stream::Slot { number: 0, read_only: false, first: 0x4_0000, pages: 100 };

/// The identity of the memslot of each guest's memory, by VMID.
static IDS: Mutex<Vec<(u16, SlotId)>> = Mutex::new(Vec::new());

/// The pages that the guest's program writes to. Behind them, each vCPU has one for itself.
pub fn word_pages() -> u64 {
    SLOT.pages - 2
}

pub fn address_of(page: u64) -> u64 {
    (SLOT.first + page) * PAGE
}

pub fn hello() -> Hello {
    Hello {
        migration: *b"a migration's id",
        stream: 0,
        streams: 1,
        model: Name::new("virt-1").unwrap(),
        page_shift: 12,
        ipa_bits: 40,
        vcpus: 2,
        memory: SLOT.pages * PAGE,
        features: vec![],
    }
}

pub fn capabilities() -> Capabilities {
    let hello = hello();
    Capabilities { model: hello.model, page_shift: 12, ipa_bits: 40, vcpus: 2, memory: hello.memory, features: vec![] }
}

pub fn machine(cpus: usize, seed: u64) -> Machine {
    let memory = ArenaOptions::new(2 * PART, Kind::Anonymous);
    let options = Options {
        cpus,
        seed,
        events_between_switches: 24,
        features: FEATURES,
        bbm: Bbm::default(),
        memory,
        trace: None,
    };
    Machine::new(options).unwrap()
}

/// The memory of a guest in a part of the machine's. The caller is a CPU.
pub fn memory(machine: &Machine, part: u64) -> GuestMemory<Hosted> {
    let mut frames = Frames::new(FEATURES);
    frames.add(machine.arena().donate_part(part * PART, PART).unwrap());
    let geometry = Geometry::new(Kib4, 40, &FEATURES).unwrap();
    let vmid = part as u16 + 1;
    let pages = if part == 0 { Pages::Largest } else { Pages::Small };
    let mut memory = GuestMemory::new(machine.platform(), geometry, Vmid::new(vmid), frames, pages).unwrap();
    let start = Ipa::new(SLOT.first * PAGE);
    let range = start..start + SLOT.pages * PAGE;
    let id = memory.add_slot(Slot { range, backing: Backing::Ram, writable: true }).unwrap();
    // Each memory's only memslot has the same identity.
    let mut ids = IDS.lock().unwrap();
    ids.retain(|(known, _)| *known != vmid);
    ids.push((vmid, id));
    memory
}

pub fn ids(memory: &GuestMemory<Hosted>) -> Vec<(SlotId, stream::Slot)> {
    let vmid = (memory.stage2().vttbr() >> 48) as u16;
    let ids = IDS.lock().unwrap();
    vec![(ids.iter().find(|(known, _)| *known == vmid).unwrap().1, SLOT)]
}

/// A digest of each page.
pub fn digests(memory: &GuestMemory<Hosted>) -> Vec<u64> {
    let mut bytes = vec![0; PAGE as usize];
    let mut digest = |page| {
        memory.read(Ipa::new(address_of(page)), &mut bytes).unwrap();
        xxh3_64(&bytes)
    };
    (0..SLOT.pages).map(&mut digest).collect()
}
