// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an experiment is set up with.
//!
//! Invariant: what is here names a variant; two variants that are compared differ in one field.

use std::collections::BTreeMap;

use anyhow::ensure;
use clap::ValueEnum;
use twofold_memory::dirty::Tracker;
use twofold_pattern::mode::Mode;

use crate::{machine, readable};

/// A guest, its memory, and the rules of its hypervisor.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// How its stage 1 is set up.
    pub mode: Mode,
    /// vCPUs.
    pub vcpus: usize,
    /// Bytes of a region: of each vCPU's, or where they overlap, of the one that they share.
    pub region: u64,
    /// Whether all vCPUs share one region.
    pub overlap: bool,
    /// Slots that the memory is divided among.
    pub slots: usize,
    /// What the memory is made of, and with that how large its mappings may be.
    pub backing: Backing,
    /// How writes are tracked.
    pub tracker: Tracker,
    /// KVM: a ring of so many pages for each vCPU instead, from which the written ones are taken.
    pub ring: Option<u32>,
    /// How much is split at once ahead of the guest's writes; 0: nothing.
    pub chunk: u64,
    /// Each of the techniques, or what was before it.
    pub policies: Policies,
    /// Whether the CPU forces guests' accesses to be write-back (FEAT_S2FWB), so that no cache needs cleaning. Where it does
    /// not, caches are really cleaned.
    pub forced_write_back: bool,
    /// The guest's physical address of the memory; `None`: at the end of what the mode has, aligned to the backing's pages.
    pub offset: Option<u64>,
    /// Whether the memory is a small piece, mapped over and over: for sizes beyond the machine. Its tables are as real as ever;
    /// what the guest writes shows in many places.
    pub sparse: bool,
    /// The CPU of each vCPU, by its number here; none: where the system puts them.
    pub pinned: Vec<usize>,
    /// Nanoseconds that a fault's way out of the guest and back takes besides what it takes here.
    pub exit_cost: u64,
}

impl Setup {
    /// A vCPU with 1 GiB of pages of 4 KiB in one slot, write-protected; every technique as it is.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            vcpus: 1,
            region: 1 << 30,
            overlap: false,
            slots: 1,
            backing: Backing::Anonymous,
            tracker: Tracker::Manual,
            ring: None,
            chunk: 2 << 20,
            policies: Policies::default(),
            forced_write_back: true,
            offset: None,
            sparse: false,
            pinned: Vec::new(),
            exit_cost: 0,
        }
    }

    /// Bytes of all regions.
    pub fn memory(&self) -> u64 {
        if self.overlap { self.region } else { self.region.saturating_mul(self.vcpus as u64) }
    }

    /// Bytes from the memory's first to the first of a vCPU's region.
    pub fn region_of(&self, vcpu: usize) -> u64 {
        if self.overlap { 0 } else { vcpu as u64 * self.region }
    }

    /// Whether its addresses and sizes are made of whole pages of the guest's.
    ///
    /// # Errors
    ///
    /// Which option is not, and what it has to be a multiple of.
    pub fn check_pages(&self) -> anyhow::Result<()> {
        let (granule, mode) = (self.mode.granule.size(), self.mode);
        let pages = readable::bytes(granule);
        ensure!(self.region > 0, "-b 0 is no memory: give its size, such as -b 64M or -b 1G");
        ensure!(
            self.region.is_multiple_of(granule),
            "-b: {} are not made of whole pages of {mode}: give a multiple of {pages}",
            readable::bytes(self.region)
        );
        let offset = self.offset.unwrap_or(0);
        ensure!(
            offset.is_multiple_of(granule),
            "-p {offset:#x} is not the first address of a page of {mode}: give a multiple of {pages}, {granule:#x}"
        );
        Ok(())
    }

    /// Whether all pages are in the log at first, and protected as they are cleared: with all that clear apart.
    pub fn starts_dirty(&self) -> bool {
        self.tracker != Tracker::WriteProtect
    }

    /// What names this variant in results. What is seldom set is there where it is.
    pub fn configuration(&self) -> BTreeMap<String, String> {
        let Self { policies, .. } = self;
        let mut all = vec![
            ("mode", self.mode.name.to_owned()),
            ("vcpus", self.vcpus.to_string()),
            ("bytes", self.memory().to_string()),
            ("backing", name(self.backing)),
            ("tracker", if self.ring.is_some() { "ring".to_owned() } else { self.tracker.name().to_owned() }),
            ("chunk", self.chunk.to_string()),
            ("split", name(policies.split)),
            ("cmo", name(policies.cmo)),
            ("coalesce", name(policies.coalesce)),
            ("tables", name(policies.tables)),
        ];
        let mut seldom = |is_set: bool, key, value: String| {
            if is_set {
                all.push((key, value));
            }
        };
        seldom(self.ring.is_some(), "ring", self.ring.unwrap_or(0).to_string());
        seldom(self.overlap, "overlap", "yes".to_owned());
        seldom(self.slots != 1, "slots", self.slots.to_string());
        seldom(!self.forced_write_back, "forced_write_back", "no".to_owned());
        seldom(self.offset.is_some(), "offset", format!("{:#x}", self.offset.unwrap_or(0)));
        seldom(self.sparse, "sparse", "yes".to_owned());
        seldom(
            !self.pinned.is_empty(),
            "pinned",
            self.pinned.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
        );
        seldom(self.exit_cost != 0, "exit_cost", format!("{} ns", self.exit_cost));
        all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// What a guest's memory is made of, by the names of KVM's selftests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Backing {
    /// Anonymous memory, mapped by pages of 4 KiB
    Anonymous,
    /// Anonymous memory in transparent huge pages, mapped by blocks of 2 MiB
    AnonymousThp,
    /// Huge pages of the system's default size: on the machine as those of 2 MiB are
    AnonymousHugetlb,
    /// Huge pages of 2 MiB: on the machine made of any memory that is contiguous, as only its tables see it
    #[value(name = "anonymous_hugetlb_2mb")]
    AnonymousHugetlb2M,
    /// Huge pages of 1 GiB: on the machine as those of 2 MiB are
    #[value(name = "anonymous_hugetlb_1gb")]
    AnonymousHugetlb1G,
    /// A memory file, mapped by pages of 4 KiB
    Shmem,
    /// Huge pages of a shared pool, of the system's default size
    SharedHugetlb,
}

impl Backing {
    /// Bytes of its pages, which are the largest that tables map.
    pub fn page(self) -> u64 {
        match self {
            Self::Anonymous | Self::Shmem => 4 << 10,
            Self::AnonymousThp | Self::AnonymousHugetlb2M => 2 << 20,
            Self::AnonymousHugetlb1G => 1 << 30,
            Self::AnonymousHugetlb | Self::SharedHugetlb => default_huge_page(),
        }
    }
}

/// Of this system; 2 MiB where it does not tell.
fn default_huge_page() -> u64 {
    machine::memory("Hugepagesize:").filter(|size| *size > 0).unwrap_or(2 << 20)
}

/// The techniques of the sources, each as it is or as it was before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policies {
    /// Which entries a split visits (S0).
    pub split: Split,
    /// Who cleans caches (S4).
    pub cmo: Cmo,
    /// When the old tables go (S4).
    pub coalesce: Coalesce,
    /// When table pages are taken (S4).
    pub tables: Tables,
}

/// Which entries a split visits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Split {
    /// Tables that have blocks below them, by their records
    #[default]
    Records,
    /// None of level 3 (S0)
    SkipLeaves,
    /// All but those of a table that was made just now (S0's first version)
    SkipChildren,
    /// All, as Linux 6.12
    EveryLevel,
}

/// Who cleans caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Cmo {
    /// The vCPU that maps
    #[default]
    OnMap,
    /// Each vCPU that faults
    OnAbort,
}

/// When the tables go that a block takes the place of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Coalesce {
    /// After the block is there
    #[default]
    InstallFirst,
    /// Before
    FreeFirst,
}

/// When table pages are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Tables {
    /// Where a table is missing
    #[default]
    WhenNeeded,
    /// At each fault, as many as it might need
    Always,
}

/// What a value is called on a command line.
fn name<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compared_differs_in_one_word() {
        let now = Setup::new(Mode::find("p40v48-4k").unwrap());
        let before = Setup { policies: Policies { split: Split::EveryLevel, ..Policies::default() }, ..now.clone() };
        let (now, before) = (now.configuration(), before.configuration());
        let differ: Vec<_> = now.iter().filter(|(key, value)| before.get(*key) != Some(value)).collect();
        assert_eq!(differ, [(&"split".to_owned(), &"records".to_owned())]);
        assert_eq!(before["split"], "every-level");
        assert_eq!(before["backing"], "anonymous");
    }

    #[test]
    fn huge_pages_have_the_names_that_kvm_gives_them() {
        for name in ["anonymous_hugetlb", "anonymous_hugetlb_2mb", "anonymous_hugetlb_1gb", "shared_hugetlb"] {
            let backing = Backing::from_str(name, false).unwrap();
            assert_eq!(super::name(backing), name);
            assert!(backing.page() >= 2 << 20 || backing.page() == default_huge_page());
        }
    }

    #[test]
    fn what_is_no_whole_page_is_refused_in_the_readers_units() {
        let setup = Setup::new(Mode::find("p40v48-64k").unwrap());
        let refused = |setup: &Setup| setup.check_pages().unwrap_err().to_string();
        assert_eq!(
            refused(&Setup { region: 0, ..setup.clone() }),
            "-b 0 is no memory: give its size, such as -b 64M or -b 1G"
        );
        let small = refused(&Setup { region: 4096, ..setup.clone() });
        assert!(small.contains("4 KiB are not") && small.contains("a multiple of 64 KiB"), "{small}");
        let odd = refused(&Setup { offset: Some(0x1001), ..setup.clone() });
        assert!(odd.starts_with("-p 0x1001 is not") && odd.contains("64 KiB"), "{odd}");
        assert!(setup.check_pages().is_ok());
    }

    #[test]
    fn regions_are_one_behind_the_other_or_one() {
        let two = Setup { vcpus: 2, region: 64, ..Setup::new(Mode::find("6").unwrap()) };
        assert_eq!((two.memory(), two.region_of(1)), (128, 64));
        let one = Setup { overlap: true, ..two };
        assert_eq!((one.memory(), one.region_of(1)), (64, 0));
    }
}
