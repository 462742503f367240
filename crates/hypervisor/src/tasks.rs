// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hypervisor's own tasks, for the loop of a CPU.

use spin::Mutex;
use twofold_vmm::scheduler::{Decision, EntityId};

use crate::commands::Commands;
use crate::schedule::cpu::{Entity, ThisCpu};
use crate::swap::Swap;
use crate::switch::Switch;
use crate::vcpu::pages::set_deadline;
use crate::vm::Vm;
use crate::{channel, schedule};

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

/// Does the work of a guest's virtio devices that its vCPUs leave ([`virtio`](crate::virtio)).
pub(crate) struct IoTask {
    pub(crate) vm: &'static Vm,
    pub(crate) entity: EntityId,
}

impl Entity for IoTask {
    fn id(&self) -> EntityId {
        self.entity
    }

    fn turn(&self, cpu: &mut ThisCpu, _: &mut Switch, decision: Decision) -> Decision {
        cpu.work(decision, || self.vm.io())
    }
}

/// Writes pages out, and ends transfers ([`swap`](crate::swap)), for a guest that has a store. It belongs to the guest's
/// group, so the guest pays for it.
pub(crate) struct SwapTask {
    /// The guest.
    pub(crate) vm: &'static Vm,
    /// Its store.
    pub(crate) swap: &'static Swap,
}

impl Entity for SwapTask {
    fn id(&self) -> EntityId {
        self.swap.task()
    }

    fn turn(&self, cpu: &mut ThisCpu, _: &mut Switch, decision: Decision) -> Decision {
        let next = cpu.work(decision, || self.swap.work(self.vm.memory()));
        // D5. This CPU looks at its deadlines before it does anything else.
        set_deadline(cpu, self.swap);
        next
    }

    fn alarm_due(&self, _: Option<EntityId>) -> u64 {
        self.swap.end_some(self.vm.memory())
    }
}

/// Answers the launcher ([`commands`](crate::commands)). It has a group of its own, so it gets its share of the CPUs
/// however much the guests run, and takes it from all of them.
pub(crate) struct ChannelTask {
    entity: EntityId,
    commands: Mutex<Commands>,
}

impl ChannelTask {
    /// The task that the scheduler calls so.
    pub(crate) fn new(entity: EntityId, guests: &'static [Vm]) -> Self {
        Self { entity, commands: Mutex::new(Commands::new(guests)) }
    }
}

impl Entity for ChannelTask {
    fn id(&self) -> EntityId {
        self.entity
    }

    fn turn(&self, cpu: &mut ThisCpu, _: &mut Switch, decision: Decision) -> Decision {
        // The scheduler gives the task to one CPU at a time. The CPU before this one may still be giving the lock back.
        let mut commands = self.commands.lock();
        cpu.work(decision, || commands.work())
    }

    fn port_interrupt(&self) {
        channel::acknowledge_interrupt();
        schedule::wake(self.entity);
    }
}
