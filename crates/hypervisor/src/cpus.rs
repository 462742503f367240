// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's CPUs: the memory that each owns, and how the secondary ones are started.
//!
//! A CPU owns one `Area`: two stacks, each above a guard page, and its `Cpu`, right above the emergency stack.
//! `TPIDR_EL2` points to the `Cpu` before the CPU first uses a stack. So the exception entry gets a good stack in one
//! instruction, even if the other stack is broken.
//!
//! Invariant: only CPU `i` uses the stacks of `AREAS[i]`, where `i` is its place in [`Board::cpus`]; the boot CPU is 0.

use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use smccc::psci::Error as Refused;
use spin::Mutex;
use thiserror::Error;

use crate::board::Board;
use crate::masked::Looks;
use crate::sysreg::dsb_ishst;
use crate::{power, read_sysreg};

/// The most CPUs that can be used.
const MAX_CPUS: usize = twofold_abi::virt::MAX_CPUS as usize;

/// Why a CPU could not be started.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum StartError {
    /// The board has no CPU of this number.
    #[error("there is no CPU {0} to start")]
    NoSuchCpu(usize),
    /// The firmware refused.
    #[error("PSCI CPU_ON of CPU {0}: {1}")]
    Firmware(usize, Refused),
}

/// Starts the CPU at place `index` of [`Board::cpus`]. It runs `main(index)`, and turns itself off when that returns.
pub fn start(board: &Board, index: usize, main: fn(usize)) -> Result<(), StartError> {
    let mpidr = *board.cpus.get(index).ok_or(StartError::NoSuchCpu(index))?;
    let cpu = &AREAS[index].cpu;
    cpu.index.store(index, Ordering::Relaxed);
    *cpu.main.lock() = Some(main);
    // The call to the firmware orders nothing, so these stores must be visible before it.
    dsb_ishst();
    power::cpu_on(mpidr, secondary_entry as *const () as u64, &raw const *cpu as u64)
        .map_err(|error| StartError::Firmware(index, error))
}

/// Runs `main` on this CPU with its ordinary stack empty, for the rest of this CPU's life.
///
/// The boot CPU sets up guests with large values on its stack. A caller that never returns would keep them there, and
/// guests' exits would have the rest.
///
/// # Safety
///
/// Nothing may refer to a value on this CPU's ordinary stack, and none of them needs to be dropped.
pub unsafe fn run_with_empty_stack(main: fn() -> !) -> ! {
    let [stack, _] = stacks();
    // SAFETY: the stack is this CPU's own, and the caller promises that its content is not needed.
    unsafe { enter_with_stack(main as *const (), stack.end) }
}

/// The number of the calling CPU: its place in [`Board::cpus`].
#[must_use]
pub fn current() -> usize {
    this().index.load(Ordering::Relaxed)
}

/// Where this CPU has looked for pending interrupts.
#[must_use]
#[inline]
pub fn looks() -> &'static Looks {
    &this().looks
}

/// Whether this CPU is about to look for what kicks the vCPU that it has loaded. Until it says otherwise,
/// [`looks_at_kicks`] is so for it.
pub fn will_look(will: bool) {
    this().will_look.store(will, Ordering::Relaxed);
}

/// Whether `cpu` is the calling CPU, and looks for what kicks its vCPU before the vCPU does anything else. So it need not
/// interrupt itself.
#[must_use]
pub fn looks_at_kicks(cpu: usize) -> bool {
    let this = this();
    this.will_look.load(Ordering::Relaxed) && this.index.load(Ordering::Relaxed) == cpu
}

/// The stacks of this CPU: the ordinary one and the emergency stack.
#[must_use]
pub fn stacks() -> [Range<usize>; 2] {
    let cpu = &raw const *this() as usize;
    let bottom = cpu - STACK_BELOW_CPU - STACK_SIZE;
    [bottom..bottom + STACK_SIZE, cpu - EMERGENCY_SIZE..cpu]
}

/// Whether `address` is in the guard page below one of this CPU's stacks.
#[must_use]
pub fn is_guard(address: u64) -> bool {
    let address = address as usize;
    stacks().iter().any(|stack| (stack.start - PAGE..stack.start).contains(&address))
}

/// The guard pages of all CPUs, which [`el2_mmu`](crate::el2_mmu) leaves unmapped.
pub(crate) fn guards() -> impl Iterator<Item = Range<u64>> {
    AREAS.iter().flat_map(|area| [&area.guard, &area.emergency_guard]).map(|guard| {
        let start = guard.0.get() as u64;
        start..start + PAGE as u64
    })
}

/// The entry of a secondary CPU, with its MMU on and its stack set.
pub(crate) extern "C" fn start_secondary(cpu: &'static Cpu) -> ! {
    let main = cpu.main.lock().take();
    main.expect("a CPU is started with something to do")(cpu.index.load(Ordering::Relaxed));
    power::cpu_off()
}

/// The memory that a CPU finds through `TPIDR_EL2`.
#[repr(C, align(4096))]
pub(crate) struct Cpu {
    index: AtomicUsize,
    main: Mutex<Option<fn(usize)>>,
    looks: Looks,
    /// See [`will_look`]. Only this CPU uses it.
    will_look: AtomicBool,
}

/// The memory that one CPU owns.
#[repr(C)]
pub(crate) struct Area {
    guard: Memory<PAGE>,
    stack: Memory<STACK_SIZE>,
    emergency_guard: Memory<PAGE>,
    emergency: Memory<EMERGENCY_SIZE>,
    cpu: Cpu,
}

/// From the start of an [`Area`] to its [`Cpu`].
pub(crate) const CPU_IN_AREA: usize = offset_of!(Area, cpu);
/// From the top of the stack up to the [`Cpu`].
pub(crate) const STACK_BELOW_CPU: usize = CPU_IN_AREA - offset_of!(Area, emergency_guard);

const PAGE: usize = 4096;
const STACK_SIZE: usize = 64 << 10;
const EMERGENCY_SIZE: usize = 16 << 10;

/// All zero, so it takes no byte of the image file.
pub(crate) static AREAS: [Area; MAX_CPUS] = [const {
    Area {
        guard: Memory::zero(),
        stack: Memory::zero(),
        emergency_guard: Memory::zero(),
        emergency: Memory::zero(),
        cpu: Cpu {
            index: AtomicUsize::new(0),
            main: Mutex::new(None),
            looks: Looks::none(),
            will_look: AtomicBool::new(false),
        },
    }
}; MAX_CPUS];

/// Memory that only a stack pointer reaches.
#[repr(C, align(4096))]
struct Memory<const SIZE: usize>(UnsafeCell<[u8; SIZE]>);

// SAFETY: Rust code only takes its address.
unsafe impl<const SIZE: usize> Sync for Memory<SIZE> {}

impl<const SIZE: usize> Memory<SIZE> {
    const fn zero() -> Self {
        Self(UnsafeCell::new([0; SIZE]))
    }
}

unsafe extern "C" {
    /// In `boot.s`; expects its `Cpu` in x0.
    fn secondary_entry();
    /// In `boot.s`; jumps to `main`, which never returns, with `top` as the stack pointer.
    fn enter_with_stack(main: *const (), top: usize) -> !;
}

#[inline]
fn this() -> &'static Cpu {
    let cpu = read_sysreg!(TPIDR_EL2) as *const Cpu;
    // SAFETY: TPIDR_EL2 points to the `Cpu` in this CPU's area, a static, before any Rust code runs.
    unsafe { &*cpu }
}
