// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `stolen=MILLISECONDS`: each vCPU compares the stolen time that the hypervisor reports (Arm DEN0057) with what it sees
//! itself, by the guest's own counter.
//!
//! | vCPU | what it does |
//! |---|---|
//! | 0 and 1, and the last one | spin in equal rounds |
//! | 2 | sleeps for [`NAP`] microseconds at a time, and is woken by its timer |
//! | 3 | spins for a third of the time, is off for a third, and spins again |
//!
//! A round that takes longer than the shortest one, a wake-up that comes later than the timer was set for, and a start
//! that comes later than the call for it, are time that the vCPU has *lost*. So a vCPU's time is what it ran, lost, slept
//! and was off. The program prints these numbers; how much of the lost time was stolen depends on the machine, so the
//! program's caller judges that.
//!
//! Invariant, which the program checks: what is read of a structure, by its own vCPU and by the first one, never decreases.

use core::arch::asm;
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use arm_gic::IntId;
use dtoolkit::fdt::Fdt;
use twofold_abi::pv_time::{self, structure};
use twofold_abi::virt::{STOLEN_TIME_BASE, STOLEN_TIME_SIZE};

use crate::exits::{self, interrupts};
use crate::uart::println;
use crate::{psci, vcpus};

/// Why the program failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Vcpus(#[from] vcpus::Failure),
    #[error("{0}")]
    Interrupts(#[from] exits::Failure),
    #[error("PV_TIME_FEATURES of {function:#x} returned {answer}")]
    Features { function: u32, answer: i64 },
    #[error("vCPU {vcpu}: PV_TIME_ST returned {answer:#x}")]
    Address { vcpu: usize, answer: i64 },
    #[error("vCPU {vcpu}: revision and attributes are {0:#x}", found)]
    Revision { vcpu: usize, found: u64 },
    #[error("vCPU {vcpu}: what was stolen went back {times} times")]
    Back { vcpu: usize, times: u64 },
}

/// Lets all vCPUs measure, and prints what they have found.
pub fn run(tree: Fdt<'_>, milliseconds: u64) -> Result<(), Failure> {
    for (function, expected) in [
        (pv_time::FEATURES, pv_time::SUCCESS),
        (pv_time::STOLEN_TIME, pv_time::SUCCESS),
        (pv_time::STOLEN_TIME + 1, pv_time::NOT_SUPPORTED),
    ] {
        let answer = psci::call_with(pv_time::FEATURES, [function.into(), 0, 0]);
        if answer != expected {
            return Err(Failure::Features { function, answer });
        }
    }
    let (affinities, others) = vcpus::others(tree);
    let mut gic = interrupts::Interrupts::start(others + 1)?;
    for vcpu in 0..=others {
        gic.wake(vcpu)?;
    }
    let begin = vcpus::counter();
    let length = milliseconds * vcpus::frequency() / 1000;
    BEGIN.store(begin, Ordering::Relaxed);
    LENGTH.store(length, Ordering::Relaxed);
    let start = |index: usize| {
        ACCOUNTS[index + 1].ready.store(vcpus::counter(), Ordering::Relaxed);
        match vcpus::start(index, affinities[index]) {
            0 => Ok(()),
            answer => Err(vcpus::Failure::NotStarted { vcpu: index + 1, answer }),
        }
    };
    for index in 0..others {
        vcpus::prepare(index, work);
        start(index)?;
    }
    let account = &ACCOUNTS[0];
    account.ready.store(begin, Ordering::Relaxed);
    account.ask(0);
    if others >= OFF {
        account.spin(begin + 2 * length / 3);
        // The call is a part of the next round.
        start(OFF - 1)?;
    }
    account.spin(begin + length);
    account.end();
    while affinities[..others].iter().any(|affinity| !psci::is_off(*affinity)) {
        account.look_at_all(others);
    }
    (0..=others).try_for_each(|vcpu| ACCOUNTS[vcpu].print(vcpu))?;
    println!("guest check: ok");
    Ok(())
}

const SLEEPER: usize = 2;
const OFF: usize = 3;
/// Microseconds.
const NAP: u64 = 2_000;
/// The empty loop of a round.
const ROUND: u64 = 20_000;

static BEGIN: AtomicU64 = AtomicU64::new(0);
static LENGTH: AtomicU64 = AtomicU64::new(0);

/// What a vCPU has seen, in ticks. Only that vCPU writes it while it runs.
struct Account {
    /// Since when the vCPU could run: when it was started.
    ready: AtomicU64,
    /// The end of the last round.
    last: AtomicU64,
    /// The shortest round.
    round: AtomicU64,
    /// The address of its structure.
    area: AtomicI64,
    ran: AtomicU64,
    lost: AtomicU64,
    slept: AtomicU64,
    off: AtomicU64,
    /// How often it lost time.
    gaps: AtomicU64,
    /// Nanoseconds, as the hypervisor reports them.
    stolen: AtomicU64,
    /// How often they went back.
    back: AtomicU64,
    revision: AtomicU64,
}

static ACCOUNTS: [Account; vcpus::WORKERS + 1] = [const {
    Account {
        ready: AtomicU64::new(0),
        last: AtomicU64::new(0),
        round: AtomicU64::new(u64::MAX),
        area: AtomicI64::new(0),
        ran: AtomicU64::new(0),
        lost: AtomicU64::new(0),
        slept: AtomicU64::new(0),
        off: AtomicU64::new(0),
        gaps: AtomicU64::new(0),
        stolen: AtomicU64::new(0),
        back: AtomicU64::new(0),
        revision: AtomicU64::new(0),
    }
}; vcpus::WORKERS + 1];

extern "C" fn work(index: usize) {
    let (vcpu, account) = (index + 1, &ACCOUNTS[index + 1]);
    let (begin, length) = (BEGIN.load(Ordering::Relaxed), LENGTH.load(Ordering::Relaxed));
    let is_back = account.area.load(Ordering::Relaxed) != 0;
    account.ask(vcpu);
    match vcpu {
        SLEEPER => account.sleep(begin + length),
        OFF if !is_back => {
            account.spin(begin + length / 3);
            // It is started again at two thirds.
            account.last.store(vcpus::counter(), Ordering::Relaxed);
            account.end();
            return;
        }
        _ => account.spin(begin + length),
    }
    account.end();
}

impl Account {
    /// The vCPU has begun, and asks for its structure twice. Each time the structure is the same.
    fn ask(&self, vcpu: usize) {
        let (now, ready) = (vcpus::counter(), self.ready.load(Ordering::Relaxed));
        if self.area.load(Ordering::Relaxed) == 0 {
            // Nothing was stolen before the first call.
            add(&self.off, now - BEGIN.load(Ordering::Relaxed));
        } else {
            add(&self.off, ready - self.last.load(Ordering::Relaxed));
            add(&self.lost, now - ready);
            add(&self.gaps, 1);
        }
        self.last.store(now, Ordering::Relaxed);
        let expected = (STOLEN_TIME_BASE + place(vcpu)) as i64;
        for _ in 0..2 {
            let answer = psci::call_with(pv_time::STOLEN_TIME, [0; 3]);
            self.area.store(answer, Ordering::Relaxed);
            if answer != expected {
                return;
            }
        }
        self.revision.store(read(place(vcpu) + structure::REVISION), Ordering::Relaxed);
    }

    /// Spins in rounds until the counter has this value.
    fn spin(&self, until: u64) {
        let mut last = self.last.load(Ordering::Relaxed);
        // The shortest round of many is one that nothing interrupted.
        while last < until {
            empty_loop();
            self.look();
            let now = vcpus::counter();
            let (taken, round) = (now - last, self.round.load(Ordering::Relaxed).min(now - last));
            self.round.store(round, Ordering::Relaxed);
            if taken > round + SLACK {
                add(&self.lost, taken - round);
                add(&self.ran, round);
                add(&self.gaps, 1);
            } else {
                add(&self.ran, taken);
            }
            last = now;
        }
        self.last.store(last, Ordering::Relaxed);
    }

    /// Sleeps again and again until the counter has this value.
    fn sleep(&self, until: u64) {
        const TIMER: IntId = interrupts::TIMER;
        interrupts::open();
        let nap = NAP * vcpus::frequency() / 1_000_000;
        let mut last = self.last.load(Ordering::Relaxed);
        while last < until {
            let begin = vcpus::counter();
            interrupts::set_timer(begin + nap);
            while !interrupts::is_pending() {
                psci::sleep();
            }
            let now = vcpus::counter();
            let is_taken = interrupts::take(TIMER).is_ok();
            add(&self.back, u64::from(!is_taken));
            add(&self.ran, begin - last);
            add(&self.slept, nap);
            add(&self.lost, now - (begin + nap));
            add(&self.gaps, 1);
            self.look();
            last = now;
        }
        self.last.store(last, Ordering::Relaxed);
    }

    fn end(&self) {
        self.look();
    }

    /// Reads what was stolen.
    fn look(&self) {
        let area = self.area.load(Ordering::Relaxed);
        if area > 0 {
            let now = read((area as u64).wrapping_sub(STOLEN_TIME_BASE) + structure::STOLEN);
            add(&self.back, u64::from(now < self.stolen.load(Ordering::Relaxed)));
            self.stolen.store(now, Ordering::Relaxed);
        }
    }

    /// Reads what was stolen from the other vCPUs, while they run.
    fn look_at_all(&self, others: usize) {
        for vcpu in 1..=others {
            let place = place(vcpu) + structure::STOLEN;
            let first = read(place);
            add(&self.back, u64::from(read(place) < first));
        }
    }

    fn print(&self, vcpu: usize) -> Result<(), Failure> {
        let value = |field: &AtomicU64| field.load(Ordering::Acquire);
        let (answer, found, times) = (self.area.load(Ordering::Acquire), value(&self.revision), value(&self.back));
        if answer != (STOLEN_TIME_BASE + place(vcpu)) as i64 {
            return Err(Failure::Address { vcpu, answer });
        }
        if found != 0 {
            return Err(Failure::Revision { vcpu, found });
        }
        if times != 0 {
            return Err(Failure::Back { vcpu, times });
        }
        let [ran, lost, slept, off, gaps] = [&self.ran, &self.lost, &self.slept, &self.off, &self.gaps].map(value);
        let (wall, stolen) = (value(&self.last) - BEGIN.load(Ordering::Relaxed), value(&self.stolen));
        println!(
            "stolen: vCPU {vcpu} wall {wall} ran {ran} slept {slept} off {off} lost {lost} gaps {gaps} stolen {stolen}"
        );
        Ok(())
    }
}

/// The offset of a vCPU's structure in the area.
fn place(vcpu: usize) -> u64 {
    structure::SIZE * vcpu as u64
}

/// Ticks by which two rounds that nothing interrupted may differ.
const SLACK: u64 = 4;

fn add(sum: &AtomicU64, value: u64) {
    sum.store(sum.load(Ordering::Relaxed) + value, Ordering::Relaxed);
}

fn empty_loop() {
    // SAFETY: counts a register down.
    unsafe { asm!("1:", "subs {0}, {0}, #1", "b.ne 1b", inout(reg) ROUND => _, options(nomem, nostack)) };
}

/// Reads the word at this offset in the area of stolen time. The area is mapped as device memory here, and the hypervisor
/// writes through its caches, so the line is cleaned before.
pub fn read(offset: u64) -> u64 {
    let value;
    // SAFETY: no Rust object is in the area. To clean a line changes no data.
    unsafe {
        asm!("dc civac, {address}", "dsb sy", "ldr {value}, [{address}]", address = in(reg) address(offset),
            value = out(reg) value, options(nostack, preserves_flags));
    }
    value
}

/// Writes that word.
pub fn write(offset: u64, value: u64) {
    // SAFETY: as in `read`.
    unsafe {
        asm!("dc civac, {address}", "dsb sy", "str {value}, [{address}]", "dsb sy", address = in(reg) address(offset),
            value = in(reg) value, options(nostack, preserves_flags));
    }
}

fn address(offset: u64) -> u64 {
    STOLEN_TIME_BASE + offset % STOLEN_TIME_SIZE / 8 * 8
}
