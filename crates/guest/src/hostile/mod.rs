// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hostile=MILLISECONDS`: a guest that tries until this time to reach what is not its own, on all of its vCPUs: any
//! address, any call, interrupts to any affinity, any register of its devices, any system register.
//!
//! After each instruction the program looks at all general and vector registers, after each batch of them at EL1's
//! registers and at a part of its RAM. Words of another owner ([`secret`](crate::secret)) must be nowhere, what the
//! instruction does not change must be as before, and RAM that was never written must be zero.
//!
//! | file | contents |
//! |---|---|
//! | this one | batches, and what is looked at between them |
//! | [`act`] | what is tried |
//! | [`trial`] | one instruction, with all registers known |

mod act;
mod trial;

use core::arch::asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use dtoolkit::fdt::Fdt;

use crate::memory::{self, Memory, PAGE};
use crate::random::Random;
use crate::secret::is_foreign;
use crate::uart::{self, println};
use crate::vcpus::{self, WORKERS};
use crate::watch::REGISTERS;
use act::{Act, Own};
use trial::{Breach, Registers};

/// Why the program failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Vcpus(#[from] vcpus::Failure),
    #[error("no RAM is free")]
    NoMemory,
    #[error("seed {seed}, vCPU {vcpu}: {found}")]
    Found { seed: u64, vcpu: usize, found: Found },
}

/// What must not be.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum Found {
    #[error("act {number}, {act}: {breach}")]
    Act { number: u64, act: Act, breach: Breach },
    #[error("{name} holds {word:#x}, which is another owner's")]
    Register { name: &'static str, word: u64 },
    #[error("the word at {address:#x} is {word:#x}, and was never written")]
    Memory { address: u64, word: u64 },
}

/// Tries until the counter has reached this time.
pub fn run(tree: Fdt<'_>, memory: &Memory, milliseconds: u64, seed: u64) -> Result<(), Failure> {
    let free = memory.free().max_by_key(|range| range.end - range.start).ok_or(Failure::NoMemory)?;
    let ram = memory.banks().iter().find(|bank| bank.contains(&free.start)).ok_or(Failure::NoMemory)?;
    let (affinities, others) = vcpus::others(tree);
    let end = milliseconds * vcpus::frequency() / 1000;
    println!("hostile: seed {seed}");
    let all = [ram.start, ram.end, free.start, free.end, others as u64 + 1, end, seed];
    for (place, value) in WORK.iter().zip(all) {
        place.store(value, Ordering::Relaxed);
    }
    for (index, affinity) in affinities.into_iter().enumerate().take(others) {
        vcpus::prepare(index, work);
        match vcpus::start(index, affinity) {
            0 => {}
            answer => return Err(vcpus::Failure::NotStarted { vcpu: index + 1, answer }.into()),
        }
    }
    let of_this = attack(0);
    // The console's registers may have been among what was tried.
    uart::start();
    let failed = |vcpu| move |found| Failure::Found { seed, vcpu, found };
    let mut done = of_this.map_err(failed(0))?;
    for (index, seat) in SEATS[1..].iter().enumerate().take(others) {
        let theirs = seat.wait().map_err(failed(index + 1))?;
        done = Done {
            acts: done.acts + theirs.acts,
            exceptions: done.exceptions + theirs.exceptions,
            pages: done.pages + theirs.pages,
        };
    }
    let Done { acts, exceptions, pages } = done;
    println!("hostile: {exceptions} exceptions");
    println!("hostile: {pages} pages of RAM");
    println!("hostile: {acts} acts, nothing found");
    println!("guest check: ok");
    Ok(())
}

/// The ends of RAM and of its free part, the number of vCPUs, the time at which they end, and the seed.
static WORK: [AtomicU64; 7] = [const { AtomicU64::new(0) }; 7];

/// What a vCPU has done.
#[derive(Clone, Copy)]
struct Done {
    acts: u64,
    exceptions: u64,
    pages: u64,
}

/// The number of acts whose code is written at once.
const BATCH: usize = 64;
/// Pages of RAM that are looked at after each batch.
const PAGES: u64 = 8;

/// What a vCPU has for itself, and its result.
struct Seat {
    code: Code,
    is_over: AtomicU64,
    result: UnsafeCell<Result<Done, Found>>,
}

/// Instructions, each with its RET.
#[repr(C, align(4096))]
struct Code(UnsafeCell<[[u32; 2]; BATCH]>);

// SAFETY: only the vCPU of the seat writes and executes the code. It writes the result before `is_over`, and the first
// vCPU reads it after.
unsafe impl Sync for Seat {}

static SEATS: [Seat; WORKERS + 1] = [const {
    Seat {
        code: Code(UnsafeCell::new([[0; 2]; BATCH])),
        is_over: AtomicU64::new(0),
        result: UnsafeCell::new(Ok(Done { acts: 0, exceptions: 0, pages: 0 })),
    }
}; WORKERS + 1];

impl Seat {
    fn wait(&self) -> Result<Done, Found> {
        while self.is_over.load(Ordering::Acquire) == 0 {
            vcpus::pause();
        }
        // SAFETY: it is not written any more.
        unsafe { *self.result.get() }
    }

    fn code(&self, place: usize) -> *mut u32 {
        // SAFETY: a place in the array.
        unsafe { self.code.0.get().cast::<[u32; 2]>().add(place % BATCH).cast() }
    }
}

/// The function of another vCPU. It stays on: if it were off, a call of another one could start it anywhere.
extern "C" fn work(index: usize) {
    let seat = &SEATS[index + 1];
    let result = attack(index + 1);
    // SAFETY: the first vCPU reads it after `is_over` is set.
    unsafe { *seat.result.get() = result };
    seat.is_over.store(1, Ordering::Release);
    loop {
        core::hint::spin_loop();
    }
}

fn attack(vcpu: usize) -> Result<Done, Found> {
    let [ram_start, ram_end, free_start, free_end, vcpus, end, seed] =
        WORK.each_ref().map(|place| place.load(Ordering::Relaxed));
    let own = Own { ram: ram_start..ram_end, free: free_start..free_end, vcpus };
    let mut random = Random::new(seed.rotate_left(32) ^ vcpu as u64);
    let mut registers = Registers::new();
    let mut done = Done { acts: 0, exceptions: 0, pages: 0 };
    trial::set_vectors();
    while vcpus::counter() < end {
        batch(&SEATS[vcpu], &mut random, &own, &mut registers, &mut done)?;
        look_at_registers()?;
        for _ in 0..PAGES {
            look_at_page(vcpu as u64, &own, done.pages)?;
            done.pages += 1;
        }
    }
    Ok(done)
}

fn batch(seat: &Seat, random: &mut Random, own: &Own, registers: &mut Registers, done: &mut Done) -> Result<(), Found> {
    let acts: [Act; BATCH] = core::array::from_fn(|_| Act::choose(random, own));
    for (place, act) in acts.iter().enumerate() {
        const RET: u32 = 0xd65f_03c0;
        let code = seat.code(place);
        // SAFETY: a place in the vCPU's own page of code.
        unsafe {
            code.cast::<[u32; 2]>().write_volatile([act.instruction, RET]);
            asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", in(reg) code, options(nostack, preserves_flags));
        }
    }
    // SAFETY: barriers.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
    for (place, act) in acts.into_iter().enumerate() {
        let code = seat.code(place);
        // SAFETY: `choose` makes no instruction that stores to RAM of this guest or changes the stack pointer.
        unsafe { registers.execute(code, &act.arguments) };
        registers.check().map_err(|breach| Found::Act { number: done.acts, act, breach })?;
        done.exceptions += u64::from(registers.is_exception(code));
        done.acts += 1;
    }
    Ok(())
}

/// Registers of EL1 in which another guest keeps secrets.
fn look_at_registers() -> Result<(), Found> {
    for register in &REGISTERS {
        let word = (register.get)();
        if is_foreign(word) {
            return Err(Found::Register { name: register.name, word });
        }
    }
    Ok(())
}

/// Looks at all words of a page of free RAM, which the vCPUs share out, and then marks it. The first look is its first
/// touch.
fn look_at_page(vcpu: u64, own: &Own, number: u64) -> Result<(), Found> {
    let pages = (own.free.end - own.free.start) / PAGE / own.vcpus;
    let page = own.free.start + (number % pages * own.vcpus + vcpu) * PAGE;
    for address in (page..page + PAGE).step_by(8) {
        // SAFETY: a word of free RAM.
        let word = unsafe { memory::read(address) };
        if word != 0 && (address != page || word != page) {
            return Err(Found::Memory { address, word });
        }
    }
    // SAFETY: as above.
    unsafe { memory::write(page, page) };
    Ok(())
}
