// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All rows, and those that a user names.

use anyhow::bail;
use twofold_stage2::Granule;

use super::limits::{LIMITS, Limit};
use super::row::Row;
use super::{baseline, operations, threads};
use crate::readable;

/// What a name stands for.
pub enum Subject<G: Granule> {
    /// A row of one thread.
    Operation(&'static Row<G>),
    /// A limit of this machine.
    Limit(&'static Limit),
}

/// The rows to measure.
pub struct Chosen<G: Granule> {
    /// Those of one thread.
    pub rows: Vec<&'static Row<G>>,
    /// Those of two threads.
    pub threads: Vec<&'static threads::Row>,
    /// Whether visits are counted.
    pub visits: bool,
}

impl<G: Granule> Chosen<G> {
    /// Returns everything, or the rows that are named, for a guest of `size` bytes.
    pub fn of(names: &[String], size: u64) -> anyhow::Result<Self> {
        if names.is_empty() {
            return Ok(Self { rows: rows().collect(), threads: threads::rows::<G>(size).collect(), visits: true });
        }
        let mut chosen = Self { rows: Vec::new(), threads: Vec::new(), visits: false };
        for name in names {
            match threads::rows::<G>(size).find(|row| row.name == name) {
                Some(row) => chosen.threads.push(row),
                None => chosen.rows.push(operation(name, size)?),
            }
        }
        Ok(chosen)
    }
}

pub fn find<G: Granule>(name: &str, size: u64) -> anyhow::Result<Subject<G>> {
    match LIMITS.iter().find(|limit| limit.name == name) {
        Some(limit) => Ok(Subject::Limit(limit)),
        None => operation(name, size).map(Subject::Operation),
    }
}

/// Returns all rows of one thread that the granule has, in the order in which they are printed.
pub fn rows<G: Granule>() -> impl Iterator<Item = &'static Row<G>> {
    operations::rows::<G>().iter().chain(baseline::rows::<G>()).filter(|row| row.exists())
}

/// Returns the names of the rows of one thread, then of two, for a guest of `size` bytes.
pub fn names<G: Granule>(size: u64) -> impl Iterator<Item = &'static str> {
    rows::<G>().map(|row| row.name).chain(threads::rows::<G>(size).map(|row| row.name))
}

fn operation<G: Granule>(name: &str, size: u64) -> anyhow::Result<&'static Row<G>> {
    let Some(row) = rows::<G>().find(|row| row.name == name) else {
        let names = names::<G>(size).collect::<Vec<_>>().join(", ");
        let (page, guest) = (readable::bytes(G::SIZE), readable::bytes(size));
        bail!("with pages of {page}, a guest of {guest} has no operation `{name}`; there are: {names}");
    };
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use twofold_stage2::{Kib4, Kib16, Kib64};

    const GIB: u64 = 1 << 30;

    #[test]
    fn names_are_different() {
        fn check<G: Granule>() {
            let limits = LIMITS.iter().map(|limit| limit.name);
            let mut all: Vec<_> = names::<G>(16 * GIB).chain(limits).collect();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count);
            assert!(find::<G>("map_pages", GIB).is_ok() && find::<G>("limit_read", GIB).is_ok());
            let error = Chosen::<G>::of(&["nothing".to_owned()], GIB).err().unwrap().to_string();
            assert!(names::<G>(GIB).all(|name| error.contains(name)), "{error}");
        }
        check::<Kib4>();
        check::<Kib16>();
        check::<Kib64>();
    }

    /// The rows whose blocks another granule does not have are absent, and the others have the size of the blocks.
    #[test]
    fn names_have_the_sizes_of_blocks() {
        fn of_blocks<G: Granule>(size: u64) -> Vec<&'static str> {
            names::<G>(size)
                .filter(|name| {
                    name.ends_with(['m', 'g']) && name.contains(|letter: char| letter.is_ascii_digit())
                        || name.starts_with("faults")
                })
                .collect()
        }
        let faults = "faults_beside_maintenance";
        assert_eq!(
            of_blocks::<Kib4>(GIB),
            ["split_2m", "split_1g", "coalesce_2m", "coalesce_1g", "disjoint_2m", faults]
        );
        assert_eq!(of_blocks::<Kib16>(GIB), ["split_32m", "coalesce_32m", "disjoint_32m", faults]);
        assert_eq!(of_blocks::<Kib64>(4 * GIB), ["split_512m", "coalesce_512m", "disjoint_512m", faults]);
        // It needs eight blocks.
        assert_eq!(of_blocks::<Kib64>(2 * GIB), ["split_512m", "coalesce_512m", "disjoint_512m"]);
    }
}
