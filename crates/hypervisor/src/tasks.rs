// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hypervisor's own tasks, for the loop of a CPU.

use twofold_vmm::scheduler::{Decision, EntityId};

use crate::schedule::cpu::{Entity, ThisCpu};
use crate::switch::Switch;
use crate::vm::Vm;

/// Starts a guest anew after a reset ([`restart`](crate::restart)).
pub(crate) struct RestartTask(pub(crate) &'static Vm);

impl Entity for RestartTask {
    fn id(&self) -> EntityId {
        self.0.task()
    }

    fn turn(&self, cpu: &mut ThisCpu, _: &mut Switch, decision: Decision) -> Decision {
        cpu.work(decision, || self.0.restart())
    }
}
