// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Moves back and forth.

use twofold_memory::dirty::Tracker;
use twofold_migration::stream::Compression;

use crate::guest::places;
use crate::link::Arbiter;
use crate::moved::{Move, first};
use crate::setting;

#[test]
fn a_guest_moves_back_and_forth_with_each_tracker() {
    let moves = setting("TWOFOLD_MOVES", 6);
    for tracker in Tracker::ALL {
        let [mut here, mut there] = places();
        let mut guest = here.boot(2, (40, 80));
        let (mut done, mut rounds) = (0, 0);
        for number in 0..moves {
            let mut record = first();
            record.epoch = number;
            let arbiter = Arbiter::new(record);
            let all = Move {
                streams: [1, 3, 2][number as usize % 3],
                compression: if number % 2 == 0 { Compression::Off } else { Compression::Lz4 },
                rates: vec![30_000, 20_000],
                ..Move::new(tracker)
            };
            let moved = all.go(&guest, &mut there, &arbiter);
            assert_eq!(moved.received, Ok(()), "{tracker:?}");
            rounds += moved.result.as_ref().unwrap().sent.rounds;
            let came = moved.check(&guest, &mut there, &arbiter).expect("it moved");
            here.end(guest);
            guest = came;
            // It checks what it wrote before, wherever that was.
            guest.work(0, 1000);
            assert!(guest.done() > done + 1000, "it wrote while it moved");
            done = guest.done();
            core::mem::swap(&mut here, &mut there);
        }
        assert!(rounds > 2 * moves, "{tracker:?}: {rounds} rounds in {moves} moves: the guest wrote too little");
    }
}
