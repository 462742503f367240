// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One frame at two addresses. An entry with the expected value is the one that the walk saw only if its table is still
//! linked at the same place (W4).

use std::sync::Arc;

use super::guest::{BLOCK, Guest, LARGE, PAGE, READ, home};
use super::machine::Pages;
use super::model;
use crate::withdraw::Sample;
use crate::{Access, Attributes, Ipa, Level, Mapped, Memory};

/// Maps the frame of address 0 at `at`, without cache maintenance.
fn map(guest: &Guest, at: u64, level: Level, pages: &mut Pages) -> Mapped {
    guest.stage2.map_to(Ipa::new(at), home(Ipa::new(0)), Sample::NONE, level, &READ, pages).expect("mapped")
}

/// Runs `late` on address 0 while its table is unlinked there, and reused for the same frame in the upper half. Then
/// calls `check` with the address in the upper half.
fn meets_twin(
    levels: u32,
    level: Level,
    before: fn(&Guest, &mut Pages),
    late: fn(&Guest, &mut Pages),
    check: fn(&Guest, Ipa),
) {
    model(1, move || {
        let guest = Guest::new(levels, 9);
        let (mut own, mut takers) = (guest.pages(4..9), guest.pages(0..4));
        let half = guest.stage2.geometry().end().raw() / 2;
        assert_eq!(map(&guest, 0, level, &mut takers), Mapped::New);
        before(&guest, &mut takers);
        let guest = Arc::new(guest);
        let there = guest.clone();
        let taker = loom::thread::spawn(move || {
            there.unmap_quietly(0, half, &mut takers);
            assert_eq!(map(&there, half, level, &mut takers), Mapped::New);
        });
        late(&guest, &mut own);
        taker.join().expect("no panic");
        check(&guest, Ipa::new(half));
    });
}

fn nothing(_: &Guest, _: &mut Pages) {}

#[test]
fn a_fault() {
    let unmapped = |guest: &Guest, pages: &mut Pages| {
        guest.map(PAGE, Level::L3, pages);
        guest.unmap_quietly(0, PAGE, pages);
    };
    meets_twin(
        2,
        Level::L3,
        unmapped,
        |guest, pages| assert_eq!(map(guest, 0, Level::L3, pages), Mapped::New, "it was unmapped before"),
        |_, _| (),
    );
}

#[test]
fn a_fault_for_other_memory() {
    meets_twin(
        2,
        Level::L3,
        nothing,
        |guest, pages| {
            let device = Attributes { memory: Memory::Device, ..READ };
            guest.map_as(0, Level::L3, &device, pages);
        },
        |guest, twin| {
            let leaf = guest.stage2.look_up(twin).expect("mapped").descriptor;
            assert_eq!(
                leaf.attributes(guest.stage2.features()).memory,
                Memory::Normal,
                "a late operation replaced another page"
            );
        },
    );
}

#[test]
fn a_permission_fault() {
    meets_twin(
        2,
        Level::L3,
        nothing,
        |guest, _| {
            guest.relax(0, Access::ALL);
        },
        |guest, twin| {
            let leaf = guest.stage2.look_up(twin).expect("mapped").descriptor;
            assert_eq!(leaf.access(), Access::READ, "a late operation gave another page more access");
        },
    );
}

#[test]
fn a_split() {
    assert_eq!(LARGE, 2 * BLOCK);
    meets_twin(
        3,
        Level::L2,
        nothing,
        |guest, pages| guest.split(0, BLOCK, pages),
        |guest, twin| {
            assert_eq!(
                guest.stage2.look_up(twin).expect("mapped").level,
                Level::L2,
                "a late operation split another block"
            )
        },
    );
}
