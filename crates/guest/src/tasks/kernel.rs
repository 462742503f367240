// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel of each vCPU: its timer, and the guest's half of asynchronous page faults, steps G1 to G10 of
//! `docs/async-page-fault.md`. All tasks are at EL1, so it asks for the kernel's faults, too.
//!
//! Invariants: a vCPU's [`Cpu`] is used by that vCPU alone, with IRQs masked. A task is parked only on a token that was
//! announced for the instruction at which it was interrupted. Each token that was read as ready is acknowledged, once.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arm_gic::gicv3::GicCpuInterface;
use arm_gic::{IntId, InterruptGroup};
use twofold_abi::async_fault::{
    ACKNOWLEDGE, DISABLE, ENABLE, INTID, NO_TOKEN, NOT_SUPPORTED, QUERY, SUCCESS, VERSION, WAKE_ALL, area, flags, query,
};

use super::scheduler::{MOST, Scheduler};
use super::wrong::{self, Wrong};
use super::{Failure, USES_CALLS, VCPUS, switch, task, tasks};
use crate::exits::interrupts::{self, TIMER};
use crate::random::Random;
use crate::{psci, vcpus};

/// The PPI of announcements.
pub const ANNOUNCEMENT: IntId = IntId::ppi(INTID - 16);

/// An interrupt that is no later than this is prompt, in nanoseconds. Where each instruction takes one, that is their number.
pub const PROMPT: u64 = 2000;

/// What a kernel counted.
#[derive(Clone, Copy)]
pub struct Counts {
    /// Tasks that were parked.
    pub parked: u64,
    /// Announcements that parked none.
    pub declined: u64,
    /// Tasks that woke.
    pub woken: u64,
    /// Interrupts of the timer.
    pub timer: Timer,
}

/// How late the timer's interrupts reached the handler.
#[derive(Clone, Copy)]
pub struct Timer {
    /// All of them.
    pub interrupts: u64,
    /// Those that came in [`PROMPT`].
    pub prompt: u64,
    /// The longest delay, in ticks.
    pub latest: u64,
}

/// What a vCPU's kernel has.
struct Cpu {
    scheduler: Scheduler,
    /// The sequence number of the last announcement.
    handled: u64,
    counts: Counts,
    /// What the hypervisor refused.
    refused: i64,
    /// A wrong call that it did not refuse.
    not_refused: Option<Failure>,
}

struct Slot(UnsafeCell<Cpu>);

// SAFETY: each vCPU uses its own, and with IRQs masked; the first one reads counts after the others are off.
unsafe impl Sync for Slot {}

static CPUS: [Slot; VCPUS] = [const {
    Slot(UnsafeCell::new(Cpu {
        scheduler: Scheduler::new(),
        handled: 0,
        counts: Counts { parked: 0, declined: 0, woken: 0, timer: Timer { interrupts: 0, prompt: 0, latest: 0 } },
        refused: SUCCESS,
        not_refused: None,
    }))
}; VCPUS];

/// The area of a vCPU: `twofold_abi::async_fault::area`, by words of the least size.
#[repr(C, align(64))]
struct Area([AtomicU32; area::SIZE as usize / 4]);

static AREAS: [Area; VCPUS] = [const { Area([const { AtomicU32::new(0) }; area::SIZE as usize / 4]) }; VCPUS];

/// Whether the hypervisor has the calls.
pub fn discover() -> Result<bool, Failure> {
    match psci::call_with(QUERY, [query::VERSION, 0, 0]) {
        NOT_SUPPORTED => Ok(false),
        version if version >> 16 == i64::from(VERSION >> 16) => Ok(true),
        version => Err(Failure::Version(version, VERSION)),
    }
}

/// What a vCPU counted, which has ended.
pub fn counts(vcpu: usize) -> Counts {
    // SAFETY: its tasks have ended, so nothing uses it.
    unsafe { (*CPUS[vcpu].0.get()).counts }
}

/// Runs the tasks of this vCPU to their end.
pub fn run(vcpu: usize) -> Result<(), Failure> {
    let uses_calls = USES_CALLS.load(Ordering::Relaxed) != 0;
    let (faulters, workers) = tasks();
    // SAFETY: IRQs are masked.
    let cpu = unsafe { &mut *CPUS[vcpu].0.get() };
    for number in 1..=(faulters + workers) as usize {
        cpu.scheduler.add(switch::prepare(vcpu, number));
    }
    switch::install();
    let area = area_of(vcpu).address();
    let makes_wrong_calls = uses_calls && Wrong::get() == Wrong::Calls;
    if makes_wrong_calls {
        wrong::while_disabled(area)?;
    }
    if uses_calls {
        match psci::call_with(ENABLE, [area, flags::KERNEL, 0]) {
            SUCCESS => {}
            answer => return Err(Failure::Refused(answer)),
        }
    }
    if makes_wrong_calls {
        wrong::while_enabled(area, NO_TOKEN)?;
    }
    let now = vcpus::counter();
    cpu.scheduler.begin(now);
    // The first interrupt switches to a task. This function goes on as task 0.
    interrupts::set_timer(now);
    loop {
        // SAFETY: IRQs are masked.
        let cpu = unsafe { &mut *CPUS[vcpu].0.get() };
        if cpu.scheduler.is_over() {
            break;
        }
        // An interrupt that is masked ends the wait.
        switch::wait();
        switch::set_open(true);
        switch::set_open(false);
    }
    // SAFETY: IRQs are masked.
    let cpu = unsafe { &mut *CPUS[vcpu].0.get() };
    if uses_calls {
        match psci::call_with(DISABLE, [0; 3]) {
            SUCCESS => {}
            answer => return Err(Failure::Refused(answer)),
        }
        cpu.scheduler.wake(now, WAKE_ALL, slice());
    }
    if makes_wrong_calls {
        wrong::while_disabled(area)?;
    }
    if let Some(failure) = cpu.not_refused.take() {
        return Err(failure);
    }
    if cpu.refused == SUCCESS { Ok(()) } else { Err(Failure::Refused(cpu.refused)) }
}

/// Where each task begins.
pub extern "C" fn begin(vcpu: usize, number: usize) -> ! {
    task(vcpu, number);
    switch::set_open(false);
    // SAFETY: IRQs are masked.
    let cpu = unsafe { &mut *CPUS[vcpu].0.get() };
    cpu.scheduler.end(vcpus::counter());
    interrupts::set_timer(vcpus::counter());
    switch::set_open(true);
    loop {
        switch::wait();
    }
}

/// The area of this vCPU.
fn area_of(vcpu: usize) -> &'static Area {
    &AREAS[if Wrong::get() == Wrong::Area { 0 } else { vcpu }]
}

/// An IRQ, whose task has its registers at `frame`. Returns where the next task has its own.
pub extern "C" fn interrupted(frame: &switch::Frame) -> u64 {
    let vcpu = this_vcpu();
    // SAFETY: IRQs are masked, and what this interrupted has no reference.
    let cpu = unsafe { &mut *CPUS[vcpu].0.get() };
    let stack = core::ptr::from_ref(frame).addr() as u64;
    let current = cpu.scheduler.current;
    cpu.scheduler.tasks[current].stack = stack;
    // G1.
    let interrupt = GicCpuInterface::get_and_acknowledge_interrupt(InterruptGroup::Group1);
    match interrupt {
        Some(TIMER) => {
            cpu.counts.timer.came();
            interrupts::stop_timer();
        }
        Some(ANNOUNCEMENT) => cpu.announcement(area_of(vcpu), frame),
        _ => {}
    }
    // G10.
    if let Some(interrupt) = interrupt {
        GicCpuInterface::end_interrupt(interrupt, InterruptGroup::Group1);
    }
    match cpu.scheduler.choose(vcpus::counter(), slice()) {
        Some(end) => interrupts::set_timer(end),
        None => interrupts::stop_timer(),
    }
    cpu.scheduler.tasks[cpu.scheduler.current].stack
}

impl Timer {
    /// The timer's interrupt is here. The timer is still set as it was.
    fn came(&mut self) {
        let late = vcpus::counter().wrapping_sub(interrupts::timer());
        self.interrupts += 1;
        self.prompt += u64::from(late <= ticks(PROMPT));
        self.latest = self.latest.max(late);
    }
}

impl Cpu {
    /// G2 to G9.
    fn announcement(&mut self, area: &Area, frame: &switch::Frame) {
        const KERNEL: u32 = 1;
        let wrong = Wrong::get();
        let token = area.read(area::NOT_PRESENT);
        if token != NO_TOKEN {
            let (level, pc, sequence) = (area.read(area::LEVEL), area.wide(area::PC), area.wide(area::SEQUENCE));
            area.write(area::NOT_PRESENT, NO_TOKEN);
            let is_here = (level, pc) == (KERNEL, frame.pc) && !matches!(wrong, Wrong::Deaf | Wrong::Area);
            if sequence > self.handled && is_here && self.scheduler.current != 0 {
                self.scheduler.park(vcpus::counter(), token);
                self.counts.parked += 1;
            } else {
                self.counts.declined += 1;
            }
            self.handled = self.handled.max(sequence);
        }
        match wrong {
            Wrong::Nothing | Wrong::Calls => {}
            Wrong::Deaf => return,
            Wrong::Area => return area.spoil(),
        }
        loop {
            let token = area.read(area::READY);
            if token == NO_TOKEN {
                break;
            }
            if wrong == Wrong::Calls
                && let Err(failure) = wrong::while_enabled(area.address(), token)
            {
                self.not_refused = Some(failure);
            }
            area.write(area::READY, NO_TOKEN);
            self.counts.woken += self.scheduler.wake(vcpus::counter(), token, slice());
            match psci::call_with(ACKNOWLEDGE, [token.into(), 0, 0]) {
                SUCCESS => {}
                answer => self.refused = answer,
            }
        }
    }
}

impl Area {
    fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    /// Acknowledges whatever is there as ready, and writes random words everywhere. Half of the time no token is left in the way
    /// of the next announcement.
    fn spoil(&self) {
        let mut random = Random::new(vcpus::counter());
        let _perhaps_refused = psci::call_with(ACKNOWLEDGE, [self.read(area::READY).into(), 0, 0]);
        for offset in (0..area::SIZE as usize).step_by(4) {
            self.write(offset, random.next() as u32);
        }
        if random.next().is_multiple_of(2) {
            self.write(area::NOT_PRESENT, NO_TOKEN);
        }
    }

    fn read(&self, offset: usize) -> u32 {
        self.0[offset / 4].load(Ordering::Relaxed)
    }

    fn wide(&self, offset: usize) -> u64 {
        u64::from(self.read(offset)) | u64::from(self.read(offset + 4)) << 32
    }

    fn write(&self, offset: usize, value: u32) {
        self.0[offset / 4].store(value, Ordering::Relaxed);
    }
}

/// Ticks for which a task runs while another one is ready: 4 ms.
fn slice() -> u64 {
    static SLICE: AtomicU64 = AtomicU64::new(0);
    match SLICE.load(Ordering::Relaxed) {
        0 => {
            let ticks = vcpus::frequency() / 250;
            SLICE.store(ticks, Ordering::Relaxed);
            ticks
        }
        ticks => ticks,
    }
}

/// These nanoseconds, in ticks.
fn ticks(nanoseconds: u64) -> u64 {
    vcpus::frequency() * nanoseconds / 1_000_000_000
}

fn this_vcpu() -> usize {
    let affinity: u64;
    // SAFETY: reading the register changes nothing.
    unsafe { core::arch::asm!("mrs {}, mpidr_el1", out(reg) affinity, options(nomem, nostack, preserves_flags)) };
    (affinity & 0xff) as usize
}

const _: () = assert!(MOST > 2);
