// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPUs that coalesce one table at the same time: one of them claims it, and cleans what the block needs (Wang 2021:
//! clean on map).

use std::sync::atomic::Ordering;

use super::guest::{FWB, Guest, PAGE, RAM};
use super::machine::{Machine, Pages, Watch};
use super::{Operation, meet};
use crate::{Features, Level};

const NO_FWB: Features = Features { forced_write_back: false, ..FWB };

/// A table with one of its two pages mapped. That page was cleaned when it was mapped.
fn page() -> (Guest, [Pages; 2]) {
    let guest = Guest::on(Machine::new(10, Watch::Cleaning), NO_FWB, 2);
    let (mut first, second) = (guest.pages(0..5), guest.pages(5..9));
    guest.map(0, Level::L3, &mut first);
    (guest, [first, second])
}

#[test]
fn what_is_not_mapped_is_cleaned_once() {
    let coalesce: Operation = |guest, pages| guest.coalesce(0, Level::L2, &RAM, pages);
    meet(2, page, [coalesce, coalesce], |guest, pools| {
        assert_eq!(guest.check(pools).len(), 2);
        let cleaned = guest.machine().0.cleaned.as_ref().expect("counted").load(Ordering::Relaxed);
        assert_eq!(cleaned as u64, 2 * PAGE, "each page is cleaned by one CPU");
    });
}
