// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that is cleaned ahead, piece by piece, is not cleaned once more when it is mapped.

use std::panic::{AssertUnwindSafe, catch_unwind};

use twofold_stage2::{CleanedPieces, Error, Execute, Kib16, Memory, Run};

use super::*;
use crate::platform::window::window;
use crate::platform::{KIB_4, MIB_2, frame, frames, table};

const PIECE: u64 = 128 << 10;
const PIPT: Features = PLAIN.with_instruction_cache_pipt(true);

fn clean(guest: &Guest, cleaned: &mut CleanedPieces, run: &Run, offset: u64) {
    cleaned.clean(guest.stage2.platform(), guest.stage2.features(), run, offset);
}

/// All pieces of the block whose first frame is [`frame`]`(0)`.
fn all_cleaned() -> CleanedPieces {
    let guest = guest(PLAIN);
    let (run, mut cleaned) = (frames(0, MIB_2), CleanedPieces::default());
    for offset in (0..MIB_2).step_by(PIECE as usize) {
        assert!(!cleaned.are_all());
        clean(&guest, &mut cleaned, &run, offset);
    }
    assert!(cleaned.are_all());
    assert_eq!(guest.events().iter().filter(|event| **event == Event::Dsb(Domain::Ish)).count(), 16);
    cleaned
}

#[test]
fn a_piece_is_cleaned_and_noted_alone() {
    let guest = guest(PLAIN);
    let mut cleaned = CleanedPieces::default();
    clean(&guest, &mut cleaned, &frames(0, MIB_2), 5 * PIECE);
    assert_eq!(guest.events(), [Event::Clean(frame(5 * PIECE), PIECE), Event::Dsb(Domain::Ish)]);
    let noted: Vec<_> = (0..16).filter(|piece| cleaned.has(piece * PIECE)).collect();
    assert_eq!(noted, [5]);
    assert!(cleaned.has(6 * PIECE - 1) && !cleaned.has(5 * PIECE - 1));
}

/// Not even in a run that is larger. To forget what is there forgets nothing.
#[test]
fn nothing_beyond_the_block_counts_as_cleaned() {
    let mut cleaned = all_cleaned();
    for offset in [MIB_2, 64 * PIECE, u64::MAX] {
        assert!(!cleaned.has(offset), "{offset:#x}");
        cleaned.forget(offset);
    }
    assert!(cleaned.are_all());
}

/// A piece ends inside the run, and inside the 2 MiB from its start.
#[test]
fn what_is_no_piece_is_not_cleaned() {
    let guest = guest(PLAIN);
    for (size, offset) in [
        (MIB_2, PIECE / 2),
        (MIB_2, MIB_2),
        (MIB_2 + PIECE, MIB_2),
        (PIECE / 2, 0),
        (3 * PIECE - KIB_4, 2 * PIECE),
        (MIB_2, PIECE.wrapping_neg()),
    ] {
        let mut cleaned = CleanedPieces::default();
        let cleans = AssertUnwindSafe(|| clean(&guest, &mut cleaned, &frames(0, size), offset));
        assert!(catch_unwind(cleans).is_err(), "{offset:#x} bytes into {size:#x}");
        assert_eq!((guest.events(), cleaned), (vec![], CleanedPieces::default()));
    }
}

/// Unless a piece is missing, or the memory is not normal. Code is invalidated in any case.
#[test]
fn a_block_that_was_cleaned_ahead_is_mapped_without_cleaning() {
    let whole = || vec![Event::Clean(frame(0), MIB_2), Event::Dsb(Domain::Ish)];
    let code = vec![Event::Dsb(Domain::Ish), Event::InvalidateCode(frame(0), MIB_2), Event::Dsb(Domain::Ish)];
    let not_cached = Attributes { memory: Memory::NonCacheable, ..RAM };
    for (attributes, written, maintenance) in [
        (RAM, None, vec![]),
        (RAM, Some(MIB_2 - 1), whole()),
        (not_cached, None, whole()),
        (Attributes::ram(Access::ALL), None, code),
    ] {
        let mut guest = guest(PIPT);
        guest.watch(BASE);
        let mut cleaned = all_cleaned();
        written.into_iter().for_each(|offset| cleaned.forget(offset));
        let grant = guest.stage2.open(window(frame(0), MIB_2), BASE);
        assert_eq!(grant.map_cleaned(&attributes, cleaned, &mut guest.pool), Ok(Mapped::New));
        let linked = vec![Event::Take(table(0)), Event::Dsb(Domain::IshSt)];
        let made = vec![sees(BASE, 2, frame(0), attributes.access), Event::Dsb(Domain::IshSt)];
        assert_eq!(guest.events(), [linked, maintenance, made].concat(), "{attributes:?}, written: {written:?}");
    }
}

/// The pieces are those of 2 MiB. The root of these tables has the block, so no table page is needed.
#[test]
fn a_block_of_another_granule_is_cleaned_as_a_whole() {
    const MIB_32: u64 = 32 << 20;
    let mut guest = Guest::of(Kib16, PLAIN.with_granule_16k(true), 36, 0);
    guest.events();
    let grant = guest.stage2.open(window(frame(0), MIB_32), BASE);
    assert_eq!(grant.map_cleaned(&RAM, all_cleaned(), &mut guest.pool), Ok(Mapped::New));
    let cleaned = [Event::Clean(frame(0), MIB_32), Event::Dsb(Domain::Ish), Event::Dsb(Domain::IshSt)];
    assert_eq!(guest.events(), cleaned);
}

#[test]
fn a_block_that_was_cleaned_ahead_is_checked_as_any_other() {
    let mut guest = guest(PLAIN);
    let mut map = |pa, size, attributes: &Attributes| {
        let grant = guest.stage2.open(window(pa, size), BASE);
        grant.map_cleaned(attributes, all_cleaned(), &mut guest.pool)
    };
    assert_eq!(map(frame(0), MIB_2 - KIB_4, &RAM), Err(Error::NotGranted { ipa: BASE, size: MIB_2 }));
    let address = frame(KIB_4);
    assert_eq!(map(address, MIB_2, &RAM), Err(Error::Misaligned { address: address.raw(), size: MIB_2 }));
    let kernel = Attributes::ram(Access { execute: Execute::EL1, ..Access::READ });
    assert_eq!(map(frame(0), MIB_2, &kernel), Err(Error::ExecuteNeedsXnx));
    assert_eq!(guest.scan().leaves, []);
}

/// Only where nothing is mapped, and only on a CPU that has to clean normal memory.
#[test]
fn a_block_is_cleaned_ahead_where_its_mapping_would_clean_it() {
    let end = Ipa::new(1 << IPA_BITS);
    for features in [PLAIN, HINTS] {
        let mut guest = guest(features);
        map(&mut guest, BASE, frame(0), Level::L3, &RAM);
        map(&mut guest, BASE + MIB_2, frame(MIB_2), Level::L2, &RAM);
        let at = [BASE, BASE + MIB_2, BASE + 2 * MIB_2, end - MIB_2, end, end + MIB_2];
        let expected = [false, false, true, true, false, false].map(|cleans| cleans && !features.forced_write_back);
        assert_eq!(at.map(|ipa| guest.stage2.cleans_block(ipa)), expected);
    }
}
