// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves for each operation the exact sequence of instructions, and where between them the tables change.
//!
//! A sequence is compared as a whole, so a missing, added or moved instruction fails a test. TLBI operands are compared
//! as the architecture decodes them ([`platform::tlb`]).

#[path = "../platform/mod.rs"]
mod platform;

mod change;
mod clean_ahead;
mod coalesce;
mod content;
mod dbm;
mod flush;
mod grant;
mod group_ranges;
mod groups;
mod map;
mod map_over;
mod map_range;
mod meanwhile;
mod peers;
mod pending;
mod protect;
mod resize;
mod split;
mod unmap;
mod vmids;
mod withdraw;

use crate::platform::window::ByAddress as _;
use platform::tlb::Reach;
use platform::{Event, GIB, Guest, Host, PLAIN, Sight};
use twofold_stage2::platform::{Domain, Tlbi};
use twofold_stage2::{Access, Attributes, Features, Granule, Ipa, IpaRange, Level, Mapped, Pa, Stage2};

/// Level hints, and no cache maintenance, which has its own tests.
const HINTS: Features = PLAIN.with_tlbi_level_hint(true).with_forced_write_back(true);
const RANGES: Features = HINTS.with_tlbi_range(true);

const RAM: Attributes = Attributes::ram(Access::READ_WRITE);

/// Level 1 is the root: a page takes two tables.
const IPA_BITS: u32 = 40;
/// An address where a block of any size may start.
const BASE: Ipa = Ipa::new(4 * GIB);

fn guest(features: Features) -> Guest {
    let mut guest = Guest::new(features, IPA_BITS);
    guest.check = counts_agree;
    guest.events();
    guest
}

/// The counts of the tables agree with their entries.
fn counts_agree<G: Granule>(stage2: &Stage2<Host, G>) {
    #[cfg(feature = "checked")]
    stage2.audit().unwrap();
    #[cfg(not(feature = "checked"))]
    let _ = stage2;
}

/// Maps a leaf where none is, and forgets the recorded events.
fn map<G: Granule>(guest: &mut Guest<G>, ipa: Ipa, pa: Pa, level: Level, attributes: &Attributes) {
    assert_eq!(guest.stage2.map(ipa, pa, level, attributes, &mut guest.pool), Ok(Mapped::New));
    guest.events();
}

/// Maps `count` pages, one after the other.
fn map_pages(guest: &mut Guest, ipa: Ipa, pa: Pa, pages: u64) {
    for offset in (0..pages * 4096).step_by(4096) {
        map(guest, ipa + offset, pa + offset, Level::L3, &RAM);
    }
}

fn range(start: Ipa, size: u64) -> IpaRange {
    start..start + size
}

fn sees(ipa: Ipa, level: u8, pa: Pa, access: Access) -> Event {
    Event::Sees(ipa, Some(Sight { level, pa, access }))
}

fn sees_nothing(ipa: Ipa) -> Event {
    Event::Sees(ipa, None)
}

/// The flush by address on all CPUs, with these invalidations.
fn by_ipa(stage2: &[(Tlbi, Reach)]) -> Vec<Event> {
    let mut events = vec![Event::Dsb(Domain::IshSt)];
    events.extend(stage2.iter().map(|(operation, reach)| Event::Tlbi(*operation, *reach)));
    events.extend([
        Event::Dsb(Domain::Ish),
        Event::Tlbi(Tlbi::VmallE1Is, Reach::Vmid),
        Event::Dsb(Domain::Ish),
        Event::Isb,
    ]);
    events
}

/// The flush of one leaf on all CPUs.
fn by_leaf(ipa: Ipa, level: Option<u8>) -> Vec<Event> {
    by_ipa(&[(Tlbi::Ipas2Le1Is, Reach::At(ipa, level))])
}

/// The flush of the whole guest on all CPUs.
fn by_vmid() -> Vec<Event> {
    vec![Event::Dsb(Domain::IshSt), Event::Tlbi(Tlbi::VmallS12E1Is, Reach::Vmid), Event::Dsb(Domain::Ish), Event::Isb]
}

/// The flush of one leaf on this CPU only.
fn on_this_cpu(ipa: Ipa, level: impl Into<Option<u8>>) -> Vec<Event> {
    vec![
        Event::Dsb(Domain::NshSt),
        Event::Tlbi(Tlbi::Ipas2E1, Reach::At(ipa, level.into())),
        Event::Dsb(Domain::Nsh),
        Event::Tlbi(Tlbi::VmallE1, Reach::Vmid),
        Event::Dsb(Domain::Nsh),
        Event::Isb,
    ]
}
