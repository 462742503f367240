// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `async-fault`: what a launcher learns of guests whose pages leave, while they run (`twofold stat`).
//!
//! How much a guest does in a second is not known here. So a figure that needs time is asked for again and again until it is
//! reached, and what must hold always holds each time.

use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_abi::channel::{Command, GuestState};
use twofold_launch::GuestSettings;
use twofold_launch::session::{Answer, Session};
use twofold_launch::swap::{Mode, Store, Swap};

use super::super::vm::machines::{Clock, Machines};

/// Pages of the array of the guest whose working set is known.
const SMALL: u64 = 2048;
/// Pages that it may use beside: two huge pages. It fits into its memory, so no huge page is broken up, and each counts whole.
const BESIDE: u64 = 2 * 512;
/// Pages of which something is seen to happen.
const MANY: u64 = 100;
/// Pages that a guest may have in memory.
const LIMIT: u64 = 3584;

/// One guest has a working set that fits into its memory, one does not, one does nothing after it has filled its memory, and one
/// has no store.
pub fn of_guests(machines: &Machines) -> anyhow::Result<()> {
    let guest = |name: &str, program: &str, mode| {
        let swap = Swap { resident: LIMIT * 4096, store: Store::Memory(Duration::from_micros(100)), mode };
        GuestSettings { swap: Some(swap), ..machines.bare(name, 1, program) }
    };
    let guests = vec![
        guest("small", "bm=600000 faulters=1 workers=1 size=8M", Mode::Off),
        guest("large", "bm=600000 faulters=1 workers=1 size=56M", Mode::Pv),
        guest("idle", "bm=600000 faulters=0 workers=1 size=56M", Mode::Off),
        machines.bare("plain", 1, "pace=1000"),
    ];
    let (outcome, ()) = machines.driven(guests, Clock::Real, |driver| {
        let ask = |guest| statistics(&driver.session, guest);
        let plain = ask(3)?;
        ensure!(!plain.figures.iter().any(|(_, key, _)| is_of_store(key)), "no store has figures: {plain:?}");
        while !(SMALL..=SMALL + BESIDE).contains(&working_set(&ask(0)?)?) {}
        loop {
            let idle = ask(2)?;
            let (resident, used) = (value(&idle, "pages.resident")?, working_set(&idle)?);
            ensure!(resident <= LIMIT && value(&idle, "pages.limit")? == LIMIT, "{resident} pages are in memory");
            // It has written more than fits, and uses the pages of its program since.
            if resident > LIMIT * 3 / 4 && value(&idle, "pages.stored")? > LIMIT && (1..BESIDE).contains(&used) {
                break;
            }
        }
        // Its faults are announced. Its vCPU has another task then, and waits only where it declines.
        while value(&ask(1)?, "swap.announced")? == 0 {}
        let before = ask(1)?;
        loop {
            let now = ask(1)?;
            let more = |key| Ok::<u64, anyhow::Error>(value(&now, key)?.saturating_sub(value(&before, key)?));
            if more("swap.announced")? > MANY && more("swap.pages_read")? > MANY && more("swap.pages_out")? > MANY {
                break;
            }
        }
        // The guest runs from one command to the next, and figures of a guest that is stopped are of one moment.
        let mut seen = 0;
        let mut stopped = || {
            driver.session.ask(Some(1), Command::Stop)?;
            seen = driver.session.wait_for(1, seen, GuestState::Stopped)?;
            // What is on its way to the store arrives, and the interval is long enough for a working set of its own.
            thread::sleep(Duration::from_millis(300));
            ask(1)
        };
        let before = stopped()?;
        driver.session.ask(Some(1), Command::Continue)?;
        thread::sleep(Duration::from_secs(1));
        let now = stopped()?;
        let more = |key| Ok::<u64, anyhow::Error>(value(&now, key)?.saturating_sub(value(&before, key)?));
        let (used, came, left) = (working_set(&now)?, more("swap.pages_read")?, more("swap.pages_out")?);
        // Each page that came was accessed, wherever it is now, but for the last ones of two tasks.
        ensure!(
            came > 2 && (came - 2..=LIMIT + left).contains(&used),
            "{used} pages were used, {came} came and {left} left"
        );
        driver.session.ask(None, Command::Quit)?;
        Ok(())
    })?;
    // Figures that are asked for are not of one moment. These are, but for what the task is about to count.
    let stat = |key: &str| outcome.control.report.get(key).with_context(|| format!("no figure {key}"));
    let (out, written) = (stat("swap.pages_out")?, stat("swap.pages_written")?);
    ensure!((LIMIT..=out + 2).contains(&written), "{written} pages were written, and {out} left");
    waits(machines)
}

/// A vCPU that waits with `off`: the time is no longer than the guest has run, and most of it with a slow store.
fn waits(machines: &Machines) -> anyhow::Result<()> {
    let swap = Swap { resident: LIMIT * 4096, store: Store::Memory(Duration::from_millis(10)), mode: Mode::Off };
    let program = "bm=600000 faulters=1 workers=0 size=56M";
    let guest = GuestSettings { swap: Some(swap), ..machines.bare("guest", 1, program) };
    machines.driven(vec![guest], Clock::Counted, |driver| {
        let (mut before, mut last) = (None, 0);
        loop {
            let now = statistics(&driver.session, 0)?;
            let [waits, waited, read, time, frequency] =
                ["swap.waits", "swap.waited", "swap.pages_read", "counter.now", "counter.frequency"]
                    .map(|key| value(&now, key));
            let (waits, waited, frequency) = (waits?, waited?, frequency?);
            // The time was read before.
            let time = time?;
            ensure!(last <= time, "{last} ticks of {time} were waited");
            last = waited;
            // While it fills the array it waits for frames only.
            if read? < MANY {
                continue;
            }
            let (waits_before, waited_before) = *before.get_or_insert((waits, waited));
            if waits >= waits_before + MANY {
                let each = (waited - waited_before) * 1000 / frequency / (waits - waits_before);
                ensure!((9..=40).contains(&each), "{waits} waits, of {each} ms at the end");
                break;
            }
        }
        driver.session.ask(None, Command::Quit)?;
        Ok(())
    })?;
    Ok(())
}

fn statistics(session: &Session, guest: u16) -> anyhow::Result<Answer> {
    Ok(session.ask(Some(guest), Command::Statistics)?)
}

fn value(answer: &Answer, key: &str) -> anyhow::Result<u64> {
    let figure = answer.figures.iter().find(|(_, other, _)| other == key);
    figure.map(|figure| figure.2).with_context(|| format!("no {key} in {:?}", answer.figures))
}

/// 0 as long as it is not known.
fn working_set(answer: &Answer) -> anyhow::Result<u64> {
    value(answer, "pages.resident")?;
    Ok(value(answer, "pages.working_set").unwrap_or(0))
}

fn is_of_store(key: &str) -> bool {
    key.starts_with("swap.") || key.starts_with("pages.")
}
