// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is to be reached, as the engine's issue has it.
//!
//! Invariant: a bar is a ratio of two figures of one run wherever there are two; times of another machine are only
//! here to make that ratio.

/// An operation, and what is to be reached.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// Linux's operation that it is set beside.
    pub peer: Option<&'static str>,
    /// What is to be reached.
    pub bar: Bar,
}

/// What is to be reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// Linux's figure where the bar was set, and what is to be reached beside it; in nanoseconds.
    Ratio(f64, f64),
    /// Nanoseconds. Linux has no such operation.
    Nanoseconds(f64),
    /// So many times what reading the same bytes takes in the same run.
    Readings(f64),
}

/// The row of our bench that says what reading takes.
pub const READING: &str = "limit_read";

/// All of them, in the order.
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
    alone("protect_dbm", Bar::Nanoseconds(8.0)),
    alone("age_dbm", Bar::Nanoseconds(8.0)),
    alone("scan_dirty_clean", Bar::Readings(1.5)),
    alone("scan_dirty_1in10", Bar::Nanoseconds(1.5)),
    before("split_2m_every_level", "split_2m"),
    before("split_2m_skip_children", "split_2m"),
    before("split_2m_skip_leaves", "split_2m"),
    before("split_again_every_level", "split_again"),
    before("split_again_skip_children", "split_again"),
    before("split_again_skip_leaves", "split_again"),
    before("map_pages_clean_on_abort", "map_pages"),
    before("map_pages_top_up_always", "map_pages"),
    before("coalesce_2m_free_first", "coalesce_2m"),
];

const fn ratio(name: &'static str, linux: f64, reach: f64) -> Row {
    Row { name, peer: Some(name), bar: Bar::Ratio(linux, reach) }
}

const fn alone(name: &'static str, bar: Bar) -> Row {
    Row { name, peer: None, bar }
}

/// The engine with one rule changed, which has to be no slower than Linux.
const fn before(name: &'static str, peer: &'static str) -> Row {
    Row { name, peer: Some(peer), bar: Bar::Ratio(1.0, 1.0) }
}

/// Linux's operation beside the row `name`.
pub fn peer(name: &str) -> Option<&'static str> {
    ROWS.iter().find(|row| row.name == name)?.peer
}

/// The bar of the row `name`.
pub fn bar(name: &str) -> Option<Bar> {
    ROWS.iter().find(|row| row.name == name).map(|row| row.bar)
}

/// Why the row `name` counts more TLBIs, barriers or cache lines of ours than of Linux's.
pub fn reason(name: &str) -> Option<&'static str> {
    Some(match name {
        "map_pages" | "map_pages_scattered" | "map_pages_top_up_always" | "map_range" => {
            "a table is published when it is linked, once in 512 pages"
        }
        name if name.starts_with("protect") => "by range up to 8 GiB; all of the guest's entries go beyond it only",
        "destroy" => "pages go back when the flush is complete; Linux leaves the flush to who hands the VMID out again",
        "map_pages_clean_on_abort" => {
            "on a CPU without FEAT_S2FWB, where there is something to clean; Linux's is with it"
        }
        name if name.starts_with("split_") => {
            "each block is back as soon as its flush is complete; Linux publishes all of them at the end of the walk"
        }
        _ => return None,
    })
}

impl Bar {
    /// Whether `ours` is low enough beside `theirs` and the time of `reading`, all in nanoseconds; `None` where one
    /// of them is missing.
    pub fn reached(self, ours: Option<f64>, theirs: Option<f64>, reading: Option<f64>) -> Option<bool> {
        let ours = ours?;
        Some(match self {
            Self::Ratio(linux, reach) => ours / theirs? <= reach / linux,
            Self::Nanoseconds(most) => ours <= most,
            Self::Readings(times) => ours <= times * reading?,
        })
    }

    /// As it is printed.
    pub fn shown(self) -> String {
        match self {
            Self::Ratio(linux, reach) => format!("{:.4}", reach / linux),
            Self::Nanoseconds(most) => format!("{most} ns"),
            Self::Readings(times) => format!("{times} x reading"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_ratios_of_one_run() {
        let bar = bar("map_pages").unwrap();
        assert_eq!(bar.reached(Some(30.0), Some(90.0), None), Some(true), "a third is enough on a slow machine");
        assert_eq!(bar.reached(Some(15.0), Some(44.0), None), Some(false));
        assert_eq!(bar.reached(Some(15.0), None, None), None);
        assert_eq!(bar.reached(None, Some(44.0), None), None);
    }

    #[test]
    fn bars_without_a_peer() {
        assert_eq!(Bar::Nanoseconds(8.0).reached(Some(7.9), None, None), Some(true));
        assert_eq!(Bar::Readings(1.5).reached(Some(0.4), None, Some(0.2)), Some(false));
        assert_eq!(Bar::Readings(1.5).reached(Some(0.4), None, None), None);
    }

    #[test]
    fn names_are_different() {
        for (index, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..index].iter().all(|other| other.name != row.name), "{}", row.name);
        }
    }
}
