// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The performance targets of the engine, operation by operation.
//!
//! Invariant: if Linux has the operation, the target is a ratio of two figures of one run. The times of the machine on
//! which a target was set serve only to form that ratio.

use crate::difference::Difference;

/// An operation and its target.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The operation's name.
    pub name: &'static str,
    /// The operation of Linux that it is compared with.
    pub peer: Option<&'static str>,
    /// The operation's target.
    pub target: Target,
}

/// A performance target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// Linux's figure when the target was set, and ours to reach beside it, in nanoseconds. Only their ratio counts.
    Ratio(f64, f64),
    /// Nanoseconds, for an operation that Linux does not have.
    Nanoseconds(f64),
    /// A multiple of the time that reading the same bytes takes in the same run.
    Readings(f64),
}

/// The row of our bench that measures reading.
pub const READING: &str = "limit_read";

/// All operations, in the order of the table.
pub const ROWS: [Row; 35] = [
    ratio("map_pages", 44.9, 15.0),
    ratio("map_pages_scattered", 97.0, 48.0),
    ratio("map_range", 15.9, 1.0),
    ratio("split_2m", 16.5, 1.0),
    ratio("split_1g", 17.3, 1.0),
    ratio("split_again", 3.44, 0.003),
    ratio("split_again_sections", 3.90, 0.25),
    ratio("protect", 4.93, 0.7),
    ratio("protect_sections", 5.06, 1.2),
    ratio("protect_again", 4.01, 0.01),
    ratio("protect_split_sections", 8.57, 1.4),
    ratio("relax", 26.2, 10.0),
    ratio("relax_scattered", 56.5, 37.0),
    ratio("young", 25.1, 10.0),
    ratio("age", 3.6, 0.7),
    ratio("lookup", 18.3, 4.0),
    ratio("coalesce_2m", 4_985.0, 200.0),
    ratio("coalesce_1g", 2.47e6, 50e3),
    ratio("unmap", 9.52, 0.2),
    ratio("unmap_pages", 28.6, 9.0),
    ratio("destroy", 9.43, 0.2),
    ratio("unmap_harvest", 10.2, 1.5),
    alone("protect_dbm", Target::Nanoseconds(8.0)),
    alone("age_dbm", Target::Nanoseconds(8.0)),
    alone("scan_dirty_clean", Target::Readings(1.5)),
    alone("scan_dirty_1in10", Target::Nanoseconds(1.5)),
    baseline("split_2m_every_level", "split_2m"),
    baseline("split_2m_skip_children", "split_2m"),
    baseline("split_2m_skip_leaves", "split_2m"),
    baseline("split_again_every_level", "split_again"),
    baseline("split_again_skip_children", "split_again"),
    baseline("split_again_skip_leaves", "split_again"),
    baseline("map_pages_clean_on_abort", "map_pages"),
    baseline("map_pages_top_up_always", "map_pages"),
    baseline("coalesce_2m_free_first", "coalesce_2m"),
];

const fn ratio(name: &'static str, linux: f64, reach: f64) -> Row {
    Row { name, peer: Some(name), target: Target::Ratio(linux, reach) }
}

const fn alone(name: &'static str, target: Target) -> Row {
    Row { name, peer: None, target }
}

/// A baseline: the engine with one rule changed. It must not be slower than Linux.
const fn baseline(name: &'static str, peer: &'static str) -> Row {
    Row { name, peer: Some(peer), target: Target::Ratio(1.0, 1.0) }
}

/// Returns the operation of Linux that the row `name` is compared with.
pub fn peer(name: &str) -> Option<&'static str> {
    ROWS.iter().find(|row| row.name == name)?.peer
}

/// Returns the target of the row `name`.
pub fn target(name: &str) -> Option<Target> {
    ROWS.iter().find(|row| row.name == name).map(|row| row.target)
}

/// Returns the reason why the row `name` counts more TLBIs, barriers or cache lines for us than for Linux.
pub fn reason(name: &str) -> Option<&'static str> {
    Some(match name {
        "map_pages" | "map_pages_scattered" | "map_pages_top_up_always" | "map_range" => {
            "a table is published when it is linked: once for 512 pages"
        }
        name if name.starts_with("protect") => "by range up to 8 GiB; only a larger range invalidates the whole VMID",
        "destroy" => "pages are freed after the flush; Linux leaves the flush to the reuse of the VMID",
        "map_pages_clean_on_abort" => {
            "ours is measured without FEAT_S2FWB, where lines must be cleaned; Linux's with it"
        }
        name if name.starts_with("split_") => {
            "each block is mapped again after its own flush; Linux publishes all tables at the end of the walk"
        }
        _ => return None,
    })
}

impl Target {
    /// Returns the most nanoseconds that meet the target, beside Linux's time and the time of `reading`. Returns `None`
    /// if the figure that the target needs is missing.
    pub fn most(self, theirs: Option<f64>, reading: Option<f64>) -> Option<f64> {
        Some(match self {
            Self::Ratio(linux, reach) => theirs? * (reach / linux),
            Self::Nanoseconds(most) => most,
            Self::Readings(times) => times * reading?,
        })
    }

    /// Formats the target for the table: a share of Linux's time as a difference from it.
    pub fn shown(self) -> String {
        match self {
            Self::Ratio(linux, reach) if linux == reach => "not slower".to_owned(),
            Self::Ratio(linux, reach) => Difference::of(reach, linux).to_string(),
            Self::Nanoseconds(most) => format!("{most} ns"),
            Self::Readings(times) => format!("{times} x reading"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_ratios_of_one_run() {
        let target = target("map_pages").unwrap();
        let most = target.most(Some(90.0), None).unwrap();
        assert!((30.0..30.1).contains(&most), "a third is enough on a slow machine: {most}");
        assert!(target.most(Some(44.0), None).unwrap() < 15.0);
        assert_eq!(target.most(None, None), None);
        assert_eq!(target.shown(), "66.6 % less");
    }

    #[test]
    fn targets_without_a_peer() {
        assert_eq!(Target::Nanoseconds(8.0).most(None, None), Some(8.0));
        assert!(Target::Readings(1.5).most(None, Some(0.2)).unwrap() < 0.4);
        assert_eq!(Target::Readings(1.5).most(None, None), None);
    }

    #[test]
    fn names_are_different() {
        for (index, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..index].iter().all(|other| other.name != row.name), "{}", row.name);
        }
    }
}
