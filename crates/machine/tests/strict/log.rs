// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No dirty page is lost. With every vCPU out of its guest, a page that is not in the log equals its last copy.
//!
//! vCPUs write. Two CPUs get, clear and copy. One of these two also stops the log, coalesces blocks, starts the log
//! with another tracker, unmaps, and writes as a device does. From time to time all CPUs rest, and each page is
//! compared.
//!
//! A page is copied after it was cleared, and at random times: copying a page that is in the log does no harm.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use twofold_machine::arena::{ArenaOptions, Backing as Memory};
use twofold_machine::interrupts::Interrupts;
use twofold_machine::program::{self, Ended, Exit, Instructions};
use twofold_machine::strict::{Bbm, Breach, CpuHandle, Hosted, Machine, Options};
use twofold_machine::vm::{RunError, Vcpu, Vm};
use twofold_memory::dirty::{DirtyLog, DirtyPages, LogError, LogOptions, Tracker};
use twofold_memory::{Backing, Error, Frames, GuestMemory, Pages, Slot, SlotId};
use twofold_stage2::{Features, Geometry, Ipa, Kib4, Level, Vmid};

use crate::random::{operations, seed};
use crate::world::{MIB_2, MODERN, PAGE, PLAIN};

/// The start of the slot. No word of the log begins where a table does.
const RAM: Ipa = Ipa::new(0x4000_0000 - 3 * PAGE);
/// The pages of the slot, in three huge pages, of which two are complete.
const COUNT: u64 = 3 + 2 * 512;
/// The pages that are written: some adjacent, and some at the edges of words, sections, tables and the slot.
const WRITTEN: [u64; 13] = [0, 3, 4, 10, 63, 64, 66, 67, 514, 515, 1023, 1026, BY_DEVICE];
/// The one that a device writes and no vCPU does. If both wrote it, a guest might read the device's later value; the
/// machine reports that as R7.
const BY_DEVICE: u64 = 1;

/// CPUs with a vCPU; two others work on the log.
const VCPUS: usize = 2;
const CPUS: usize = VCPUS + 2;

/// The configuration of a run.
#[derive(Clone, Copy, Debug)]
struct Kind {
    features: Features,
    pages: Pages,
    /// Whether the slot has preallocated backing.
    preallocated: bool,
    /// Frames for tables beyond those that map the slot.
    tables: u64,
    /// The most frequent event.
    mostly: Event,
}

/// The events of a log besides its rounds.
#[derive(Clone, Copy, Debug)]
enum Event {
    Round,
    Restart,
    Unmap,
    DeviceWrite,
    /// A sequence of gets, so that sections with DBM set become cold.
    Looks,
}

struct Migration {
    mostly: Event,
    vm: Vm<Hosted>,
    slot: SlotId,
    /// The content of each page at its last copy.
    copies: [AtomicU64; WRITTEN.len()],
    /// A lock for copying, so that an older copy never replaces a newer one.
    copying: AtomicBool,
    /// The next value to be written: no value is written twice.
    next: AtomicU64,
    /// The number of steps that are left.
    left: AtomicU64,
    /// Whether all CPUs are to rest. Then the number of CPUs that rest, and the number that have ended.
    rest: AtomicBool,
    resting: AtomicU64,
    ended: AtomicU64,
    compared: AtomicU64,
    reported: AtomicU64,
}

/// Writes to some pages, and reads others.
struct Touch(Vec<(Ipa, Option<u64>)>);

impl program::Program for Touch {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        while let Some((ipa, word)) = self.0.last() {
            match word {
                Some(word) => cpu.store(ipa.raw(), *word)?,
                None => cpu.load(ipa.raw()).map(|_| ())?,
            }
            self.0.pop();
        }
        Ok(Ended)
    }
}

impl Migration {
    fn new(machine: &Machine, kind: Kind) -> Self {
        const HUGE_PAGES: u64 = 3;
        let mut frames = Frames::new(kind.features);
        let (huge_pages, tables) = (HUGE_PAGES * MIB_2, (2 + TABLES + kind.tables) * PAGE);
        // First, so that the root does not break up a huge page.
        frames.add(machine.arena().donate_part(huge_pages, tables).unwrap());
        let backing = if kind.preallocated {
            // Aligned as the slot is.
            let donated = machine.arena().donate_part(MIB_2 - 3 * PAGE, COUNT * PAGE).unwrap();
            let frames = donated.into_run();
            Backing::Preallocated { frames, largest: Level::L2 }
        } else {
            frames.add(machine.arena().donate_part(0, huge_pages).unwrap());
            Backing::Ram
        };
        let geometry = Geometry::new(Kib4, 40, &kind.features).unwrap();
        let mut memory = GuestMemory::new(machine.platform(), geometry, Vmid::new(1), frames, kind.pages).unwrap();
        let slot = Slot { range: RAM..RAM + COUNT * PAGE, backing, writable: true };
        let slot = memory.add_slot(slot).unwrap();
        // Takes all frames for RAM, so that none becomes a table.
        [0, 3, 515].into_iter().for_each(|page| memory.write(RAM + page * PAGE, &[0]).unwrap());
        let none = || AtomicU64::new(0);
        Self {
            mostly: kind.mostly,
            vm: Vm::new(memory),
            slot,
            copies: Default::default(),
            copying: AtomicBool::new(false),
            next: AtomicU64::new(1),
            left: none(),
            rest: AtomicBool::new(false),
            resting: none(),
            ended: none(),
            compared: none(),
            reported: none(),
        }
    }

    fn log(&self) -> DirtyLog<'_, Hosted> {
        self.vm.memory().dirty_log(self.slot).unwrap()
    }

    fn word(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts the log. If only later writes are to be in it, copies the slot first.
    fn start(&self, cpu: &CpuHandle) {
        let tracker = Tracker::ALL[cpu.draw(Tracker::ALL.len() as u64) as usize];
        let options = LogOptions {
            tracker,
            all_dirty: tracker != Tracker::WriteProtect && cpu.draw(2) == 0,
            chunk: [0, 4 << 10, 2 << 20, 1 << 30][cpu.draw(4) as usize],
            section: [8, 64, 512][cpu.draw(3) as usize],
        };
        self.log().start(&options).unwrap();
        if !options.all_dirty {
            self.copy(cpu, 0..COUNT);
        }
    }

    /// Copies those of these pages that are ever written.
    fn copy(&self, cpu: &CpuHandle, pages: impl IntoIterator<Item = u64>) {
        while self.copying.swap(true, Ordering::Relaxed) {
            cpu.pause();
        }
        for page in pages {
            if let Some(at) = WRITTEN.iter().position(|written| *written == page) {
                self.copies[at].store(self.read(page), Ordering::Relaxed);
            }
        }
        self.copying.store(false, Ordering::Relaxed);
    }

    fn read(&self, page: u64) -> u64 {
        let mut word = [0; 8];
        self.vm.memory().read(RAM + page * PAGE, &mut word).unwrap();
        u64::from_le_bytes(word)
    }

    /// The dirty pages, if a log runs.
    fn get(&self) -> Option<DirtyPages> {
        let mut dirty = DirtyPages::new();
        match self.log().get(&mut dirty) {
            Ok(()) => Some(dirty),
            Err(LogError::NotRunning { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// A round of a migration: gets the dirty pages, clears all or some of them, and copies them.
    fn round(&self, cpu: &CpuHandle) {
        let Some(dirty) = self.get() else { return };
        // Right if the get has cleared them; otherwise they are still in the log.
        self.copy(cpu, dirty.pages());
        let cleared = if cpu.draw(2) == 0 {
            self.log().clear_these(&dirty)
        } else {
            let (word, mask) = (cpu.draw(COUNT / 64), cpu.draw(u64::MAX));
            self.log().clear(word * 64, 64, &[mask])
        };
        match cleared {
            Ok(()) => self.copy(cpu, 0..COUNT),
            Err(LogError::ClearedByGet | LogError::NotRunning { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        // Succeeds only if the log has stopped, and another CPU may start it meanwhile.
        match self.log().coalesce_range(cpu.draw(COUNT), 1) {
            Ok(_) | Err(LogError::Running { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Runs the guest for a while.
    fn run(&self, cpu: &CpuHandle, vcpu: &mut Vcpu<Touch>) {
        match self.vm.run(cpu, vcpu, |_| 0) {
            Ok(_) => {}
            // The guest repeats its access when there is a table page.
            Err(RunError::Memory { error: Error::Stage2(twofold_stage2::Error::NoTablePage { .. }), .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Rests, if all CPUs are to.
    fn maybe_rest(&self, cpu: &CpuHandle) {
        if self.rest.load(Ordering::Relaxed) {
            self.resting.fetch_add(1, Ordering::Relaxed);
            while self.rest.load(Ordering::Relaxed) {
                cpu.pause();
            }
            self.resting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Counts one step down; `false` if none was left.
    fn goes_on(&self) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// The program of a vCPU's CPU: it enters and leaves its guest.
    fn write(&self, cpu: &CpuHandle) {
        let mut vcpu = Vcpu::new(Touch(Vec::new()), Interrupts::without_time().into());
        while self.goes_on() {
            self.maybe_rest(cpu);
            let touch = || {
                let page = WRITTEN[cpu.draw(WRITTEN.len() as u64 - 1) as usize];
                (RAM + page * PAGE, (cpu.draw(5) > 0).then(|| self.word()))
            };
            if vcpu.program().0.is_empty() {
                let touches = (0..1 + cpu.draw(6)).map(|_| touch()).collect();
                vcpu = Vcpu::new(Touch(touches), Interrupts::without_time().into());
            }
            self.run(cpu, &mut vcpu);
        }
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// The program of the CPU that disturbs the log.
    fn disturb(&self, cpu: &CpuHandle) {
        const EVENTS: [Event; 5] = [Event::Round, Event::Restart, Event::Unmap, Event::DeviceWrite, Event::Looks];
        while self.left.load(Ordering::Relaxed) > 0 {
            self.maybe_rest(cpu);
            let event = EVENTS[cpu.draw(EVENTS.len() as u64) as usize];
            match if cpu.draw(2) == 0 { self.mostly } else { event } {
                Event::Round => self.round(cpu),
                Event::Restart => {
                    self.log().stop().unwrap();
                    match cpu.draw(4) {
                        0 | 1 => {
                            let _ = self.log().coalesce_range(cpu.draw(COUNT), 1 + cpu.draw(2)).unwrap();
                        }
                        // A vCPU that faults there finds tables in place of a block, and may be late with its mapping.
                        2 => {
                            self.unmap(cpu);
                            (0..cpu.draw(8)).for_each(|_| cpu.pause());
                        }
                        _ => {}
                    }
                    self.start(cpu);
                }
                Event::Unmap => self.unmap(cpu),
                Event::DeviceWrite => {
                    self.vm.memory().write(RAM + BY_DEVICE * PAGE, &self.word().to_le_bytes()).unwrap();
                }
                Event::Looks => (0..20).filter_map(|_| self.get()).for_each(|dirty| self.copy(cpu, dirty.pages())),
            }
        }
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Unmaps one page, or all, which unlinks whole tables. A long operation makes vCPUs fault repeatedly.
    fn unmap(&self, cpu: &CpuHandle) {
        let page = WRITTEN[cpu.draw(WRITTEN.len() as u64) as usize];
        let pages = if cpu.draw(2) == 0 { page..page + 1 } else { 0..COUNT };
        match self.vm.memory().unmap(self.slot, RAM + pages.start * PAGE..RAM + pages.end * PAGE) {
            Ok(()) | Err(Error::Stage2(twofold_stage2::Error::NoTablePage { .. })) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// The program of the CPU that collects: rounds, and from time to time a comparison of everything.
    fn collect(&self, cpu: &CpuHandle) {
        while self.left.load(Ordering::Relaxed) > 0 {
            (0..1 + cpu.draw(4)).for_each(|_| self.round(cpu));
            self.rest.store(true, Ordering::Relaxed);
            while self.resting.load(Ordering::Relaxed) + self.ended.load(Ordering::Relaxed) < CPUS as u64 - 1 {
                cpu.pause();
            }
            cpu.meet();
            self.compare(cpu);
            self.rest.store(false, Ordering::Relaxed);
            while self.resting.load(Ordering::Relaxed) > 0 {
                cpu.pause();
            }
        }
        self.rest.store(false, Ordering::Relaxed);
    }

    /// Compares each page, while every vCPU is out of its guest and no other CPU uses the log.
    fn compare(&self, cpu: &CpuHandle) {
        let dirty = self.get().expect("a log runs while all CPUs rest");
        let tracker = self.log().tracker().unwrap().name();
        for (page, copy) in WRITTEN.into_iter().zip(&self.copies) {
            let (now, copy) = (self.read(page), copy.load(Ordering::Relaxed));
            if dirty.contains(page) {
                self.reported.fetch_add(1, Ordering::Relaxed);
            } else if now != copy {
                cpu.report(format!("page {page} has {now:#x}, its copy {copy:#x}, and {tracker} does not report it"));
            } else {
                self.compared.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.copy(cpu, dirty.pages());
    }
}

/// Tables below the root that map the slot in blocks and the pages before them.
const TABLES: u64 = 3;

/// Runs one machine with this seed; returns the numbers of pages that were compared and that were dirty.
fn migrate(kind: Kind, seed: u64, total: u64) -> Result<[u64; 2], Breach> {
    let memory = ArenaOptions::new(8 * MIB_2, Memory::Anonymous);
    let (features, bbm) = (kind.features, Bbm::default());
    // A switch may be at any event; longer stretches let one CPU get further before the next switch.
    let events_between_switches = [4, 12, 60, 7][seed as usize % 4];
    let options = Options { cpus: CPUS, seed, events_between_switches, features, bbm, memory, trace: None };
    let machine = Machine::new(options).unwrap_or_else(|error| panic!("{error}"));
    let migration = machine.alone(|cpu| {
        let migration = Migration::new(&machine, kind);
        migration.left.store(total, Ordering::Relaxed);
        migration.start(cpu);
        migration
    })?;
    let migration = &migration;
    let programs: [fn(&Migration, &CpuHandle); CPUS] =
        [Migration::collect, Migration::disturb, Migration::write, Migration::write];
    let on_cpu = |program: fn(&Migration, &CpuHandle)| -> twofold_machine::strict::Program<'_> {
        Box::new(move |cpu| program(migration, cpu))
    };
    machine.run(programs.map(on_cpu).into())?;
    machine.alone(|cpu| migration.compare(cpu))?;
    Ok([&migration.compared, &migration.reported].map(|count| count.load(Ordering::Relaxed)))
}

fn no_page_is_lost(features: Features, total: u64) {
    const AT_ONCE: u64 = 250;
    let mut counts = [0; 2];
    for number in 0..total.div_ceil(AT_ONCE) {
        let seed = seed() + number;
        // With table pages for every CPU, and with few.
        let (pages, tables) =
            [(Pages::Small, 8), (Pages::Largest, 8), (Pages::Largest, seed / 3 % 3)][seed as usize % 3];
        let mostly = [Event::Round, Event::Restart, Event::Unmap, Event::Looks, Event::DeviceWrite][seed as usize % 5];
        let kind = Kind { features, pages, preallocated: seed % 4 < 2, tables, mostly };
        let migrated = migrate(kind, seed, AT_ONCE.min(total));
        let [compared, reported] = migrated.unwrap_or_else(|breach| panic!("{breach}"));
        counts = [counts[0] + compared, counts[1] + reported];
    }
    println!("{} pages compared, {} dirty, 0 lost", counts[0], counts[1]);
    assert!(counts.iter().all(|count| *count > 0), "no page is compared");
}

#[test]
fn judge_no_dirty_page_is_lost() {
    no_page_is_lost(MODERN, operations(10_000));
}

#[test]
fn judge_no_dirty_page_is_lost_on_armv8_0_with_dirty_state() {
    no_page_is_lost(PLAIN, operations(10_000));
}
