// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures a guest's store in the fast mode when the TLB has the page. Beside it is a plain store to the same words,
//! which is the lower limit of the machine. Run it by `cargo bench -p twofold-machine`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};
use twofold_machine::arena::{Arena, ArenaOptions, Backing};
use twofold_machine::fast::{FastMachine, FastPlatform, FastVcpu};
use twofold_machine::interrupts::Interrupts;
use twofold_machine::program::{Ended, Exit, Instructions, Program};
use twofold_memory::{Frames, GuestFault, GuestMemory, Pages, Slot};
use twofold_stage2::fault::{Fault, ipa_from_hpfar};
use twofold_stage2::{Features, Geometry, Ipa, Kib4, Vmid};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    // `cargo test --benches` runs this without `--bench`, and only checks that it builds.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    println!("ns per store: median [quartiles] of {RUNS} runs of {STORES} stores; the two kinds of run take turns");
    for pages in [64, 1024] {
        let (guest, plain) = measure(pages)?;
        println!("{pages:5} pages: guest {}   plain store {}", quartiles(guest), quartiles(plain));
    }
    Ok(())
}

const RUNS: usize = 15;
const STORES: u64 = 1 << 24;
const PAGE: u64 = 4 << 10;
const RAM: Ipa = Ipa::new(0x4000_0000);
const SIZE: u64 = 16 << 20;
const FEATURES: Features = Features::NONE
    .with_vmid_bits(16)
    .with_hardware_access_flag(true)
    .with_hardware_dirty_state(true)
    .with_forced_write_back(true)
    .with_tlbi_range(true)
    .with_tlbi_level_hint(true);

/// A guest program that stores to one page after the other.
struct Stores {
    pages: u64,
    at: u64,
    end: u64,
}

impl Program for Stores {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        while self.at < self.end {
            cpu.store(RAM.raw() + word(self.at, self.pages), self.at)?;
            self.at += 1;
        }
        Ok(Ended)
    }
}

/// The offset of the word that store number `at` writes. Each page has its word at another offset, so that the words
/// do not all compete for one set of the host's cache.
#[inline(always)]
fn word(at: u64, pages: u64) -> u64 {
    let page = at & (pages - 1);
    page * PAGE + ((at * 72) & (PAGE - 8))
}

fn measure(pages: u64) -> Result<(Vec<f64>, Vec<f64>), Failure> {
    let arena = Arc::new(Arena::new(&ArenaOptions::new(2 * SIZE, Backing::Anonymous))?);
    let machine = FastMachine::new(Arc::clone(&arena), FEATURES, 1)?;
    let mut frames = Frames::new(FEATURES);
    frames.add(arena.donate());
    let geometry = Geometry::new(Kib4, 40, &FEATURES)?;
    let platform = FastPlatform(Arc::clone(&machine));
    let mut memory = GuestMemory::new(platform, geometry, Vmid::new(1), frames, Pages::Small)?;
    memory.add_slot(Slot { range: RAM..RAM + SIZE, backing: twofold_memory::Backing::Ram, writable: true })?;
    let registers = (memory.stage2().vttbr(), memory.stage2().vtcr());
    let mut vcpu = FastVcpu::new(&machine, 0, registers, Arc::new(Interrupts::new()))?;
    enter(&mut vcpu, &memory, &mut Stores { pages, at: 0, end: pages })?;

    // The plain stores below need the guest's pages to be contiguous, as they are in 2 MiB of the arena.
    let first = memory.stage2().look_up(RAM).ok_or("nothing is mapped")?.descriptor.address();
    let last = memory.stage2().look_up(RAM + (pages - 1) * PAGE).ok_or("nothing is mapped")?.descriptor.address();
    let (mut guest, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        guest.push(time(|| enter(&mut vcpu, &memory, &mut Stores { pages, at: 0, end: STORES }))?);
        plain.push(time(|| {
            if last - first != (pages - 1) * PAGE {
                return Err("the guest's pages are not contiguous".into());
            }
            let start = arena.pointer(first).ok_or("no memory")?.cast::<AtomicU64>();
            for at in 0..STORES {
                // SAFETY: the word is in the pages that the guest stores to, and they are contiguous in the arena.
                unsafe { start.byte_add(word(at, pages) as usize).as_ref() }.store(at, Ordering::Relaxed);
            }
            Ok(())
        })?);
    }
    Ok((guest, plain))
}

/// Runs the program to its end, and maps each page that it touches.
fn enter(vcpu: &mut FastVcpu, memory: &GuestMemory<FastPlatform>, program: &mut Stores) -> Result<(), Failure> {
    loop {
        match vcpu.run(program) {
            Ok(Ended) => return Ok(()),
            Err(Exit::Abort(abort)) => {
                let Fault { kind, access, .. } =
                    Fault::from_syndrome(abort.esr).ok_or("the abort is not a stage-2 fault")?;
                let _ = memory.fault(&GuestFault { ipa: ipa_from_hpfar(abort.hpfar), kind, access })?;
            }
            Err(exit) => return Err(format!("the guest exited: {exit:?}").into()),
        }
    }
}

/// Returns the nanoseconds per store, in CPU time of this thread.
fn time(body: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    let start = now();
    body()?;
    Ok((now() - start) / STORES as f64)
}

fn quartiles(mut runs: Vec<f64>) -> String {
    runs.sort_by(f64::total_cmp);
    let at = |quarter: usize| runs[(runs.len() - 1) * quarter / 4];
    format!("{:.2} [{:.2}, {:.2}]", at(2), at(1), at(3))
}
