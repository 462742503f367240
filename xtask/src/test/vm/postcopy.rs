// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: guests that move by post-copy. All of their RAM is absent when they go on at the target, and comes when they
//! need it, or after that.

use anyhow::ensure;
use twofold_workspace::output;

use super::Test;
use super::machines::Machines;
use super::moves::course::followed;
use crate::test::harness::Depth;

pub(super) const TESTS: &[Test] = &[
    ("postcopy::a_watcher_moves_once", Depth::Quick, |machines| watcher(machines, 1)),
    ("postcopy::a_watcher_moves_10_times", Depth::Full, |machines| watcher(machines, 10)),
    ("postcopy::linux_moves_under_load", Depth::Full, |machines| linux(machines, 3)),
];

/// A guest with secrets in all registers, vector registers and memory moves.
fn watcher(machines: &Machines, moves: usize) -> anyhow::Result<()> {
    let guest = machines.bare("guest", 2, &format!("watch={} moved", 8_000 * moves));
    let outcome = followed(machines, &guest, "watch: begins", moves, None, &|fetched| {
        output::remark(&format!("{fetched:?}"));
        ensure!(fetched.left == 0 && fetched.asked > 0 && fetched.pages >= fetched.asked, "{fetched:?}");
        ensure!(fetched.pages + fetched.zeroes == guest.memory >> 12, "{fetched:?}");
        Ok(())
    })?;
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(console.contains("nothing changed"), "{console}");
    Ok(())
}

/// Debian's Linux moves under load.
fn linux(machines: &Machines, moves: usize) -> anyhow::Result<()> {
    let guest = machines.linux("guest", 2, 25 * moves as u32)?;
    let outcome = followed(machines, &guest, "", moves, None, &|fetched| {
        output::remark(&format!("{fetched:?}"));
        ensure!(fetched.left == 0 && fetched.asked > 0, "{fetched:?}");
        Ok(())
    })?;
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(console.contains("guest check: ok"), "{console}");
    Ok(())
}
