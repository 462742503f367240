// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The setup of an experiment's guest.
//!
//! Invariant: a setup names a variant; two variants that are compared differ in one field.

use std::collections::BTreeMap;

use anyhow::ensure;
use clap::ValueEnum;
use twofold_memory::dirty::Tracker;
use twofold_workload::mode::Mode;
use twofold_workload::policies::Policies;

use crate::{machine, readable};

/// A guest, its memory, and its hypervisor's policies.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The guest mode.
    pub mode: Mode,
    /// Number of vCPUs.
    pub vcpus: usize,
    /// Bytes of each vCPU's region, or of the one region that they share.
    pub region: u64,
    /// Whether all vCPUs share one region.
    pub overlap: bool,
    /// Memslots that the memory is divided among.
    pub slots: usize,
    /// The kind of memory, which limits the size of its mappings.
    pub backing: Backing,
    /// How writes are tracked.
    pub tracker: Tracker,
    /// With KVM: a dirty ring of this many pages for each vCPU, instead of a bitmap.
    pub ring: Option<u32>,
    /// Bytes to split at once, ahead of the guest's writes. 0: none.
    pub chunk: u64,
    /// Each technique, or its baseline.
    pub policies: Policies,
    /// Whether the CPU forces guests' accesses to be write-back (FEAT_S2FWB), so that no cache maintenance is needed.
    /// Otherwise caches are really cleaned.
    pub forced_write_back: bool,
    /// The IPA of the memory. `None`: the end of the mode's address space, aligned to the backing's pages.
    pub offset: Option<u64>,
    /// Whether the memory is a small piece that is mapped repeatedly, for sizes beyond the machine. Its stage-2 tables
    /// are real. A guest's write is visible at many addresses.
    pub sparse: bool,
    /// The host CPU of each vCPU. Empty: the system chooses.
    pub pinned: Vec<usize>,
    /// Modelled nanoseconds that are added for a fault's exit and re-entry.
    pub exit_cost: u64,
}

impl Setup {
    /// One vCPU with 1 GiB in pages of 4 KiB, one memslot, the manual tracker, and every technique on.
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

    /// Bytes of all regions together.
    pub fn memory(&self) -> u64 {
        if self.overlap { self.region } else { self.region.saturating_mul(self.vcpus as u64) }
    }

    /// Offset of a vCPU's region from the start of the memory, in bytes.
    pub fn region_of(&self, vcpu: usize) -> u64 {
        if self.overlap { 0 } else { vcpu as u64 * self.region }
    }

    /// Checks that addresses and sizes are whole guest pages.
    ///
    /// # Errors
    ///
    /// The option that is not, and the size that it must be a multiple of.
    pub fn check_pages(&self) -> anyhow::Result<()> {
        let (granule, mode) = (self.mode.granule.size(), self.mode);
        let pages = readable::bytes(granule);
        ensure!(self.region > 0, "-b 0 is no memory: give its size, such as -b 64M or -b 1G");
        ensure!(
            self.region.is_multiple_of(granule),
            "-b: {} are not whole pages of {mode}: give a multiple of {pages}",
            readable::bytes(self.region)
        );
        let offset = self.offset.unwrap_or(0);
        ensure!(
            offset.is_multiple_of(granule),
            "-p {offset:#x} is not the first address of a page of {mode}: give a multiple of {pages}, {granule:#x}"
        );
        Ok(())
    }

    /// Whether all pages are dirty when the log starts, so that their first clear protects them. This holds for all
    /// trackers with a separate clear.
    pub fn starts_dirty(&self) -> bool {
        self.tracker != Tracker::WriteProtect
    }

    /// The number of baselines in this variant: policies, and the tracker of KVM's first log.
    pub fn baselines(&self) -> usize {
        self.policies.baselines() + usize::from(self.tracker == Tracker::WriteProtect)
    }

    /// The settings that are not the default, and the tracker.
    pub fn shown(&self) -> String {
        let usual = Self::new(self.mode).configuration();
        let own = self.configuration();
        let set = own.iter().filter(|(key, value)| *key == "tracker" || usual.get(*key) != Some(value));
        let words = set.map(|(key, value)| if key == "tracker" { value.clone() } else { format!("{key} {value}") });
        [self.mode.name.to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(", ")
    }

    /// The settings that name this variant in results. Rare settings are present only if they are set.
    pub fn configuration(&self) -> BTreeMap<String, String> {
        let mut all = vec![
            ("mode", self.mode.name.to_owned()),
            ("vcpus", self.vcpus.to_string()),
            ("bytes", self.memory().to_string()),
            ("backing", name(self.backing)),
            ("tracker", if self.ring.is_some() { "ring".to_owned() } else { self.tracker.name().to_owned() }),
            ("chunk", self.chunk.to_string()),
        ];
        all.extend(self.policies.all().map(|policy| (policy.key(), policy.name().to_owned())));
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

/// The kind of a guest's memory, by the names of KVM's selftests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Backing {
    /// Anonymous memory, mapped by pages of 4 KiB
    Anonymous,
    /// Anonymous memory in transparent huge pages, mapped by blocks of 2 MiB
    AnonymousThp,
    /// Huge pages of the system's default size: on the machine modelled as those of 2 MiB
    AnonymousHugetlb,
    /// Huge pages of 2 MiB: on the machine any contiguous memory, because only the tables see the size
    #[value(name = "anonymous_hugetlb_2mb")]
    AnonymousHugetlb2M,
    /// Huge pages of 1 GiB: on the machine modelled as those of 2 MiB
    #[value(name = "anonymous_hugetlb_1gb")]
    AnonymousHugetlb1G,
    /// A memory file, mapped by pages of 4 KiB
    Shmem,
    /// Huge pages of a shared pool, of the system's default size
    SharedHugetlb,
}

impl Backing {
    /// Bytes in a page of the backing, which is the largest leaf in the tables.
    pub fn page(self) -> u64 {
        match self {
            Self::Anonymous | Self::Shmem => 4 << 10,
            Self::AnonymousThp | Self::AnonymousHugetlb2M => 2 << 20,
            Self::AnonymousHugetlb1G => 1 << 30,
            Self::AnonymousHugetlb | Self::SharedHugetlb => default_huge_page(),
        }
    }
}

/// The system's default size of a huge page. 2 MiB if the system does not report it.
fn default_huge_page() -> u64 {
    machine::memory("Hugepagesize:").filter(|size| *size > 0).unwrap_or(2 << 20)
}

/// A value's name on a command line.
fn name<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use twofold_workload::policies::Split;

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
