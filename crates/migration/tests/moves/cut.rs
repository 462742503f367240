// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Links that are cut at random places, with an arbiter that cannot always be reached: exactly one side runs after, and
//! its memory is the guest's.

use std::sync::atomic::Ordering;

use twofold_memory::dirty::Tracker;
use twofold_migration::commit::Owner;

use crate::guest::places;
use crate::link::{Arbiter, Cut};
use crate::moved::{Move, first};
use crate::{Random, setting};

#[test]
fn one_side_runs_wherever_a_link_is_cut() {
    let (cuts, seed) = (setting("TWOFOLD_CUTS", 150), setting("TWOFOLD_SEED", 1));
    println!("TWOFOLD_SEED={seed}");
    let mut random = Random(seed);
    let [mut here, mut there] = places();
    let mut guest = here.boot(1, (40, 80));
    let (mut whole, mut moves, mut back, mut stayed) = (600_000, 0, 0, 0);
    for number in 0..cuts {
        let mut record = first();
        record.epoch = number * 10;
        record.owner = Owner { host: 0, incarnation: number };
        let arbiter = Arbiter::new(record);
        for (requests, answers) in &arbiter.lost {
            requests.store(random.below(3), Ordering::Relaxed);
            answers.store(random.below(3), Ordering::Relaxed);
        }
        let streams = 1 + random.below(2) as usize;
        let stream = random.below(streams as u64) as usize;
        let cut = match random.below(5) {
            0 => (stream, Cut::Bytes(random.below(whole / streams as u64))),
            1 => (stream, Cut::Stopped(random.below(20_000))),
            2 => (streams, Cut::Bytes(random.below(150))),
            _ => (stream, Cut::End(random.below(60))),
        };
        let tracker = Tracker::ALL[random.below(5) as usize];
        let all = Move { streams, cut: Some(cut), ..Move::new(tracker) };
        let moved = all.go(&guest, &mut there, &arbiter);
        if let Ok(offered) = &moved.result
            && offered.broken.is_none()
        {
            whole = offered.sent.bytes;
        }
        let offered = moved.result.is_ok();
        match moved.check(&guest, &mut there, &arbiter) {
            Some(came) => {
                here.end(std::mem::replace(&mut guest, came));
                std::mem::swap(&mut here, &mut there);
                moves += 1;
            }
            None if offered => back += 1,
            None => stayed += 1,
        }
        guest.work(0, 200);
    }
    println!("{cuts} links cut: {moves} guests moved, {back} were taken back, {stayed} were not offered");
    assert!(moves > cuts / 20 && back > cuts / 20 && stayed > cuts / 20, "{moves}, {back}, {stayed}");
}
