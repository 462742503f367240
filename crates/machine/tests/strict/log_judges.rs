// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The races of a dirty log: a fault while it starts, marks while they are taken, two CPUs that want its lock. Software
//! sees stores as late as the memory model allows. So what holds here holds by fences, orderings and locks only.
//!
//! [`Word`]s stand for memory that is written past the guest's tables, so a copy may miss a write too.

use std::sync::Mutex;

use twofold_machine::arena::{ArenaOptions, Backing};
use twofold_machine::strict::{Bbm, CpuHandle, Hosted, Machine, Options, Program};
use twofold_memory::dirty::{DirtyPages, LogError, LogOptions, Tracker};
use twofold_memory::{Frames, GuestFault, GuestMemory, Pages, Slot, SlotId};
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::primitive::{Ordering, Word};
use twofold_stage2::{Geometry, Ipa, Kib4, Level, Vmid};

use crate::world::{MIB_2, MODERN, PAGE};

/// A section of 64 pages that two tables map: the first one maps 32 of them.
const START: Ipa = Ipa::new((1 << 30) - 32 * PAGE);
const SIZE: u64 = 3 * MIB_2;

/// A guest with one slot, on a machine whose CPUs switch after a few events.
struct Logged {
    machine: Machine,
    memory: GuestMemory<Hosted>,
    slot: SlotId,
}

impl Logged {
    fn new(cpus: usize, seed: u64, pages: Pages) -> Self {
        Self::with_turns(cpus, seed, pages, 2 + (seed % 3) as u32)
    }

    /// With this mean number of events in a turn: in a long turn, a CPU does much between two events of another.
    fn with_turns(cpus: usize, seed: u64, pages: Pages, events_between_switches: u32) -> Self {
        let memory = ArenaOptions::new(32 << 20, Backing::Anonymous);
        let options =
            Options { cpus, seed, events_between_switches, features: MODERN, bbm: Bbm::default(), memory, trace: None };
        let machine = Machine::new(options).unwrap_or_else(|error| panic!("{error}"));
        let made = machine.alone(|_| {
            let mut frames = Frames::new(MODERN);
            frames.add(machine.arena().donate_part(0, 32 << 20).unwrap());
            let geometry = Geometry::new(Kib4, 40, &MODERN).unwrap();
            let mut memory = GuestMemory::new(machine.platform(), geometry, Vmid::new(1), frames, pages).unwrap();
            let backing = twofold_memory::Backing::Ram;
            let slot = memory.add_slot(Slot { range: START..START + SIZE, backing, writable: true }).unwrap();
            (memory, slot)
        });
        let (memory, slot) = made.unwrap_or_else(|breach| panic!("{breach}"));
        Self { machine, memory, slot }
    }

    /// Runs `body` as CPU 0, alone.
    fn alone<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        self.machine.alone(|_| body()).unwrap_or_else(|breach| panic!("{breach}"))
    }

    fn together(&self, programs: Vec<Program<'_>>) {
        self.machine.run(programs).unwrap_or_else(|breach| panic!("{breach}"));
    }

    fn start(&self, tracker: Tracker) -> Result<(), LogError> {
        let options = LogOptions { all_dirty: false, ..LogOptions::new(tracker) };
        self.memory.dirty_log(self.slot)?.start(&options)
    }

    fn stop(&self) -> Result<(), LogError> {
        self.memory.dirty_log(self.slot)?.stop()
    }

    /// Gets the dirty pages and clears them. The caller may read these pages then.
    fn collect(&self) -> DirtyPages {
        let (log, mut dirty) = (self.memory.dirty_log(self.slot).unwrap(), DirtyPages::new());
        log.get(&mut dirty).unwrap();
        if log.tracker() != Some(Tracker::WriteProtect) {
            log.clear_these(&dirty).unwrap();
        }
        dirty
    }

    /// Maps these pages without write access, as after a log.
    fn protected(&self, pages: impl IntoIterator<Item = u64>) {
        for page in pages {
            self.fault(page, FaultKind::Translation, AccessKind::Read);
        }
        self.start(Tracker::WriteProtect).unwrap();
        self.stop().unwrap();
    }

    fn fault(&self, page: u64, kind: FaultKind, access: AccessKind) {
        let answer = self.memory.fault(&GuestFault { ipa: START + page * PAGE, kind, access });
        assert!(answer.is_ok(), "{answer:?}");
    }

    /// Handles a write fault: the guest may write to the page from now on.
    fn write(&self, page: u64) {
        self.fault(page, FaultKind::Permission, AccessKind::Write);
    }

    /// Checks, while no vCPU runs, that each page that may be written without hardware's record is in the log. If not
    /// `tracked_allowed`, checks too that no page has DBM set, since the log does not scan for it.
    fn check(&self, seed: u64, tracked_allowed: bool) {
        let (log, mut dirty) = (self.memory.dirty_log(self.slot).unwrap(), DirtyPages::new());
        log.get(&mut dirty).unwrap();
        for page in 0..SIZE / PAGE {
            let Some(leaf) = self.memory.stage2().look_up(START + page * PAGE) else { continue };
            let seen = !leaf.descriptor.is_writable() || leaf.descriptor.is_hardware_tracked() || dirty.contains(page);
            assert!(seen, "seed {seed}: page {page} may be written, and is not in the log: {leaf:?}");
            assert!(
                tracked_allowed || !leaf.descriptor.is_hardware_tracked(),
                "seed {seed}: no scan covers page {page}: {leaf:?}"
            );
        }
    }
}

/// Either the CPU that allows the write sees that a log runs, or the CPU that starts the log sees that the page is
/// writable.
#[test]
fn judge_a_fault_while_a_log_starts_is_seen() {
    for seed in 1..=300 {
        let guest = Logged::new(2, seed, Pages::Small);
        guest.alone(|| guest.protected([0]));
        guest.together(vec![
            Box::new(|cpu| {
                wait(cpu, 30);
                guest.write(0);
            }),
            Box::new(|_| guest.start(Tracker::Manual).unwrap()),
        ]);
        guest.alone(|| guest.check(seed, false));
    }
}

/// The same for a CPU that writes to memory past the tables, and marks the page afterwards.
#[test]
fn judge_a_write_past_the_tables_while_a_log_starts_is_seen() {
    for seed in 1..=300 {
        let guest = Logged::new(2, seed, Pages::Small);
        guest.alone(|| guest.protected([0]));
        let (data, copy) = (Word::new(0), Mutex::new(0));
        guest.together(vec![
            Box::new(|cpu| {
                wait(cpu, 30);
                data.store(1, Ordering::Relaxed);
                guest.memory.dirty_log(guest.slot).unwrap().mark(START..START + PAGE);
            }),
            Box::new(|_| {
                guest.start(Tracker::Manual).unwrap();
                *copy.lock().unwrap() = data.load(Ordering::Relaxed);
            }),
        ]);
        let reported = guest.alone(|| guest.collect().contains(0));
        assert!(reported || copy.into_inner().unwrap() == 1, "seed {seed}: a write is lost");
    }
}

/// A fault that began under a log that has ended sets no DBM that the next log does not scan. This holds for the table
/// of the page that was written, and for the next table.
#[test]
fn judge_what_was_tracked_for_another_log_is_undone() {
    for seed in 1..=300 {
        let guest = Logged::new(2, seed, Pages::Small);
        guest.alone(|| {
            guest.protected([0, 40]);
            guest.start(Tracker::Combined).unwrap();
        });
        guest.together(vec![
            Box::new(|cpu| {
                wait(cpu, 30);
                guest.write(0);
            }),
            Box::new(|cpu| {
                wait(cpu, 30);
                guest.stop().unwrap();
                guest.start(Tracker::Manual).unwrap();
            }),
        ]);
        guest.alone(|| guest.check(seed, false));
    }
}

/// A get ends the records of a section while a fault sets DBM in it again: the section's bit is set, or no page has
/// DBM.
#[test]
fn judge_what_is_tracked_is_looked_at() {
    for seed in 1..=150 {
        let guest = Logged::new(2, seed, Pages::Small);
        guest.alone(|| {
            guest.protected([0, 1, 40]);
            guest.start(Tracker::Combined).unwrap();
        });
        guest.together(vec![
            Box::new(|cpu| {
                for page in [0, 1, 40, 0] {
                    wait(cpu, 20);
                    guest.write(page);
                }
            }),
            Box::new(|cpu| {
                for _ in 0..3 {
                    wait(cpu, 20);
                    guest.collect();
                }
            }),
        ]);
        guest.alone(|| {
            guest.check(seed, true);
            // That `get` has ended all records.
            guest.check(seed, false);
        });
    }
}

/// The same at the first fault of a section, after which no fault sets the bit again.
#[test]
fn judge_what_one_fault_tracked_is_looked_at() {
    for seed in 1..=200 {
        let guest = Logged::with_turns(2, seed, Pages::Small, long_turns(seed));
        guest.alone(|| {
            guest.protected([0, 1]);
            guest.start(Tracker::Combined).unwrap();
        });
        guest.together(vec![
            Box::new(|_| guest.write(0)),
            Box::new(|_| {
                for _ in 0..4 {
                    guest.collect();
                }
            }),
        ]);
        guest.alone(|| {
            guest.collect();
            guest.check(seed, false);
        });
    }
}

/// The records of sections end, because nothing was written there for long, while a fault sets DBM in their whole
/// table. Their bits are set, or no page in them has DBM.
#[test]
fn judge_what_is_tracked_as_it_gets_cold_is_looked_at() {
    /// The number of rounds without a write after which a section's records end.
    const COLD: usize = 64;
    for seed in 1..=40 {
        let guest = Logged::with_turns(2, seed, Pages::Small, long_turns(seed));
        guest.alone(|| {
            // The first page is in another table, where setting DBM takes its time.
            guest.protected([0, 128, 129, 256, 257, 384, 385, 64, 192, 320, 448]);
            guest.start(Tracker::Adaptive).unwrap();
            // The second fault of a section sets DBM in it. Three faults in a round are too few for the whole table.
            for faults in [[128, 256, 384], [129, 257, 385]] {
                faults.into_iter().for_each(|page| guest.write(page));
                guest.collect();
            }
            (1..COLD).for_each(|_| drop(guest.collect()));
            [64, 192, 320].into_iter().for_each(|page| guest.write(page));
        });
        guest.together(vec![
            Box::new(|cpu| {
                wait(cpu, 3);
                guest.write(448);
            }),
            Box::new(|_| drop(guest.collect())),
        ]);
        guest.alone(|| {
            guest.check(seed, true);
            (0..=COLD).for_each(|_| drop(guest.collect()));
            guest.check(seed, false);
        });
    }
}

/// Several CPUs mark pages, in one word and in several, while the marks are taken. Each mark is reported, and a CPU
/// that gets it sees what was written before it.
#[test]
fn judge_marks_are_taken_or_stay() {
    const MARKED: [u64; 4] = [0, 1, 64, 130];
    for (seed, tracker) in (1..=120).flat_map(|seed| [(seed, Tracker::WriteProtect), (seed, Tracker::Manual)]) {
        let guest = Logged::new(3, seed, Pages::Small);
        guest.alone(|| guest.start(tracker).unwrap());
        let data: [Word; MARKED.len()] = Default::default();
        let copies = Mutex::new([0; MARKED.len()]);
        // Each page belongs to one CPU.
        let marks = |own: [usize; 2]| -> Program<'_> {
            let (guest, data) = (&guest, &data);
            Box::new(move |cpu| {
                for round in 1..=6 {
                    let at = own[cpu.draw(2) as usize];
                    data[at].store(round, Ordering::Relaxed);
                    let page = START + MARKED[at] * PAGE;
                    guest.memory.dirty_log(guest.slot).unwrap().mark(page..page + PAGE);
                }
            })
        };
        let collects: Program<'_> = Box::new(|cpu| {
            for _ in 0..6 {
                wait(cpu, 6);
                let reported = guest.collect();
                let mut copies = copies.lock().unwrap();
                for (at, page) in MARKED.into_iter().enumerate().filter(|(_, page)| reported.contains(*page)) {
                    copies[at] = data[at].load(Ordering::Relaxed);
                    assert!(page < SIZE / PAGE);
                }
            }
        });
        guest.together(vec![marks([0, 2]), collects, marks([1, 3])]);
        let left = guest.alone(|| {
            let reported = guest.collect();
            let now = data.each_ref().map(|word| word.load(Ordering::Relaxed));
            (reported, now)
        });
        let (reported, now) = left;
        for ((page, copy), now) in MARKED.into_iter().zip(copies.into_inner().unwrap()).zip(now) {
            assert!(
                copy == now || reported.contains(page),
                "seed {seed}, {tracker:?}: page {page} was {copy}, is {now}"
            );
        }
    }
}

/// After a device's write, the page is in the log, or was read with that write.
#[test]
fn judge_a_device_s_write_is_reported_or_read() {
    for seed in 1..=200 {
        let guest = Logged::with_turns(2, seed, Pages::Small, long_turns(seed));
        let frame = guest.alone(|| {
            guest.protected([0]);
            guest.start(Tracker::Manual).unwrap();
            guest.memory.stage2().look_up(START).unwrap().descriptor.address()
        });
        let read = || guest.machine.arena().load(frame).unwrap();
        let copy = Mutex::new(0);
        guest.together(vec![
            Box::new(|cpu| {
                wait(cpu, 3);
                guest.memory.write(START, &1u64.to_le_bytes()).unwrap();
            }),
            Box::new(|_| {
                for _ in 0..4 {
                    if guest.collect().contains(0) {
                        *copy.lock().unwrap() = read();
                    }
                }
            }),
        ]);
        let reported = guest.alone(|| guest.collect().contains(0));
        assert!(reported || copy.into_inner().unwrap() == read(), "seed {seed}: a device's write is lost");
    }
}

/// A page in a log is reported until it is cleared, and not again. A new log has no page, or all.
#[test]
fn judge_what_was_cleared_is_not_reported_again() {
    for tracker in Tracker::ALL {
        let guest = Logged::new(1, 1, Pages::Small);
        guest.alone(|| {
            let log = guest.memory.dirty_log(guest.slot).unwrap();
            for all_dirty in [false, tracker != Tracker::WriteProtect] {
                log.start(&LogOptions { all_dirty, ..LogOptions::new(tracker) }).unwrap();
                let count = if all_dirty { SIZE / PAGE } else { 0 };
                assert_eq!(guest.collect().count(), count, "{tracker:?}");
                log.mark(START + PAGE..START + 3 * PAGE);
                assert_eq!(guest.collect().pages().collect::<Vec<_>>(), [1, 2], "{tracker:?}");
                assert!(guest.collect().is_empty(), "{tracker:?}");
                log.mark(START..START + PAGE);
                log.stop().unwrap();
            }
        });
    }
}

/// Faulting writes close to each other, in one round, make hardware record the pages around them.
#[test]
fn judge_faults_of_one_round_set_dbm_on_what_is_around() {
    // In the same 2 MiB of the slot, in sections of 64 pages: one more section, without a fault.
    for same_round in [true, false] {
        let guest = Logged::new(1, 1, Pages::Small);
        guest.alone(|| {
            guest.protected([0, 100, 200, 300, 400]);
            guest.start(Tracker::Adaptive).unwrap();
            [0, 100, 200].into_iter().for_each(|page| guest.write(page));
            if !same_round {
                guest.collect();
            }
            guest.write(300);
            let leaf = guest.memory.stage2().look_up(START + 400 * PAGE).unwrap();
            assert_eq!(leaf.descriptor.is_hardware_tracked(), same_round, "{leaf:?}");
        });
    }
}

/// A get costs what is in the log, not what was once in it: as many steps as the first get.
#[test]
fn judge_what_was_dirty_costs_nothing() {
    let guest = Logged::new(1, 1, Pages::Small);
    let steps = guest.machine.alone(|cpu| {
        let log = guest.memory.dirty_log(guest.slot).unwrap();
        let look = || {
            let before = cpu.step();
            assert!(guest.collect().is_empty());
            cpu.step() - before
        };
        guest.start(Tracker::Manual).unwrap();
        let first = look();
        log.mark(START..START + SIZE);
        guest.collect();
        let after_clear = look();
        log.mark(START..START + SIZE);
        guest.stop().unwrap();
        guest.start(Tracker::Manual).unwrap();
        [first, after_clear, look()]
    });
    let [first, after_clear, after_start] = steps.unwrap_or_else(|breach| panic!("{breach}"));
    assert_eq!((after_clear, after_start), (first, first));
}

/// A log starts while a CPU is late with marks for the one before. These are reported at once or not at all, and later
/// marks are reported. Some are in words that had marks, and some in words that had none.
#[test]
fn judge_a_late_mark_is_reported_or_gone_and_hides_none() {
    const WORDS: u64 = 6;
    for seed in 1..=300 {
        let guest = Logged::new(2, seed, Pages::Small);
        let mark = |page: u64| {
            let page = START + page * PAGE;
            guest.memory.dirty_log(guest.slot).unwrap().mark(page..page + PAGE);
        };
        guest.alone(|| {
            guest.start(Tracker::Manual).unwrap();
            mark(4);
        });
        guest.together(vec![
            Box::new(|cpu| {
                wait(cpu, 12);
                (0..WORDS).for_each(|word| mark(64 * word + 5));
            }),
            Box::new(|cpu| {
                wait(cpu, 12);
                guest.stop().unwrap();
                guest.start(Tracker::Manual).unwrap();
            }),
        ]);
        guest.alone(|| {
            guest.collect();
            (0..WORDS).for_each(|word| mark(64 * word + 6));
            let reported = guest.collect();
            assert!(reported.pages().eq((0..WORDS).map(|word| 64 * word + 6)), "seed {seed}: {reported:?}");
        });
    }
}

#[test]
fn judge_one_starts_it_and_one_stops_it() {
    for seed in 1..=150 {
        let guest = Logged::new(2, seed, Pages::Small);
        let both = |operation: &(dyn Fn() -> Result<(), LogError> + Sync)| {
            let done = Mutex::new(Vec::new());
            let programs = (0..2).map(|_| -> Program<'_> {
                Box::new(|_| {
                    let result = operation();
                    done.lock().unwrap().push(result);
                })
            });
            guest.together(programs.collect());
            done.into_inner().unwrap().iter().filter(|done| done.is_ok()).count()
        };
        assert_eq!(both(&|| guest.start(Tracker::Manual)), 1, "seed {seed}: two CPUs have started it");
        assert_eq!(both(&|| guest.stop()), 1, "seed {seed}: two CPUs have stopped it");
    }
}

/// Blocks are coalesced only while no log runs.
#[test]
fn judge_no_block_comes_back_while_a_log_starts() {
    for seed in 1..=120 {
        let guest = Logged::with_turns(2, seed, Pages::Largest, long_turns(seed));
        guest.alone(|| {
            // All frames of a block are ready, and mapped by pages.
            let page = 32;
            guest.fault(page, FaultKind::Translation, AccessKind::Read);
            guest.start(Tracker::WriteProtect).unwrap();
            guest.stop().unwrap();
            let leaf = guest.memory.stage2().look_up(START + page * PAGE).unwrap();
            assert_eq!(leaf.level, Level::L3, "{leaf:?}");
        });
        guest.together(vec![
            Box::new(|cpu| {
                wait(cpu, 10);
                // An error is fine too: the log runs by now.
                let _ = guest.memory.dirty_log(guest.slot).unwrap().coalesce_range(0, 1);
            }),
            Box::new(|cpu| {
                wait(cpu, 10);
                guest.start(Tracker::Manual).unwrap();
            }),
        ]);
        guest.alone(|| guest.check(seed, false));
    }
}

/// A fault that began before the log was started replaces a table by a block. Either it sees the log, and marks the
/// whole block, or the CPU that starts the log sees the block. What hardware recorded in the table meanwhile is in the
/// log too.
#[test]
fn judge_a_block_made_by_a_fault_while_a_log_starts_is_seen() {
    for seed in 1..=160 {
        let guest = Logged::with_turns(3, seed, Pages::Largest, long_turns(seed));
        let (page, missing) = (32 + 64, 32 + 70);
        guest.alone(|| {
            guest.fault(page, FaultKind::Translation, AccessKind::Read);
            guest.start(Tracker::WriteProtect).unwrap();
            guest.stop().unwrap();
            let at = START + missing * PAGE;
            guest.memory.unmap(guest.slot, at..at + PAGE).unwrap();
            let leaf = guest.memory.stage2().look_up(START + page * PAGE).unwrap();
            assert_eq!(leaf.level, Level::L3, "{leaf:?}");
        });
        let tracker = Tracker::ALL[1 + seed as usize % 4];
        guest.together(vec![
            Box::new(|cpu| {
                wait(cpu, 10);
                guest.fault(missing, FaultKind::Translation, AccessKind::Read);
            }),
            Box::new(|cpu| {
                wait(cpu, 10);
                guest.start(tracker).unwrap();
            }),
            // A page of the same block.
            Box::new(|cpu| {
                wait(cpu, 60);
                guest.write(page);
            }),
        ]);
        let tracked_allowed = !matches!(tracker, Tracker::Manual);
        guest.alone(|| guest.check(seed, tracked_allowed));
    }
}

/// A block is coalesced as soon as all of its memory is ready. Whichever CPU prepared the last page, that page is
/// zeroed before a guest sees it.
#[test]
fn judge_a_block_that_comes_back_is_ready() {
    for seed in 1..=6 {
        let guest = Logged::new(2, seed, Pages::Largest);
        let write = |page: u64| guest.memory.write(START + page * PAGE, &[1]).unwrap();
        guest.alone(|| {
            guest.start(Tracker::Manual).unwrap();
            guest.fault(32, FaultKind::Translation, AccessKind::Read);
            (33..32 + 511).for_each(write);
            guest.stop().unwrap();
        });
        guest.together(vec![
            Box::new(|_| write(32 + 511)),
            Box::new(|cpu| {
                while guest.memory.dirty_log(guest.slot).unwrap().coalesce_range(32, 1).unwrap().blocks == 0 {
                    cpu.pause();
                }
            }),
        ]);
    }
}

/// A mean of a few events in a turn, or of many.
fn long_turns(seed: u64) -> u32 {
    [3, 12, 40, 80][seed as usize % 4]
}

fn wait(cpu: &CpuHandle, most: u64) {
    (0..cpu.draw(most)).for_each(|_| cpu.pause());
}
