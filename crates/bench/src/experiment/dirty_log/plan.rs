// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The plan of `twofold bench dirty-log`: from options to guests, by mode and variant. The options are read here and nowhere
//! else.
//!
//! Invariant: contradictory options, and those that the platform does not support, are refused before anything is set
//! up.

use std::cmp;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_memory::dirty::Tracker;
use twofold_workload::mode::{Mode, S0_MODES};

use super::load::Load;
use crate::experiment::record::Variant;
use crate::experiment::setup::{Backing, Setup};
use crate::options::{self, DirtyLogOptions};
use crate::report::Files;
use crate::results::Platform;
use crate::statistics::ENOUGH;

/// What to measure, where, and which files to write.
pub struct Plan {
    /// Where the guests run.
    pub platform: Platform,
    /// The directory of the hypervisor's images. `None`: this workspace's.
    pub images: Option<PathBuf>,
    /// What the guest does.
    pub load: Load,
    /// For each mode the variants to compare; baselines come first.
    pub modes: Vec<Vec<Setup>>,
    /// How the guests are measured.
    pub work: Work,
    /// Whether the guests are only checked.
    pub only_checks: bool,
    /// The CPU of the collector.
    pub collector: Option<usize>,
    /// The output files.
    pub files: Files,
}

/// How the guests are measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// Variants take turns, run by run.
    Turns(Turns),
    /// Guests never pause.
    Continuous(Timing),
}

/// Variants that take turns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turns {
    /// Number of counted runs.
    pub runs: u32,
    /// Whether each iteration is shown.
    pub each: bool,
}

/// The times of a guest that never pauses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Time from one collection to the next.
    pub interval: Duration,
    /// Time with logging enabled.
    pub duration: Duration,
    /// Runs of each variant.
    pub runs: u32,
}

impl Plan {
    /// The plan of these options.
    ///
    /// # Errors
    ///
    /// The options contradict each other, or the platform does not support them.
    pub fn of(options: &DirtyLogOptions) -> anyhow::Result<Self> {
        check_platform(options)?;
        let modes = modes(options);
        let (pinned, collector) = cpus(&options.cpus, options.vcpus)?;
        let policies = options::policies(&options.policy)?;
        let cleans = options.policy.iter().any(|choice| choice.key == "cmo");
        let region =
            if options.overlap { options.bytes.0.checked_mul(options.vcpus as u64) } else { Some(options.bytes.0) };
        let first = Setup {
            vcpus: options.vcpus,
            region: region.context("vCPUs times -b do not fit in 64 bits")?,
            overlap: options.overlap,
            slots: options.slots,
            backing: options.backing,
            ring: options.ring,
            chunk: chunk(options.chunk.map_or(default_chunk(options.on), |chunk| chunk.0))?,
            forced_write_back: !cleans,
            offset: options.offset.map(|offset| offset.0),
            sparse: options.sparse,
            pinned,
            exit_cost: options.exit_cost,
            ..Setup::new(modes[0])
        };
        let setups = modes.iter().map(|mode| {
            let trackers = trackers(options)?;
            let of = |tracker: &Tracker| {
                let first = Setup { mode: *mode, tracker: *tracker, ..first.clone() };
                policies.iter().map(move |policies| Setup { policies: *policies, ..first.clone() }).collect::<Vec<_>>()
            };
            let mut variants: Vec<_> = trackers.iter().flat_map(of).collect();
            variants.sort_by_key(|setup| cmp::Reverse(setup.baselines()));
            Ok(variants)
        });
        let load = Load {
            iterations: options.iterations,
            write_percent: options.write_percent,
            random_order: options.random_order,
            seed: options.seed,
            run_while_disabling: options.run_while_disabling,
        };
        let work = if options.continuous {
            let (interval, duration) = (options.interval.0, options.duration.0);
            Work::Continuous(Timing { interval, duration, runs: options.runs.unwrap_or(ENOUGH as u32) })
        } else {
            Work::Turns(Turns { runs: options.runs.unwrap_or(7), each: options.each })
        };
        let modes = setups.collect::<anyhow::Result<Vec<Vec<_>>>>()?;
        modes.iter().flatten().try_for_each(Setup::check_pages)?;
        let (platform, images, only_checks) = (options.on, options.images.clone(), options.tap);
        let files = Files::check(&options.output)?;
        Ok(Self { platform, images, load, modes, work, only_checks, collector, files })
    }

    /// All variants, mode by mode.
    pub fn setups(&self) -> impl Iterator<Item = &Setup> {
        self.modes.iter().flatten()
    }

    /// The number of single measurements.
    pub fn steps(&self) -> u64 {
        let runs = match self.work {
            _ if self.only_checks || self.platform == Platform::Hypervisor => 1,
            Work::Turns(turns) => u64::from(turns.runs) + 1,
            Work::Continuous(timing) => u64::from(timing.runs),
        };
        runs * self.setups().count() as u64
    }

    /// Notes that a reader of the figures needs.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let mut note = |is: bool, text: &str| {
            if is {
                notes.push(text.to_owned());
            }
        };
        note(
            self.setups().any(|setup| setup.chunk == 0),
            "a chunk of 0, KVM's default, splits nothing ahead: the figures include no split",
        );
        note(
            self.setups().any(|setup| !setup.forced_write_back),
            "the CPU is one without forced write-back; caches are really cleaned, by this CPU's own instruction",
        );
        note(
            self.setups().any(|setup| setup.sparse),
            "sparse memory: one small piece, mapped repeatedly, so caches hold more of it than of real memory",
        );
        note(
            self.setups().any(|setup| setup.exit_cost > 0),
            "modelled: each fault includes a price for its exit (--exit-cost)",
        );
        note(
            self.setups().any(|setup| {
                matches!(
                    setup.backing,
                    Backing::AnonymousHugetlb
                        | Backing::AnonymousHugetlb2M
                        | Backing::AnonymousHugetlb1G
                        | Backing::SharedHugetlb
                )
            }),
            "huge pages are as stage 2 sees them; the system's own may be smaller",
        );
        notes
    }

    /// The variant, as named in results.
    pub fn variant(&self, setup: &Setup) -> Variant {
        let Load { iterations, write_percent, random_order, seed, .. } = self.load;
        let mut variant = Variant::new("dirty-log", self.platform, setup).with("iterations", iterations);
        if write_percent != 100 {
            variant = variant.with("write_percent", write_percent).with("seed", seed);
        }
        if random_order {
            variant = variant.with("order", "random").with("seed", seed);
        }
        variant
    }

    /// The plan of a command line, for tests.
    #[cfg(test)]
    pub fn of_line(line: &str) -> anyhow::Result<Self> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: DirtyLogOptions,
        }
        let words = ["dirty-log"].into_iter().chain(line.split_whitespace());
        Self::of(&<Line as clap::Parser>::try_parse_from(words)?.options)
    }
}

/// Refuses options that the platform does not support.
fn check_platform(options: &DirtyLogOptions) -> anyhow::Result<()> {
    let (on, interval, duration) = (options.on, options.interval.0, options.duration.0);
    ensure!(
        !options.continuous || interval <= duration,
        "--interval {interval:?} is longer than --duration {duration:?}: the log would be read once, after its end"
    );
    ensure!(options.ring.is_none() || on == Platform::Kvm, "--ring is KVM's: use --on kvm");
    if on == Platform::Machine {
        return Ok(());
    }
    ensure!(options.exit_cost == 0, "--exit-cost is for the machine: on {on} exits have their real cost");
    ensure!(!options.sparse, "--sparse is for the machine");
    if on == Platform::Kvm {
        ensure!(options.policy.is_empty(), "--policy is Twofold's: KVM has only the policies of its kernel");
        let foreign = options.tracker.iter().find(|tracker| tracker.needs_dirty_state());
        ensure!(
            foreign.is_none(),
            "KVM has no tracker `{}`; use write-protect or manual",
            foreign.map_or("", |one| one.name())
        );
    }
    if on == Platform::Hypervisor {
        ensure!(!options.continuous, "--continuous measures times, and {on} has only counts");
        ensure!(options.vcpus == 1, "the hypervisor runs one vCPU: -v 1");
        ensure!(options.seed > 0, "the hypervisor's guest needs a seed of at least 1: -r 1");
    }
    Ok(())
}

/// The modes of the options; default: those of Bras 2026. A continuous run shows no mean over modes, so its default is
/// the first of them.
fn modes(options: &DirtyLogOptions) -> Vec<Mode> {
    if options.modes.is_empty() && options.on == Platform::Kvm && cfg!(target_arch = "x86_64") {
        vec![twofold_kvm::KvmOptions::native_mode()]
    } else if options.modes.is_empty() {
        let count = if options.continuous { 1 } else { S0_MODES.len() };
        S0_MODES.iter().take(count).filter_map(|name| Mode::find(name)).collect()
    } else {
        options.modes.clone()
    }
}

fn trackers(options: &DirtyLogOptions) -> anyhow::Result<Vec<Tracker>> {
    let named = &options.tracker;
    if options.get_clears {
        let other = named.iter().find(|tracker| **tracker != Tracker::WriteProtect);
        let name = other.map_or("", |tracker| tracker.name());
        ensure!(
            other.is_none(),
            "-g is write-protect, where getting the log clears it, and {name} has a separate clear: leave one out"
        );
        return Ok(vec![Tracker::WriteProtect]);
    }
    for (at, tracker) in named.iter().enumerate() {
        ensure!(!named[..at].contains(tracker), "--tracker {} twice", tracker.name());
    }
    match named.as_slice() {
        [] if options.continuous && options.on == Platform::Machine => Ok(Tracker::ALL.to_vec()),
        [] => Ok(vec![Tracker::Manual]),
        named => Ok(named.to_vec()),
    }
}

/// 2 MiB. For KVM on x86-64 it is a kernel module parameter.
fn default_chunk(on: Platform) -> u64 {
    if on == Platform::Kvm && cfg!(target_arch = "x86_64") { 0 } else { 2 << 20 }
}

fn chunk(bytes: u64) -> anyhow::Result<u64> {
    let fits = bytes == 0 || bytes.is_power_of_two() && bytes >= 4096;
    ensure!(fits, "a chunk of {bytes} bytes: use 0, or a power of two of at least 4096");
    Ok(bytes)
}

/// The CPUs of the vCPUs, and of the collector.
fn cpus(named: &[usize], vcpus: usize) -> anyhow::Result<(Vec<usize>, Option<usize>)> {
    let count = named.len();
    ensure!(
        count == 0 || count == vcpus || count == vcpus + 1,
        "-c names {count} CPUs for {vcpus} vCPUs: name one for each, and optionally one for the collector"
    );
    Ok((named.iter().take(vcpus).copied().collect(), named.get(vcpus).copied()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use twofold_workload::policies::Split;

    fn plan(line: &str) -> anyhow::Result<Plan> {
        Plan::of_line(line)
    }

    #[test]
    fn s0_and_s3_by_their_commands() {
        let plan = plan("-b 16G -s anonymous_thp -g --policy split=records,every-level").unwrap();
        assert_eq!(plan.modes.iter().map(|setups| setups[0].mode.name).collect::<Vec<_>>(), S0_MODES);
        let split = plan.modes[0].iter().map(|setup| setup.policies.split).collect::<Vec<_>>();
        assert_eq!(split, [Split::EveryLevel, Split::Records], "the baseline comes first");
        let s3 = self::plan("-b 512MB -v 2 -i 5 -m 3 -s anonymous_thp --tracker manual,combined").unwrap();
        assert_eq!((s3.load.iterations, s3.modes.len()), (5, 1));
        assert_eq!((s3.modes[0][1].memory(), s3.modes[0][1].tracker), (1 << 30, Tracker::Combined));
        assert_eq!(self::plan("-o -v 2 -b 1M").unwrap().modes[0][0].region, 2 << 20);
        let cmo = self::plan("--policy cmo=on-abort").unwrap();
        assert!(cmo.modes.iter().flatten().all(|setup| !setup.forced_write_back));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for line in [
            "-g --tracker manual",
            "--tracker manual,manual",
            "--policy split=records --policy split=every-level",
            "-c 0 -v 2",
            "-i 1",
            "-w 101",
            "-m p40",
            "-s hugetlb",
            "--chunk 3M",
            "--on kvm --tracker combined",
            "--on kvm --exit-cost 5",
            "--on kvm --policy split=records",
            "--on hypervisor -v 2",
            "--on hypervisor -r 0",
            "--continuous -i 3",
            "--interval 5ms",
            "--continuous --interval 5s --duration 1s",
            "-b 0",
            "-p 0x1001",
            "-m p40v48-64k -b 4K",
            "--tap --json x",
            "-b 16E",
        ] {
            assert!(plan(line).is_err(), "{line}");
        }
        let refusal = |line: &str| plan(line).err().map(|error| error.to_string()).unwrap_or_default();
        let of_interval = refusal("--continuous --interval 5s --duration 1s");
        assert!(of_interval.contains("--interval 5s is longer than --duration 1s"), "{of_interval}");
        assert!(refusal("-b 0").starts_with("-b 0 is no memory"), "{}", refusal("-b 0"));
        assert!(plan("--continuous --interval 1s --duration 1s").is_ok());
        assert!(plan("-c 0,1,0 -v 2").is_ok());
        assert!(plan("-g --tracker write-protect").is_ok());
    }
}
