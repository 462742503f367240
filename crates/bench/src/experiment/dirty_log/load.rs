// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the guest of a dirty log does.

use anyhow::ensure;
use twofold_workload::pass::Pass;

use crate::experiment::setup::Setup;
use crate::experiment::target::REGION;

/// What the guest does, and how often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Rounds of dirty, get and clear: at least 2.
    pub iterations: u32,
    /// Percentage of accesses that write; the others read. The first pass writes everything.
    pub write_percent: u64,
    /// Whether places are random. The first pass is in order.
    pub random_order: bool,
    /// Seed of the first vCPU's generator; each next vCPU has the next seed. The largest is at most 2^31 - 2. From 0 a
    /// generator stays at 0: each access is a write, and a random place is the first one.
    pub seed: u64,
    /// Whether the guest runs while logging is disabled.
    pub run_while_disabling: bool,
}

impl Load {
    /// The defaults of `dirty_log_perf_test`: two rounds, every access a write, in order.
    pub const DEFAULT: Self =
        Self { iterations: 2, write_percent: 100, random_order: false, seed: 1, run_while_disabling: false };

    /// The first passes of each vCPU, which populate the memory.
    pub fn passes(&self, setup: &Setup) -> anyhow::Result<Vec<Vec<Pass>>> {
        ensure!(self.write_percent <= 100, "{} of 100 pages written", self.write_percent);
        ensure!(self.iterations >= 2, "{} iterations: at least 2 are needed", self.iterations);
        let last = self.seed.checked_add(setup.vcpus as u64);
        ensure!(
            last.is_some_and(|last| last <= LAST_SEED + 1),
            "seed {}: the seeds of all vCPUs must be in 0 to {LAST_SEED}",
            self.seed
        );
        let page = setup.mode.granule.size();
        let pass = |vcpu| {
            let pass = Pass::writes(REGION + setup.region_of(vcpu), setup.region / page, page);
            // The guest's generator cannot be at 0. For the seed 0, `rounds` makes a pass that needs no generator.
            vec![Pass { random: (self.seed + vcpu as u64).max(1), value: VALUE, ..pass }]
        };
        Ok((0..setup.vcpus).map(pass).collect())
    }

    /// Changes the passes into those of a round; the generators continue.
    pub fn rounds(&self, passes: &mut [Vec<Pass>]) {
        for (vcpu, passes) in passes.iter_mut().enumerate() {
            let stands_still = self.seed == 0 && vcpu == 0;
            for pass in passes {
                if !stands_still {
                    (pass.write_percent, pass.random_order) = (self.write_percent, self.random_order.into());
                    continue;
                }
                pass.write_percent = if self.write_percent > 0 { 100 } else { 0 };
                if self.random_order {
                    pass.inner_stride = 0;
                }
            }
        }
    }
}

/// The value that the guest writes.
const VALUE: u64 = 0x5457_4f46_4f4c_4421;
/// The largest seed: the generator's last state.
pub const LAST_SEED: u64 = (1 << 31) - 2;
