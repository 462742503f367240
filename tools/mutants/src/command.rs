// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `mutants`.
//!
//! Invariant: the exit status is 0 only if every selected mutant was caught or is excused by name.

use std::process::ExitCode;
use std::thread;

use anyhow::bail;
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, file, output};

use crate::calls;
use crate::mutation::Mutation;
use crate::options::{Of, Options};
use crate::registers;
use crate::values;

/// `cargo xtask mutants`.
pub fn command(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    if let Some(path) = &options.json {
        file::check_json(path)?;
    }
    let wanted = |of| options.of.is_none_or(|only| only == of);
    let calls = if wanted(Of::Calls) { calls::list(workspace.root(), options)? } else { Vec::new() };
    let values = if wanted(Of::Values) { values::list(workspace.root(), options)? } else { Vec::new() };
    let registers = if wanted(Of::Registers) { registers::list(options) } else { Vec::new() };
    if calls.is_empty() && values.is_empty() && registers.is_empty() {
        bail!("no mutant has `{}` in its name; --list gives the names", options.only.join("`, `"));
    }
    if options.list {
        calls.iter().try_for_each(|mutant| output::line(&format!("{mutant}  {}", mutant.label())))?;
        values.iter().try_for_each(|value| output::line(value))?;
        registers.iter().try_for_each(|register| output::line(&register.to_string()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let steps = Steps::new(workspace.stop().clone());
    let jobs = options.jobs.map_or_else(|| thread::available_parallelism().map_or(1, usize::from), usize::from);
    let calls = match calls.is_empty() {
        true => None,
        false => Some(calls::judge(workspace, options, jobs, &steps)?),
    };
    let values = match values.is_empty() {
        true => None,
        false => Some(values::judge(workspace, options, jobs, &steps)?),
    };
    let registers = match registers.is_empty() {
        true => None,
        false => Some(registers::judge(workspace, options, jobs, &steps)?),
    };
    let (mut caught, mut count, mut is_good) = (0, 0, true);
    if let Some(report) = &calls {
        output::line(&format!("\n{}", report.shown()))?;
        caught += report.judged.caught();
        count += report.judged.count();
        is_good &= report.judged.is_good();
    }
    if let Some(report) = &values {
        output::line(&format!("\n{}", report.shown()))?;
        caught += report.judged.caught();
        count += report.judged.count();
        is_good &= report.judged.is_good();
    }
    if let Some(report) = &registers {
        output::line(&format!("\n{}", report.shown()))?;
        caught += report.judged.caught();
        count += report.judged.count();
        is_good &= report.judged.is_good();
    }
    output::line(&format!("mutants: {caught} of {count} caught"))?;
    if let Some(path) = &options.json {
        let mut report = calls.map_or_else(|| serde_json::json!({}), |report| report.json());
        if let Some(values) = values {
            report["values"] = values.json();
        }
        if let Some(registers) = registers {
            report["registers"] = registers.json();
        }
        file::write_json(path, &report)?;
    }
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
