// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Experiments on the hypervisor: the bare-metal guest makes the accesses of KVM's selftests, and EL2 counts their
//! cost.
//!
//! Invariants: one vCPU on a deterministic machine, so the same experiment has the same figures, to the last
//! instruction. Figures come only from a guest that completed the experiment. They are counts, because an emulator says
//! nothing about time.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use thiserror::Error;
use twofold_abi::bundle::flags;
use twofold_abi::vendor::{PHASES, PHASES_MAX, TRACKERS, WRITE_PROTECT};
use twofold_abi::virt::TEST_VA;
use twofold_workload::mode::Mode;
use twofold_workload::policies::Policies;
use twofold_workload::stage1::{Layout, Leaves, RangeError, Unsupported};

use crate::bundle::Bundle;
use crate::devices::Devices;
use crate::guest::{GuestError, GuestSettings, NAME_DEFAULT, PAGE_SIZE, Pages, TestMemory, WEIGHT_DEFAULT, size};
use crate::machine::{Loaded, Machine};
use crate::outcome::Outcome;
use crate::qemu::Qemu;
use crate::report::Report;
use crate::run::{Launch, RunError, Stop};
use crate::verdict::Verdict;

/// An experiment.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The guest's program.
    pub program: Program,
    /// Bytes of test memory.
    pub bytes: u64,
    /// Slots of the test memory, of equal size.
    pub slots: u32,
    /// The guest's stage 1, and its physical addresses.
    pub mode: Mode,
    /// Bits of a guest physical address that the hypervisor provides, 32 to 48. `None`: as many as the mode has, or 48
    /// if the mode names none (`pxx`).
    pub ipa_bits: Option<u32>,
    /// How large the mappings of the test memory may be.
    pub pages: Pages,
    /// The level of the largest leaf, 1 for 1 GiB (hugetlb) to 3. The memory is then allocated at the start, in slots
    /// whose size is a power of two of bytes, and `pages` must allow for the leaf. `None`: memory is allocated as the
    /// guest touches it.
    pub given: Option<u32>,
    /// Each technique, or its baseline. Only an image with the feature `baselines` has baselines.
    pub policies: Policies,
    /// Whether to use the CPU's forced write-back (FEAT_S2FWB), if it has that. If not, the engine does cache
    /// maintenance.
    pub forced_write_back: bool,
}

/// The phases of a guest's program.
#[derive(Clone, Debug)]
pub enum Program {
    /// As `dirty_log_perf_test`: populate, enable, for each iteration dirty, get and (except for write-protect) clear,
    /// disable.
    DirtyLog(DirtyLog),
    /// As `kvm_page_table_test`: create, enable, update, disable, (coalesce), adjust.
    PageTable(PageTable),
}

/// The settings of a dirty-log experiment.
#[derive(Clone, Debug)]
pub struct DirtyLog {
    /// Passes over the memory while the log runs: at least 1.
    pub iterations: u32,
    /// An index of [`TRACKERS`].
    pub tracker: usize,
    /// Whether all pages are dirty at first; impossible with write-protect.
    pub all_dirty: bool,
    /// Bytes to split at once: 0, or a power of two of at least 4 KiB.
    pub chunk: u64,
    /// Pages of 100 that are written; the others are read.
    pub write_percent: u32,
    /// Whether each access goes to a random page.
    pub random_order: bool,
    /// The generator's seed: 1 to 2^31 - 2.
    pub seed: u32,
}

/// The settings of a page-table experiment.
#[derive(Clone, Debug)]
pub struct PageTable {
    /// Bytes of the backing that the guest assumes: 4 KiB, or the size of a block.
    pub block: u64,
    /// Bytes to split at once when the log starts. 0, as in the kernel's test, splits block by block as the guest
    /// writes.
    pub chunk: u64,
    /// Whether blocks are coalesced after the log has stopped, before the guest's accesses.
    pub coalesce: bool,
}

impl Default for DirtyLog {
    /// As the kernel's test with `-g`: two iterations, write-protect, all pages written in order; chunks of 2 MiB.
    fn default() -> Self {
        Self {
            iterations: 2,
            tracker: WRITE_PROTECT,
            all_dirty: false,
            chunk: 2 << 20,
            write_percent: 100,
            random_order: false,
            seed: 1,
        }
    }
}

/// The programs and the settings that an experiment runs with.
#[derive(Clone, Debug)]
pub struct Platform<'a> {
    /// The QEMU.
    pub qemu: &'a Qemu,
    /// The hypervisor's image.
    pub image: &'a Path,
    /// The bare-metal guest's image.
    pub guest: &'a Path,
    /// The CPU's model, as QEMU's `-cpu` takes it.
    pub cpu: &'a str,
    /// The time limit, in case of a hang.
    pub timeout: Option<Duration>,
    /// Ends the run from outside.
    pub stop: Stop,
}

/// The figures of an experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The phases by name: one entry for each time that the guest was in the phase, in order.
    pub phases: BTreeMap<String, Vec<Phase>>,
    /// All figures, including those of the whole run.
    pub report: Report,
}

/// The figures of a phase, by the keys that [`twofold_abi::control`] lists after `phase.NAME.N`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Phase(pub Report);

/// What time is on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// A nanosecond for each instruction of its one CPU: equal runs are equal.
    Counted,
    /// The host's. Each vCPU has a CPU.
    Real,
}

/// Why there are no figures, and how to get them.
#[derive(Debug, Error)]
pub enum ExperimentError {
    /// The guest has no such mode.
    #[error(transparent)]
    Mode(#[from] Unsupported),
    /// The test memory does not fit into the mode's addresses.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The memory is not made of whole pages or blocks.
    #[error(
        "{} of memory are not made of {slots} slots of whole {}; the next size that fits: {}",
        size(*bytes), size(*unit), size(*next)
    )]
    Bytes {
        /// The requested size, in bytes.
        bytes: u64,
        /// The number of slots.
        slots: u32,
        /// The unit of each slot, in bytes.
        unit: u64,
        /// The next size that is possible, in bytes.
        next: u64,
    },
    /// Too few or too many iterations.
    #[error("{0} iterations are not possible; give 1 to {most}", most = ITERATIONS_MAX)]
    Iterations(u32),
    /// There is no such tracker.
    #[error("there is no tracker {0}; there are 0 to {last}", last = TRACKERS.len() - 1)]
    Tracker(usize),
    /// A log that a get clears cannot start with all pages dirty.
    #[error("write-protect has no start with all pages dirty; take manual, or start with none")]
    AllDirty,
    /// A chunk that cannot be split.
    #[error("a chunk of {} is not possible; give 0, or a power of two of at least 4K", size(*.0))]
    Chunk(u64),
    /// More pages than all, or an invalid seed.
    #[error("{percent} of 100 pages written, with seed {seed}, are not possible; give 0 to 100, and 1 to 2147483646")]
    Draws {
        /// Pages of 100.
        percent: u32,
        /// The seed.
        seed: u32,
    },
    /// The backing is neither pages nor blocks.
    #[error("memory cannot be backed by {}; give 4K, 2M or 1G", size(*.0))]
    Block(u64),
    /// The guest's memory, or one of its files, is invalid.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The machine did not end by itself.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The run's directory cannot be created.
    #[error("no directory for the run's files: {0}; is there room in TMPDIR?")]
    Directory(#[from] io::Error),
    /// The machine lacks a feature that the experiment needs.
    #[error("not on this machine: {0}")]
    Unsupported(String),
    /// The guest reported why it failed.
    #[error("the guest: {0}")]
    Failed(String),
    /// The run ended in a wrong way.
    #[error("{verdict}{console}")]
    Ended {
        /// How it ended.
        verdict: Verdict,
        /// The last lines of the console, unless the verdict says it all.
        console: String,
    },
    /// A phase is missing from the figures.
    #[error("the hypervisor reports {found} phases, not {expected}; are both images of one version?")]
    Phases {
        /// The number of phases reported.
        found: usize,
        /// The number of phases that the experiment has.
        expected: usize,
    },
}

/// An iteration has three phases, and the experiment has three others.
const ITERATIONS_MAX: usize = (PHASES_MAX - 3) / 3;

/// Memory of the guest beside its tables for the test memory.
const OWN_MEMORY: u64 = 64 << 20;

impl Platform<'_> {
    /// Runs a guest on a deterministic machine with one CPU, in a temporary directory of its own, until it ends.
    pub(crate) fn run(&self, guest: &GuestSettings) -> Result<Outcome, ExperimentError> {
        self.run_with(guest, Clock::Counted)
    }

    /// As [`run`](Self::run), with this clock.
    pub(crate) fn run_with(&self, guest: &GuestSettings, clock: Clock) -> Result<Outcome, ExperimentError> {
        let directory = tempfile::Builder::new().prefix("twofold-").tempdir()?;
        let bundle = Bundle::write(std::slice::from_ref(guest), &directory.path().join("guest.bundle"))?;
        let machine = Machine {
            image: self.image.to_owned(),
            loaded: Loaded::Guest { bundle, memory: guest.total_memory() },
            spare_memory: 0,
            append: None,
            cpu: self.cpu.to_owned(),
            cpus: if clock == Clock::Counted { 1 } else { guest.cpus },
            memory_file: None,
            deterministic: clock == Clock::Counted,
        };
        let launch = Launch {
            qemu: self.qemu,
            machine: &machine,
            directory: directory.path(),
            trace: None,
            timeout: self.timeout,
            stop: self.stop.clone(),
        };
        Ok(launch.run(|_| ())?)
    }
}

impl Experiment {
    /// Runs the experiment, in a temporary directory of its own.
    ///
    /// # Errors
    ///
    /// The settings are invalid (nothing has been started then), or the run failed.
    pub fn run(&self, on: &Platform<'_>) -> Result<Counted, ExperimentError> {
        self.judge(&on.run(&self.guest(on.guest)?)?)
    }

    /// The guest of this experiment: `kernel` is the bare-metal guest's image.
    ///
    /// # Errors
    ///
    /// The settings are invalid.
    pub fn guest(&self, kernel: &Path) -> Result<GuestSettings, ExperimentError> {
        let ipa_bits = self.ipa_bits.or(self.mode.pa_bits).unwrap_or(48);
        let layout = Layout::new(&self.mode, ipa_bits, Leaves::Pages)?;
        let test = TestMemory { ipa_bits, size: self.bytes, slots: self.slots, leaf: self.given };
        self.check_bytes()?;
        let words = match &self.program {
            Program::DirtyLog(program) => program.words()?,
            Program::PageTable(program) => program.words()?,
        };
        let (mode, start, bytes) = (self.mode, test.start(), self.bytes);
        let command_line = format!("{words} mode={mode} ipa-bits={ipa_bits} at={start:#x} bytes={bytes}");
        let tables = layout.tables(TEST_VA, start, bytes)? * mode.granule.size();
        let cache = if self.forced_write_back { 0 } else { flags::NO_FORCED_WRITE_BACK };
        let guest = GuestSettings {
            name: NAME_DEFAULT.to_owned(),
            weight: WEIGHT_DEFAULT,
            firmware: None,
            kernel: kernel.to_owned(),
            initrd: None,
            command_line,
            memory: OWN_MEMORY + tables.next_multiple_of(2 << 20),
            cpus: 1,
            pages: self.pages,
            flags: flags::COUNT | flags::MEASURE | cache,
            devices: Devices::default(),
            swap: None,
            test: Some(test),
            policies: self.policies,
        };
        guest.check_settings()?;
        Ok(guest)
    }

    /// The number of phases that the guest goes through, with repetitions.
    fn phases(&self) -> usize {
        match &self.program {
            Program::DirtyLog(program) => {
                let each = if program.tracker == WRITE_PROTECT { 2 } else { 3 };
                3 + each * program.iterations as usize
            }
            Program::PageTable(program) => 5 + usize::from(program.coalesce),
        }
    }

    fn check_bytes(&self) -> Result<(), ExperimentError> {
        let block = match &self.program {
            Program::DirtyLog(_) => PAGE_SIZE,
            Program::PageTable(program) => program.block,
        };
        let unit = block.max(self.mode.granule.size());
        let (bytes, slots) = (self.bytes, self.slots);
        let all = unit.saturating_mul(slots.into());
        if all == 0 || bytes == 0 || !bytes.is_multiple_of(all) {
            let next = bytes.max(1).checked_next_multiple_of(all).unwrap_or(all);
            return Err(ExperimentError::Bytes { bytes, slots, unit, next });
        }
        Ok(())
    }

    fn judge(&self, outcome: &Outcome) -> Result<Counted, ExperimentError> {
        let verdict = Verdict::new(outcome, false);
        let console = outcome.console.tail(20);
        if let (Verdict::Reset, Some(why)) = (&verdict, console.iter().find_map(|line| line.strip_prefix(FAILED))) {
            // If the hypervisor refused a call, its log has the reason.
            let reason = outcome.control.log.iter().find_map(|line| line.strip_prefix(REASON)?.split_once(": "));
            let text = reason.map_or(why.trim(), |(_, reason)| reason).to_owned();
            let is_lacking = UNSUPPORTED.iter().any(|words| why.contains(words));
            return Err(if is_lacking { ExperimentError::Unsupported(text) } else { ExperimentError::Failed(text) });
        }
        if !verdict.is_ok() {
            let is_reported = console.is_empty() || matches!(verdict, Verdict::CannotStart(_));
            let console = if is_reported {
                String::new()
            } else {
                format!("\nThe console's last lines:\n{}", console.join("\n"))
            };
            return Err(ExperimentError::Ended { verdict, console });
        }
        let counted = Counted::of(&outcome.control.report);
        let (found, expected) = (counted.phases.values().map(Vec::len).sum(), self.phases());
        if found == expected { Ok(counted) } else { Err(ExperimentError::Phases { found, expected }) }
    }
}

/// The start of the guest's last line if it gives up.
const FAILED: &str = "guest experiment: FAILED:";
/// Texts in that line that show that the machine lacks a feature.
const UNSUPPORTED: [&str; 2] = ["this CPU has no", "LOG_START with -1"];
/// The start of the hypervisor's line if it refuses a call for a log.
const REASON: &str = "the guest's call ";

impl DirtyLog {
    fn words(&self) -> Result<String, ExperimentError> {
        let Self { iterations, tracker, all_dirty, chunk, write_percent, random_order, seed } = *self;
        let name = *TRACKERS.get(tracker).ok_or(ExperimentError::Tracker(tracker))?;
        if !(1..=ITERATIONS_MAX).contains(&(iterations as usize)) {
            return Err(ExperimentError::Iterations(iterations));
        }
        if all_dirty && tracker == WRITE_PROTECT {
            return Err(ExperimentError::AllDirty);
        }
        check_chunk(chunk)?;
        if write_percent > 100 || !(1..(1 << 31) - 1).contains(&seed) {
            return Err(ExperimentError::Draws { percent: write_percent, seed });
        }
        let (all, random) = (u8::from(all_dirty), u8::from(random_order));
        Ok(format!(
            "experiment=dirty-log iterations={iterations} tracker={name} all-dirty={all} chunk={chunk} \
             write-percent={write_percent} random-order={random} seed={seed}"
        ))
    }
}

impl PageTable {
    fn words(&self) -> Result<String, ExperimentError> {
        let Self { block, chunk, coalesce } = *self;
        if ![4 << 10, 2 << 20, 1 << 30].contains(&block) {
            return Err(ExperimentError::Block(block));
        }
        check_chunk(chunk)?;
        Ok(format!("experiment=page-table block={block} chunk={chunk} coalesce={}", u8::from(coalesce)))
    }
}

fn check_chunk(chunk: u64) -> Result<(), ExperimentError> {
    let is_possible = chunk == 0 || chunk.is_power_of_two() && chunk >= PAGE_SIZE;
    if is_possible { Ok(()) } else { Err(ExperimentError::Chunk(chunk)) }
}

impl Counted {
    /// Collects the phases of a report.
    pub fn of(report: &Report) -> Self {
        let phases = PHASES.iter().filter_map(|name| {
            let times = (1..).map(|number| Phase::of(report, &format!("phase.{name}.{number}")));
            let times: Vec<_> = times.map_while(|phase| phase).collect();
            (!times.is_empty()).then(|| ((*name).to_owned(), times))
        });
        Self { phases: phases.collect(), report: report.clone() }
    }

    /// Each time that the guest was in the phase of this name.
    pub fn times(&self, name: &str) -> &[Phase] {
        self.phases.get(name).map_or(&[], Vec::as_slice)
    }
}

impl Phase {
    fn of(report: &Report, key: &str) -> Option<Self> {
        let mut figures = Report::default();
        report.under(key).for_each(|(key, value)| figures.set(key, value));
        figures.get("instructions").map(|_| Self(figures))
    }

    /// The figure of this key; a figure that is not reported is 0.
    pub fn get(&self, key: &str) -> u64 {
        self.0.get(key).unwrap_or(0)
    }

    /// The sum of the figures below `prefix`: `tlbi`, for instance, for TLB invalidations of all kinds.
    pub fn sum(&self, prefix: &str) -> u64 {
        self.0.under(prefix).map(|(_, value)| value).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use crate::report::Control;

    fn dirty_log() -> Experiment {
        Experiment {
            program: Program::DirtyLog(DirtyLog::default()),
            bytes: 64 << 20,
            slots: 1,
            mode: Mode::find("p36v48-64k").unwrap(),
            ipa_bits: None,
            pages: Pages::Small,
            given: None,
            policies: Policies::default(),
            forced_write_back: true,
        }
    }

    fn page_table() -> Experiment {
        let program = Program::PageTable(PageTable { block: 2 << 20, chunk: 0, coalesce: true });
        Experiment { program, forced_write_back: false, ..dirty_log() }
    }

    #[test]
    fn an_experiment_is_words_and_memory_at_the_top() {
        let guest = dirty_log().guest(Path::new("guest.img")).unwrap();
        assert_eq!(
            guest.command_line,
            "experiment=dirty-log iterations=2 tracker=write_protect all-dirty=0 chunk=2097152 write-percent=100 \
             random-order=0 seed=1 mode=p36v48-64k ipa-bits=36 at=0xfc0000000 bytes=67108864"
        );
        assert_eq!(guest.test, Some(TestMemory { ipa_bits: 36, size: 64 << 20, slots: 1, leaf: None }));
        assert_eq!(guest.flags, flags::COUNT | flags::MEASURE);
        let guest = page_table().guest(Path::new("guest.img")).unwrap();
        assert!(guest.command_line.starts_with("experiment=page-table block=2097152 chunk=0 coalesce=1 mode="));
        assert_eq!(guest.flags, flags::COUNT | flags::MEASURE | flags::NO_FORCED_WRITE_BACK);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |experiment: Experiment, word: &str| {
            let error = experiment.guest(Path::new("guest.img")).unwrap_err().to_string();
            assert!(error.contains(word), "no {word:?} in {error}");
        };
        let log = |change: fn(&mut DirtyLog)| {
            let mut program = DirtyLog::default();
            change(&mut program);
            Experiment { program: Program::DirtyLog(program), ..dirty_log() }
        };
        refused(log(|log| log.iterations = 0), "iterations");
        refused(log(|log| log.iterations = 1000), "iterations");
        refused(log(|log| log.tracker = 5), "tracker");
        refused(log(|log| log.all_dirty = true), "write-protect");
        refused(log(|log| log.chunk = 3 << 20), "chunk");
        refused(log(|log| log.write_percent = 101), "0 to 100");
        refused(log(|log| log.seed = 0), "2147483646");
        refused(Experiment { bytes: 4096, ..dirty_log() }, "64K");
        refused(Experiment { bytes: 0, ..dirty_log() }, "64K");
        refused(Experiment { slots: 0, ..dirty_log() }, "slots");
        refused(Experiment { slots: 3, ..dirty_log() }, "next size");
        refused(Experiment { bytes: 65 << 20, ..page_table() }, "2M");
        refused(Experiment { bytes: (1 << 36) - (1 << 30), ..dirty_log() }, "test memory");
        refused(Experiment { bytes: 1 << 48, ..dirty_log() }, "do not fit");
        refused(Experiment { ipa_bits: Some(32), ..dirty_log() }, "the limit is 32");
        for name in ["p52v48-4k", "p47v64-4k"] {
            refused(Experiment { mode: Mode::find(name).unwrap(), ..dirty_log() }, name);
        }
        let block = PageTable { block: 64 << 10, chunk: 0, coalesce: false };
        refused(Experiment { program: Program::PageTable(block), ..dirty_log() }, "4K, 2M or 1G");
    }

    #[test]
    fn phases_are_read_by_name_and_time() {
        let text = "twofold:stat phase.dirty.1.instructions 7\ntwofold:stat phase.dirty.2.instructions 0\n\
                    twofold:stat phase.dirty.1.tlbi.vmalle1 2\ntwofold:stat phase.dirty.1.tlbi.ipas2e1is 3\n\
                    twofold:stat phase.get.2.instructions 5\ntwofold:stat phase.clear.1.tlbi.vmalle1 5\n";
        let counted = Counted::of(&Control::parse(text).report);
        let [first, second] = counted.times("dirty") else { panic!("{counted:?}") };
        assert_eq!((first.get("instructions"), first.sum("tlbi"), first.get("tlbi.vmalle1")), (7, 5, 2));
        assert_eq!((second.get("instructions"), second.sum("tlbi")), (0, 0));
        // A second time without a first does not count, nor does a phase without instructions.
        assert!(counted.times("get").is_empty() && counted.times("clear").is_empty());
    }

    /// Runs a stand-in for QEMU with this script.
    fn run(script: &str) -> Result<Counted, ExperimentError> {
        let version = "case \"$*\" in *--version) echo 'QEMU emulator version 8.0.0'; exit 0;; esac";
        let fake = Fake::new(&format!("{version}\n{script}"));
        let kernel = fake.directory.path().join("kernel");
        let mut image = vec![0; 64];
        image[16..24].copy_from_slice(&4096u64.to_le_bytes());
        image[56..60].copy_from_slice(b"ARM\x64");
        std::fs::write(&kernel, image).unwrap();
        let on = Platform {
            qemu: &Qemu::at(&fake.program).unwrap(),
            image: &kernel,
            guest: &kernel,
            cpu: "max",
            timeout: None,
            stop: Stop::default(),
        };
        page_table().run(&on)
    }

    #[test]
    fn figures_are_of_a_guest_that_did_all() {
        let phases = |names: &str| {
            let stat = "say \"twofold:stat phase.$name.1.instructions 3\"";
            let end = "say 'twofold:end power-off'; say 'twofold:exit 0'";
            run(&format!("for name in {names}; do {stat}; done; {end}; exit 0"))
        };
        let counted = phases("create enable update disable coalesce adjust").unwrap();
        assert_eq!(counted.times("coalesce")[0].get("instructions"), 3);
        let error = phases("create enable update disable adjust").unwrap_err();
        assert!(matches!(error, ExperimentError::Phases { found: 5, expected: 6 }), "{error}");
    }

    #[test]
    fn the_guest_says_why_it_could_not() {
        let error = run(
            "echo 'guest experiment: FAILED: no such granule'; say 'twofold:end reset'; say 'twofold:exit 16'; exit 0",
        );
        let error = error.unwrap_err();
        assert!(matches!(&error, ExperimentError::Failed(why) if why == "no such granule"), "{error}");
        let error = run("echo last words; say 'twofold:exit 17'").unwrap_err();
        assert!(matches!(error, ExperimentError::Ended { .. }) && error.to_string().contains("last words"), "{error}");
    }
}
