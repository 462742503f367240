// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The plan of `twofold bench page-table`: from options to guests. The options are read here and nowhere else.
//!
//! Invariant: contradictory options, and those that the platform does not support, are refused before anything is set up.

use std::cmp;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use twofold_memory::dirty::Tracker;
use twofold_workload::mode::Mode;

use crate::experiment::setup::Setup;
use crate::options::{self, PageTableOptions};
use crate::report::Files;
use crate::results::Platform;

/// What to measure, where, and which files to write.
pub struct Plan {
    /// Where the guests run.
    pub platform: Platform,
    /// The directory of the hypervisor's images. `None`: this workspace's.
    pub images: Option<PathBuf>,
    /// The variants that take turns; baselines come first.
    pub setups: Vec<Setup>,
    /// Number of counted runs.
    pub runs: u32,
    /// The output files.
    pub files: Files,
}

impl Plan {
    /// The plan of these options.
    ///
    /// # Errors
    ///
    /// The options contradict each other, or the platform does not support them; or a file cannot be written.
    pub fn of(options: &PageTableOptions) -> anyhow::Result<Self> {
        let setups = setups(options)?;
        let (platform, images, runs) = (options.on, options.images.clone(), options.runs);
        Ok(Self { platform, images, setups, runs, files: Files::check(&options.output)? })
    }

    /// The number of single measurements.
    pub fn steps(&self) -> u64 {
        let runs = if self.platform == Platform::Hypervisor { 1 } else { u64::from(self.runs) + 1 };
        runs * self.setups.len() as u64
    }

    /// Notes that a reader of the figures needs.
    pub fn notes(&self) -> Vec<String> {
        let Some(first) = self.setups.first() else { return Vec::new() };
        let mut notes = vec!["time is that of the slowest vCPU; CPU time is that of all vCPUs together".to_owned()];
        if first.backing.page() == 4 << 10 {
            notes.push("with pages of 4 KiB nothing is coalesced, and `adjust` has no faults".to_owned());
        } else if self.platform == Platform::Machine {
            notes.push(
                "memory is unmapped when the log starts, so that `update` has the same faults as in KVM (--help)"
                    .to_owned(),
            );
        }
        if !first.forced_write_back {
            notes.push("the CPU is one without forced write-back; caches are really cleaned".to_owned());
        }
        if first.exit_cost > 0 {
            notes.push(format!("modelled: {} ns for each fault's exit (--exit-cost)", first.exit_cost));
        }
        if first.sparse {
            notes.push("sparse memory: one small piece, mapped repeatedly; its contents were not checked".to_owned());
        }
        notes
    }

    /// The plan of a command line, for tests.
    #[cfg(test)]
    pub fn of_line(line: &str) -> anyhow::Result<Self> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: PageTableOptions,
        }
        let words = ["page-table"].into_iter().chain(line.split_whitespace());
        Self::of(&<Line as clap::Parser>::try_parse_from(words)?.options)
    }
}

/// The variants that take turns; baselines come first.
fn setups(options: &PageTableOptions) -> anyhow::Result<Vec<Setup>> {
    check_platform(options)?;
    let cleans = options.policy.iter().any(|choice| choice.key == "cmo");
    let page = options.backing.page();
    let region = options.bytes.0.checked_next_multiple_of(page).filter(|region| *region > 0);
    let first = Setup {
        vcpus: options.vcpus,
        // Rounded up to whole pages of the backing, as the selftest does.
        region: region.with_context(|| format!("-b {} is not a valid memory size", options.bytes.0))?,
        overlap: true,
        backing: options.backing,
        tracker: Tracker::WriteProtect,
        chunk: 0,
        forced_write_back: !cleans,
        offset: options.offset.map(|offset| offset.0),
        sparse: options.sparse,
        exit_cost: options.exit_cost,
        ..Setup::new(options.mode.map_or_else(|| usual_mode(options.on), Ok)?)
    };
    first.check_pages()?;
    let policies = options::policies(&options.policy)?;
    let mut setups: Vec<_> = policies.into_iter().map(|policies| Setup { policies, ..first.clone() }).collect();
    setups.sort_by_key(|setup| cmp::Reverse(setup.baselines()));
    Ok(setups)
}

/// Refuses options that the platform does not support.
fn check_platform(options: &PageTableOptions) -> anyhow::Result<()> {
    let on = options.on;
    ensure!(options.vcpus > 0, "-v 0: a guest needs at least one vCPU");
    if on != Platform::Machine {
        ensure!(options.exit_cost == 0, "--exit-cost is for the machine: on {on} exits have their real cost");
        ensure!(!options.sparse, "--sparse is for the machine");
    }
    ensure!(
        on != Platform::Kvm || options.policy.is_empty(),
        "--policy is Twofold's: KVM has only the policies of its kernel"
    );
    ensure!(on != Platform::Hypervisor || options.vcpus == 1, "the hypervisor runs one vCPU: -v 1");
    Ok(())
}

/// The mode of Wang 2021, by its present name.
fn usual_mode(on: Platform) -> anyhow::Result<Mode> {
    if on == Platform::Kvm && cfg!(target_arch = "x86_64") {
        return Ok(twofold_kvm::KvmOptions::native_mode());
    }
    Mode::find("p40v48-4k").context("there is no such guest mode")
}

#[cfg(test)]
mod tests {
    use super::super::stages::Stages;
    use super::*;
    use twofold_workload::policies::Cmo;

    fn setups_of(line: &str) -> anyhow::Result<Vec<Setup>> {
        Plan::of_line(line).map(|plan| plan.setups)
    }

    #[test]
    fn s4_by_its_commands() {
        let both = setups_of("-m 6 -s anonymous_thp -b 20G -v 40 --policy cmo=on-map,on-abort").unwrap();
        assert_eq!(both.iter().map(|setup| setup.policies.cmo).collect::<Vec<_>>(), [Cmo::OnAbort, Cmo::OnMap]);
        assert!(both.iter().all(|setup| setup.overlap && setup.region == 20 << 30 && !setup.forced_write_back));
        let one = setups_of("-s anonymous_hugetlb_1gb -b 1M --policy coalesce=free-first").unwrap();
        assert_eq!((one.len(), one[0].region, one[0].forced_write_back), (1, 1 << 30, true));
        assert!(one.iter().chain(&both).all(|setup| Stages::new(setup).is_ok()));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for line in [
            "-v 0",
            "-b 0",
            "-m p40",
            "--on kvm --policy cmo=on-map",
            "--on kvm --exit-cost 5",
            "--on hypervisor -v 2",
            "--policy cmo=on-map --policy cmo=on-abort",
            "--runs 0",
            "-p 0x1001",
        ] {
            assert!(setups_of(line).is_err(), "{line}");
        }
    }
}
