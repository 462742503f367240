// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `devices`: Debian on a disk, with a network, under the hypervisor.
//!
//! | file | contents |
//! |---|---|
//! | [`debian`] | the guest, and scripts that it runs at its first login |
//! | [`cut`] | the power is cut while the guest writes |
//! | [`memory`] | memory that a guest does not use |
//! | [`network`] | guests that talk to each other, to the host, and to Redis's clients on both sides |
//! | [`forgetful`], [`nbd`] | a store that forgets what was not flushed, and its server for QEMU |
//!
//! Invariant: a guest judges by itself, by the exit status of its script. What it prints beside that is compared with what
//! this side knows.

mod cut;
pub(super) mod debian;
mod forgetful;
mod memory;
pub(super) mod nbd;
mod network;

use std::sync::Arc;

use libtest_mimic::Failed;
use twofold_workspace::kernels::Kernel;
use twofold_workspace::{Workspace, build, install};

use super::harness::{self, Depth, Tally, harness};
use crate::arguments::TestOptions;
use debian::Guests;

/// Runs the suite.
pub fn run(workspace: &Workspace, depth: Depth, options: &TestOptions) -> anyhow::Result<Tally> {
    if !options.list {
        install::target(install::TARGET)?;
        build::images(workspace, &[build::HYPERVISOR])?;
    }
    let guests = Arc::new(Guests::new(workspace, options.list)?);
    let chosen = TESTS.iter().filter(|(_, at, _)| depth == Depth::Full || *at == Depth::Quick);
    let mut trials: Vec<_> = chosen.map(|(name, _, test)| trial(&guests, (*name).to_owned(), test)).collect();
    if depth == Depth::Full {
        let others = Kernel::ALL.into_iter().filter(|kernel| *kernel != Kernel::DEFAULT);
        trials.extend(others.map(|kernel| {
            let name = format!("a_disk_of_kernel_{}_{}", kernel.series, kernel.flavour);
            trial(&guests, name, move |guests| debian::boots(guests, kernel))
        }));
    }
    harness(trials, 1, options)
}

fn trial(
    guests: &Arc<Guests>,
    name: String,
    test: impl FnOnce(&Guests) -> anyhow::Result<()> + Send + 'static,
) -> libtest_mimic::Trial {
    let guests = Arc::clone(guests);
    harness::trial(&name, move || test(&guests).map_err(|error| Failed::from(format!("{error:#}"))))
}

type Test = fn(&Guests) -> anyhow::Result<()>;

const TESTS: &[(&str, Depth, Test)] = &[
    ("debian_boots_to_a_login_and_verifies_a_disk", Depth::Quick, |guests| debian::boots(guests, Kernel::DEFAULT)),
    ("debian_in_a_quarter_of_its_memory_verifies_a_disk", Depth::Full, debian::in_few_pages),
    ("memory_that_debian_does_not_use_comes_back", Depth::Quick, |guests| memory::comes_back(guests, None)),
    ("memory_that_debian_does_not_use_leaves_no_page_in_a_store", Depth::Full, |guests| {
        memory::comes_back(guests, Some(memory::IN_HALF_THE_MEMORY))
    }),
    ("a_disk_is_clean_after_power_off", Depth::Full, debian::boots_again),
    ("what_was_synced_survives_a_cut", Depth::Full, cut::survives),
    ("guests_talk_to_each_other_and_to_the_host", Depth::Full, network::talk),
    ("redis_from_the_guest_and_from_the_host", Depth::Full, network::redis),
];
