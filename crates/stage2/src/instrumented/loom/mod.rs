// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations that run at the same time, in every order that the memory model allows.
//!
//! The model checker `loom` runs the engine itself, on tables of two entries. Each test lets a few operations meet, and
//! checks what must be true after every order. Accesses are ordered only by the orderings that the engine gives to the
//! compiler, and not by barriers. So an ordering that is too weak shows here on any host.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p twofold-stage2 --lib loom::` runs the tests. Each test limits the
//! preemptions of a thread; `LOOM_MAX_PREEMPTIONS` overrides that.

mod busy;
mod claim;
mod flush;
mod groups;
mod guest;
mod hardware;
mod late;
mod lock;
mod machine;
mod meetings;
mod pool;
mod published;
mod resized;
mod reused;
mod reused_groups;
mod same_frame;
mod vmids;
mod withdrawn;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use guest::Guest;
use machine::Pages;

/// Runs `body` in every order with at most `preemptions` preemptions, unless the environment sets another limit.
fn model(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.max_branches = 20_000;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        body();
    });
    println!("{} orders", runs.load(Ordering::Relaxed));
}

/// What a thread does, with table pages of its own.
type Operation = fn(&Guest, &mut Pages);

/// Runs operations side by side on the guest that `guest` makes, and then calls `check`. Its pools are those of the
/// operations, in their order, with the pages that are left.
fn meet<const N: usize>(
    preemptions: usize,
    guest: fn() -> (Guest, [Pages; N]),
    operations: [Operation; N],
    check: impl Fn(&Guest, &[Pages; N]) + Send + Sync + 'static,
) {
    model(preemptions, move || {
        let (guest, pools) = guest();
        let guest = Arc::new(guest);
        let mut work = operations.into_iter().zip(pools);
        let (here, mut own) = work.next().expect("an operation");
        let others = work.map(|(operation, mut pages)| {
            let guest = guest.clone();
            loom::thread::spawn(move || {
                operation(&guest, &mut pages);
                pages
            })
        });
        let others: Vec<_> = others.collect();
        here(&guest, &mut own);
        let mut pools = vec![own];
        pools.extend(others.into_iter().map(|other| other.join().expect("no panic")));
        let Ok(pools) = pools.try_into() else { unreachable!("one for each operation") };
        check(&guest, &pools);
    });
}
