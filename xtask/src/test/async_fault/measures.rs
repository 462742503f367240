// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `async-fault`: what a page that is on its way costs the guest, counted on the deterministic machine.
//!
//! The bare-metal guest has four times its resident memory, and a page takes 10 ms, so nearly always one is on its way. The
//! machine's time is its instructions: one takes 1 ns.

use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_abi::bundle::flags;
use twofold_launch::swap::{Mode, Store, Swap};
use twofold_launch::{GuestSettings, Outcome};

use twofold_workspace::output;

use super::super::vm::machines::{Clock, Machines};

/// How long a page takes.
const PAGE_IN: Duration = Duration::from_millis(10);
/// For how long the tasks run.
const MILLISECONDS: u64 = 2000;
/// The least part of a worker's work that it keeps while pages are on their way, in percent.
const WORK: u64 = 90;
/// Interrupts that may come later than the guest's handler calls prompt: at the start a page of the handler itself may be absent,
/// and it waits for that page.
const LATE: u64 = 3;

/// With `pv`, a worker in the background does as much as it does alone.
pub fn work_during_page_ins(machines: &Machines) -> anyhow::Result<()> {
    let work = |faulters| {
        let outcome = run(machines, Mode::Pv, faulters, 1)?;
        let console = outcome.console.tail(usize::MAX);
        let line = console.iter().find_map(|line| line.strip_prefix("bm: vCPU 0 pages ")?.split_once(" work "));
        let (pages, rest) = line.context("the vCPU did not report")?;
        let work = rest.split(' ').next().unwrap_or_default();
        Ok::<(u64, u64), anyhow::Error>((pages.parse()?, work.parse()?))
    };
    let ((pages, beside), (_, alone)) = (work(1)?, work(0)?);
    output::remark(&format!(
        "{beside} units of work beside {pages} writes to pages, {alone} alone: {:.2} %",
        100.0 * beside as f64 / alone as f64
    ));
    ensure!(pages > 0 && alone > 0, "{pages} pages and {alone} units of work");
    ensure!(beside * 100 >= alone * WORK, "{beside} units of work, {alone} without page-ins");
    Ok(())
}

/// Interrupts of the guest's timer reach its handler while a page is on its way, unless the mode is `off`. Two tasks work, so that
/// the guest sets its timer while the third is parked, too.
pub fn interrupts_during_page_ins(machines: &Machines) -> anyhow::Result<()> {
    for mode in [Mode::Halt, Mode::Pv, Mode::Off] {
        let outcome = run(machines, mode, 1, 2)?;
        let console = outcome.console.tail(usize::MAX);
        let line = console.iter().find_map(|line| line.strip_prefix("timer: vCPU 0 interrupts "));
        let line = line.context("the vCPU did not report its timer")?;
        let numbers: Vec<_> = line.split(' ').filter_map(|word| word.parse::<u64>().ok()).collect();
        let [all, limit, prompt, latest] = numbers[..] else { anyhow::bail!("the line of the timer is `{line}`") };
        output::remark(&format!(
            "{mode:?}: {prompt} of {all} interrupts in {limit} instructions, the latest in {latest}"
        ));
        ensure!(all > 100, "only {all} interrupts came");
        match mode {
            // The vCPU waits for the page whatever comes. If this were prompt, the others would show nothing.
            Mode::Off => ensure!(all - prompt > 10 * LATE, "{prompt} of {all} interrupts were prompt with off"),
            Mode::Halt | Mode::Pv => ensure!(all - prompt <= LATE, "{mode:?}: {} of {all} were late", all - prompt),
        }
    }
    Ok(())
}

/// A fault asks the store for pages and never to write one: that is for the task in the background.
pub fn faults_submit_no_write(machines: &Machines) -> anyhow::Result<()> {
    for mode in [Mode::Off, Mode::Halt, Mode::Pv] {
        let outcome = run(machines, mode, 1, 1)?;
        let stat = |key: &str| outcome.control.report.get(key).with_context(|| format!("no figure {key}"));
        let (read, written) = (stat("swap.pages_read")?, stat("swap.pages_written")?);
        let by_faults = stat("swap.written_by_faults")?;
        output::remark(&format!("{mode:?}: {read} pages read, {written} written, {by_faults} of them by faults"));
        ensure!(read > 100 && written > 100, "{read} pages were read and {written} written");
        ensure!(by_faults == 0, "{mode:?}: {by_faults} of {written} pages were written by faults");
    }
    Ok(())
}

/// At its end the guest goes over its array page by page. It asks for few pages, and the task reads the others.
pub fn pages_are_read_ahead(machines: &Machines) -> anyhow::Result<()> {
    let outcome = run(machines, Mode::Off, 1, 1)?;
    let stat = |key: &str| outcome.control.report.get(key).with_context(|| format!("no figure {key}"));
    let (read, ahead) = (stat("swap.pages_read")?, stat("swap.pages_ahead")?);
    output::remark(&format!("{read} pages read, {ahead} ahead of the guest"));
    ensure!(ahead > 4 * read, "{ahead} pages were read ahead, and {read} when the guest needed them");
    Ok(())
}

fn run(machines: &Machines, mode: Mode, faulters: u64, workers: u64) -> anyhow::Result<Outcome> {
    let program = format!("bm={MILLISECONDS} faulters={faulters} workers={workers} size=56M");
    let swap = Swap { resident: 14 << 20, store: Store::Memory(PAGE_IN), mode };
    let guest = GuestSettings { swap: Some(swap), flags: flags::COUNT, ..machines.bare("guest", 1, &program) };
    machines.checked(vec![guest], Clock::Counted)
}
