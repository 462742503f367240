// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests whose pages leave share what they may have in memory together (`--share-resident`): the task that moves their limits.
//! `twofold_vmm::balance` decides, and says why a guest finds a frame below its limit.
//!
//! - P1. The task looks at each guest: its limit, what it has, and what it has read from its store since the last look.
//! - P2. It lowers the giver's limit, and wakes the giver's own task. That writes pages out, as for any limit.
//! - P3. Only then it raises the taker's limit, by what no guest has. Pages that wait for a frame are served.
//! - P4. It sets a deadline on its CPU for the next look, and is blocked.

use alloc::vec::Vec;

use spin::Mutex;
use twofold_vmm::balance::{Need, balance};
use twofold_vmm::scheduler::{Decision, EntityId};

use crate::read_sysreg;
use crate::schedule::cpu::{Entity, Progress, ThisCpu};
use crate::schedule::deadlines::Due;
use crate::swap::Swap;
use crate::switch::Switch;
use crate::timer;
use crate::vm::Vm;

/// The task.
pub(crate) struct BalanceTask {
    entity: EntityId,
    state: Mutex<State>,
}

struct State {
    guests: Vec<(&'static Vm, &'static Swap)>,
    /// Pages that each had read at the last look.
    reads: Vec<u64>,
    needs: Vec<Need>,
}

/// Looks in a second.
const LOOKS: u64 = 50;

impl BalanceTask {
    /// The task that the scheduler calls so. It has memory for each look from now on.
    pub(crate) fn new(entity: EntityId, guests: &'static [Vm]) -> Self {
        let shares = |vm: &'static Vm| vm.swap().filter(|swap| swap.need(vm.memory()).is_some()).map(|swap| (vm, swap));
        let guests: Vec<_> = guests.iter().filter_map(shares).collect();
        let (reads, needs) = (guests.iter().map(|_| 0).collect(), Vec::with_capacity(guests.len()));
        Self { entity, state: Mutex::new(State { guests, reads, needs }) }
    }
}

impl Entity for BalanceTask {
    fn id(&self) -> EntityId {
        self.entity
    }

    fn turn(&self, cpu: &mut ThisCpu, _: &mut Switch, decision: Decision) -> Decision {
        let next = cpu.work(decision, || {
            self.state.lock().look();
            Progress::Finished
        });
        // P4. This CPU looks at its deadlines before it does anything else.
        let then = timer::machine_time() + read_sysreg!(CNTFRQ_EL0) / LOOKS;
        cpu.deadlines.set(Due::Vcpu(self.entity.index()), then);
        next
    }
}

impl State {
    fn look(&mut self) {
        let Self { guests, reads, needs } = self;
        needs.clear();
        for ((vm, swap), before) in guests.iter().zip(reads) {
            // P1.
            let Some(need) = swap.need(vm.memory()) else { return };
            let all = core::mem::replace(before, need.reads);
            needs.push(Need { reads: need.reads.saturating_sub(all), ..need });
        }
        let before = needs.iter().map(|need| need.limit);
        let mut limits: [u64; GUESTS] = [0; GUESTS];
        limits.iter_mut().zip(before).for_each(|(place, limit)| *place = limit);
        balance(needs);
        let changes = || guests.iter().zip(needs.iter()).zip(limits);
        // P2.
        let mut are_lowered = true;
        for ((&(vm, swap), need), limit) in changes() {
            if need.limit < limit {
                are_lowered &= swap.move_limit(vm.memory(), need.limit);
            }
        }
        // P3. A limit may stay where it is if more pages are pinned.
        for ((&(vm, swap), need), limit) in changes().filter(|_| are_lowered) {
            if need.limit > limit {
                swap.move_limit(vm.memory(), need.limit);
            }
        }
    }
}

/// The most guests.
const GUESTS: usize = twofold_abi::bundle::GUESTS_MAX as usize;
