// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command's options for pages that follow a guest.

use anyhow::ensure;
use twofold_workspace::output;

use super::killed::{Held, WATCH, WHOLE, in_time, watch};
use super::sides::{Side, Sides};
use crate::test::vm::machines::Machines;

/// A target with `--no-postcopy` refuses a guest whose pages are to follow, and then takes it whole.
pub fn refused(machines: &Machines) -> anyhow::Result<()> {
    in_time(&mut WATCH.clone(), |time| {
        let sides = Sides::new(machines)?;
        let (mut target, to) = sides.target(&["--no-postcopy"])?;
        let mut source = sides.source(&watch(time))?;
        source.line_with("watch: begins")?;
        for option in ["--postcopy", "--postcopy-if-needed"] {
            let mut order = sides.migrate("one", &to, &[option])?;
            ensure!(!order.ended()? && order.said.contains("the guest goes on here"), "{}", order.said);
            let said = target.line_with("no guest came: ")?;
            for said in [&said, &order.said] {
                ensure!(said.contains("this target does not take such a guest (--no-postcopy)"), "{said}");
            }
            ensure!(sides.states()?[0] == "one=running", "{:?}", sides.states()?);
        }
        let mut order = sides.migrate("one", &to, &["--force"])?;
        moved(&mut order, [&mut source, &mut target], WHOLE)
    })
}

/// With `--postcopy-if-needed`, what is left after the rounds follows a guest that writes too fast, and nothing follows one that does
/// not.
pub fn if_needed(machines: &Machines) -> anyhow::Result<()> {
    const OPTION: &str = "--postcopy-if-needed";
    in_time(&mut (2 * WATCH), |time| {
        let sides = Sides::new(machines)?;
        let (mut target, to) = sides.target(&[])?;
        let mut source = sides.source(&format!("bm={time} faulters=3 workers=1 size=24M"))?;
        // It says nothing before its end.
        while sides.states()?[0] != "one=running" {
            ensure!(!source.has_ended()?, "{}", source.all_said());
        }
        let mut order = sides.migrate("one", &to, &[OPTION, "--rounds", "1", "--downtime", "1"])?;
        let done = moved(&mut order, [&mut source, &mut target], "guest check: ok")?;
        let said = &order.said;
        // Pages were sent before it changed hands: it is not `--postcopy`.
        let follow = ["round 1: ", " pages follow\n", "all of one is at "].iter().all(|words| said.contains(words));
        ensure!(follow || done == Held::Ended, "{said}");
        Ok(done)
    })?;
    in_time(&mut WATCH.clone(), |time| {
        let sides = Sides::new(machines)?;
        let (mut target, to) = sides.target(&[])?;
        let mut source = sides.source(&watch(time))?;
        source.line_with("watch: begins")?;
        let mut order = sides.migrate("one", &to, &[OPTION, "--downtime", "60000"])?;
        let done = moved(&mut order, [&mut source, &mut target], WHOLE)?;
        ensure!(!order.said.contains(" pages follow") || done == Held::Ended, "{}", order.said);
        Ok(done)
    })
}

/// Waits until the guest has moved, and has ended at the target with this line.
fn moved(order: &mut Side, [source, target]: [&mut Side; 2], line: &str) -> anyhow::Result<Held> {
    if !order.ended()? {
        ensure!(source.ended()? && source.said.contains(line), "{}", order.said);
        return Ok(Held::Ended);
    }
    output::remark(order.said.trim_end());
    target.line_with(line)?;
    ensure!(target.ended()?, "{}", target.said);
    Ok(Held::Done)
}
