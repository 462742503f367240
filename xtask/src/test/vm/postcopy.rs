// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: guests that move by post-copy. All of their RAM is absent when they go on at the target, and comes when they
//! need it, or after that.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_abi::bundle::flags;
use twofold_launch::GuestSettings;
use twofold_launch::swap::{Mode, Store, Swap};
use twofold_migration::precopy::Sent;
use twofold_workspace::output;

use super::Test;
use super::machines::{Clock, Machines, figure};
use super::moves::course::{Links, followed};
use super::moves::cut::carry;
use crate::test::harness::Depth;

pub(super) const TESTS: &[Test] = &[
    ("postcopy::a_watcher_moves_once", Depth::Quick, |machines| watcher(machines, 1)),
    ("postcopy::a_watcher_moves_10_times", Depth::Full, |machines| watcher(machines, 10)),
    ("postcopy::a_link_is_cut_twice_after_the_switch", Depth::Quick, cut),
    ("postcopy::tasks_that_know_absent_pages_move", Depth::Full, |machines| tasks(machines, 2)),
    ("postcopy::work_while_pages_come", Depth::Quick, work),
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

/// The link is cut while pages follow the guest, and so is the next one. The guest stands still where it needs a page, and goes on
/// over the third.
fn cut(machines: &Machines) -> anyhow::Result<()> {
    let guest = machines.bare("guest", 2, "watch=8000 moved");
    let outcome = followed(machines, &guest, "watch: begins", 1, Some(&Relay), &|fetched| {
        output::remark(&format!("{fetched:?}"));
        ensure!((fetched.left, fetched.links) == (0, 2), "{fetched:?}");
        Ok(())
    })?;
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(console.contains("nothing changed"), "{console}");
    Ok(())
}

/// Stands on the link, and cuts it twice.
struct Relay;

/// The bytes after which: behind the guest's images and state, and among its pages.
const CUTS: [u64; 2] = [700 << 10, 200 << 10];

impl Links for Relay {
    fn has_more(&self) -> bool {
        false
    }

    fn next(&self, to: SocketAddr) -> anyhow::Result<Option<SocketAddr>> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        thread::spawn(move || -> std::io::Result<()> {
            for limit in CUTS.into_iter().chain([u64::MAX]) {
                let (source, _) = listener.accept()?;
                let target = TcpStream::connect(to)?;
                let answers = (target.try_clone()?, source.try_clone()?);
                let answers = thread::spawn(move || carry(answers, u64::MAX));
                carry((source, target), limit);
                let _ = answers.join();
            }
            Ok(())
        });
        Ok(Some(address))
    }

    fn ended(&self, _: Option<&Sent>) {}
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

/// A guest moves whose tasks sleep on absent pages. Its resident memory is a third of its array, so pages leave to its store at the target
/// while others come.
fn tasks(machines: &Machines, moves: usize) -> anyhow::Result<()> {
    let swap = Swap { resident: 8 << 20, store: Store::Memory(Duration::from_micros(200)), mode: Mode::Pv };
    let program = format!("bm={} faulters=3 workers=1 size=24M", 15_000 * moves);
    let guest = GuestSettings { swap: Some(swap), ..machines.bare("guest", 2, &program) };
    let outcome = followed(machines, &guest, "", moves, None, &|fetched| {
        output::remark(&format!("{fetched:?}"));
        ensure!(fetched.left == 0 && fetched.asked > 0, "{fetched:?}");
        Ok(())
    })?;
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(console.contains("guest check: ok"), "{console}");
    Ok(())
}

/// A guest whose pages are all absent when its tasks begin, and take 1 ms each, as if they came from a source: with `pv` it does at
/// least 1.3 times as much meanwhile as a vCPU that waits. On the deterministic machine, where 1 ms is a million instructions.
///
/// There is one machine and no link. The pages are in a store in its memory, and have frames, so none leaves again. Nothing is sent unasked,
/// and any number of pages is on its way at a time.
fn work(machines: &Machines) -> anyhow::Result<()> {
    const MILLISECONDS: u64 = 500;
    let run = |mode| -> anyhow::Result<[u64; 2]> {
        let program = format!("bm={MILLISECONDS} faulters=1 workers=1 size=32M absent");
        let swap = Swap { resident: 64 << 20, store: Store::Memory(Duration::from_millis(1)), mode };
        let guest = GuestSettings { swap: Some(swap), flags: flags::MEASURE, ..machines.bare("guest", 1, &program) };
        let outcome = machines.checked(vec![guest], Clock::Counted)?;
        let absent = figure(&outcome, "bm: ", " pages are absent")?;
        ensure!(absent >= 32 << 20 >> 12, "{absent} pages were absent");
        let stat = |key: &str| outcome.control.report.get(key).with_context(|| format!("no figure {key}"));
        let console = outcome.console.tail(usize::MAX);
        let line = console.iter().find_map(|line| line.strip_prefix("bm: vCPU 0 pages ")?.split_once(" work "));
        let (pages, rest) = line.context("the vCPU did not report")?;
        let work = rest.split(' ').next().unwrap_or_default().parse()?;
        output::remark(&format!("{}: {work} units of work beside {pages} writes to absent pages", mode.name()));
        // Otherwise the tasks' time would not be that of the fetch.
        ensure!(stat("swap.pages_written")? <= absent, "pages left again");
        Ok([pages.parse()?, work])
    };
    let ([_, off], [_, halt], [pages, pv]) = (run(Mode::Off)?, run(Mode::Halt)?, run(Mode::Pv)?);
    output::remark(&format!(
        "pv does {:.2} times the work of off, and halt {:.2} times",
        pv as f64 / off as f64,
        halt as f64 / off as f64
    ));
    ensure!(pages > 0 && pages < 8192, "{pages} writes with pv");
    ensure!(pv * 10 >= off * 13 && off > 0, "{pv} units of work with pv, {off} with off");
    Ok(())
}
