// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases that need the module's internals: an access that is stopped in its middle, a walk that an invalidation
//! overtakes, and a kernel without `membarrier`.

use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::thread;

use twofold_stage2::platform::{Dc, Domain, Tlbi};
use twofold_stage2::{
    Access, Attributes, Geometry, Ipa, Kib4, Level, Pa, Platform, Stage2, TablePage, TableSource, Unwatched, Vmid,
    Window,
};

use super::cpu::{EXECUTE, NEVER, Page, READ, WRITE};
use super::patience::Patience;
use super::thread::Thread;
use super::*;
use crate::arena::{ArenaOptions, Backing};
use crate::interrupts::Interrupts;
use crate::program::{Ended, Exit, Instructions, Program};
use crate::tlbi::Which;

const FEATURES: Features = Features::NONE.with_vmid_bits(16).with_tlbi_level_hint(true).with_tlbi_range(true);
const VMID: u16 = 3;
const RAM: Pa = Pa::new(1 << 30);
const FRAME: u64 = 4096;
const VA: u64 = 0x1_0000;

fn machine(cpus: usize, membarrier: bool) -> Arc<FastMachine> {
    let arena = Arena::new(&ArenaOptions::new(4 << 20, Backing::Anonymous)).unwrap();
    let registered = rustix::thread::membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
    FastMachine::with(Arc::new(arena), FEATURES, cpus, None, membarrier && registered)
}

fn page(machine: &FastMachine) -> Result<Page, ()> {
    Ok(Page { at: machine.arena().pointer(RAM).unwrap(), level: 3, allows: READ | WRITE })
}

#[test]
fn an_entry_is_found_for_what_it_allows_alone() {
    let machine = machine(1, true);
    let cpu = &machine.cpus[0];
    cpu.load(VMID, false);
    cpu.fill(VA, || page(&machine)).unwrap();
    machine.arena().store(RAM + 0xff8, 77).unwrap();
    let read = |va, needed| cpu.access(va, needed, |word| word.load(Ordering::Relaxed));
    assert_eq!(read(VA + 0xff8, READ), Some(77));
    assert_eq!(read(VA + 0xff8, WRITE), Some(77));
    assert_eq!(read(VA + 0xff8, EXECUTE), None);
    assert_eq!(read(VA + 0xff8, READ | NEVER), None, "a kick");
    assert_eq!(read(VA + 0xff9, READ), None, "not aligned");
    for bit in 12..64 {
        assert_eq!(read((VA + 0xff8) ^ 1 << bit, READ), None, "bit {bit} is another page's");
    }
    cpu.load(VMID, false);
    assert_eq!(read(VA + 0xff8, READ), None, "loading a guest again empties the TLB");
}

#[test]
fn a_walk_that_an_invalidation_overtakes_begins_anew() {
    let machine = machine(1, true);
    let cpu = &machine.cpus[0];
    cpu.load(VMID, false);
    let all = Reach { stage2: Some(Which::All), stage1_and_combined: true, broadcast: true, every_vmid: false };
    let mut walks = 0;
    let filled = cpu.fill(VA, || {
        walks += 1;
        // The entry that this would remove does not exist yet.
        assert!(walks > 1 || cpu.forget(VMID, &all));
        assert!(!cpu.forget(VMID + 1, &all), "another guest's");
        page(&machine)
    });
    assert_eq!((filled, walks), (Ok(()), 2));
    assert!(cpu.access(VA, READ, |_| ()).is_some());

    let mut walks = 0;
    let filled = cpu.fill(VA, || {
        walks += 1;
        if walks > 1 {
            return Err(());
        }
        assert!(cpu.forget(VMID, &all));
        page(&machine)
    });
    assert_eq!(filled, Err(()), "the second walk finds nothing");
    assert!(cpu.access(VA, READ, |_| ()).is_none(), "the entry of the first walk stayed");
}

#[test]
fn a_barrier_waits_for_an_access_that_was_begun() {
    for membarrier in [true, false] {
        let machine = machine(1, membarrier);
        let cpu = &machine.cpus[0];
        cpu.load(VMID, false);
        cpu.fill(VA, || page(&machine)).unwrap();
        let looked_up = Barrier::new(2);
        let (returned, stored) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let platform = FastPlatform(Arc::clone(&machine));
                platform.load_vttbr(u64::from(VMID) << 48);
                looked_up.wait();
                platform.tlbi(Tlbi::VmallS12E1Is, 0);
                platform.dsb(Domain::Ish);
                returned.store(true, Ordering::SeqCst);
                assert!(stored.load(Ordering::SeqCst), "the barrier returned before the store was done");
            });
            let done = cpu.access(VA, WRITE, |word| {
                looked_up.wait();
                // Gives a barrier that does not wait the time to return.
                for _ in 0..10_000 {
                    if returned.load(Ordering::SeqCst) {
                        break;
                    }
                    thread::yield_now();
                }
                word.store(1, Ordering::Relaxed);
                stored.store(true, Ordering::SeqCst);
            });
            assert!(done.is_some());
        });
        assert!(cpu.access(VA, WRITE, |_| ()).is_none(), "the entry is gone");
    }
}

struct Tables(Vec<TablePage>);

impl TableSource for Tables {
    fn take(&mut self) -> Option<TablePage> {
        self.0.pop()
    }

    fn give(&mut self, page: TablePage) {
        self.0.push(page);
    }
}

/// A page moves from frame to frame while two vCPUs write to it. A write after the content was copied is lost, and the
/// vCPU's next read reports it.
#[test]
fn no_write_is_lost_when_a_page_moves() {
    const MOVES: usize = 300;
    const IPA: Ipa = Ipa::new(0x8000_0000);
    for membarrier in [true, false] {
        let machine = machine(2, membarrier);
        let geometry = Geometry::new(Kib4, 40, &FEATURES).unwrap();
        let root =
            machine.arena().donate_part(0, geometry.root_size()).unwrap().into_run().into_root(&geometry).unwrap();
        let pages = machine.arena().donate_part(16 * FRAME, 16 * FRAME).unwrap().into_run().into_pages();
        let mut tables = Tables(pages.filter_map(|page| page.into_table(&FEATURES).ok()).collect());
        let stage2 =
            Stage2::new(FastPlatform(Arc::clone(&machine)), FEATURES, geometry, Vmid::new(VMID), root).unwrap();
        let frames = [RAM + 64 * FRAME, RAM + 65 * FRAME];
        // SAFETY: these are frames of the arena that are not donated.
        let windows = frames.map(|frame| unsafe { Window::new(frame, FRAME) });
        let attributes = Attributes::ram(Access::READ_WRITE);
        let _ = stage2.open(windows[0], IPA).map(Level::L3, &attributes, &mut tables).unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for index in 0..2 {
                let (machine, over, registers) = (&machine, &over, (stage2.vttbr(), stage2.vtcr()));
                scope.spawn(move || {
                    let mut vcpu = FastVcpu::new(machine, index, registers, Arc::new(Interrupts::new())).unwrap();
                    let va = IPA.raw() + 8 * index as u64;
                    let mut last = 0;
                    while !over.load(Ordering::Relaxed) {
                        let read = again(|| vcpu.load(va));
                        if read != last {
                            over.store(true, Ordering::Relaxed);
                            panic!("vCPU {index} wrote {last} and reads {read}");
                        }
                        last += 1;
                        again(|| vcpu.store(va, last));
                    }
                    assert!(last > 0);
                });
            }
            let idle = |word: u64| machine.arena().load(frames[0] + word) == Some(0);
            while !over.load(Ordering::Relaxed) && (idle(0) || idle(8)) {
                thread::yield_now();
            }
            for at in 0..MOVES {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let (from, to) = (frames[at % 2], frames[(at + 1) % 2]);
                let pending = stage2.unmap(IPA..IPA + FRAME, &mut tables, Unwatched).unwrap();
                pending.complete().free(&mut tables);
                for word in [0, 8] {
                    let value = machine.arena().load(from + word).unwrap();
                    machine.arena().store(to + word, value).unwrap();
                }
                let _ = stage2.open(windows[(at + 1) % 2], IPA).map(Level::L3, &attributes, &mut tables).unwrap();
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}

/// Repeats the instruction until the page is mapped.
fn again<R>(mut instruction: impl FnMut() -> Result<R, Exit>) -> R {
    loop {
        match instruction() {
            Ok(result) => return result,
            Err(Exit::Abort(_)) => thread::yield_now(),
            Err(exit) => panic!("{exit:?}"),
        }
    }
}

/// Without any mapping, the clean covers all of the arena and nothing else, and no data changes.
#[test]
fn cleaning_by_the_host_changes_nothing_and_stays_in_the_arena() {
    // A host without such an instruction has nothing to test.
    let Some(caches) = HostCaches::find() else { return };
    let arena = Arc::new(Arena::new(&ArenaOptions::new(2 << 20, Backing::Anonymous)).unwrap());
    let machine = FastMachine::with_caches(Arc::clone(&arena), FEATURES, 1, Some(caches)).unwrap();
    assert_eq!(machine.caches(), Some(&caches));
    let (platform, addresses) = (FastPlatform(machine), arena.addresses());
    let word = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..arena.dense() / 8).for_each(|number| arena.store(RAM + number * 8, word(number)).unwrap());
    let (start, size) = (addresses.start, addresses.len());
    // The widest range of frames, and a frame of a device, whose address maps nothing.
    for (start, size) in [(start, size), (start - 4096, size + 8192), (start + size, 4096), (8, 4096), (8, start)] {
        // SAFETY: cleaning changes no data, and nothing outside the arena is touched.
        unsafe { platform.dc_lines(Dc::Civac, start, size as u64, 4096) };
        platform.dsb(Domain::Ish);
    }
    // SAFETY: as above.
    unsafe { platform.dc(Dc::Civac, start + 40) };
    platform.dsb(Domain::Nsh);
    for number in 0..arena.dense() / 8 {
        assert_eq!(arena.load(RAM + number * 8), Some(word(number)));
    }
    // SAFETY: the arena is mapped.
    let cleaned = unsafe { caches.clean(start - 1..start + size + 1, addresses.clone()) };
    assert_eq!(cleaned, size / caches.line());
    // SAFETY: as above.
    assert_eq!(unsafe { caches.clean(0..start, addresses) }, 0);
}

/// A long wait in one call does not reduce the patience of the next.
#[test]
fn a_thread_that_does_anything_else_waits_anew() {
    struct Nothing;
    impl Program for Nothing {
        fn run<C: Instructions>(&mut self, _: &mut C) -> Result<Ended, Exit> {
            Ok(Ended)
        }
    }
    let machine = machine(1, true);
    let platform = FastPlatform(Arc::clone(&machine));
    let geometry = Geometry::new(Kib4, 40, &FEATURES).unwrap();
    let root = machine.arena().donate_part(0, geometry.root_size()).unwrap().into_run().into_root(&geometry).unwrap();
    let stage2 = Stage2::new(platform.clone(), FEATURES, geometry, Vmid::new(VMID), root).unwrap();
    let registers = (stage2.vttbr(), stage2.vtcr());
    let mut vcpu = FastVcpu::new(&machine, 0, registers, Arc::new(Interrupts::new())).unwrap();
    let is_new = || Thread::with(machine.id, |thread| thread.patience.get() == Patience::NEW);
    let mut run = || assert_eq!(vcpu.run(&mut Nothing), Ok(Ended));
    for instruction in
        [&mut || platform.dsb(Domain::IshSt), &mut || platform.dsb(Domain::Ish), &mut run] as [&mut dyn FnMut(); 3]
    {
        platform.pause(1);
        platform.pause(1);
        assert!(!is_new());
        instruction();
        assert!(is_new());
        platform.pause(128);
        assert!(is_new(), "a lock");
    }
}

#[test]
fn as_many_cpus_as_make_sense() {
    let most = |asked, available| CpusError::check_on(asked, available).map_err(|error| error.most);
    assert_eq!(most(16, 2), Ok(()));
    assert_eq!(most(17, 2), Err(16));
    assert_eq!(most(64, 100), Ok(()));
    assert_eq!(most(65, 100), Err(64));
    assert_eq!(most(0, 100), Err(64));
    let text = CpusError::check_on(100, 2).unwrap_err().to_string();
    assert_eq!(text, "100 vCPUs: this machine has 2 CPUs, and runs 1 to 16; take 16");
}
