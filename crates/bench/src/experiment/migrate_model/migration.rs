// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One guest that moves, with one tracker: the driver of `twofold-migration` and the dirty log of `twofold-memory`, by
//! the clocks of the model.
//!
//! Invariant: a result is returned only if each page was last sent as the stopped guest had it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_machine::arena::{Arena, ArenaOptions, Backing as Kind};
use twofold_machine::fast::FastMachine;
use twofold_machine::interrupts::Interrupts;
use twofold_machine::vm::{FastCpu, Left, Vcpu, Vm};
use twofold_memory::dirty::{LogOptions, Tracker};
use twofold_memory::{Backing, Frames, GuestMemory, Pages as Leaves, Slot, SlotId};
use twofold_migration::commit::{Embedder, Owner, Ownership, Request, Side, State};
use twofold_migration::plan::{Throttle, Wanted};
use twofold_migration::precopy::{Host, Postcopy, Precopy, Progress, Sent};
use twofold_migration::ram::{GuestRam, PageRead, RamError, SourceRam};
use twofold_migration::stream::{Compression, Hello, Name, Slot as SentSlot};
use twofold_migration::{Answers, Cancel, Section};
use twofold_stage2::{Geometry, Ipa, Kib4, Vmid};
use xxhash_rust::xxh3::xxh3_64;

use super::clocks::{Clocks, Cost, Link, Spent};
use super::events::{CountedCpu, CountedPlatform, Counters};
use super::load::{Did, Fill, PAGE, Pages, START, Work};
use super::plan::Guest;
use super::prices::{Picos, Prices};
use crate::features::TODAY;

/// What became of a guest that moved.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// When the guest had done its work, at the source or at the target.
    pub finished: Picos,
    /// The same without a migration.
    pub alone: Picos,
    /// The time until the guest was offered.
    pub migration: Picos,
    /// How long it stood still.
    pub downtime: Picos,
    /// What was sent.
    pub sent: Sent,
    /// The rounds: pages sent, and pages left.
    pub rounds: Vec<(u64, u64)>,
    /// The most throttle, in per mille.
    pub throttle: u16,
    /// What the migration's thread was charged for.
    pub spent: Spent,
    /// What each vCPU did until it was stopped.
    pub vcpus: Vec<Did>,
    /// Each vCPU's clock then.
    pub clocks: Vec<Picos>,
}

/// Moves a guest whose memory is tracked in this way.
///
/// # Errors
///
/// The guest does not fit, the migration fails, or a page was sent that is not as the guest left it.
pub fn migrate(guest: &Guest, tracker: Tracker, seed: u64) -> anyhow::Result<Moved> {
    let (prices, counters) = (Prices::STATED, Arc::new(Counters::default()));
    let pages = guest.bytes / PAGE;
    let (vm, cpus, slot) = machine(guest, &counters)?;
    fill(&vm, &cpus, pages)?;

    let order = Arc::new(Pages::new(pages, guest.mix, guest.hot, seed));
    let vcpu = |number: u64| {
        let seed = seed.wrapping_mul(0x1_0001).wrapping_add(number);
        let (step, goal) = (guest.step(), guest.goal());
        let counters = Arc::clone(&counters);
        let work = Work::new(vm.memory(), counters, prices, Arc::clone(&order), seed, (step, goal));
        Vcpu::new(work, Arc::new(Interrupts::without_time()))
    };
    let vcpus = (0..guest.vcpus).map(vcpu).collect();
    let clocks = Clocks::new((&vm, &cpus), Arc::clone(&counters), prices, guest.byte(), vcpus);
    counters.take();

    let from = Ownership { owner: Owner { host: 1, incarnation: 1 }, epoch: 1 };
    let mut side = Side::new(from.owner, State::Running { owned: from });
    let mut host = Source { clocks: &clocks, fixed: prices.state, rounds: Vec::new(), throttle: 0 };
    let ram = Charged {
        ram: GuestRam::new(vm.memory(), LogOptions::new(tracker), &[slot])?,
        clocks: &clocks,
        digests: Mutex::new(vec![0; pages as usize]),
    };
    let precopy = Precopy {
        ram: &ram,
        hello: hello(guest)?,
        wanted: wanted(guest, prices),
        limit: None,
        compression: Compression::Off,
        postcopy: Postcopy::Off,
        runtime: &clocks,
        cancel: &Cancel::new(),
    };
    let none: Option<&mut Answers<&[u8]>> = None;
    let offered = precopy.run(vec![Link(&clocks)], none, &mut side, &mut host);
    let sent = offered.context("the guest was not moved")?.sent;
    let Source { rounds, throttle, .. } = host;
    let digests = ram.digests.into_inner().unwrap_or_else(PoisonError::into_inner);
    let ended = clocks.into_stopped();
    if let Some(error) = ended.failed {
        return Err(error).context("a vCPU cannot go on");
    }
    compare(vm.memory(), &digests)?;

    let migration = ended.spent.sum();
    let stopped = ended.stopped.context("the guest was never stopped")?;
    let finish = |vcpu: &Vcpu<Work<'_>>| vcpu.program().finish(stopped, migration);
    let moved = Moved {
        finished: ended.vcpus.iter().map(finish).max().unwrap_or_default(),
        alone: guest.step() * guest.goal(),
        migration,
        downtime: Picos::nanos(sent.stopped.as_nanos() as u64),
        sent,
        rounds,
        throttle,
        spent: ended.spent,
        vcpus: ended.vcpus.iter().map(|vcpu| vcpu.program().did).collect(),
        clocks: ended.vcpus.iter().map(|vcpu| vcpu.program().now).collect(),
    };
    drop(ended.vcpus);
    let _ = vm.destroy();
    Ok(moved)
}

/// A virtual machine, its CPUs, and its one memslot.
type Machine = (Vm<CountedPlatform>, Vec<CountedCpu>, (SlotId, SentSlot));

/// A guest's memory, on a machine of its own, with a CPU for each vCPU.
fn machine(guest: &Guest, counters: &Arc<Counters>) -> anyhow::Result<Machine> {
    let bytes = guest.machine_bytes();
    let arena = Arc::new(Arena::new(&ArenaOptions::new(bytes, Kind::Anonymous))?);
    let mut frames = Frames::new(TODAY);
    frames.add(arena.donate_part(0, bytes).context("the machine's memory is smaller than its plan")?);
    let machine = FastMachine::new(arena, TODAY, guest.vcpus as usize)?;
    let cpus =
        (0..guest.vcpus as usize).map(|number| CountedCpu(FastCpu { machine: Arc::clone(&machine), number })).collect();
    let platform = CountedPlatform::new(machine, Arc::clone(counters));
    let geometry = Geometry::new(Kib4, ADDRESS_BITS, &TODAY)?;
    let mut memory = GuestMemory::new(platform, geometry, Vmid::new(1), frames, Leaves::Largest)?;
    let start = Ipa::new(START);
    let id = memory.add_slot(Slot { range: start..start + guest.bytes, backing: Backing::Ram, writable: true })?;
    let slot = SentSlot { number: 0, read_only: false, first: START / PAGE, pages: guest.bytes / PAGE };
    Ok((Vm::new(memory), cpus, (id, slot)))
}

/// Touches all of the guest's memory. It takes no time of the model's.
fn fill(vm: &Vm<CountedPlatform>, cpus: &[CountedCpu], pages: u64) -> anyhow::Result<()> {
    let mut vcpu = Vcpu::new(Fill { left: pages }, Arc::new(Interrupts::without_time()));
    let cpu = cpus.first().context("a guest without a vCPU")?;
    ensure!(vm.run(cpu, &mut vcpu, |_| 0)? == Left::Ended, "the guest's memory was not filled");
    Ok(())
}

fn hello(guest: &Guest) -> anyhow::Result<Hello> {
    Ok(Hello {
        migration: *b"a modelled guest",
        stream: 0,
        streams: 1,
        model: Name::new("virt-1").context("a name that is none")?,
        page_shift: PAGE.trailing_zeros() as u8,
        ipa_bits: ADDRESS_BITS as u8,
        vcpus: guest.vcpus as u32,
        memory: guest.bytes,
        features: Vec::new(),
    })
}

fn wanted(guest: &Guest, prices: Prices) -> Wanted {
    let fixed = Duration::from_nanos((prices.state + prices.stop).get() / 1000);
    Wanted { downtime: guest.downtime, fixed, rounds: MOST_ROUNDS, throttle: MOST_THROTTLE, forced: true }
}

/// Compares each page with what was last sent of it.
fn compare(memory: &GuestMemory<CountedPlatform>, sent: &[u64]) -> anyhow::Result<()> {
    let mut bytes = [0; PAGE as usize];
    for (page, sent) in (0..).zip(sent) {
        memory.read(Ipa::new(START + page * PAGE), &mut bytes)?;
        ensure!(xxh3_64(&bytes) == *sent, "page {page} was sent, and the stopped guest has another");
    }
    Ok(())
}

/// The guest's memory, with each call of the log charged to the migration's clock, and a digest of each page as it was
/// last sent.
struct Charged<'m, 'g> {
    ram: GuestRam<'g, CountedPlatform>,
    clocks: &'m Clocks<'g>,
    digests: Mutex<Vec<u64>>,
}

impl Charged<'_, '_> {
    fn digests(&self) -> MutexGuard<'_, Vec<u64>> {
        self.digests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'g> SourceRam for Charged<'_, 'g> {
    type Away = <GuestRam<'g, CountedPlatform> as SourceRam>::Away;

    fn slots(&self) -> &[SentSlot] {
        self.ram.slots()
    }

    fn page_shift(&self) -> u8 {
        self.ram.page_shift()
    }

    fn start(&self, all: bool) -> Result<(), RamError> {
        self.clocks.charge(Cost::Start, || self.ram.start(all))
    }

    fn get(&self, slot: usize, dirty: &mut [u64]) -> Result<(), RamError> {
        self.clocks.charge(Cost::Get, || self.ram.get(slot, dirty))
    }

    fn clear(&self, slot: usize, first: usize, pages: &[u64]) -> Result<(), RamError> {
        self.clocks.charge(Cost::Clear, || self.ram.clear(slot, first, pages))
    }

    fn stop(&self) {
        self.clocks.free(|| self.ram.stop());
    }

    fn read(&self, slot: usize, page: u64, bytes: &mut [u8]) -> Result<PageRead<Self::Away>, RamError> {
        // The guest has no page store, so each page is read at once.
        let read = self.clocks.free(|| self.ram.read(slot, page, bytes))?;
        if let Some(digest) = self.digests().get_mut(page as usize) {
            *digest = xxh3_64(bytes);
        }
        Ok(read)
    }

    fn patience(&self) -> Duration {
        self.ram.patience()
    }
}

/// The source's embedder. Nothing takes the guest, and nothing asks for it back.
struct Source<'m, 'g> {
    clocks: &'m Clocks<'g>,
    fixed: Picos,
    rounds: Vec<(u64, u64)>,
    throttle: u16,
}

impl Embedder for Source<'_, '_> {
    fn ask(&mut self, _: Request) -> Option<Ownership> {
        None
    }

    fn run(&mut self) {
        self.clocks.resume();
    }

    fn boot(&mut self) {}

    fn release(&mut self) {}

    fn announce(&mut self, _: Ownership) {}
}

impl Host for Source<'_, '_> {
    fn stop(&mut self) {
        self.clocks.stop();
    }

    /// All vCPUs do the same, so one number is for all.
    fn throttle(&mut self, throttle: &Throttle) {
        let slowed = throttle.slowed.first().copied().unwrap_or(0);
        self.throttle = self.throttle.max(slowed);
        self.clocks.throttle(slowed);
    }

    fn state(&mut self) -> Result<Vec<Section>, String> {
        self.clocks.pass(Cost::Stop, self.fixed);
        Ok(Vec::new())
    }

    fn progress(&mut self, round: &Progress<'_>) {
        self.rounds.push((round.pages, round.left));
    }
}

const ADDRESS_BITS: u32 = 40;
/// Rounds of the running guest. After these it is stopped, whatever is left.
const MOST_ROUNDS: u32 = 30;
/// The most throttle, in per mille.
const MOST_THROTTLE: u16 = 800;
