// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The plan of `twofold bench async-fault`: from options to guests. The options are read here and nowhere else.
//!
//! Invariant: contradictory options, and a guest that does not fit into this machine, are refused before anything is
//! set up.

use std::path::PathBuf;

use anyhow::ensure;
use twofold_machine::tasks::bm::MOST_FAULTERS;
use twofold_machine::tasks::{Costs, Nanos};

use crate::machine;
use crate::options::{AsyncFaultOptions, BmGuest, FaultMode, MOST_TASKS};
use crate::readable;
use crate::report::Files;
use crate::results::{Kind, Platform};

/// What to measure, and which files to write.
#[derive(Debug)]
pub struct Plan {
    /// The guest.
    pub bm: Bm,
    /// Where it runs.
    pub on: Platform,
    /// What runs `bm` on the hypervisor; on the machine, none.
    pub guests: Vec<BmGuest>,
    /// The directory of the hypervisor's images. `None`: those of this workspace.
    pub images: Option<PathBuf>,
    /// The modes that are compared; the baseline comes first.
    pub modes: Vec<FaultMode>,
    /// The store's latencies, one experiment each.
    pub latencies: Vec<Nanos>,
    /// Number of counted runs.
    pub runs: u32,
    /// The seed of the first counted run.
    pub seed: u64,
    /// Whether the first counted run's own counts are shown.
    pub verbose: bool,
    /// The output files.
    pub files: Files,
}

/// A guest that runs `bm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bm {
    /// vCPUs.
    pub vcpus: u64,
    /// Tasks that store to random pages.
    pub faulting: u64,
    /// Tasks that work.
    pub workers: u64,
    /// Bytes of the array, whole pages.
    pub bytes: u64,
    /// The most bytes of the guest in memory, whole pages.
    pub limit: u64,
    /// How long the tasks run.
    pub time: Nanos,
}

impl Plan {
    /// The plan of these options.
    ///
    /// # Errors
    ///
    /// The options contradict each other, the guest does not fit here, or a file cannot be written.
    pub fn of(options: &AsyncFaultOptions) -> anyhow::Result<Self> {
        let (on, mut guests) = (options.on, options.guest.clone());
        ensure!(
            on != Platform::Kvm,
            "--on kvm: KVM has no such faults on arm64, so use --on machine or --on hypervisor"
        );
        let bm = Bm::of(options)?;
        ensure_once("--guest", &guests, |guest| guest.name().to_owned())?;
        if on == Platform::Hypervisor {
            if guests.is_empty() {
                guests.extend(BmGuest::ALL);
            }
            ensure!(options.seed == 1 && !options.verbose, "--seed and -v are for the machine");
            guests.iter().try_for_each(|guest| bm.ensure_possible_in(*guest))?;
        } else {
            ensure!(guests.is_empty() && options.images.is_none(), "--guest and --images are for --on hypervisor");
        }
        ensure_once("--mode", &options.mode, |mode| mode.name().to_owned())?;
        ensure_once("--latency", &options.latency, Nanos::to_string)?;
        let mut modes = options.mode.clone();
        modes.sort_by_key(|mode| *mode != FaultMode::Off);
        Ok(Self {
            on,
            guests,
            images: options.images.clone(),
            modes,
            latencies: options.latency.clone(),
            runs: if on == Platform::Hypervisor && bm.vcpus == 1 { 1 } else { options.runs },
            bm,
            seed: options.seed,
            verbose: options.verbose,
            files: Files::check(&options.output)?,
        })
    }

    /// The number of single measurements.
    pub fn steps(&self) -> u64 {
        let runs = u64::from(self.runs) + u64::from(self.on == Platform::Machine);
        runs * self.modes.len() as u64 * self.latencies.len() as u64 * self.guests.len().max(1) as u64
    }

    /// How the figures are obtained.
    pub fn kind(&self) -> Kind {
        match self.on {
            Platform::Machine | Platform::Kvm => Kind::Modelled,
            Platform::Hypervisor if self.bm.vcpus == 1 => Kind::Counted,
            Platform::Hypervisor => Kind::Emulated,
        }
    }

    /// Notes that a reader of the figures needs.
    pub fn notes(&self) -> Vec<String> {
        if self.on == Platform::Hypervisor {
            return vec![match self.kind() {
                Kind::Counted => COUNTED.to_owned(),
                _ => EMULATED.to_owned(),
            }];
        }
        let prices = Costs::STATED.stated().map(|one| format!("{} {} ({})", one.what, one.price, one.source));
        let mut notes = vec![
            format!("modelled: time is virtual, and these prices are stated: {}", prices.join(", ")),
            "not modelled: balancing of tasks between vCPUs, steal time, a queue in front of the store, and what writing \
             out costs the host"
                .to_owned(),
        ];
        if self.bm.is_as_published() {
            notes.push(CEILING.to_owned());
        } else {
            notes.push(format!(
                "not compared with published figures: they are of one faulting task and one worker for each vCPU, and an \
                 array of twice the limit; here {} and {} on {}, and {} in {}",
                self.bm.faulting,
                self.bm.workers,
                readable::setting("vcpus", &self.bm.vcpus.to_string()),
                readable::bytes(self.bm.bytes),
                readable::bytes(self.bm.limit)
            ));
        }
        notes
    }

    /// The plan of a command line, for tests.
    #[cfg(test)]
    pub fn of_line(line: &str) -> anyhow::Result<Self> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: AsyncFaultOptions,
        }
        let words = ["async-fault"].into_iter().chain(line.split_whitespace());
        Self::of(&<Line as clap::Parser>::try_parse_from(words)?.options)
    }
}

const COUNTED: &str = "counted: an instruction takes a nanosecond, at EL2 and in the guest alike, so all runs are equal; writes to \
                       pages that are present count, too";
const EMULATED: &str = "emulated: each vCPU has a CPU of QEMU, at the pace of this host; the modes take turns, and only their ratios \
                        can be compared with anything; writes to pages that are present count, too";
const CEILING: &str = "pv can do about twice the work of off, and no more: a faulting task that waits in off or halt is the \
                       current task and is charged for it, so a fair scheduler gives the workers half of the time, and \
                       they can have all of it at most. halt overlaps a worker's slice with the wait, so it brings more \
                       pages, and the work is the same";

impl Bm {
    /// What the options mean by default.
    pub const SMALL: Self =
        Self { vcpus: 2, faulting: 2, workers: 2, bytes: 64 << 20, limit: 32 << 20, time: Nanos::millis(5000) };

    fn of(options: &AsyncFaultOptions) -> anyhow::Result<Self> {
        let is_emulated = options.on == Platform::Hypervisor;
        let vcpus = options.vcpus.unwrap_or(if is_emulated { 1 } else { Self::SMALL.vcpus });
        let (faulting, workers) = (options.faulting.unwrap_or(vcpus), options.workers.unwrap_or(vcpus));
        let typed =
            options.memory.map_or(if is_emulated { EMULATED_BYTES } else { Self::SMALL.bytes }, |memory| memory.0);
        ensure!((1..=MOST).contains(&typed), "-m {typed}: an array has 1 byte to {}", readable::bytes(MOST));
        let bytes = typed.next_multiple_of(PAGE);
        let limit = match options.limit {
            Some(limit) => limit.0.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX - PAGE + 1).min(MOST),
            None => (bytes / 2).next_multiple_of(PAGE),
        };
        let bm = Self { vcpus, faulting, workers, bytes, limit, time: options.time };
        let needed = if is_emulated { 2 * bm.memory() } else { bm.needed() };
        let free = machine::memory("MemAvailable:");
        ensure!(
            free.is_none_or(|free| needed <= free),
            "-m {} needs {} MiB of this machine's memory, of which {} MiB are free: use a smaller array",
            readable::bytes(bytes),
            needed >> 20,
            free.unwrap_or(0) >> 20
        );
        Ok(bm)
    }

    /// Bytes of the guest's memory on the hypervisor, in the proportion of Natapov 2010.
    pub fn memory(&self) -> u64 {
        self.limit.saturating_mul(4)
    }

    /// Refuses what a guest on the hypervisor cannot do.
    fn ensure_possible_in(&self, guest: BmGuest) -> anyhow::Result<()> {
        let Self { vcpus, faulting, workers, bytes, .. } = *self;
        match guest {
            BmGuest::Bare => {
                let is_even = faulting.is_multiple_of(vcpus) && workers.is_multiple_of(vcpus);
                ensure!(
                    is_even && (faulting + workers) / vcpus <= BARE_TASKS,
                    "-f {faulting} -w {workers}: the bare-metal guest has as many tasks on each of {vcpus} vCPUs, at most \
                     {BARE_TASKS}; or use --guest linux"
                );
            }
            BmGuest::Linux => ensure!(
                self.time.get().is_multiple_of(1_000_000_000),
                "-t {}: in Linux, bm runs for whole seconds; or use --guest bare",
                self.time
            ),
        }
        ensure!(
            bytes <= self.memory() - self.memory() / 8,
            "-m {}: the guest has four times --limit, {}, and needs some for itself: raise --limit",
            readable::bytes(bytes),
            readable::bytes(self.memory())
        );
        Ok(())
    }

    /// Bytes of this machine's memory: the array in memory or in the store, and what each faulting task has written.
    fn needed(&self) -> u64 {
        let shadow = self.bytes / PAGE * 8 * self.faulting;
        // The store's list of pages, and tables.
        self.bytes + self.bytes / 8 + shadow + (16 << 20)
    }

    /// Whether the tasks and the memory are in the proportions of Natapov 2010.
    pub fn is_as_published(&self) -> bool {
        self.faulting == self.vcpus && self.workers == self.vcpus && self.bytes == 2 * self.limit
    }
}

fn ensure_once<T: Copy + PartialEq>(option: &str, all: &[T], name: impl Fn(&T) -> String) -> anyhow::Result<()> {
    for (at, one) in all.iter().enumerate() {
        ensure!(!all[..at].contains(one), "{option} {} twice", name(one));
    }
    Ok(())
}

/// Bytes of the array on the hypervisor: a Linux needs some for itself in half of them.
const EMULATED_BYTES: u64 = 128 << 20;
/// Tasks on a vCPU of the bare-metal guest.
const BARE_TASKS: u64 = 8;

/// The experiment's name in results.
pub const NAME: &str = "async-fault";
/// Bytes of a page.
pub const PAGE: u64 = 4096;
const _: () = assert!(MOST_TASKS <= MOST_FAULTERS, "a page has a word for each faulting task");
/// The largest array, so that the guest's addresses suffice.
const MOST: u64 = 256 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bm_by_its_command() {
        let plan = Plan::of_line("-f 4 -w 4 -m 1G --limit 512M -t 60 --vcpus 4").unwrap();
        let wanted =
            Bm { vcpus: 4, faulting: 4, workers: 4, bytes: 1 << 30, limit: 512 << 20, time: Nanos::millis(60_000) };
        assert_eq!(plan.bm, wanted);
        assert!(plan.bm.is_as_published());
        assert_eq!(plan.latencies, [Nanos::millis(10), Nanos::micros(100)]);
    }

    #[test]
    fn the_defaults_are_as_published_and_the_baseline_comes_first() {
        let plan = Plan::of_line("").unwrap();
        assert_eq!(plan.bm, Bm::SMALL);
        assert!(plan.bm.is_as_published() && plan.notes().iter().any(|note| note.contains("about twice")));
        assert_eq!(Plan::of_line("--mode pv,off").unwrap().modes, [FaultMode::Off, FaultMode::Pv]);
        let other = Plan::of_line("-f 8 -w 1 --vcpus 1").unwrap();
        assert!(!other.bm.is_as_published() && other.notes().iter().any(|note| note.starts_with("not compared")));
        assert_eq!(Plan::of_line("-m 5000").unwrap().bm.bytes, 8192);
    }

    #[test]
    fn on_the_hypervisor_one_vcpu_is_counted_once_and_several_are_emulated() {
        let plan = Plan::of_line("--on hypervisor --runs 10").unwrap();
        assert_eq!((plan.runs, plan.kind(), plan.steps()), (1, Kind::Counted, 12));
        assert_eq!((plan.bm.vcpus, plan.bm.faulting, plan.bm.workers), (1, 1, 1));
        assert_eq!((plan.bm.bytes, plan.bm.limit, plan.bm.memory()), (128 << 20, 64 << 20, 256 << 20));
        let plan = Plan::of_line("--on hypervisor --guest linux --vcpus 2 --runs 10 --latency 10ms").unwrap();
        assert_eq!((plan.runs, plan.kind(), plan.steps()), (10, Kind::Emulated, 30));
        assert!(plan.bm.is_as_published());
        assert!(Plan::of_line("--on hypervisor --guest bare -t 500ms").is_ok());
    }

    #[test]
    fn what_contradicts_itself_or_does_not_fit_is_refused() {
        for (line, why) in [
            ("--on kvm", "use --on machine or --on hypervisor"),
            ("--guest bare", "--guest and --images are for"),
            ("--on hypervisor --seed 2", "for the machine"),
            ("--on hypervisor -v", "for the machine"),
            ("--on hypervisor --guest bare,bare", "--guest bare twice"),
            ("--on hypervisor --vcpus 2 -f 3", "on each of 2 vCPUs"),
            ("--on hypervisor -f 5 -w 4", "at most 8"),
            ("--on hypervisor -t 500ms", "whole seconds"),
            ("--on hypervisor -m 256M --limit 64M", "raise --limit"),
            ("--mode off,off", "--mode off twice"),
            ("--latency 1ms,1000us", "--latency 1 ms twice"),
            ("--latency 0us", "not a latency"),
            ("-m 0", "1 byte"),
            ("-m 1T", "1 byte to 256 GiB"),
            ("-t 0", "not a time"),
            ("-w 0", "1..=64"),
            ("--vcpus 0", "1..=16"),
            ("--json /none/x.json", "make it first"),
        ] {
            let error = format!("{:#}", Plan::of_line(line).unwrap_err());
            assert!(error.contains(why), "{line}: {error}");
        }
        if machine::memory("MemAvailable:").is_some_and(|free| free < 256 << 30) {
            let error = Plan::of_line("-m 256G").unwrap_err().to_string();
            assert!(error.contains("MiB are free"), "{error}");
        }
    }
}
