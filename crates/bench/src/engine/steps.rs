// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs one operation at a time, at another program's request, so that the program can interleave its own operations
//! with these.

use std::io::{self, BufRead};

use serde::Serialize;
use twofold_stage2::Granule;

use super::arena::Arena;
use super::row::{PerUnit, Unit};
use super::rows::{Subject, find};
use crate::machine::huge_pages;
use crate::options::Steps;
use crate::output;

/// Answers each operation name on standard input with one line.
pub fn serve<G: Granule>(what: Steps, arena: Arena, size: u64) -> anyhow::Result<()> {
    for name in io::stdin().lock().lines() {
        let name = name?;
        let subject = find::<G>(name.trim(), size)?;
        let answer = match (subject, what) {
            (Subject::Operation(row), Steps::Time) => {
                Answer::new(row.name, row.unit, Some(row.time(arena, size)?), None)
            }
            (Subject::Operation(row), Steps::Count) => {
                Answer::new(row.name, row.unit, None, Some(row.count(arena, size)?))
            }
            (Subject::Limit(limit), Steps::Time) => {
                Answer::new(limit.name, Unit::Page, Some(limit.time(arena, size / G::SIZE)), None)
            }
            (Subject::Limit(limit), Steps::Count) => Answer::new(limit.name, Unit::Page, None, None),
        };
        output::line(&serde_json::to_string(&answer)?)?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Answer {
    name: &'static str,
    unit: Unit,
    #[serde(skip_serializing_if = "Option::is_none")]
    ns: Option<f64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    counts: Option<PerUnit>,
    /// Bytes of this process in huge pages; present with counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    huge_page_bytes: Option<u64>,
}

impl Answer {
    fn new(name: &'static str, unit: Unit, ns: Option<f64>, counts: Option<PerUnit>) -> Self {
        let huge_page_bytes = counts.and_then(|_| huge_pages());
        Self { name, unit, ns, counts, huge_page_bytes }
    }
}
