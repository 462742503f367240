// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random scenarios: slots of all kinds that adjoin, leave holes and end in the middle of huge pages; a CPU;
//! operations. This file proves nothing by itself.

use proptest::prelude::*;
use twofold_memory::Pages;
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::{Features, Level};

const MOST_OPERATIONS: usize = 200;

#[derive(Clone, Debug)]
pub struct Scenario {
    pub features: Features,
    pub pages: Pages,
    /// In ascending order.
    pub slots: Vec<SlotPlan>,
    /// Single frames beside the root's, and huge pages, that are donated from the beginning.
    pub singles: u64,
    pub huge_pages: u64,
    pub operations: Vec<Operation>,
}

#[derive(Clone, Debug)]
pub struct SlotPlan {
    /// Pages between the slot before and this one.
    pub gap: u64,
    /// The slot's size in pages.
    pub size: u64,
    pub writable: bool,
    pub kind: Kind,
}

/// The backing of a slot. For preallocated memory and devices: by how many pages its alignment differs from the slot's.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Ram,
    Preallocated(u64, Level),
    Device(u64),
}

/// The address of an access, relative to the slots.
#[derive(Clone, Copy, Debug)]
pub enum Address {
    /// A page in a slot, from one of its edges or anywhere, and `offset` bytes into the page.
    In { slot: usize, from: From, offset: u16 },
    /// A page anywhere in or around the slots.
    Anywhere { page: u64, offset: u16 },
}

#[derive(Clone, Copy, Debug)]
pub enum From {
    Start(u64),
    End(u64),
    /// Pages from the slot's first 2 MiB boundary, less one.
    HugePage(u64),
    Any(u64),
}

#[derive(Clone, Debug)]
pub enum Operation {
    Touch(Address, AccessKind),
    Fault(Address, FaultKind, AccessKind),
    Load(Address, Vec<u8>),
    Store(Address, u8),
}

fn features() -> impl Strategy<Value = Features> {
    let bits = any::<(bool, bool, bool, bool)>();
    let zero_block = prop::sample::select(vec![0, 64, 512, 2048]);
    // Short lines make the test slow.
    let line = prop::sample::select(vec![2048, 2048, 2048, 64]);
    (bits, zero_block, line).prop_map(|((fwb, dic, pipt, ttl), zero_block, line)| {
        Features::NONE
            .with_forced_write_back(fwb)
            .with_instruction_cache_coherent(dic)
            .with_instruction_cache_pipt(pipt)
            .with_tlbi_level_hint(ttl)
            .with_data_line(line)
            .with_instruction_line(line)
            .with_zero_block(zero_block)
    })
}

fn slot() -> impl Strategy<Value = SlotPlan> {
    let gap = prop_oneof![3 => Just(0), 1 => 1u64..4, 1 => 505u64..520, 1 => Just(512)];
    let size = prop_oneof![1 => 1u64..5, 2 => 505u64..520, 2 => Just(512), 2 => Just(1024), 3 => 1u64..1200];
    let off = || prop_oneof![2 => Just(0), 1 => 1u64..512];
    let largest = prop::sample::select(vec![Level::L1, Level::L2, Level::L3]);
    let preallocated = (off(), largest).prop_map(|(off, largest)| Kind::Preallocated(off, largest));
    let kind = prop_oneof![5 => Just(Kind::Ram), 2 => preallocated, 2 => off().prop_map(Kind::Device)];
    (gap, size, prop::bool::weighted(0.75), kind).prop_map(|(gap, size, writable, kind)| SlotPlan {
        gap,
        size,
        writable,
        kind,
    })
}

fn address() -> impl Strategy<Value = Address> {
    let offset = 0u16..4096;
    let from = prop_oneof![
        (0u64..3).prop_map(From::Start),
        (0u64..3).prop_map(From::End),
        (0u64..3).prop_map(From::HugePage),
        (0u64..1200).prop_map(From::Any),
    ];
    prop_oneof![
        9 => (0usize..4, from, offset.clone()).prop_map(|(slot, from, offset)| Address::In { slot, from, offset }),
        1 => (0u64..7000, offset).prop_map(|(page, offset)| Address::Anywhere { page, offset }),
    ]
}

fn access() -> impl Strategy<Value = AccessKind> {
    prop::sample::select(vec![AccessKind::Read, AccessKind::Write, AccessKind::Execute, AccessKind::Maintenance])
}

fn operation() -> impl Strategy<Value = Operation> {
    let kind = prop::sample::select(vec![FaultKind::Translation, FaultKind::Permission, FaultKind::AccessFlag]);
    let bytes = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 1..100),
        1 => (4000usize..9000, any::<u8>()).prop_map(|(size, byte)| vec![byte; size]),
    ];
    prop_oneof![
        5 => (address(), access()).prop_map(|(address, access)| Operation::Touch(address, access)),
        3 => (address(), kind, access()).prop_map(|(address, kind, access)| Operation::Fault(address, kind, access)),
        2 => (address(), bytes).prop_map(|(address, bytes)| Operation::Load(address, bytes)),
        3 => (address(), 1u8..).prop_map(|(address, byte)| Operation::Store(address, byte)),
    ]
}

pub fn any_scenario() -> impl Strategy<Value = Scenario> {
    let pages = prop::sample::select(vec![Pages::Largest, Pages::Largest, Pages::Small]);
    let slots = prop::collection::vec(slot(), 1..=4);
    let operations = prop::collection::vec(operation(), 1..=MOST_OPERATIONS);
    (features(), pages, slots, 0u64..6, 0u64..6, operations).prop_map(
        |(features, pages, slots, singles, huge_pages, operations)| Scenario {
            features,
            pages,
            slots,
            singles,
            huge_pages,
            operations,
        },
    )
}
