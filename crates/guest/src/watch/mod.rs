// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `watch=MILLISECONDS`: a guest that changes nothing, and looks until that time whether anything changed by itself. Each
//! of its vCPUs keeps secrets in a part of RAM of its own and in its registers, has the ticks of its timer, and looks at
//! its counter and its clock. No interrupt but a tick may come. With the word `moved`, it may be somewhere else meanwhile:
//! then the clock, which follows wall time, need not agree with the counter.
//!
//! | file | contents |
//! |---|---|
//! | this one | the rounds |
//! | [`registers`] | the registers that hold secrets |
//! | [`interrupts`] | the ticks |

mod interrupts;
mod registers;

use core::arch::asm;
use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use dtoolkit::fdt::Fdt;
use twofold_abi::virt::RTC_BASE;

use crate::memory::{self, Memory};
use crate::secret::secret;
use crate::uart::println;
use crate::vcpus::{self, WORKERS};
pub use registers::REGISTERS;
use registers::Register;

/// Why the program failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Vcpus(#[from] vcpus::Failure),
    #[error("no RAM is free")]
    NoMemory,
    #[error("vCPU {vcpu}: {change}")]
    Changed { vcpu: usize, change: Change },
}

/// What changed by itself.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum Change {
    #[error("round {round}: the word at {address:#x} became {found:#x}")]
    Word { round: u64, address: u64, found: u64 },
    #[error("round {round}: {wrong} general or vector registers changed")]
    Registers { round: u64, wrong: u64 },
    #[error("round {round}: {name} became {found:#x}, not {expected:#x}")]
    System { round: u64, name: &'static str, found: u64, expected: u64 },
    #[error("round {round}: the counter went back by {by}")]
    Counter { round: u64, by: u64 },
    #[error("round {round}: in {counter} s by the counter the clock went on by {clock} s")]
    Clock { round: u64, counter: u64, clock: u64 },
    #[error("{0}")]
    Interrupt(#[from] interrupts::Failure),
}

/// Looks until the counter has reached this time.
pub fn run(tree: Fdt<'_>, memory: &Memory, milliseconds: u64, is_moved: bool) -> Result<(), Failure> {
    MOVED.store(u64::from(is_moved), Ordering::Relaxed);
    let free = memory.free().max_by_key(|range| range.end - range.start).ok_or(Failure::NoMemory)?;
    let (affinities, others) = vcpus::others(tree);
    let size = ((free.end - free.start) / (others as u64 + 1)).min(WINDOW) & !7;
    let window = |vcpu: u64| free.start + vcpu * size..free.start + (vcpu + 1) * size;
    let end = milliseconds * vcpus::frequency() / 1000;
    interrupts::enable_shared();
    for (index, affinity) in affinities.into_iter().enumerate().take(others) {
        let Range { start, end: window_end } = window(index as u64 + 1);
        for (place, value) in SEATS[index].work.iter().zip([start, window_end, end]) {
            place.store(value, Ordering::Relaxed);
        }
        vcpus::prepare(index, work);
        match vcpus::start(index, affinity) {
            0 => {}
            answer => return Err(vcpus::Failure::NotStarted { vcpu: index + 1, answer }.into()),
        }
    }
    println!("watch: begins");
    let changed = |vcpu| move |change| Failure::Changed { vcpu, change };
    let mut seen = watch(0, &window(0), end).map_err(changed(0))?;
    for (index, seat) in SEATS.iter().enumerate().take(others) {
        let theirs = seat.wait().map_err(changed(index + 1))?;
        seen = Seen { rounds: seen.rounds + theirs.rounds, ticks: seen.ticks + theirs.ticks };
    }
    let Seen { rounds, ticks } = seen;
    println!("watch: {ticks} ticks");
    println!("watch: {rounds} rounds, nothing changed");
    println!("guest check: ok");
    Ok(())
}

/// What another vCPU does: its window, its end, and then what it has seen.
struct Seat {
    work: [AtomicU64; 3],
    /// Whether the result is there.
    is_over: AtomicU64,
    result: UnsafeCell<Result<Seen, Change>>,
}

// SAFETY: the vCPU of the seat writes the result before `is_over`, and the first one reads it after.
unsafe impl Sync for Seat {}

static SEATS: [Seat; WORKERS] = [const {
    Seat {
        work: [const { AtomicU64::new(0) }; 3],
        is_over: AtomicU64::new(0),
        result: UnsafeCell::new(Ok(Seen { rounds: 0, ticks: 0 })),
    }
}; WORKERS];

impl Seat {
    fn wait(&self) -> Result<Seen, Change> {
        while self.is_over.load(Ordering::Acquire) == 0 {
            vcpus::pause();
        }
        // SAFETY: it is not written any more.
        unsafe { *self.result.get() }
    }
}

/// The function of another vCPU.
extern "C" fn work(index: usize) {
    let seat = &SEATS[index];
    let [start, window_end, end] = seat.work.each_ref().map(|place| place.load(Ordering::Relaxed));
    let result = watch(index + 1, &(start..window_end), end);
    // SAFETY: the first vCPU reads it after `is_over` is set.
    unsafe { *seat.result.get() = result };
    seat.is_over.store(1, Ordering::Release);
}

/// Whether the guest may be moved.
static MOVED: AtomicU64 = AtomicU64::new(0);

/// Bytes of RAM that a vCPU watches.
const WINDOW: u64 = 1 << 20;
/// Rounds of the loop in which the registers hold secrets.
const SPINS: u64 = 200_000;

/// What a vCPU has seen.
#[derive(Clone, Copy)]
struct Seen {
    rounds: u64,
    ticks: u64,
}

fn watch(vcpu: usize, window: &Range<u64>, end: u64) -> Result<Seen, Change> {
    for address in words(window) {
        // SAFETY: a word of free RAM, in the window of this vCPU.
        unsafe { memory::write(address, secret(address / 8)) };
    }
    let values = registers::set(1000 * vcpu as u64);
    registers::enable_vectors();
    interrupts::enable_own(vcpu as u64);
    let (start, clock) = (vcpus::counter(), clock());
    let mut seen = Seen { rounds: 0, ticks: 0 };
    let mut before = start;
    while before < end {
        seen.rounds += 1;
        let round = seen.rounds;
        if let Some((address, found)) = changed(window) {
            return Err(Change::Word { round, address, found });
        }
        // SAFETY: they do not trap, and nothing else uses them.
        let wrong = unsafe { registers::keep(SPINS, secret(round)) };
        if wrong != 0 {
            return Err(Change::Registers { round, wrong });
        }
        for (Register { name, get, .. }, expected) in REGISTERS.iter().zip(values) {
            let found = get();
            if found != expected {
                return Err(Change::System { round, name, found, expected });
            }
        }
        seen.ticks += interrupts::look()?;
        before = check_time(round, start, clock, before)?;
    }
    Ok(seen)
}

fn words(window: &Range<u64>) -> impl Iterator<Item = u64> {
    window.clone().step_by(8)
}

fn changed(window: &Range<u64>) -> Option<(u64, u64)> {
    // SAFETY: words of free RAM.
    let found = words(window).map(|address| (address, unsafe { memory::read(address) }));
    found.into_iter().find(|(address, found)| *found != secret(*address / 8))
}

/// Returns the counter.
fn check_time(round: u64, start: u64, clock_start: u64, before: u64) -> Result<u64, Change> {
    let now = vcpus::counter();
    if now < before {
        return Err(Change::Counter { round, by: before - now });
    }
    let (counter, clock) = ((now - start) / vcpus::frequency(), clock().wrapping_sub(clock_start));
    // Each of the two is cut to seconds, and the guest may lose the CPU between the two looks.
    if clock.abs_diff(counter) > 2 && MOVED.load(Ordering::Relaxed) == 0 {
        return Err(Change::Clock { round, counter, clock });
    }
    Ok(now)
}

/// Seconds by the PL031.
fn clock() -> u64 {
    let value: u64;
    // SAFETY: the clock's data register, mapped as device memory; the load reads no Rust object.
    unsafe { asm!("ldr {:w}, [{}]", out(reg) value, in(reg) RTC_BASE, options(nostack, preserves_flags)) };
    value
}
