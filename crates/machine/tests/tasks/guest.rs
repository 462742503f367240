// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest for the tests, on a machine of either mode, and tasks that touch given pages.

use std::cell::Cell;
use std::rc::Rc;

use twofold_abi::async_fault::flags;
use twofold_machine::arena::Arena;
use twofold_machine::tasks::bm::Layout;
use twofold_machine::tasks::{
    Access, Enabled, Ended, MachineError, Nanos, Privilege, Step, Task, TaskMachine, VcpuTasks,
};
use twofold_machine::vm::Cpu;
use twofold_memory::{Backing, Frames, GuestMemory, Pages, Slot, SlotId};
use twofold_stage2::{Features, Geometry, Ipa, IpaRange, Kib4, Platform, Vmid};

use super::leaving::{Latency, Leaving, PAGE};

pub type Tasks = Vec<Vec<Box<dyn Task>>>;

/// A guest's memory, and the CPUs for its vCPUs.
pub struct Guest<H: Platform> {
    pub memory: GuestMemory<H>,
    pub slots: Vec<(IpaRange, SlotId)>,
    pub layout: Layout,
}

impl<H: Platform> Guest<H> {
    pub fn new(platform: H, arena: &Arena, features: Features, pages: u64) -> Self {
        let mut frames = Frames::new(features);
        frames.add(arena.donate_part(0, 32 << 20).unwrap());
        let geometry = Geometry::new(Kib4, 40, &features).unwrap();
        let mut memory = GuestMemory::new(platform, geometry, Vmid::new(1), frames, Pages::Small).unwrap();
        let layout = Layout::new(pages * PAGE, 8);
        let slots = [&layout.own, &layout.array].map(|range| {
            let slot = Slot { range: range.clone(), backing: Backing::Ram, writable: true };
            (range.clone(), memory.add_slot(slot).unwrap())
        });
        Self { memory, slots: slots.into(), layout }
    }

    pub fn pager(&self, limit: usize, latency: Latency) -> Leaving<'_, H> {
        Leaving::new(&self.memory, self.slots.clone(), &self.layout.array, limit, latency)
    }

    /// Each vCPU with its tasks, and with asynchronous faults where `flags` says so.
    pub fn vcpus(&self, tasks: Tasks, flags: Option<u64>) -> Vec<VcpuTasks> {
        let of = |(vcpu, tasks)| VcpuTasks {
            tasks,
            enabled: flags.map(|flags| Enabled { area: self.layout.area(vcpu), flags }),
        };
        (0..).zip(tasks).map(of).collect()
    }

    pub fn word(&self, ipa: Ipa) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read(ipa, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }
}

/// Stores to pages of the array in order, each at a privilege.
pub struct Touches {
    layout: Layout,
    pages: Vec<(u64, Privilege)>,
    at: usize,
    pub done: Rc<Cell<usize>>,
}

impl Touches {
    pub fn new(layout: &Layout, pages: Vec<(u64, Privilege)>) -> Self {
        Self { layout: layout.clone(), pages, at: 0, done: Rc::default() }
    }
}

impl Task for Touches {
    fn step(&mut self) -> Option<Step> {
        self.done.set(self.at);
        let (page, privilege) = *self.pages.get(self.at)?;
        self.at += 1;
        let at = self.layout.array.start.raw() + page * PAGE;
        // All tasks run the same program.
        let pc = 0x1000 + self.at as u64 % 3 * 4;
        Some(Step { pc, privilege, access: Access::Add { at, value: 1 }, cost: Nanos::micros(1) })
    }
}

/// Runs tasks that end, with every page of the array absent at first.
pub fn run<H: Platform>(
    machine: &mut TaskMachine<'_, impl Cpu<Host = H>, Leaving<'_, H>>,
    layout: &Layout,
) -> Result<Ended, MachineError> {
    (0..layout.pages()).for_each(|page| machine.pager().leave(layout.array.start.raw() + page * PAGE));
    machine.run(Nanos::millis(600_000))
}

pub const KERNEL: u64 = flags::KERNEL;
