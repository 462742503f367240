// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments with a dirty log: their options, for the kernel's own program and for ours.

use anyhow::ensure;
use serde::Serialize;
use twofold_workspace::static_program;

use super::calls::DirtyLog;
use super::selftests::DIRTY_LOG;

/// The configuration of an experiment with a dirty log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Experiment {
    /// The host memory behind the guest's memory, by the selftests' name.
    pub backing: &'static str,
    /// Whether a separate call clears the log; else get clears it.
    pub is_manual: bool,
    /// The eager split's chunk in bytes; 0 to split nothing ahead of writes.
    pub chunk: u64,
    /// The pages that are written in each round.
    pub writes: Writes,
}

/// The pages that a guest writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Writes {
    /// All pages, in order.
    All,
    /// A quarter of the accesses are writes, to pages chosen at random. Two vCPUs have half of the memory each, because
    /// in 6.12 only the second one chooses at random ([`SEED`]).
    Some,
}

/// The experiment whose figures README and the targets use.
pub const PLAIN: Experiment = Experiment { backing: "anonymous", is_manual: true, chunk: 0, writes: Writes::All };

/// Returns all experiments with a dirty log, [`PLAIN`] first.
pub fn all() -> Vec<Experiment> {
    let mut all = Vec::new();
    for backing in [PLAIN.backing, "anonymous_thp"] {
        for is_manual in [true, false] {
            all.extend([0, 2 << 20].map(|chunk| Experiment { backing, is_manual, chunk, ..PLAIN }));
        }
    }
    all.extend([true, false].map(|is_manual| Experiment { is_manual, writes: Writes::Some, ..PLAIN }));
    all
}

/// The size of the guest's memory.
pub const SIZE: &str = "64M";
const HALF: &str = "32M";
/// The seed of our program's random numbers, which makes them those of the kernel's program. In 6.12 the guest of
/// dirty_log_perf_test ignores `-r`: its first vCPU starts with 0, the next one with 1, and so on. The generator yields
/// only 0 from 0, so the first vCPU always writes, with `-a` always to its first page.
const SEED: u32 = 0;
/// The guest mode PA 40, VA 48, 4K, by its number in 6.12.
pub const MODE: u32 = 6;
const ROUNDS: usize = 3;
impl Experiment {
    /// Returns the command for the kernel's own program. `count.c` reads the chunk from the environment.
    pub fn kernels(&self) -> String {
        format!("TWOFOLD_CHUNK={} /bin/{DIRTY_LOG} {}", self.chunk, self.options())
    }

    /// Returns the command for our program.
    pub fn ours(&self) -> String {
        let seed = if self.writes == Writes::All { String::new() } else { format!(" -r {SEED}") };
        let program = format!("/bin/{} bench dirty-log --on kvm --tap", static_program::TWOFOLD.name);
        format!("{program} --chunk {} {}{seed}", self.chunk, self.options())
    }

    /// Returns the options that both programs have in common.
    fn options(&self) -> String {
        let get = if self.is_manual { "" } else { " -g" };
        let writes = match self.writes {
            Writes::All => format!("-v 1 -b {SIZE}"),
            Writes::Some => format!("-v 2 -b {HALF} -w 25 -a"),
        };
        format!("-i {ROUNDS} -m {MODE} -s {}{get} {writes}", self.backing)
    }

    /// Returns the number of rounds in which every write is to a write-protected page. With manual clearing all pages
    /// start dirty and unprotected, so the first round does not count.
    pub fn protected_rounds(&self, log: &DirtyLog) -> usize {
        log.rounds.len() - usize::from(self.is_manual)
    }

    /// Checks that the log has the calls of this experiment, and that all pages were dirty in the rounds that wrote all
    /// pages.
    pub fn check(&self, log: &DirtyLog) -> anyhow::Result<()> {
        ensure!(log.rounds.len() == ROUNDS, "{} rounds and not {ROUNDS}", log.rounds.len());
        for (number, round) in log.rounds.iter().enumerate() {
            let (dirty, pages) = (round.bitmap.dirty, log.pages);
            // With manual clearing all pages start dirty.
            let is_all = self.writes == Writes::All || number + self.protected_rounds(log) < log.rounds.len();
            ensure!(is_all == (dirty == pages), "round {number}: {dirty} of {pages} pages were dirty");
            ensure!(round.clear.is_some() == self.is_manual, "round {number}: the log is cleared by another call");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_are_all_and_different() {
        let all = all();
        assert_eq!((all.len(), all[0]), (10, PLAIN));
        for (number, experiment) in all.iter().enumerate() {
            assert!(!all[..number].contains(experiment));
        }
        let (last, some) = (all[7].kernels(), all[9].kernels());
        assert!(last.starts_with("TWOFOLD_CHUNK=2097152 ") && last.ends_with("anonymous_thp -g -v 1 -b 64M"), "{last}");
        assert!(some.ends_with("anonymous -g -v 2 -b 32M -w 25 -a"), "{some}");
    }

    #[test]
    fn our_command_has_the_same_options() {
        let ours = PLAIN.ours();
        assert_eq!(ours, "/bin/twofold bench dirty-log --on kvm --tap --chunk 0 -i 3 -m 6 -s anonymous -v 1 -b 64M");
        let some = all()[9].ours();
        assert!(some.contains(" --chunk 0 -i 3 ") && some.ends_with(" -g -v 2 -b 32M -w 25 -a -r 0"), "{some}");
    }
}
