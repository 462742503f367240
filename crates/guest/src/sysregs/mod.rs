// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `sysregs=STEP`: four vCPUs at once execute every `STEP`th encoding of the system-register space, as a read and as a
//! write with 15 values. `part=NUMBER`, from 1 to `STEP`, says with which encoding they begin, so `STEP` parts are all.
//!
//! No read may give a word of another owner ([`secret`](crate::secret)).
//!
//! The first vCPU watches the others. A vCPU that is killed by an encoding switches itself off. The first vCPU lists
//! that encoding and starts the vCPU again after it. Skipped encodings and values are listed too. The program fails if
//! a vCPU makes no progress, and names that vCPU.
//!
//! The program succeeds if each vCPU has executed all encodings and EL2 still responds.

mod encoding;

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use dtoolkit::fdt::Fdt;
use encoding::{ENCODINGS, Encoding};
use twofold_abi::canary;

use crate::random::Random;
use crate::uart::println;
use crate::vcpus::{self, WORKERS};
use crate::{mmu, psci};

/// Why the program failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Vcpus(#[from] vcpus::Failure),
    #[error("vCPU {vcpu} makes no progress at {encoding}")]
    Stuck { vcpu: usize, encoding: Encoding },
    #[error("vCPU {vcpu} was killed {kills} times, which is over the limit")]
    Killed { vcpu: usize, kills: u64 },
    #[error("vCPU {vcpu} accounts for {found} instructions, not for {expected}")]
    Lost { vcpu: usize, found: u64, expected: u64 },
    #[error("part={part}: give 1 to {step}")]
    Part { part: u64, step: u64 },
    #[error("vCPU {vcpu} read {word:#x}, which is another owner's, from {encoding}")]
    Leak { vcpu: usize, encoding: Encoding, word: u64 },
    #[error("EL2 answers PSCI_VERSION with {0:#x}")]
    NoAnswer(i64),
}

/// The words of the command line.
#[derive(Clone, Copy)]
pub struct Settings {
    pub step: u64,
    pub part: u64,
    pub seed: u64,
}

/// Runs every `step`th encoding of a part; the random values come from `seed`.
pub fn run(tree: Fdt<'_>, Settings { step, part, seed }: Settings) -> Result<(), Failure> {
    if part > step {
        return Err(Failure::Part { part, step });
    }
    let affinities = vcpus::workers(tree)?;
    println!("sysregs: every {step}th encoding from {} on, seed {seed}", part - 1);
    for number in 0..ENCODINGS {
        let encoding = Encoding::of(number);
        if let Some(why) = encoding.skipped() {
            println!("sysregs: skips {encoding}: {why}");
        }
    }
    println!("sysregs: skips S3_0_C1_C0_0 with M and WXN, or M and EE: its next instruction cannot be fetched");
    for (index, affinity) in affinities.into_iter().enumerate() {
        WORK[index].step.store(step, Ordering::Relaxed);
        WORK[index].first.store(part - 1, Ordering::Relaxed);
        WORK[index].seed.store(seed, Ordering::Relaxed);
        vcpus::prepare(index, work);
        start(index, affinity)?;
    }
    let mut watches = affinities.map(|affinity| Watch { affinity, ..Watch::default() });
    let mut progress = Progress { quarters: 0 };
    while watches.iter().any(|watch| !watch.is_over) {
        vcpus::pause();
        progress.look();
        for (index, watch) in watches.iter_mut().enumerate().filter(|(_, watch)| !watch.is_over) {
            watch.look(index)?;
        }
    }
    // The one more is the BRK.
    let expected = (WORK[0].all() + 1) * EXECUTED;
    for (index, work) in WORK.iter().enumerate() {
        let [executed, undefined, trapped, aborted] =
            [0, 1, 2, 3].map(|count| work.counts[count].load(Ordering::Acquire));
        let [skipped, kills] = [&work.skipped, &work.kills].map(|count| count.load(Ordering::Acquire));
        println!(
            "sysregs: vCPU {}: {executed} executed, {undefined} undefined, {trapped} trapped, {aborted} aborted, \
             {skipped} skipped, {kills} kills",
            index + 1
        );
        let found = executed + skipped + kills * EXECUTED;
        if found != expected {
            return Err(Failure::Lost { vcpu: index + 1, found, expected });
        }
    }
    match psci::version() {
        0x1_0001 => Ok(()),
        other => Err(Failure::NoAnswer(other)),
    }
}

/// Instructions executed for each encoding.
const EXECUTED: u64 = 16;
/// Values written to each encoding.
const VALUES: usize = 15;
/// The limit of checks without progress: a minute.
const PATIENCE: u64 = 60 * vcpus::LOOKS_A_SECOND;
/// More kills than this show a defect of this program.
const KILLS_MAX: u64 = 1000;

/// The input and the progress of one worker.
struct Work {
    step: AtomicU64,
    /// The first encoding of the part.
    first: AtomicU64,
    seed: AtomicU64,
    /// Encodings that the worker has finished.
    done: AtomicU64,
    is_over: AtomicU64,
    /// Executed, undefined, trapped to EL1, aborted.
    counts: [AtomicU64; 4],
    skipped: AtomicU64,
    kills: AtomicU64,
    code: Code,
    scratch: Scratch,
}

/// Room for the two instructions, each with its RET.
#[repr(C, align(4096))]
struct Code(UnsafeCell<[u32; 1024]>);

/// The page that operations by address may change.
#[repr(C, align(4096))]
struct Scratch(UnsafeCell<[u8; 4096]>);

// SAFETY: only the worker that owns it writes and executes it.
unsafe impl Sync for Code {}
// SAFETY: nothing reads it.
unsafe impl Sync for Scratch {}

static WORK: [Work; WORKERS] = [const {
    Work {
        step: AtomicU64::new(0),
        first: AtomicU64::new(0),
        seed: AtomicU64::new(0),
        done: AtomicU64::new(0),
        is_over: AtomicU64::new(0),
        counts: [const { AtomicU64::new(0) }; 4],
        skipped: AtomicU64::new(0),
        kills: AtomicU64::new(0),
        code: Code(UnsafeCell::new([0; 1024])),
        scratch: Scratch(UnsafeCell::new([0; 4096])),
    }
}; WORKERS];

impl Work {
    /// The number of encodings for this worker.
    fn all(&self) -> u64 {
        (ENCODINGS - self.first.load(Ordering::Relaxed)).div_ceil(self.step.load(Ordering::Relaxed))
    }

    /// The encoding with this number in the sequence of worker `index`: each worker begins in another quarter.
    fn encoding(&self, index: usize, number: u64) -> Encoding {
        let (all, step) = (self.all(), self.step.load(Ordering::Relaxed));
        let place = (number + all / WORKERS as u64 * index as u64) % all;
        Encoding::of(self.first.load(Ordering::Relaxed) + place * step)
    }
}

/// Prints how far all workers are.
struct Progress {
    quarters: u64,
}

impl Progress {
    fn look(&mut self) {
        let done: u64 = WORK.iter().map(|work| work.done.load(Ordering::Relaxed)).sum();
        let quarters = (4 * done / (WORK[0].all() * WORKERS as u64)).min(4);
        if quarters > self.quarters {
            self.quarters = quarters;
            println!("sysregs: {} %", 25 * quarters);
        }
    }
}

/// What a worker has read that is another owner's; 0: nothing. It is written with the MMU off.
static LEAK: Leak = Leak(AtomicU64::new(0));

fn leak() -> u64 {
    // SAFETY: the line is not dirty, because only a worker with its MMU off writes there.
    unsafe { asm!("dc ivac, {}", "dsb sy", in(reg) &raw const LEAK.0, options(nostack, preserves_flags)) };
    LEAK.0.load(Ordering::Relaxed)
}

/// Alone in its cache line.
#[repr(C, align(128))]
struct Leak(AtomicU64);

/// The first vCPU's knowledge of a worker.
#[derive(Clone, Copy, Default)]
struct Watch {
    affinity: u64,
    done: u64,
    looks: u64,
    is_over: bool,
}

impl Watch {
    fn look(&mut self, index: usize) -> Result<(), Failure> {
        let work = &WORK[index];
        // Before `done`: the stores of a vCPU that is off are then visible to the loads below.
        let is_off = psci::is_off(self.affinity);
        let done = work.done.load(Ordering::Acquire);
        if is_off {
            if work.is_over.load(Ordering::Acquire) != 0 {
                self.is_over = true;
                return Ok(());
            }
            let word = leak();
            if word != 0 {
                return Err(Failure::Leak { vcpu: index + 1, encoding: work.encoding(index, done), word });
            }
            match done == work.all() {
                true => println!("sysregs: vCPU {} was killed by BRK, on purpose, and is started again", index + 1),
                false => println!(
                    "sysregs: vCPU {} was killed by {}, and is started again",
                    index + 1,
                    work.encoding(index, done)
                ),
            }
            let kills = work.kills.fetch_add(1, Ordering::Relaxed) + 1;
            if kills > KILLS_MAX {
                return Err(Failure::Killed { vcpu: index + 1, kills });
            }
            work.done.store(done + 1, Ordering::Release);
            return start(index, self.affinity);
        }
        self.looks = if done == self.done { self.looks + 1 } else { 0 };
        self.done = done;
        if self.looks > PATIENCE {
            return Err(Failure::Stuck { vcpu: index + 1, encoding: work.encoding(index, done) });
        }
        Ok(())
    }
}

fn start(index: usize, affinity: u64) -> Result<(), Failure> {
    match vcpus::start(index, affinity) {
        0 => Ok(()),
        answer => Err(vcpus::Failure::NotStarted { vcpu: index + 1, answer }.into()),
    }
}

/// The function that a worker runs.
extern "C" fn work(index: usize) {
    let work = &WORK[index];
    loop {
        let number = work.done.load(Ordering::Relaxed);
        if number > work.all() {
            break;
        }
        if number == work.all() {
            try_out(work, [BRK, BRK], [0; VALUES]);
        }
        let encoding = work.encoding(index, number);
        if encoding.skipped().is_some() {
            work.skipped.fetch_add(EXECUTED, Ordering::Relaxed);
        } else {
            let mut values = values(work, encoding);
            for value in values.iter_mut().filter(|value| encoding.skips_value(**value)) {
                work.skipped.fetch_add(1, Ordering::Relaxed);
                work.counts[0].fetch_sub(1, Ordering::Relaxed);
                *value = SCTLR_OFF;
            }
            try_out(work, [encoding.read(), encoding.write()], values);
        }
        work.done.store(number + 1, Ordering::Release);
    }
    work.is_over.store(1, Ordering::Release);
}

/// Executes the first instruction once, and the second with each value.
fn try_out(work: &Work, [read, write]: [u32; 2], values: [u64; VALUES]) {
    let code = work.code.0.get().cast::<u32>();
    for (place, instruction) in [read, RET, write, RET].into_iter().enumerate() {
        // SAFETY: a word of the worker's own page of code. Execution is with the MMU off, so the word is cleaned to the
        // point of coherency.
        unsafe {
            let place = code.add(place);
            place.write_volatile(instruction);
            asm!("dc civac, {0}", "dsb ish", "ic ivau, {0}", in(reg) place, options(nostack, preserves_flags));
        }
    }
    // SAFETY: barriers, then the trial. The trial preserves the registers that this program depends on. It changes no
    // memory but the counts and, by operations on addresses, the scratch page.
    unsafe {
        asm!("dsb ish", "isb", options(nostack, preserves_flags));
        sysregs_trial(code, values.as_ptr(), work.counts.as_ptr());
    }
}

fn values(work: &Work, encoding: Encoding) -> [u64; VALUES] {
    let mut random = Random::new(work.seed.load(Ordering::Relaxed) ^ u64::from(encoding.read()));
    let scratch = work.scratch.0.get() as u64;
    let mut values = [
        0,
        u64::MAX,
        1,
        1 << 63,
        0x5555_5555_5555_5555,
        0xaaaa_aaaa_aaaa_aaaa,
        u32::MAX.into(),
        0xffff_ffff_0000_0000,
        SCTLR_OFF,
        scratch,
        NOWHERE,
        0,
        0,
        0,
        0,
    ];
    // The last four: two of any bits, one with a single bit, one that lacks a single bit.
    values[11] = random.next();
    values[12] = random.next();
    values[13] = 1 << (random.next() % 64);
    values[14] = !(1 << (random.next() % 64));
    values
}

/// SCTLR_EL1 with the MMU off: its bits that are RES1.
const SCTLR_OFF: u64 = mmu::SCTLR & !(1 | 1 << 2 | 1 << 12);
/// An address with neither RAM nor a device.
const NOWHERE: u64 = 0x20_0000_0000;
const RET: u32 = 0xd65f_03c0;
/// This instruction kills every vCPU at its end, so each run shows that a killed vCPU can be started again.
const BRK: u32 = 0xd420_0000;

unsafe extern "C" {
    fn sysregs_trial(code: *const u32, values: *const u64, counts: *const AtomicU64);
}

global_asm!(
    include_str!("trial.s"),
    sctlr_off = const SCTLR_OFF,
    cpu_off_low = const psci::CPU_OFF & 0xffff,
    cpu_off_high = const psci::CPU_OFF >> 16,
    guest_low = const canary::GUEST & 0xffff,
    guest_high = const canary::GUEST >> 16,
    machine_low = const canary::MACHINE & 0xffff,
    machine_high = const canary::MACHINE >> 16,
    leak = sym LEAK,
);
