// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two vCPUs touch the same huge pages for the first time, while interrupts come between the pieces of the zeroing and
//! cleaning. Neither vCPU ever sees a byte that is not zero or its own, each page is zeroed once, and both get to their
//! end. Their caches are off: without FEAT_S2FWB, the machine reports a line that was left out of the cleaning.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use twofold_machine::arena::{ArenaOptions, Backing};
use twofold_machine::program::{Exit, Instructions};
use twofold_machine::strict::{Bbm, Breach, CpuHandle, Hosted, Machine, Options, Program, Rule};
use twofold_machine::vm::Vm;
use twofold_memory::{Answer, Done, Frames, GuestFault, GuestMemory, Pages, Slot};
use twofold_stage2::fault::{AccessKind, Fault, FaultKind, ipa_from_hpfar};
use twofold_stage2::platform::{Dc, Domain, Ic, Tlbi};
use twofold_stage2::{Features, Geometry, Ipa, Kib4, Pa, Platform, TableMetadata, Vmid};

use crate::world::{MIB_2, MODERN, PAGE, PLAIN};

const RAM: Ipa = Ipa::new(0x4000_0000);
const HUGE_PAGES: u64 = 2;
const VCPUS: u64 = 2;
/// Pieces in which a huge page is zeroed.
const PIECES: u64 = 16;
/// Words that each vCPU touches in each huge page.
const TOUCHED: u64 = 40;

#[test]
fn each_look_finds_an_interrupt() -> Result<(), Breach> {
    on_each_machine(|_| true)
}

#[test]
fn some_looks_find_an_interrupt() -> Result<(), Breach> {
    on_each_machine(|draw| draw % 3 == 0)
}

#[test]
fn no_look_finds_an_interrupt() -> Result<(), Breach> {
    on_each_machine(|_| false)
}

/// A device writes between the pieces, to pages that were cleaned already and to others. The guest, whose caches are off,
/// reads what it wrote.
#[test]
fn a_device_writes_between_pieces() -> Result<(), Breach> {
    for features in [MODERN, PLAIN] {
        (1..=16).try_for_each(|seed| write_between(features, seed, None))?;
    }
    Ok(())
}

/// The judge of the test above: whichever piece is left out of the cleaning, the machine reports it.
#[test]
fn a_piece_that_is_not_cleaned_is_reported() {
    for piece in 0..PIECES {
        let breach = write_between(PLAIN, piece + 1, Some(piece)).expect_err("nothing is reported");
        assert_eq!(breach.rule, Rule::NotCleaned, "piece {piece}: {breach}");
    }
}

fn write_between(features: Features, seed: u64, forgotten: Option<u64>) -> Result<(), Breach> {
    let memory = ArenaOptions::new((HUGE_PAGES + 1) * MIB_2, Backing::Anonymous);
    let options =
        Options { cpus: 1, seed, events_between_switches: 24, features, bbm: Bbm::default(), memory, trace: None };
    let machine = Machine::new(options).unwrap_or_else(|error| panic!("{error}"));
    let looks = Arc::new(AtomicU64::new(seed));
    let mut platform = Interrupting::new(&machine, &looks, |_| true);
    platform.forgotten = forgotten;
    let memory = machine.alone(|_| guest_memory(&machine, features, platform.clone()))?;
    let vcpu = |cpu: &CpuHandle| {
        let mut guest = cpu.enter(memory.stage2().vttbr(), memory.stage2().vtcr(), 0);
        let (mut written, mut faults) = (Vec::new(), 0);
        while guest.load(RAM.raw()).is_err() {
            faults += 1;
            assert!(faults < 4 * PIECES, "seed {seed}: no progress");
            let fault = GuestFault { ipa: RAM, kind: FaultKind::Translation, access: AccessKind::Read };
            if memory.fault(&fault).unwrap() == Answer::Retry(Done::Interrupted)
                && forgotten.is_none()
                && cpu.draw(2) == 0
            {
                let word = RAM + cpu.draw(512) * PAGE + cpu.draw(512) * 8;
                memory.write(word, &word.raw().to_le_bytes()).unwrap();
                written.push(word);
            }
        }
        assert_eq!(written.is_empty(), forgotten.is_some(), "seed {seed}");
        for word in written {
            assert_eq!(guest.load(word.raw()).unwrap(), word.raw(), "seed {seed}");
        }
        for page in 0..512 {
            guest.load((RAM + page * PAGE + 8 * cpu.draw(512)).raw()).unwrap();
        }
        drop(guest);
        cpu.load(0);
    };
    machine.run(vec![Box::new(vcpu)])?;
    machine.alone(|_| drop(Vm::new(memory).destroy()))
}

fn on_each_machine(is_pending: fn(u64) -> bool) -> Result<(), Breach> {
    for features in [MODERN, PLAIN] {
        (1..=8).try_for_each(|seed| touch_together(features, seed, is_pending))?;
    }
    Ok(())
}

fn touch_together(features: Features, seed: u64, is_pending: fn(u64) -> bool) -> Result<(), Breach> {
    let memory = ArenaOptions::new((HUGE_PAGES + 1) * MIB_2, Backing::Anonymous);
    let bbm = Bbm::default();
    let options = Options { cpus: 2, seed, events_between_switches: 24, features, bbm, memory, trace: None };
    let machine = Machine::new(options).unwrap_or_else(|error| panic!("{error}"));
    let looks = Arc::new(AtomicU64::new(seed));
    let memory =
        machine.alone(|_| guest_memory(&machine, features, Interrupting::new(&machine, &looks, is_pending)))?;

    let stopped = AtomicU64::new(0);
    let vcpu = |cpu: &CpuHandle| {
        stopped.fetch_add(touch(&memory, cpu, seed), Ordering::Relaxed);
        cpu.load(0);
    };
    machine.run((0..VCPUS).map(|_| -> Program<'_> { Box::new(vcpu) }).collect())?;

    let (counts, stopped) = (memory.counts(), stopped.into_inner());
    assert_eq!((counts.frames_zeroed, counts.mapped), (HUGE_PAGES * 512, [0, 0, HUGE_PAGES, 0]), "seed {seed}");
    match (is_pending(0), is_pending(1)) {
        // Each fault but the last of a huge page zeroed one piece, or did not wait for the one that did.
        (true, true) => assert!(stopped >= HUGE_PAGES * (PIECES - 1), "seed {seed}: {stopped} faults were stopped"),
        (false, false) => assert_eq!(stopped, 0, "seed {seed}"),
        _ => assert!(stopped > 0, "seed {seed}: no fault was stopped"),
    }
    machine.alone(|_| drop(Vm::new(memory).destroy()))
}

/// A guest with RAM of a few huge pages, in frames that are full of an older guest's data.
fn guest_memory(machine: &Machine, features: Features, platform: Interrupting) -> GuestMemory<Interrupting> {
    let arena = machine.arena();
    for offset in (0..(HUGE_PAGES + 1) * MIB_2).step_by(8) {
        arena.store(arena.base() + offset, 0xdead_dead_dead_dead).unwrap();
    }
    let mut frames = Frames::new(features);
    frames.add(arena.donate());
    let geometry = Geometry::new(Kib4, 32, &features).unwrap();
    let mut memory = GuestMemory::new(platform, geometry, Vmid::new(1), frames, Pages::Largest).unwrap();
    let (range, backing) = (RAM..RAM + HUGE_PAGES * MIB_2, twofold_memory::Backing::Ram);
    memory.add_slot(Slot { range, backing, writable: true }).unwrap();
    memory
}

/// Touches words of all huge pages, first here, then there: each word is zero, and keeps what is written. Returns how
/// many faults an interrupt has stopped.
fn touch(memory: &GuestMemory<Interrupting>, cpu: &CpuHandle, seed: u64) -> u64 {
    let mut guest = cpu.enter(memory.stage2().vttbr(), memory.stage2().vtcr(), cpu.number() as u32);
    let mut stopped = 0;
    let words: Vec<_> = (0..HUGE_PAGES * TOUCHED)
        .map(|touched| {
            let page = RAM + touched % HUGE_PAGES * MIB_2 + cpu.draw(512) * PAGE;
            page + (touched * VCPUS + cpu.number() as u64) * 8
        })
        .collect();
    for word in &words {
        let found = reach(memory, *word, &mut stopped, || guest.load(word.raw()));
        assert_eq!(found, 0, "seed {seed}: vCPU {} sees old data at {word}", cpu.number());
        reach(memory, *word, &mut stopped, || guest.store(word.raw(), word.raw()));
    }
    for word in &words {
        let found = reach(memory, *word, &mut stopped, || guest.load(word.raw()));
        assert_eq!(found, word.raw(), "seed {seed}: vCPU {} has lost what it wrote at {word}", cpu.number());
    }
    stopped
}

/// Repeats an access until it takes no fault.
fn reach<R>(
    memory: &GuestMemory<Interrupting>,
    word: Ipa,
    stopped: &mut u64,
    mut access: impl FnMut() -> Result<R, Exit>,
) -> R {
    for _ in 0..10_000 {
        match access() {
            Ok(done) => return done,
            Err(Exit::Abort(abort)) => {
                let fault = Fault::from_syndrome(abort.esr).unwrap();
                let ipa = if fault.hpfar_is_valid() { ipa_from_hpfar(abort.hpfar) } else { word };
                let answer = memory.fault(&GuestFault { ipa, kind: fault.kind, access: fault.access }).unwrap();
                *stopped += u64::from(answer == Answer::Retry(Done::Interrupted));
            }
            Err(exit) => panic!("{exit:?}"),
        }
    }
    panic!("no progress at {word}")
}

/// The machine's platform. Another CPU may run at each look for an interrupt, which is drawn from the seed.
#[derive(Clone)]
struct Interrupting {
    hosted: Hosted,
    looks: Arc<AtomicU64>,
    is_pending: fn(u64) -> bool,
    /// The piece whose cleaning is left out, and how many were cleaned.
    forgotten: Option<u64>,
    cleaned: Arc<AtomicU64>,
}

impl Interrupting {
    fn new(machine: &Machine, looks: &Arc<AtomicU64>, is_pending: fn(u64) -> bool) -> Self {
        Self { hosted: machine.platform(), looks: looks.clone(), is_pending, forgotten: None, cleaned: Arc::default() }
    }
}

// SAFETY: everything is the machine's platform.
unsafe impl Platform for Interrupting {
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        self.hosted.tlbi(operation, operand);
    }

    fn dsb(&self, domain: Domain) {
        self.hosted.dsb(domain);
    }

    fn isb(&self) {
        self.hosted.isb();
    }

    unsafe fn dc(&self, operation: Dc, address: usize) {
        // SAFETY: the caller promises it.
        unsafe { self.hosted.dc(operation, address) };
    }

    unsafe fn dc_lines(&self, operation: Dc, start: usize, size: u64, line: u64) {
        if operation == Dc::Civac
            && size == MIB_2 / PIECES
            && self.forgotten == Some(self.cleaned.fetch_add(1, Ordering::Relaxed))
        {
            return;
        }
        // SAFETY: the caller promises it.
        unsafe { self.hosted.dc_lines(operation, start, size, line) };
    }

    fn ic(&self, operation: Ic, address: usize) {
        self.hosted.ic(operation, address);
    }

    fn vttbr(&self) -> u64 {
        self.hosted.vttbr()
    }

    fn load_vttbr(&self, value: u64) {
        self.hosted.load_vttbr(value);
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.hosted.pointer(pa)
    }

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        self.hosted.metadata(pa)
    }

    fn abandoned(&self, root: Pa) {
        self.hosted.abandoned(root);
    }

    fn pause(&self, yields: u32) {
        self.hosted.pause(yields);
    }

    fn interrupt_is_pending(&self) -> bool {
        // A barrier is a point at which another CPU may run, and changes nothing else here.
        self.hosted.dsb(Domain::NshSt);
        let draw = self.looks.load(Ordering::Relaxed);
        let next = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.looks.store(next, Ordering::Relaxed);
        (self.is_pending)(next >> 33)
    }
}
