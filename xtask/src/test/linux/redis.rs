// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `linux`: what `redis-benchmark` inside a guest costs at EL2.
//!
//! Two counted boots differ in the benchmark alone, so their difference is its price: the start of the program and its
//! 50 clients included. A page that the boot alone would have touched later counts for the benchmark, and the other way
//! round. So the target holds for boot and benchmark together, which is more than it asks for.

use anyhow::{Context, ensure};
use twofold_abi::bundle::flags;
use twofold_launch::{GuestSettings, Pages};

use super::suite::Suite;
use crate::redis;

/// Requests, as in KVM's figure.
const REQUESTS: u64 = 20_000;
/// The most instructions at EL2. KVM with kvmtool takes 210.8 M, and the guest itself 3,401.5 M.
const MOST: u64 = 17_000_000;
/// The least part of the guest's instructions that they are.
const PART: u64 = 200;

/// Checks what the benchmark costs at EL2, with pages of 4 KiB.
pub fn budget(suite: &Suite) -> anyhow::Result<()> {
    let (linux, _, initrd) = redis::guest(&suite.workspace, false)?;
    let measured = |requests: u64| {
        let guest = GuestSettings {
            kernel: linux.kernel.clone(),
            initrd: Some(initrd.clone()),
            memory: 512 << 20,
            pages: Pages::Small,
            ..suite.bare_guest(
                &format!("console=ttyAMA0 panic=-1 loglevel=4 nokaslr twofold.redis={requests}"),
                flags::COUNT,
            )
        };
        let outcome = suite.boot_counted(guest)?;
        let console = outcome.console.tail(usize::MAX).join("\n");
        let words = format!("redis: {requests} requests in ");
        let time = console.split_once(&words).and_then(|(_, rest)| rest.split(' ').next()?.parse::<u64>().ok());
        let time = time.with_context(|| format!("the guest measured nothing:\n{console}"))?;
        let spent = outcome.control.report.get("el2_instructions.total").context("nothing was counted")?;
        anyhow::Ok((spent, time))
    };
    let ((without, _), (with, hundredths)) = (measured(0)?, measured(REQUESTS)?);
    let spent = with.saturating_sub(without);
    // An instruction takes a nanosecond of virtual time.
    let of_guest = (hundredths * 10_000_000).saturating_sub(spent);
    println!(
        "redis: {spent} instructions at EL2 for {REQUESTS} requests, and {of_guest} of the guest; with the boot {with}"
    );
    ensure!(with <= MOST, "{with} instructions at EL2 with the boot, more than {MOST}");
    ensure!(
        spent <= of_guest / PART,
        "{spent} instructions at EL2 are more than one in {PART} of the guest's {of_guest}"
    );
    Ok(())
}
