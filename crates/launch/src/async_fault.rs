// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bm` (Natapov 2010) in a guest whose pages leave to a store in the machine's memory: some tasks write to random pages, and
//! others work.
//!
//! Invariants: with one vCPU the machine is deterministic and counts one instruction a nanosecond, so equal runs give equal
//! figures. With several, each has a CPU of its own, and time is the host's. Figures come only from a guest that got to its
//! end, and found each word that it wrote as it was.

use std::path::Path;
use std::time::Duration;

use twofold_workload::policies::Policies;

use crate::devices::Devices;
use crate::experiment::{Clock, ExperimentError, Platform};
use crate::guest::{GuestSettings, NAME_DEFAULT, Pages, WEIGHT_DEFAULT};
use crate::outcome::Outcome;
use crate::swap::{Mode, Store, Swap};
use crate::verdict::Verdict;

/// A guest that runs `bm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bm {
    /// vCPUs.
    pub vcpus: u32,
    /// Tasks that write to random pages. The bare-metal guest has as many on each vCPU.
    pub faulting: u64,
    /// Tasks that work. The bare-metal guest has as many on each vCPU.
    pub workers: u64,
    /// Bytes of the array.
    pub bytes: u64,
    /// Bytes of the guest's memory.
    pub memory: u64,
    /// The most bytes of it that are in the machine's memory at a time.
    pub resident: u64,
    /// How long the tasks run, by the guest's clock. In Linux: whole seconds.
    pub time: Duration,
}

/// What runs it.
#[derive(Clone, Copy, Debug)]
pub enum Program<'a> {
    /// The bare-metal guest of the platform.
    Bare,
    /// Debian's Linux with an initrd that `cargo xtask build --linux-bm` makes.
    Linux {
        /// Its kernel.
        kernel: &'a Path,
        /// The initrd.
        initrd: &'a Path,
    },
}

/// What the tasks did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Units of work of all workers.
    pub work: u64,
    /// Writes to random pages.
    pub writes: u64,
}

impl Bm {
    /// Runs it once. A transfer of the store takes `delay`.
    ///
    /// # Errors
    ///
    /// The settings are invalid (nothing has been started then), or the hypervisor or the guest failed.
    pub fn run(
        &self,
        program: Program<'_>,
        mode: Mode,
        delay: Duration,
        on: &Platform<'_>,
    ) -> Result<Done, ExperimentError> {
        let guest = self.guest(program, mode, delay, on.guest);
        guest.check_settings()?;
        let outcome = on.run_with(&guest, if self.vcpus == 1 { Clock::Counted } else { Clock::Real })?;
        done(&outcome)
    }

    fn guest(&self, program: Program<'_>, mode: Mode, delay: Duration, bare: &Path) -> GuestSettings {
        let Self { vcpus, faulting, workers, bytes, .. } = *self;
        let each = |tasks: u64| tasks / u64::from(vcpus);
        let (kernel, initrd, command_line) = match program {
            Program::Bare => {
                let (milliseconds, faulters, workers) = (self.time.as_millis(), each(faulting), each(workers));
                (bare, None, format!("bm={milliseconds} faulters={faulters} workers={workers} size={bytes}"))
            }
            // The same addresses in each run.
            Program::Linux { kernel, initrd } => (
                kernel,
                Some(initrd.to_owned()),
                format!(
                    "console=ttyAMA0 panic=-1 loglevel=5 nokaslr {BM}-f,{faulting},-w,{workers},-m,{bytes},-t,{}",
                    self.time.as_secs()
                ),
            ),
        };
        GuestSettings {
            name: NAME_DEFAULT.to_owned(),
            weight: WEIGHT_DEFAULT,
            firmware: None,
            kernel: kernel.to_owned(),
            initrd,
            command_line,
            memory: self.memory,
            cpus: vcpus,
            pages: Pages::Auto,
            flags: 0,
            devices: Devices::default(),
            swap: Some(Swap { resident: self.resident, store: Store::Memory(delay), mode }),
            test: None,
            policies: Policies::default(),
        }
    }
}

/// The word of Linux's command line with the arguments of `bm`, separated by commas.
pub const BM: &str = "bm=";

fn done(outcome: &Outcome) -> Result<Done, ExperimentError> {
    let console = outcome.console.tail(usize::MAX);
    if let Some(why) = console.iter().find_map(|line| line.strip_prefix(FAILED)) {
        return Err(ExperimentError::Failed(why.trim().to_owned()));
    }
    let verdict = Verdict::new(outcome, true);
    if !verdict.is_ok() {
        let tail = console.iter().rev().take(20).rev().map(|line| format!("\n{line}"));
        return Err(ExperimentError::Ended { verdict, console: tail.collect() });
    }
    read(console.iter().copied()).ok_or_else(|| ExperimentError::Failed("printed nothing of bm".to_owned()))
}

/// What a guest prints that lost a write.
const FAILED: &str = "bm: FAILED:";

/// Reads the guest's lines: `bm: pages N work N`, or one for each vCPU, `bm: vCPU V pages N work N parked N ...`.
fn read<'l>(lines: impl IntoIterator<Item = &'l str>) -> Option<Done> {
    let mut sum = None;
    for line in lines {
        let Some((head, figures)) = line.split_once("pages ") else { continue };
        if head != "bm: " && !head.starts_with("bm: vCPU ") {
            continue;
        }
        let (writes, work) = figures.split_once(" work ")?;
        let work = work.split(' ').next()?;
        let Done { work: all_work, writes: all_writes } = sum.unwrap_or_default();
        sum =
            Some(Done { work: all_work + work.parse::<u64>().ok()?, writes: all_writes + writes.parse::<u64>().ok()? });
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const BM_OF_TWO: Bm = Bm {
        vcpus: 2,
        faulting: 2,
        workers: 4,
        bytes: 128 << 20,
        memory: 256 << 20,
        resident: 64 << 20,
        time: Duration::from_secs(5),
    };

    fn command_line(program: Program<'_>) -> String {
        let guest = BM_OF_TWO.guest(program, Mode::Pv, Duration::from_millis(10), Path::new("guest.img"));
        assert_eq!((guest.memory, guest.cpus), (256 << 20, 2));
        let swap = guest.swap.unwrap();
        assert_eq!((swap.resident, swap.mode), (64 << 20, Mode::Pv));
        guest.command_line
    }

    #[test]
    fn both_guests_get_the_same_tasks() {
        assert_eq!(command_line(Program::Bare), "bm=5000 faulters=1 workers=2 size=134217728");
        let linux = Program::Linux { kernel: Path::new("linux.img"), initrd: Path::new("bm.cpio") };
        assert!(command_line(linux).ends_with(" nokaslr bm=-f,2,-w,4,-m,134217728,-t,5"));
    }

    #[test]
    fn the_figures_of_all_vcpus_are_added() {
        let lines = ["booting", "worker 0: 7", "bm: pages 12 work 3400", "guest check: ok"];
        assert_eq!(read(lines), Some(Done { writes: 12, work: 3400 }));
        let vcpu = |number, pages| format!("bm: vCPU {number} pages {pages} work 10 parked 1 declined 0 woken 1");
        let lines = [vcpu(0, 5), vcpu(1, 6), "bm: 11 writes in 40 pages".to_owned()];
        assert_eq!(read(lines.iter().map(String::as_str)), Some(Done { writes: 11, work: 20 }));
    }

    #[test]
    fn no_figure_is_made_up() {
        for lines in [&["booting"][..], &["bm: pages 12"], &["bm: pages x work 3"], &["bm: vCPU 0 pages 1 work "]] {
            assert_eq!(read(lines.iter().copied()), None, "{lines:?}");
        }
    }
}
