// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which vCPU or task runs on which CPU: the scheduler of `twofold_vmm`, its lock, and what it needs of the machine.
//!
//! | file | contents |
//! |---|---|
//! | this one | the lock, and how a CPU is made to choose anew |
//! | [`cpu`] | the loop of a CPU: choose, run, wait; and what it runs |
//! | [`deadlines`] | the times at which a CPU wakes blocked vCPUs |
//!
//! # Locking
//!
//! One spin lock is around the scheduler, held for one call of it, with interrupts masked as everywhere at EL2. The time
//! is read under the lock. No other lock is taken under it; it may be taken under those of a vCPU, of a guest's power
//! states, and of a task.
//!
//! The scheduler's module has the steps B, W and I, and why no wake-up is lost. Here W3 is two steps:
//!
//! * W3a: the CPU notes for each CPU to interrupt that it has to choose anew.
//! * W3b: it sends the SGI [`KICK`](crate::gic::sources::KICK) to that CPU, after a barrier.
//!
//! The CPU that takes the SGI clears the note before it calls `pick`. So a note that is made after that call is followed
//! by an SGI that is still pending.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use spin::{Mutex, MutexGuard, Once};
pub use twofold_vmm::scheduler::Decision;
use twofold_vmm::scheduler::{EntityId, Kicks, Scheduler};

use crate::gic::physical;
use crate::timer;

pub mod cpu;
pub mod deadlines;

/// Milliseconds for which a vCPU may keep a CPU while another one waits.
pub const SLICE: u64 = 4;

/// The scheduler, its lock, and the CPUs.
pub(crate) struct Schedule {
    scheduler: Mutex<Scheduler>,
    cpus: Vec<Cpu>,
}

struct Cpu {
    mpidr: u64,
    /// It has to choose anew.
    is_due: AtomicBool,
}

static SCHEDULE: Once<Schedule> = Once::new();

/// Begins: from now on CPUs with these affinities choose among the scheduler's entities.
pub fn begin(scheduler: Scheduler, cpus: &[u64]) {
    let cpu = |mpidr: &u64| Cpu { mpidr: *mpidr, is_due: AtomicBool::new(false) };
    SCHEDULE.call_once(|| Schedule { scheduler: Mutex::new(scheduler), cpus: cpus.iter().map(cpu).collect() });
}

/// W: the entity can run.
pub fn wake(entity: EntityId) {
    let Some(schedule) = SCHEDULE.get() else { return };
    let Kicks(mut kicks) = schedule.call(|scheduler, now| scheduler.wake(entity, now));
    while kicks != 0 {
        let cpu = kicks.trailing_zeros() as usize;
        kicks &= kicks - 1;
        if let Some(to) = schedule.cpus.get(cpu) {
            to.is_due.store(true, Ordering::Relaxed);
        }
        interrupt(cpu);
    }
}

/// Makes a CPU leave its guest, or its wait. All earlier stores of this CPU are visible there before.
pub fn interrupt(cpu: usize) {
    if let Some(to) = SCHEDULE.get().and_then(|schedule| schedule.cpus.get(cpu)) {
        physical::kick(to.mpidr);
    }
}

/// Whether this CPU has to choose anew, since this was last asked.
pub(crate) fn is_due(cpu: usize) -> bool {
    SCHEDULE.get().and_then(|schedule| schedule.cpus.get(cpu)).is_some_and(|cpu| {
        // The SGI that follows a note was taken after the note was made, so the load need not wait for anything.
        cpu.is_due.load(Ordering::Relaxed) && cpu.is_due.swap(false, Ordering::Relaxed)
    })
}

/// What this CPU does next.
#[inline(never)]
pub(crate) fn pick(cpu: usize) -> Decision {
    get().call(|scheduler, now| scheduler.pick(cpu, now))
}

/// The vCPU that runs on this CPU waits. Returns whether it is blocked now and nothing else is to run here: if so, the CPU is
/// idle until it [resumes](resume) the vCPU, or chooses.
pub(crate) fn rest(cpu: usize) -> bool {
    get().call(|scheduler, now| scheduler.block_and_rest(cpu, now))
}

/// W2, for the vCPU that rests on this CPU. Returns whether it runs here now, without a limit. If not, nothing has changed.
pub(crate) fn resume(entity: EntityId, cpu: usize) -> bool {
    get().call(|scheduler, now| scheduler.resume(entity, cpu, now))
}

/// Whether the entity waits to be woken.
pub(crate) fn is_blocked(entity: EntityId) -> bool {
    get().call(|scheduler, _| scheduler.is_blocked(entity))
}

/// The vCPU that runs on this CPU spins. Returns what the CPU does next, if that is something else.
pub(crate) fn spinning(cpu: usize) -> Option<Decision> {
    get().call(|scheduler, now| scheduler.spinning(cpu, now))
}

/// The ticks for which this vCPU, which runs here, could run and had no CPU.
pub(crate) fn stolen(entity: EntityId) -> u64 {
    get().call(|scheduler, now| scheduler.stolen(entity, now))
}

/// The ticks for which these entities ran, and those for which they could run and had no CPU.
pub(crate) fn times(entities: impl Iterator<Item = EntityId>) -> (u64, u64) {
    get().call(|scheduler, now| {
        entities.fold((0, 0), |(ran, stolen), entity| {
            (ran + scheduler.ran(entity, now), stolen + scheduler.stolen(entity, now))
        })
    })
}

pub(crate) fn get() -> &'static Schedule {
    SCHEDULE.get().expect("a CPU chooses only after `begin`")
}

impl Schedule {
    /// B2 and B3: the entity that runs on this CPU waits, unless it was woken meanwhile. Returns the one that follows without
    /// a limit, in the usual case, or else what the CPU does next.
    #[inline(always)]
    pub(crate) fn block(&self, cpu: usize) -> Result<EntityId, Decision> {
        let mut scheduler = self.scheduler.lock();
        let now = timer::machine_time();
        match scheduler.block_for_next(cpu, now) {
            Some(next) => Ok(next),
            None => Err(block_then_pick(scheduler, cpu, now)),
        }
    }

    fn call<R>(&self, call: impl FnOnce(&mut Scheduler, u64) -> R) -> R {
        let mut scheduler = self.scheduler.lock();
        let now = timer::machine_time();
        call(&mut scheduler, now)
    }
}

#[inline(never)]
fn block_then_pick(mut scheduler: MutexGuard<'_, Scheduler>, cpu: usize, now: u64) -> Decision {
    let _blocked = scheduler.block(cpu, now);
    scheduler.pick(cpu, now)
}
