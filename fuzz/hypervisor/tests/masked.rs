// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where EL2 looks for interrupts, the counter is read only if the CPU counts, and each look belongs to one exit.

use std::cell::Cell;

use twofold_fuzz_hypervisor::masked::{Looks, Seen};

thread_local! {
    static COUNTER: Cell<u64> = const { Cell::new(0) };
}

extern "C" fn read() -> u64 {
    COUNTER.get()
}

fn look_at(looks: &Looks, counters: &[u64]) -> Option<Seen> {
    for counter in counters {
        COUNTER.set(*counter);
        looks.look();
    }
    looks.take()
}

#[test]
fn a_cpu_that_does_not_count_sees_nothing() {
    assert_eq!(look_at(&Looks::none(), &[1, 2]), None);
}

#[test]
fn the_longest_time_between_two_looks_is_kept() {
    let looks = Looks::none();
    looks.count_by(read, u32::MAX.into());
    assert_eq!(look_at(&looks, &[]), None);
    assert_eq!(look_at(&looks, &[700]), Some(Seen { first: 700, last: 700, longest: 0 }));
    assert_eq!(look_at(&looks, &[1000, 1010, 1050, 1055]), Some(Seen { first: 1000, last: 1055, longest: 40 }));
    assert_eq!(look_at(&looks, &[2000, 2001]), Some(Seen { first: 2000, last: 2001, longest: 1 }), "of this exit only");
    let wraps = [u32::MAX.into(), 9];
    assert_eq!(look_at(&looks, &wraps), Some(Seen { first: wraps[0], last: 9, longest: 10 }), "the counter wraps");
    assert_eq!(look_at(&looks, &[9]), Some(Seen { first: 9, last: 9, longest: 0 }), "one look, after an exit with two");
    assert_eq!(looks.take(), None);
}
