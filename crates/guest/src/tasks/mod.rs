// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bm=MILLISECONDS`: some tasks write to random pages of an array that does not fit into the memory that the machine gives,
//! others work, as in `bm` (Natapov 2010). Each vCPU has tasks and a scheduler of its own.
//!
//! | file | contents |
//! |---|---|
//! | this one | the tasks, the vCPUs, and the check of the array |
//! | [`kernel`] | the handler of interrupts: the timer, and asynchronous page faults |
//! | [`scheduler`] | which task is next |
//! | [`switch`] | a task's registers, on its stack |
//! | [`wrong`] | kernels that break the rules of asynchronous page faults |
//!
//! A faulting task has two words of its own in each page: how often it wrote there, and a value made of that. It checks
//! the value before each write. At the end the first vCPU goes over the array, and the sum of all counts has to be the number of
//! writes. So no write is lost, and no page has come back as another, or as an older one.

mod kernel;
mod scheduler;
mod switch;
mod wrong;

use core::sync::atomic::{AtomicU64, Ordering};

use dtoolkit::fdt::Fdt;

use crate::exits::{self, interrupts};
use crate::memory::{self, Memory, PAGE};
use crate::random::Random;
use crate::uart::println;
use crate::{psci, vcpus, vendor};
use scheduler::MOST;
pub use wrong::Wrong;

/// What the tasks are.
#[derive(Clone, Copy)]
pub struct Settings {
    /// How long they run.
    pub milliseconds: u64,
    /// Faulting tasks of each vCPU.
    pub faulters: u64,
    /// Working tasks of each vCPU.
    pub workers: u64,
    /// Bytes of the array.
    pub size: u64,
    /// The seed of the pages that are written.
    pub seed: u64,
    /// What the kernel does that it must not.
    pub wrong: Wrong,
    /// Whether all pages are absent when the tasks begin.
    pub absent: bool,
}

/// Why [`run`] failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{faulters} faulting and {workers} working tasks on {vcpus} vCPUs are not possible: give 1 to {most} in all on each", most = MOST - 1)]
    Settings { faulters: u64, workers: u64, vcpus: usize },
    #[error("no {wanted} bytes of RAM are free in one piece: {free} are")]
    NoMemory { wanted: u64, free: u64 },
    #[error("{0}")]
    Store(#[from] vendor::Refused),
    #[error("{0}")]
    Interrupts(#[from] exits::Failure),
    #[error("{0}")]
    Vcpus(#[from] vcpus::Failure),
    #[error("the hypervisor has version {0:#x} of asynchronous page faults, and this guest knows {1:#x}")]
    Version(i64, u32),
    #[error("a call of asynchronous page faults returned {0}")]
    Refused(i64),
    #[error("the call {function:#x} of asynchronous page faults with {first:#x} and {second:#x} returned {answer}")]
    NotRefused { function: u32, first: u64, second: u64, answer: i64 },
    #[error("the words at {address:#x} are {count} and {value:#x}: the page is not as it was written")]
    Wrong { address: u64, count: u64, value: u64 },
    #[error("{found} writes are in the array, and {made} were made")]
    Lost { found: u64, made: u64 },
}

/// What is the same on all vCPUs while they run.
static ARRAY: AtomicU64 = AtomicU64::new(0);
static PAGES: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);
static SEED: AtomicU64 = AtomicU64::new(1);
static TASKS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
static USES_CALLS: AtomicU64 = AtomicU64::new(0);

/// Writes and units of work, by task: a page for each, so that none shares one with another.
static COUNTS: [Count; VCPUS * MOST] = [const { Count(AtomicU64::new(0)) }; VCPUS * MOST];
/// The address of the first words that a task found wrong.
static WRONG: AtomicU64 = AtomicU64::new(0);

#[repr(align(4096))]
struct Count(AtomicU64);

/// The most vCPUs.
pub const VCPUS: usize = vcpus::WORKERS + 1;

/// Runs the tasks, and checks what they have written.
pub fn run(tree: Fdt<'_>, memory: &Memory, settings: &Settings) -> Result<(), Failure> {
    let Settings { milliseconds, faulters, workers, size, seed, wrong, absent } = *settings;
    let (affinities, others) = vcpus::others(tree);
    let vcpus = others + 1;
    let is_possible = (1..MOST as u64).contains(&(faulters + workers)) && faulters * vcpus as u64 <= SLOTS;
    if !is_possible {
        return Err(Failure::Settings { faulters, workers, vcpus });
    }
    let free = memory.free().max_by_key(|range| range.end - range.start);
    let free = free.ok_or(Failure::NoMemory { wanted: size, free: 0 })?;
    if free.end - free.start < size {
        return Err(Failure::NoMemory { wanted: size, free: free.end - free.start });
    }
    // From the end, since this image is at the start.
    let array = free.end - size;
    let mode = kernel::discover()?;
    let mut gic = interrupts::Interrupts::start(vcpus)?;
    gic.add_edge(kernel::ANNOUNCEMENT, vcpus)?;
    (0..vcpus).try_for_each(|vcpu| gic.wake(vcpu))?;
    for (cell, value) in [(&ARRAY, array), (&PAGES, size / PAGE), (&SEED, seed), (&USES_CALLS, u64::from(mode))] {
        cell.store(value, Ordering::Relaxed);
    }
    let ram = memory.banks().iter().find(|bank| bank.contains(&array));
    wrong.set(ram.ok_or(Failure::NoMemory { wanted: size, free: 0 })?);
    TASKS[0].store(faulters, Ordering::Relaxed);
    TASKS[1].store(workers, Ordering::Relaxed);
    // As the `memset` before the threads start.
    for page in 0..size / PAGE {
        // SAFETY: a word of free RAM.
        unsafe { memory::write(array + page * PAGE + LAST_WORD, !page) };
    }
    if absent {
        println!("bm: {} pages are absent", vendor::swap_out()?);
    }
    let begin = vcpus::counter();
    END.store(begin + milliseconds * vcpus::frequency() / 1000, Ordering::Relaxed);
    for (index, affinity) in affinities.iter().enumerate().take(others) {
        vcpus::prepare(index, other);
        match vcpus::start(index, *affinity) {
            0 => {}
            answer => return Err(vcpus::Failure::NotStarted { vcpu: index + 1, answer }.into()),
        }
    }
    kernel::run(0)?;
    while affinities[..others].iter().any(|affinity| !psci::is_off(*affinity)) {}
    for vcpu in 0..vcpus {
        report(vcpu, faulters, workers);
    }
    check(array, size / PAGE, faulters, vcpus)?;
    println!("guest check: ok");
    Ok(())
}

/// What another vCPU runs.
extern "C" fn other(index: usize) {
    interrupts::open();
    if let Err(failure) = kernel::run(index + 1) {
        println!("bm: vCPU {}: FAILED: {failure}", index + 1);
        psci::reset();
    }
}

/// The number of tasks of each vCPU.
fn tasks() -> (u64, u64) {
    (TASKS[0].load(Ordering::Relaxed), TASKS[1].load(Ordering::Relaxed))
}

/// What task `number` of a vCPU does until the time is over. Interrupts are open.
fn task(vcpu: usize, number: usize) {
    let (faulters, _) = tasks();
    let count = &COUNTS[vcpu * MOST + number].0;
    if (number as u64) <= faulters {
        fault(vcpu as u64 * faulters + number as u64 - 1, count);
    } else {
        work(count);
    }
}

fn is_over() -> bool {
    vcpus::counter() >= END.load(Ordering::Relaxed)
}

/// Writes to random pages.
fn fault(slot: u64, count: &AtomicU64) {
    let (array, pages) = (ARRAY.load(Ordering::Relaxed), PAGES.load(Ordering::Relaxed));
    let mut random = Random::new(SEED.load(Ordering::Relaxed) ^ (slot + 1) << 32);
    while !is_over() {
        let page = random.next() % pages;
        let address = array + page * PAGE + slot * SLOT;
        // SAFETY: words of free RAM that are this task's own.
        unsafe {
            let (before, value) = (memory::read(address), memory::read(address + 8));
            if value != expected(page, slot, before) {
                WRONG.store(address, Ordering::Relaxed);
                return;
            }
            memory::write(address, before + 1);
            memory::write(address + 8, expected(page, slot, before + 1));
        }
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// The value for this number of writes of a task to a page.
fn expected(page: u64, slot: u64, count: u64) -> u64 {
    if count == 0 { 0 } else { Random::new(page << 20 ^ slot << 50 ^ count).next() }
}

/// Works: each unit is a loop and an access to memory.
fn work(count: &AtomicU64) {
    while !is_over() {
        for _ in 0..LOOP {
            core::hint::spin_loop();
        }
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

fn report(vcpu: usize, faulters: u64, workers: u64) {
    let sum = |range: core::ops::Range<u64>| -> u64 {
        range.map(|task| COUNTS[vcpu * MOST + 1 + task as usize].0.load(Ordering::Relaxed)).sum()
    };
    let (pages, work) = (sum(0..faulters), sum(faulters..faulters + workers));
    let kernel::Counts { parked, declined, woken, timer } = kernel::counts(vcpu);
    println!("bm: vCPU {vcpu} pages {pages} work {work} parked {parked} declined {declined} woken {woken}");
    let kernel::Timer { interrupts, prompt, latest } = timer;
    let latest = latest * 1_000_000_000 / vcpus::frequency();
    println!("timer: vCPU {vcpu} interrupts {interrupts} in {} ns {prompt} latest {latest}", kernel::PROMPT);
}

/// Goes over the array.
fn check(array: u64, pages: u64, faulters: u64, vcpus: usize) -> Result<(), Failure> {
    let slots = faulters * vcpus as u64;
    let mut found = 0;
    for page in 0..pages {
        for slot in 0..slots {
            let address = array + page * PAGE + slot * SLOT;
            // SAFETY: words of free RAM; no task runs any more.
            let (count, value) = unsafe { (memory::read(address), memory::read(address + 8)) };
            // A task that was over between its two writes has left the first.
            if value != expected(page, slot, count) {
                return Err(Failure::Wrong { address, count, value });
            }
            found += count;
        }
        let address = array + page * PAGE + LAST_WORD;
        // SAFETY: as above.
        let value = unsafe { memory::read(address) };
        if value != !page {
            return Err(Failure::Wrong { address, count: page, value });
        }
    }
    let wrong = WRONG.load(Ordering::Relaxed);
    if wrong != 0 {
        return Err(Failure::Wrong { address: wrong, count: 0, value: 0 });
    }
    let each = |vcpu: usize| (1..=faulters as usize).map(move |task| vcpu * MOST + task);
    let made = (0..vcpus).flat_map(each).map(|index| COUNTS[index].0.load(Ordering::Relaxed)).sum();
    println!("bm: {found} writes in {pages} pages");
    if found == made { Ok(()) } else { Err(Failure::Lost { found, made }) }
}

/// Bytes of a page that are a task's own.
const SLOT: u64 = 16;
const LAST_WORD: u64 = PAGE - 8;
/// As many tasks as a page has room for.
const SLOTS: u64 = LAST_WORD / SLOT;
/// Rounds of a unit of work.
const LOOP: u32 = 200;
