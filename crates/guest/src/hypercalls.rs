// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hypercalls=COUNT`: four vCPUs at once make `COUNT` calls each by HVC and SMC, with any immediate, any function and any
//! arguments.
//!
//! The functions are from every range of SMCCC (Arm DEN0028), most often from those that a hypervisor implements. The
//! two functions that end the machine are left out. A vCPU that switches itself off is started again, by the first vCPU
//! or by another worker's call.
//!
//! The program succeeds if each vCPU has made its calls and EL2 still responds.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use dtoolkit::fdt::Fdt;

use crate::psci;
use crate::random::Random;
use crate::uart::println;
use crate::vcpus::{self, WORKERS};

/// Why the program failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Vcpus(#[from] vcpus::Failure),
    #[error("vCPU {vcpu} makes no progress after {done} calls: {call}")]
    Stuck { vcpu: usize, done: u64, call: Call },
    #[error("EL2 answers PSCI_VERSION with {0:#x}")]
    NoAnswer(i64),
}

/// Makes the calls that `seed` determines.
pub fn run(tree: Fdt<'_>, count: u64, seed: u64) -> Result<(), Failure> {
    let affinities = vcpus::workers(tree)?;
    println!("hypercalls: {count} by each vCPU, seed {seed}");
    println!("hypercalls: skips SYSTEM_OFF, SYSTEM_RESET and SYSTEM_RESET2: they end the machine");
    for (index, affinity) in affinities.into_iter().enumerate() {
        AFFINITIES[index].store(affinity, Ordering::Relaxed);
        WORK[index].count.store(count, Ordering::Relaxed);
        WORK[index].seed.store(seed.wrapping_add(index as u64), Ordering::Relaxed);
        vcpus::prepare(index, work);
    }
    // From here on a worker may also be started by another one.
    let mut starts = 0;
    for (index, affinity) in affinities.into_iter().enumerate() {
        starts += u64::from(start(index, affinity)?);
    }
    let mut watches = [Watch::default(); WORKERS];
    while watches.iter().any(|watch| !watch.is_over) {
        vcpus::pause();
        for (index, watch) in watches.iter_mut().enumerate().filter(|(_, watch)| !watch.is_over) {
            starts += u64::from(watch.look(index, affinities[index])?);
        }
    }
    println!("hypercalls: {starts} starts by the first vCPU");
    match psci::version() {
        0x1_0001 => Ok(()),
        other => Err(Failure::NoAnswer(other)),
    }
}

/// The limit of checks without progress: a minute.
const PATIENCE: u64 = 60 * vcpus::LOOKS_A_SECOND;
/// The number of calls whose code is written at once.
const BATCH: usize = 512;

/// The input and the progress of one worker.
struct Work {
    count: AtomicU64,
    seed: AtomicU64,
    done: AtomicU64,
    is_over: AtomicU64,
    code: Code,
}

/// Calls, each with its RET.
#[repr(C, align(4096))]
struct Code(UnsafeCell<[[u32; 2]; BATCH]>);

// SAFETY: only the worker that owns it writes and executes it.
unsafe impl Sync for Code {}

static WORK: [Work; WORKERS] = [const {
    Work {
        count: AtomicU64::new(0),
        seed: AtomicU64::new(0),
        done: AtomicU64::new(0),
        is_over: AtomicU64::new(0),
        code: Code(UnsafeCell::new([[0; 2]; BATCH])),
    }
}; WORKERS];

static AFFINITIES: [AtomicU64; WORKERS] = [const { AtomicU64::new(0) }; WORKERS];

/// The first vCPU's knowledge of a worker.
#[derive(Clone, Copy, Default)]
struct Watch {
    done: u64,
    looks: u64,
    is_over: bool,
}

impl Watch {
    /// Returns whether the worker was started again.
    fn look(&mut self, index: usize, affinity: u64) -> Result<bool, Failure> {
        let work = &WORK[index];
        let done = work.done.load(Ordering::Acquire);
        self.is_over = work.is_over.load(Ordering::Acquire) != 0;
        if self.is_over {
            return Ok(false);
        }
        self.looks = if done == self.done { self.looks + 1 } else { 0 };
        self.done = done;
        if self.looks > PATIENCE {
            let call = Call::of(work.seed.load(Ordering::Relaxed), done);
            return Err(Failure::Stuck { vcpu: index + 1, done, call });
        }
        if psci::is_off(affinity) { start(index, affinity) } else { Ok(false) }
    }
}

/// Starts the worker, unless another vCPU has already done so. Returns whether this call started it.
fn start(index: usize, affinity: u64) -> Result<bool, Failure> {
    const ALREADY_ON: i64 = -4;
    const ON_PENDING: i64 = -5;
    match vcpus::start(index, affinity) {
        0 => Ok(true),
        ALREADY_ON | ON_PENDING => Ok(false),
        answer => Err(vcpus::Failure::NotStarted { vcpu: index + 1, answer }.into()),
    }
}

/// The function that a worker runs.
extern "C" fn work(index: usize) {
    let work = &WORK[index];
    let (count, seed) = (work.count.load(Ordering::Relaxed), work.seed.load(Ordering::Relaxed));
    let first = work.done.load(Ordering::Relaxed);
    for number in first..count {
        let place = (number - first) as usize % BATCH;
        if place == 0 {
            make_code(work, seed, number);
        }
        // Before the call, because a call that switches this vCPU off does not return.
        work.done.store(number + 1, Ordering::Release);
        // SAFETY: `make_code` put a call and a RET there.
        unsafe { call(work.code.0.get().cast::<[u32; 2]>().add(place).cast(), &Call::of(seed, number).arguments) };
    }
    work.is_over.store(1, Ordering::Release);
    loop {
        psci::sleep();
    }
}

/// Writes the code of the calls from `first` on.
fn make_code(work: &Work, seed: u64, first: u64) {
    let code = work.code.0.get().cast::<[u32; 2]>();
    for place in 0..BATCH {
        let instruction = Call::of(seed, first + place as u64).instruction;
        // SAFETY: a place in the worker's own page of code.
        unsafe {
            let place = code.add(place);
            place.write_volatile([instruction, RET]);
            asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", in(reg) place, options(nostack, preserves_flags));
        }
    }
    // SAFETY: barriers.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}

const RET: u32 = 0xd65f_03c0;

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    instruction: u32,
    /// x0 to x3.
    arguments: [u64; 4],
}

impl core::fmt::Display for Call {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "instruction {:#x}, x0 to x3 {:x?}", self.instruction, self.arguments)
    }
}

impl Call {
    /// The call with this number.
    fn of(seed: u64, number: u64) -> Self {
        const HVC: u32 = 0xd400_0002;
        const SMC: u32 = 0xd400_0003;
        let mut random = Random::new(seed.rotate_left(32) ^ number);
        let immediate = if random.next().is_multiple_of(2) { 0 } else { random.next() as u32 & 0xffff };
        let instruction = random.one_of(&[HVC, SMC]) | immediate << 5;
        let function = function(&mut random);
        let mut arguments = [function, argument(&mut random), argument(&mut random), argument(&mut random)];
        // A vCPU that starts elsewhere would be lost to this program, so the call gets the worker's own entry.
        if [psci::CPU_ON_32, psci::CPU_ON_64].contains(&(function as u32)) {
            let mask = if function as u32 == psci::CPU_ON_32 { u32::MAX.into() } else { u64::MAX };
            let affinity = |index: &usize| AFFINITIES[*index].load(Ordering::Relaxed) == arguments[1] & mask;
            if let Some(index) = (0..WORKERS).find(affinity) {
                [arguments[2], arguments[3]] = vcpus::entry(index);
                // In one case of four the entry has no RAM, so the vCPU does not start.
                if random.next().is_multiple_of(4) {
                    arguments[2] = random.one_of(&OUTSIDE_RAM);
                }
            }
        }
        // A standby state would last for ever: no interrupt comes. The others are refused.
        if [psci::CPU_SUSPEND_32, psci::CPU_SUSPEND_64].contains(&(function as u32)) {
            arguments[1] |= 1;
        }
        Self { instruction, arguments }
    }
}

/// Entries at which no vCPU can start.
const OUTSIDE_RAM: [u64; 5] =
    [0, twofold_abi::virt::UART_BASE, twofold_abi::virt::RAM_BASE - 4, 0x20_0000_0000, u64::MAX - 3];

/// A function of any range: PSCI, the architecture's, the vendors', the standard ones, and any number at all.
fn function(random: &mut Random) -> u64 {
    const RANGES: [u64; 14] = [
        0x8000_0000, // Arm architecture
        0x8100_0000, // CPU
        0x8200_0000, // SiP
        0x8300_0000, // OEM
        0x8400_0000, // standard: PSCI and others
        0xc400_0000, // the same with 64-bit arguments
        0x8500_0000, // standard hypervisor
        0xc500_0000, // the same with 64-bit arguments
        0x8600_0000, // vendor-specific hypervisor
        0xc600_0000, // the same with 64-bit arguments
        0xb000_0000, // trusted applications
        0xbf00_0000, // trusted OS
        0x0000_0000, // yielding calls
        0x0200_0000, // yielding calls
    ];
    let function = match random.next() % 8 {
        0 => random.next(),
        1 => random.next() & u64::from(u32::MAX),
        2 => psci::CPU_OFF.into(),
        3 => random.one_of(&[psci::CPU_ON_32, psci::CPU_ON_64]).into(),
        4 | 5 => random.one_of(&[0x8400_0000, 0xc400_0000, 0x8600_0000, 0xc600_0000]) + random.next() % 0x20,
        6 => random.one_of(&RANGES) + random.next() % 0x100,
        _ => random.one_of(&RANGES) + random.next() % 0x1_0000,
    };
    // The upper half of the register does not matter.
    let ends = [psci::SYSTEM_OFF, psci::SYSTEM_RESET, psci::SYSTEM_RESET2_32, psci::SYSTEM_RESET2_64];
    let ends = ends.contains(&(function as u32));
    if ends { psci::VERSION.into() } else { function }
}

fn argument(random: &mut Random) -> u64 {
    match random.next() % 8 {
        0 => random.next(),
        1 => random.next() & u64::from(u32::MAX),
        2 => u64::MAX,
        3 => random.next() % 16,
        4 => twofold_abi::virt::RAM_BASE + random.next() % (1 << 30),
        5 => 1 << (random.next() % 64),
        _ => random.next() % 8,
    }
}

/// Makes the call at `code`.
///
/// # Safety
/// `code` points to an HVC or an SMC, followed by a RET.
/// There is an HVC or an SMC there, and a RET.
unsafe fn call(code: *const u32, arguments: &[u64; 4]) {
    let [a, b, c, d] = *arguments;
    // SAFETY: the registers that SMCCC lets a call change are declared, and no function of EL2 changes the guest's
    // memory.
    unsafe {
        asm!("blr {code}", code = in(reg) code, inout("x0") a => _, inout("x1") b => _, inout("x2") c => _,
            inout("x3") d => _, clobber_abi("C"), options(nostack));
    }
}
