// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which pages leave: the generations beside the clock hand and an exact LRU list, for access patterns of a guest on the
//! machine's TLB and access flags.
//!
//! `cargo test -p twofold-machine --test ageing -- --nocapture` prints the table. The patterns have fixed seeds, and
//! nothing depends on time, so every run prints the same.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use twofold_machine::arena::{Arena, ArenaOptions};
use twofold_machine::fast::{FastMachine, FastPlatform, FastVcpu};
use twofold_machine::interrupts::Interrupts;
use twofold_machine::program::{Ended, Exit, Instructions, Program};
use twofold_machine::tasks::VirtualStore;
use twofold_memory::swap::{Clock, Generations, SwapOptions, Waiter};
use twofold_memory::{Answer, Backing, Frames, GuestFault, GuestMemory, Pages, Slot};
use twofold_stage2::fault::{Fault, ipa_from_hpfar};
use twofold_stage2::{Features, Geometry, Ipa, Kib4, Vmid};

const PAGE: u64 = 4096;
const RAM: Ipa = Ipa::new(0x4000_0000);
/// Pages of the guest, and the frames that it may have for them.
const COUNT: u64 = 2048;
const LIMIT: u64 = 512;
const ACCESSES: u64 = 80_000;

const BY_FAULTS: Features =
    Features::NONE.with_vmid_bits(16).with_forced_write_back(true).with_tlbi_range(true).with_tlbi_level_hint(true);
const BY_HARDWARE: Features = BY_FAULTS.with_hardware_access_flag(true).with_hardware_dirty_state(true);

/// The most reads that the generations may need for each pattern, in percent of the hand's. Without the flush of each
/// round, they need 39, 98, 64, 119 and 99.
const MOST: [(&str, u64); 5] = [("loop", 32), ("zipf", 88), ("scan", 58), ("move", 150), ("random", 101)];

/// Splitmix64: the same numbers on each host.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    }
}

/// The pages of all accesses, in order.
fn pattern(name: &str) -> Vec<u64> {
    let mut random = Random(17);
    // Hot pages are not at neighbouring addresses, but for a loop, which goes over an array.
    let spread = |number: u64| number * 1117 % COUNT;
    match name {
        // A fourth more pages than there are frames, again and again.
        "loop" => (0..ACCESSES).map(|at| at % (LIMIT * 5 / 4)).collect(),
        // The page of rank n is accessed with a probability that is proportional to 1/n.
        "zipf" => {
            let mut sums = vec![0_u64];
            (1..=COUNT).for_each(|rank| sums.push(sums[rank as usize - 1] + (1 << 32) / rank));
            let total = sums[COUNT as usize];
            let rank = |value| sums.partition_point(|sum| *sum <= value) as u64 - 1;
            (0..ACCESSES).map(|_| spread(rank(random.below(total)))).collect()
        }
        // Three accesses of four are to 384 hot pages. Between them, a scan goes over all others.
        "scan" => {
            let (hot, mut next) = (LIMIT * 3 / 4, 0);
            let mut scan = || {
                next += 1;
                hot + next % (COUNT - hot)
            };
            (0..ACCESSES).map(|at| spread(if at % 4 == 3 { scan() } else { random.below(hot) })).collect()
        }
        // 480 hot pages, and in the second half 480 others.
        "move" => {
            let first = |at| if at < ACCESSES / 2 { 0 } else { COUNT / 2 };
            (0..ACCESSES).map(|at| spread(first(at) + random.below(LIMIT * 15 / 16))).collect()
        }
        // All pages alike: no choice is better than another.
        "random" => (0..ACCESSES).map(|_| random.below(COUNT)).collect(),
        _ => unreachable!("{name}"),
    }
}

/// A guest that loads from pages.
struct Loads<'a> {
    pages: &'a [u64],
    at: usize,
}

impl Program for Loads<'_> {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        while let Some(page) = self.pages.get(self.at) {
            let at = RAM.raw() + page * PAGE;
            assert_eq!(cpu.load(at)?, page + 1, "page {page}");
            self.at += 1;
        }
        Ok(Ended)
    }
}

enum Chooser {
    Hand(Clock),
    Ages(Box<Generations>),
}

impl Chooser {
    fn make_room(&mut self, memory: &GuestMemory<FastPlatform>, wanted: u64) {
        let relief = match self {
            Self::Hand(clock) => clock.make_room(memory, wanted),
            Self::Ages(generations) => generations.make_room(memory, wanted),
        };
        let relief = relief.unwrap();
        assert_eq!(relief.freed + relief.started, wanted);
    }
}

/// Pages that were read from the store while a guest made these accesses.
fn reads(features: Features, pages: &[u64], chooser: &mut Chooser) -> u64 {
    let arena = Arc::new(Arena::new(&ArenaOptions::new(32 << 20, twofold_machine::arena::Backing::Anonymous)).unwrap());
    let machine = FastMachine::new(Arc::clone(&arena), features, 1).unwrap();
    let mut frames = Frames::new(features);
    frames.add(arena.donate());
    let geometry = Geometry::new(Kib4, 40, &features).unwrap();
    let platform = FastPlatform(Arc::clone(&machine));
    let mut memory = GuestMemory::new(platform, geometry, Vmid::new(1), frames, Pages::Small).unwrap();
    memory.add_slot(Slot { range: RAM..RAM + COUNT * PAGE, backing: Backing::Ram, writable: true }).unwrap();
    let store = Arc::new(VirtualStore::new());
    let options = SwapOptions { vcpus: 1, others: 1, headroom: 8 };
    memory.attach_store(Box::new(Arc::clone(&store)), Box::new(Arc::clone(&store)), &options).unwrap();
    // Each page has content, and is in the store.
    for page in 0..COUNT {
        memory.write(RAM + page * PAGE, &(page + 1).to_le_bytes()).unwrap();
        let _ = memory.write_out(RAM + page * PAGE).unwrap();
    }
    assert_eq!(memory.set_limit(LIMIT), Ok(memory.frame_use().data.saturating_sub(LIMIT)));
    let rest: Vec<_> = (0..COUNT).map(|page| RAM + page * PAGE).collect();
    rest.iter().for_each(|page| assert!(memory.write_out(*page).is_ok()));
    assert_eq!(memory.frame_use().data, 0);

    let registers = (memory.stage2().vttbr(), memory.stage2().vtcr());
    let mut vcpu = FastVcpu::new(&machine, 0, registers, Arc::new(Interrupts::new())).unwrap();
    let mut program = Loads { pages, at: 0 };
    loop {
        let abort = match vcpu.run(&mut program) {
            Ok(Ended) => return store.counts().reads,
            Err(Exit::Abort(abort)) => abort,
            Err(exit) => panic!("{exit:?}"),
        };
        let Fault { kind, access, .. } = Fault::from_syndrome(abort.esr).unwrap();
        let ipa = ipa_from_hpfar(abort.hpfar);
        match memory.fault(&GuestFault { ipa, kind, access }).unwrap() {
            Answer::Absent => memory.bring(ipa, Waiter::Other(0)).unwrap(),
            answer => assert!(matches!(answer, Answer::Retry(_)), "{answer:?}"),
        }
        let wanted = memory.wants_frames();
        if wanted > 0 {
            chooser.make_room(&memory, wanted);
        }
        let used = memory.frame_use();
        assert!(used.data <= LIMIT, "{used:?}");
    }
}

/// The reads of a list in the order of the last accesses, exact at each access. No hypervisor can have one.
fn lru_reads(pages: &[u64]) -> u64 {
    let (mut last, mut order) = (HashMap::new(), BTreeMap::new());
    let mut reads = 0;
    for (now, page) in pages.iter().enumerate() {
        match last.insert(*page, now) {
            Some(before) => drop(order.remove(&before)),
            None => {
                reads += 1;
                if order.len() as u64 == LIMIT {
                    let (_, oldest) = order.pop_first().unwrap();
                    last.remove(&oldest);
                }
            }
        }
        order.insert(now, *page);
    }
    reads
}

#[test]
fn hot_pages_stay_where_the_clock_hand_evicts_them() {
    println!("reads from the store for {ACCESSES} accesses to {COUNT} pages in {LIMIT} frames, fewer is better");
    println!("pattern  clock hand   exact LRU   generations, flags by faults   by hardware   of the hand's");
    for (name, most) in MOST {
        let pages = pattern(name);
        let hand = reads(BY_HARDWARE, &pages, &mut Chooser::Hand(Clock::new()));
        let [by_faults, by_hardware] =
            [BY_FAULTS, BY_HARDWARE].map(|features| reads(features, &pages, &mut Chooser::Ages(Box::default())));
        let percent = by_hardware * 100 / hand;
        let lru = lru_reads(&pages);
        println!("{name:7} {hand:11} {lru:11} {by_faults:30} {by_hardware:13} {percent:13} %");
        assert!(by_hardware * 100 <= hand * most && by_faults * 100 <= hand * most, "{name}: {percent} %");
    }
}
