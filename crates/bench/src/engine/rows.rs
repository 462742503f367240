// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All rows, and those that a user names.

use anyhow::bail;

use super::limits::{LIMITS, Limit};
use super::row::Row;
use super::{baseline, operations, threads};

/// What a name stands for.
pub enum Subject {
    /// A row of one thread.
    Operation(&'static Row),
    /// A limit of this machine.
    Limit(&'static Limit),
}

/// The rows to measure.
pub struct Chosen {
    /// Those of one thread.
    pub rows: Vec<&'static Row>,
    /// Those of two threads.
    pub threads: Vec<&'static threads::Row>,
    /// Whether visits are counted.
    pub visits: bool,
}

impl Chosen {
    /// Returns everything, or the rows that are named.
    pub fn of(names: &[String]) -> anyhow::Result<Self> {
        if names.is_empty() {
            return Ok(Self { rows: rows().collect(), threads: threads::ROWS.iter().collect(), visits: true });
        }
        let mut chosen = Self { rows: Vec::new(), threads: Vec::new(), visits: false };
        for name in names {
            match threads::ROWS.iter().find(|row| row.name == name) {
                Some(row) => chosen.threads.push(row),
                None => chosen.rows.push(operation(name)?),
            }
        }
        Ok(chosen)
    }
}

pub fn find(name: &str) -> anyhow::Result<Subject> {
    match LIMITS.iter().find(|limit| limit.name == name) {
        Some(limit) => Ok(Subject::Limit(limit)),
        None => operation(name).map(Subject::Operation),
    }
}

/// Returns all rows of one thread, in the order in which they are printed.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    operations::ROWS.iter().chain(baseline::ROWS)
}

/// Returns the names of the rows of one thread, then of two.
pub fn names() -> impl Iterator<Item = &'static str> {
    rows().map(|row| row.name).chain(threads::ROWS.iter().map(|row| row.name))
}

fn operation(name: &str) -> anyhow::Result<&'static Row> {
    match rows().find(|row| row.name == name) {
        Some(row) => Ok(row),
        None => bail!("there is no operation `{name}`; there are: {}", names().collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_different() {
        let limits = LIMITS.iter().map(|limit| limit.name);
        let threads = threads::ROWS.iter().map(|row| row.name);
        let mut all: Vec<_> = rows().map(|row| row.name).chain(limits).chain(threads).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(find("map_pages").is_ok() && find("limit_read").is_ok());
        let error = Chosen::of(&["nothing".to_owned()]).err().unwrap().to_string();
        assert!(names().all(|name| error.contains(name)), "{error}");
    }
}
