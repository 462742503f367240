// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random operations on tables of each granule, at both ends of IPA size, with memory at the end of the IPA space and, where
//! addresses have 52 bits, beyond 48 bits of physical address. The seed is printed if a rule is broken.

use twofold_stage2::{Contiguous, Features, Granule, Kib4, Kib4Lpa2, Kib16, Kib16Lpa2, Kib64, Pa};

use super::layout::Layout;
use super::{CPUS, operations, random_operations_at, seed};
use crate::world::{GIB, MODERN, PLAIN, World};

/// Physical addresses of 52 bits.
const LARGE: Features = MODERN.with_pa_bits(52);
/// Armv8.0 with all granules: no FEAT_S2FWB, no TLBI by range, no level hints.
const OLD: Features = PLAIN.with_granule_16k(true);
const OLD_LARGE: Features = OLD.with_pa_bits(52).with_lpa2_4k(true).with_lpa2_16k(true);
/// Where memory begins: in the middle of 48 bits, and far beyond.
const LOW: Pa = Pa::new(GIB);
const HIGH: Pa = Pa::new(0xd << 48);

/// The features of FEAT_BBM: each level, and level 2 of a CPU that raises no conflict abort.
fn resizes(features: Features) -> [Features; 4] {
    let level = |bbm| features.with_bbm(bbm);
    [features, level(1), level(2), level(2).with_no_conflict_abort(true)]
}

/// A fifth of the operations on an old CPU, and as many on a modern one with each kind of FEAT_BBM.
fn random<G: Granule>(layout: Layout<G>, base: Pa, modern: Features, old: Features) {
    let huge_page = Layout::<G>::span(2);
    // Frames of two guests, twice, and memory to lend; a block of level 1 each.
    let small = if G::SIZE == 4096 { 48 } else { 18 } * huge_page + (16 << 20).max(huge_page);
    let memory = if layout.giant.is_some() { 5 * Layout::<G>::span(1) } else { small };
    let kinds = [old].into_iter().chain(resizes(modern));
    for features in kinds {
        let machine = |seed| World::<G>::of_granule(features, CPUS, seed, base, memory);
        random_operations_at(layout, machine, operations(2_500) / 5, seed());
    }
}

#[test]
fn judge_4_kib_with_32_bits() {
    random::<Kib4>(Layout::at_the_end(32, false), LOW, MODERN, PLAIN);
}

#[test]
fn judge_4_kib_with_48_bits() {
    random::<Kib4>(Layout::at_the_end(48, true), LOW, MODERN, PLAIN);
}

#[test]
fn judge_4_kib_lpa2_with_32_bits() {
    random::<Kib4Lpa2>(Layout::new(32, GIB, false), HIGH, LARGE, OLD_LARGE);
}

#[test]
fn judge_4_kib_lpa2_with_52_bits() {
    random::<Kib4Lpa2>(Layout::at_the_end(52, true), HIGH, LARGE, OLD_LARGE);
}

#[test]
fn judge_16_kib_with_32_bits() {
    random::<Kib16>(Layout::new(32, GIB, false), LOW, MODERN, OLD);
}

#[test]
fn judge_16_kib_with_48_bits() {
    random::<Kib16>(Layout::at_the_end(48, false), LOW, MODERN, OLD);
}

#[test]
fn judge_16_kib_lpa2_with_32_bits() {
    random::<Kib16Lpa2>(Layout::new(32, GIB, false), HIGH, LARGE, OLD_LARGE);
}

#[test]
fn judge_16_kib_lpa2_with_52_bits() {
    random::<Kib16Lpa2>(Layout::at_the_end(52, false), HIGH, LARGE, OLD_LARGE);
}

#[test]
fn judge_64_kib_with_32_bits() {
    random::<Kib64>(Layout::new(32, GIB, false), LOW, MODERN, OLD);
}

#[test]
fn judge_64_kib_with_48_bits() {
    random::<Kib64>(Layout::at_the_end(48, false), LOW, MODERN, OLD);
}

#[test]
fn judge_64_kib_with_52_bits() {
    random::<Kib64>(Layout::at_the_end(52, false), HIGH, LARGE, OLD_LARGE);
}

#[test]
fn judge_groups_of_4_kib_with_32_bits() {
    random::<Contiguous<Kib4>>(Layout::at_the_end(32, false), LOW, MODERN, PLAIN);
}

#[test]
fn judge_groups_of_4_kib_with_48_bits() {
    random::<Contiguous<Kib4>>(Layout::at_the_end(48, true), LOW, MODERN, PLAIN);
}

#[test]
fn judge_groups_of_4_kib_lpa2_with_52_bits() {
    random::<Contiguous<Kib4Lpa2>>(Layout::at_the_end(52, true), HIGH, LARGE, OLD_LARGE);
}

#[test]
fn judge_groups_of_16_kib_with_48_bits() {
    random::<Contiguous<Kib16>>(Layout::at_the_end(48, false), LOW, MODERN, OLD);
}

#[test]
fn judge_groups_of_16_kib_lpa2_with_52_bits() {
    random::<Contiguous<Kib16Lpa2>>(Layout::at_the_end(52, false), HIGH, LARGE, OLD_LARGE);
}

#[test]
fn judge_groups_of_64_kib_with_52_bits() {
    random::<Contiguous<Kib64>>(Layout::at_the_end(52, false), HIGH, LARGE, OLD_LARGE);
}
