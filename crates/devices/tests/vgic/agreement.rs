// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The naive model and ours agree on all that a guest can see, for a million random events (`TWOFOLD_VGIC_EVENTS`).

use crate::random::Random;
use crate::world::{Shape, World};

/// Events with one shape and seed.
const RUN: usize = 750;

/// Affinities of vCPUs: usual ones, a second cluster, beyond 16 in one, and all four levels.
const AFFINITIES: [&[u32]; 5] = [&[0], &[0, 1], &[0, 1, 2, 3], &[0, 0x100, 17], &[0x0102_0304, 0, 0x1f]];

#[test]
fn the_model_and_ours_agree() {
    let events = std::env::var("TWOFOLD_VGIC_EVENTS").map_or(12_000, |n| n.parse().expect("a number of events"));
    let seed = std::env::var("TWOFOLD_VGIC_SEED").map_or(1, |n| n.parse().expect("a seed"));
    let (mut acknowledged, mut evictions) = (0, 0);
    for n in 0..usize::div_ceil(events, RUN) as u64 {
        let seed = seed + n;
        eprintln!("TWOFOLD_VGIC_SEED={seed} TWOFOLD_VGIC_EVENTS={RUN}");
        let mut random = Random(seed);
        let list_registers = 1 + seed as usize % 16;
        let affinities = random.pick(&AFFINITIES);
        let cpus = 1 + random.below(affinities.len());
        let list_registers = (0..cpus).map(|_| {
            // Most CPUs are alike.
            if random.one_in(4) { 1 + random.below(16) } else { list_registers }
        });
        let shape = Shape {
            list_registers: list_registers.collect(),
            affinities: affinities.to_vec(),
            bits: 5 + random.below(3) as u32,
            compares: random.one_in(2),
        };
        let mut world = World::new(shape, random);
        if !seed.is_multiple_of(4) {
            world.setup();
        }
        for _ in 0..RUN {
            world.step();
        }
        acknowledged += world.acknowledged;
        evictions += world.evictions;
    }
    eprintln!("{acknowledged} interrupts acknowledged, {evictions} ended outside list registers");
    assert!(acknowledged as usize > events / 40, "{acknowledged} of {events} events");
    assert!(evictions > 0);
}
