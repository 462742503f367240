// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No dirty page is lost: with every vCPU out of its guest, a page that the log does not tell of is what it was when it was
//! last copied.
//!
//! vCPUs write; two CPUs get, clear and copy; and one of these two also stops the log, puts blocks together, starts it
//! again with another tracker, unmaps, and writes as a device does. Now and then everybody rests, and each page is compared.
//!
//! A page is copied when it was cleared, and at any other time that pleases: to copy one that is in the log does no harm.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use twofold_machine::arena::{ArenaOptions, Backing as Memory};
use twofold_machine::interrupts::Interrupts;
use twofold_machine::program::{self, Ended, Exit, Instructions};
use twofold_machine::unforgiving::{Bbm, Breach, CpuHandle, Hosted, Machine, Options};
use twofold_machine::vm::{RunError, Vcpu, Vm};
use twofold_memory::dirty::{DirtyLog, DirtyPages, LogError, LogOptions, Tracker};
use twofold_memory::{Backing, Error, Frames, GuestMemory, Pages, Slot, SlotId};
use twofold_stage2::{Features, Geometry, Granule, Ipa, Level, Vmid};

use crate::random::{operations, seed};
use crate::world::{MIB_2, MODERN, PAGE, PLAIN};

/// Where the slot starts: no word of the log begins where a table does.
const RAM: Ipa = Ipa::new(0x4000_0000 - 3 * PAGE);
/// Pages of the slot, in three sections, two of them whole.
const COUNT: u64 = 3 + 2 * 512;
/// Those that are written: some side by side, at edges of words, sections, tables, the slot.
const WRITTEN: [u64; 13] = [0, 3, 4, 10, 63, 64, 66, 67, 514, 515, 1023, 1026, BY_DEVICE];
/// Of these, the one that a device writes and no vCPU: where both do, a guest may find what it writes later, which is their
/// affair, and the machine's to report (R7).
const BY_DEVICE: u64 = 1;

/// CPUs with a vCPU; two others look after the log.
const VCPUS: usize = 2;
const CPUS: usize = VCPUS + 2;

/// What a run is to be.
#[derive(Clone, Copy, Debug)]
struct Kind {
    features: Features,
    pages: Pages,
    /// Whether the slot's frames are given.
    given: bool,
    /// Frames for tables beyond those that map the slot.
    tables: u64,
    /// What happens to the log most of the time.
    mostly: Event,
}

/// What happens to a log, but for its rounds.
#[derive(Clone, Copy, Debug)]
enum Event {
    Round,
    Restart,
    Unmap,
    DeviceWrite,
    /// One look after the other, so that what was armed gets cold.
    Looks,
}

struct Migration {
    mostly: Event,
    vm: Vm<Hosted>,
    slot: SlotId,
    /// What was in each page when it was last copied.
    copies: [AtomicU64; WRITTEN.len()],
    /// Whoever copies has it, so that no older copy takes the place of a newer one.
    copying: AtomicBool,
    /// The next word to be written: none is written twice.
    next: AtomicU64,
    /// What is left to do.
    left: AtomicU64,
    /// Whether all are to rest, and how many do, or have ended.
    rest: AtomicBool,
    resting: AtomicU64,
    ended: AtomicU64,
    compared: AtomicU64,
    told: AtomicU64,
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
        const SECTIONS: u64 = 3;
        let mut frames = Frames::new(kind.features);
        let (sections, tables) = (SECTIONS * MIB_2, (2 + TABLES + kind.tables) * PAGE);
        // First, so that no section is broken up for the root.
        frames.add(machine.arena().donate_part(sections, tables).unwrap());
        let backing = if kind.given {
            // Aligned as the slot is.
            let given = machine.arena().donate_part(MIB_2 - 3 * PAGE, COUNT * PAGE).unwrap();
            let frames = given.into_run();
            Backing::Given { frames, largest: Level::L2 }
        } else {
            frames.add(machine.arena().donate_part(0, sections).unwrap());
            Backing::Ram
        };
        let geometry = Geometry::new(Granule::KIB_4, 40, &kind.features).unwrap();
        let mut memory = GuestMemory::new(machine.platform(), geometry, Vmid::new(1), frames, kind.pages).unwrap();
        let slot = Slot { range: RAM..RAM + COUNT * PAGE, backing, writable: true };
        let slot = memory.add_slot(slot).unwrap();
        // All of its frames are taken, so that none becomes a table.
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
            told: none(),
        }
    }

    fn log(&self) -> DirtyLog<'_, Hosted> {
        self.vm.memory().dirty_log(self.slot).unwrap()
    }

    fn word(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts the log, and has seen all of the slot if it is to tell of what is written from now on.
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

    /// What the log tells, if one runs.
    fn get(&self) -> Option<DirtyPages> {
        let mut dirty = DirtyPages::new();
        match self.log().get(&mut dirty) {
            Ok(()) => Some(dirty),
            Err(LogError::NotRunning { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// A round of a migration: what is told is cleared, or some of it, and copied.
    fn round(&self, cpu: &CpuHandle) {
        let Some(dirty) = self.get() else { return };
        // Where that cleared them. Elsewhere they are in the log.
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
        // If the log has stopped. It may be started meanwhile.
        match self.log().rejoin(cpu.draw(COUNT), 1) {
            Ok(_) | Err(LogError::Running { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Lets the guest go on for a while.
    fn run(&self, cpu: &CpuHandle, vcpu: &mut Vcpu<Touch>) {
        match self.vm.run(cpu, vcpu, |_| 0) {
            Ok(_) => {}
            // It tries again, when there is a table page.
            Err(RunError::Memory { error: Error::Stage2(twofold_stage2::Error::NoTablePage { .. }), .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Rests, if all are to.
    fn maybe_rest(&self, cpu: &CpuHandle) {
        if self.rest.load(Ordering::Relaxed) {
            self.resting.fetch_add(1, Ordering::Relaxed);
            while self.rest.load(Ordering::Relaxed) {
                cpu.pause();
            }
            self.resting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// What is left is less by one.
    fn goes_on(&self) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// A vCPU: in and out of its guest.
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

    /// What happens to a log.
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
                            let _ = self.log().rejoin(cpu.draw(COUNT), 1 + cpu.draw(2)).unwrap();
                        }
                        // Whoever faults there finds tables in the way of a block, and may be late with it.
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

    /// A page alone, or with all others: tables go as wholes. What is long under way has vCPUs fault on and on.
    fn unmap(&self, cpu: &CpuHandle) {
        let page = WRITTEN[cpu.draw(WRITTEN.len() as u64) as usize];
        let pages = if cpu.draw(2) == 0 { page..page + 1 } else { 0..COUNT };
        match self.vm.memory().unmap(self.slot, RAM + pages.start * PAGE..RAM + pages.end * PAGE) {
            Ok(()) | Err(Error::Stage2(twofold_stage2::Error::NoTablePage { .. })) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Round after round, and now and then a look at everything.
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

    /// With every vCPU out of its guest, and nobody else at the log.
    fn compare(&self, cpu: &CpuHandle) {
        let dirty = self.get().expect("a log runs whenever all rest");
        let tracker = self.log().tracker().unwrap().name();
        for (page, copy) in WRITTEN.into_iter().zip(&self.copies) {
            let (now, copy) = (self.read(page), copy.load(Ordering::Relaxed));
            if dirty.contains(page) {
                self.told.fetch_add(1, Ordering::Relaxed);
            } else if now != copy {
                cpu.report(format!("page {page} has {now:#x}, its copy {copy:#x}, and {tracker} does not tell of it"));
            } else {
                self.compared.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.copy(cpu, dirty.pages());
    }
}

/// Tables that map the slot in blocks and what is before them, below the root.
const TABLES: u64 = 3;

/// One machine, for each seed; what was compared, and what was told.
fn migrate(kind: Kind, seed: u64, total: u64) -> Result<[u64; 2], Breach> {
    let memory = ArenaOptions::new(8 * MIB_2, Memory::Anonymous);
    let (features, bbm) = (kind.features, Bbm::default());
    // A switch may be anywhere; longer stretches let one get further before the next.
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
    let on_cpu = |program: fn(&Migration, &CpuHandle)| -> twofold_machine::unforgiving::Program<'_> {
        Box::new(move |cpu| program(migration, cpu))
    };
    machine.run(programs.map(on_cpu).into())?;
    machine.alone(|cpu| migration.compare(cpu))?;
    Ok([&migration.compared, &migration.told].map(|count| count.load(Ordering::Relaxed)))
}

fn no_page_is_lost(features: Features, total: u64) {
    const AT_ONCE: u64 = 250;
    let mut counts = [0; 2];
    for number in 0..total.div_ceil(AT_ONCE) {
        let seed = seed() + number;
        // With table pages for everybody, and with hardly any.
        let (pages, tables) =
            [(Pages::Small, 8), (Pages::Largest, 8), (Pages::Largest, seed / 3 % 3)][seed as usize % 3];
        let mostly = [Event::Round, Event::Restart, Event::Unmap, Event::Looks, Event::DeviceWrite][seed as usize % 5];
        let kind = Kind { features, pages, given: seed % 4 < 2, tables, mostly };
        let migrated = migrate(kind, seed, AT_ONCE.min(total));
        let [compared, told] = migrated.unwrap_or_else(|breach| panic!("{breach}"));
        counts = [counts[0] + compared, counts[1] + told];
    }
    println!("{} pages compared, {} told, 0 lost", counts[0], counts[1]);
    assert!(counts.iter().all(|count| *count > 0), "it compares nothing");
}

#[test]
fn judge_no_dirty_page_is_lost() {
    no_page_is_lost(MODERN, operations(10_000));
}

#[test]
fn judge_no_dirty_page_is_lost_on_armv8_0_with_dirty_state() {
    no_page_is_lost(PLAIN, operations(10_000));
}
