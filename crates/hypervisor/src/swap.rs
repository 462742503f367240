// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest whose pages leave memory and come back: its store, the task that writes pages out and ends transfers, and what
//! wakes the vCPUs that wait.
//!
//! `twofold_memory::swap` has the states of a page, and `twofold_memory::async_fault` decides what a vCPU does while one is
//! absent; `vcpu::pages` carries that out for the vCPU.
//!
//! # A vCPU waits for a page
//!
//! - W1. The vCPU's CPU asks the store for the page ([`GuestMemory::bring`]), with a ticket of the vCPU's arrivals.
//! - W2. It sets an alarm of its own for the guest's task, at the end of the first transfer.
//! - W3. If the vCPU is to wait, its turn ends: T5 and T6, with step U of `gic::guest`. If its CPU has nothing else to do, the
//!   vCPU stays loaded, with the steps R1 to R5 of `vcpu::rest` instead of this one and the next two.
//! - W4. It looks whether something has arrived for the vCPU, or whether the vCPU can take an interrupt now, if its mode
//!   lets an interrupt end the wait. If so, the vCPU has another turn. A vCPU whose guest waits in WFI, with a task parked,
//!   takes W3 and this step, too.
//! - W5. Otherwise the vCPU is blocked: steps B2 and B3 of the scheduler. Its timers become deadlines, if its mode is such,
//!   and only for lines that are low: one that is high and masked would wake the vCPU again and again.
//!
//! If transfers to a store in memory take no time, a fault finds its page (F2 of `twofold_memory::swap`), and W1 is for a page
//! that waits for a frame alone.
//!
//! # A page arrives
//!
//! - D1. The alarm of W2 is an interrupt of that CPU, whatever it runs. The CPU does D2 to D4 for at most two transfers whose
//!   time has come, and sets the next alarm. If more have ended, it wakes the guest's task instead, which does the same.
//! - D2. The CPU copies the page, and completes the request (B5 of `twofold_memory::swap`).
//! - D3. The ticket is completed in the vCPU's arrivals (C1 to C3 of `twofold_memory::async_fault`).
//! - D4. The vCPU is kicked ([`GuestGic::kick_for`]): under the controller's lock, the CPU reads where the vCPU is. It
//!   interrupts the CPU that has the vCPU loaded, or wakes the vCPU. What else waits is woken: the I/O task, with a note
//!   for the device (`virtio::absent`), or the task that restarts the guest.
//!   A store on a disk has no alarms: the disk's interrupt wakes the task, as `disk_store` has it.
//! - D5. When the task has nothing to do, it sets an alarm of its CPU as in W2, and is blocked.
//! - V1. A vCPU that is interrupted, or has a new turn, takes what has arrived before it enters its guest.
//!
//! # Pages are read ahead
//!
//! - A1. After W1 the vCPU's CPU notes the page. If the guest goes through its memory page by page, the pages behind are noted for
//!   the guest's task (`twofold_vmm::read_ahead`), which is woken. If the
//!   store answers at once, the CPU notes nothing.
//! - A2. In each piece of its work the task begins to read one of them, if it is absent and there is a frame that nothing else needs.
//! - A3. It arrives as any other page. It is mapped when the guest accesses it.
//!
//! **No arrival is missed.** D4 and U of W3 take one lock. If D4 came first, W4 sees D3. If U came first, D4 finds that no CPU
//! has the vCPU, and wakes it: if that is before B2, the scheduler's mark makes B2 give it another turn. If the vCPU is
//! loaded when D4 looks, the interrupt is an exit right after the entry at the latest, and then V1.
//!
//! **No transfer is forgotten.** Each call that may begin one is followed by W2 or by the task's next look, and W2 is set on
//! the CPU that made the call, whose timer no other CPU changes. The task looks until the store has nothing whose time has
//! come, and then does D5.
//!
//! **Nothing waits for I/O**, and no fault writes: pages leave in the task only. A vCPU that waits is blocked, so its wait is
//! not stolen time.
//!
//! # A store that fails
//!
//! A write that fails leaves its page in memory. The task goes on to other pages, and some of them may leave without a write. If
//! none can, a page that waits for a frame would wait for ever.
//!
//! - N1. The task goes on until `PATIENCE` writes in a row have failed, and no page has left meanwhile.
//! - N2. Then nothing that waits for a frame waits any longer: a vCPU stops its guest, and says why.
//! - N3. The task rests: it writes nothing for the headroom alone. What waits for a frame later ends the rest, and N1 begins
//!   anew.
//!
//! [`GuestMemory::bring`]: twofold_memory::GuestMemory::bring
//! [`GuestGic::kick_for`]: crate::gic::guest::GuestGic::kick_for

mod cause;
mod disk_store;
pub mod figures;
pub(crate) mod peer;
mod store;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use spin::Mutex;
use twofold_abi::bundle::flags;
use twofold_memory::async_fault::{Arrival, Arrivals, Completion, Mode};
use twofold_memory::swap::{
    AttachError, Clock, FRAMES_PER_VCPU, Failure, LimitError, NotBegun, Notify, Relief, SwapOptions, Waiter,
    WriteOutError,
};
use twofold_memory::{Frames, HUGE_PAGE};
use twofold_stage2::arm64::{Arm64, IdentityMap};
use twofold_stage2::{Ipa, MetadataMap};
use twofold_vmm::balance::Need;
use twofold_vmm::config::{self, Config};
use twofold_vmm::guests::{self, SwapMemory};
use twofold_vmm::memory_store::MemoryStore;
use twofold_vmm::read_ahead::{self, ReadAhead};
use twofold_vmm::scheduler::EntityId;

use crate::granule::Memory;
use crate::schedule::cpu::Progress;
use crate::schedule::deadlines::NEVER;
use crate::virtio::host::HostDisk;
use crate::vm::{self, Vm};
use crate::{heap, host_devices, read_sysreg, schedule, timer, virtio};

pub(crate) use cause::Why;
use cause::{Cause, Causes};
use disk_store::DiskStore;
use figures::{Counts, Figures, Waits};
use store::{Kind, Store};

/// What a guest with a store has beside its memory.
pub struct Swap {
    store: Arc<Store>,
    mode: Mode,
    /// What the scheduler calls the task.
    task: EntityId,
    /// Where pages arrive, for each vCPU.
    arrivals: Vec<Arrivals>,
    /// Chooses the pages that leave. The task has it. A round of `Generations` looks at all RAM in one piece: with them, EL2 masked
    /// interrupts for 1.6 million instructions, where 20,000 are the most.
    hand: Mutex<Clock>,
    /// Pages that the task reads ahead.
    ahead: Mutex<ReadAhead>,
    /// N3: the task rests.
    rests: AtomicBool,
    /// What went wrong.
    causes: Mutex<Causes>,
    /// The serial number of the store's disk.
    disk: Option<[u8; host_devices::disk::ID]>,
    counts: Counts,
    /// The pages that it may have in memory at first.
    share: u64,
    /// Limits of its limit, if it shares what it may have in memory with other guests.
    shared: Option<Shared>,
}

/// What a guest that shares its resident memory may have of it, in pages.
#[derive(Clone, Copy)]
pub(crate) struct Shared {
    share: u64,
    least: u64,
    most: u64,
    headroom: u64,
}

/// Frames that the task keeps free, so that most faults need not wait for one.
const HEADROOM: u64 = 64;
/// Pages that the task writes out in one piece of its work. It stops after a page if an interrupt is pending.
const PIECE: u64 = 4;
/// N1: writes that fail in a row. Each was asked several times.
const PATIENCE: u32 = 128;
/// Transfers that an interrupt ends. Each copies a page.
const ENDS: u32 = 2;
/// What may wait beside vCPUs and devices: the restart of the guest.
const TASKS: usize = 1;
/// The waiter that is the restart of the guest.
pub(crate) const RESTART: Waiter = Waiter::Other(u64::MAX);

/// Why a guest's store cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    /// Memory.
    #[error("--swap: the machine's memory has no {0} pieces of 2 MiB for the store: give it more, or the guest less")]
    NoMemory(u64),
    /// The store.
    #[error("--swap: {0}")]
    Attach(#[from] AttachError),
    /// There is no such disk.
    #[error("--swap: the machine has no disk with the store's serial number")]
    NoDisk,
    /// The disk cannot be written.
    #[error("--swap: the machine's disk can only be read; give one that can be written")]
    ReadOnly,
    /// The disk has too little room.
    #[error("--swap: the machine's disk has {has} KiB, and the guest's pages need {needs} KiB; give a larger one")]
    Small {
        /// What it has.
        has: u64,
        /// A place for each page.
        needs: u64,
    },
    /// The limit.
    #[error("--resident: {0}")]
    Limit(#[from] LimitError),
    /// What was loaded does not fit, and does not leave.
    #[error("--resident: what the guest begins with does not leave memory: {0}")]
    Full(#[from] WriteOutError),
}

impl Swap {
    /// Attaches a store to the memory of a guest, if its configuration asks for one. `number` is its place among the guests,
    /// and `task` its task. The memory is limited later ([`limit`](Self::limit)), when the guest is loaded.
    pub fn attach(
        config: &Config<'_>,
        memory: &mut Memory,
        parts: StoreMemory,
        number: usize,
        task: EntityId,
    ) -> Result<Option<Self>, SwapError> {
        let Some(settings) = &config.swap else { return Ok(None) };
        // SAFETY: EL2 maps all RAM one to one, and no table is made here.
        let platform = Arm64::new(unsafe { IdentityMap::new(MetadataMap::NONE) });
        let headroom = HEADROOM.min(settings.resident / PAGE / 8);
        let others = virtio::waiters(config.virtio_devices()) + TASKS;
        let ahead = read_ahead::RANGES * read_ahead::MOST as usize;
        let most = config.cpus as usize * PAGES_PER_VCPU + others + 2 * HEADROOM as usize + ahead;
        let kind = match settings.store {
            config::Store::Memory { .. } => {
                Some(Kind::Memory(MemoryStore::new(platform, parts.0, most, timer::machine_time)))
            }
            config::Store::Disk(id) => {
                let disk = disk(&id, SwapMemory::places(config))?;
                Some(Kind::Disk(Box::new(DiskStore::new(platform, disk, SwapMemory::places(config), most, task))))
            }
            config::Store::Nowhere => None,
        };
        // No page leaves to make room for others.
        let headroom = if kind.is_some() { headroom } else { 0 };
        let options = SwapOptions { vcpus: config.cpus, others: others as u32, headroom };
        let peer = (config.flags & flags::POSTCOPY != 0).then(|| peer::new(config.memory));
        let store = Arc::new(Store::new(kind, peer));
        memory.attach_store(Box::new(Arc::clone(&store)), Box::new(Notifier { guest: number }), &options)?;
        let disk = match settings.store {
            config::Store::Memory { .. } | config::Store::Nowhere => None,
            config::Store::Disk(id) => Some(id),
        };
        Ok(Some(Self {
            store,
            mode: settings.mode,
            task,
            arrivals: (0..config.cpus).map(|_| Arrivals::new()).collect(),
            hand: Mutex::new(Clock::new()),
            ahead: Mutex::new(ReadAhead::new()),
            rests: AtomicBool::new(false),
            causes: Mutex::default(),
            disk,
            counts: Counts::new(config.cpus),
            share: settings.resident / PAGE,
            shared: guests::shares_resident(config).then(|| Shared::of(config, settings.resident / PAGE, headroom)),
        }))
    }

    /// From now on the guest has no more than its limit. What is too much leaves at once to a store in memory, before the guest
    /// runs; after that transfers take their time.
    pub fn limit(&self, config: &Config<'_>, memory: &Memory) -> Result<(), SwapError> {
        let Some(settings) = config.swap.as_ref().filter(|swap| swap.store != config::Store::Nowhere) else {
            return Ok(());
        };
        let mut over = memory.set_limit(settings.resident / PAGE)?;
        // No disk answers before the guests run: then the task does the same.
        if let (Some(Kind::Memory(store)), config::Store::Memory { delay }) = (self.store.kind(), settings.store) {
            // An interrupt that is pending stays so until the guests run.
            while over > 0 {
                let relief = self.store.while_pages_leave(|| self.hand.lock().make_room(memory, over))?;
                self.counts.left(relief.freed + relief.started);
                over = over.saturating_sub(relief.freed + relief.started);
                if !relief.is_interrupted {
                    break;
                }
            }
            store.set_delay(u64::from(delay) * read_sysreg!(CNTFRQ_EL0) / MICROSECONDS);
        }
        Ok(())
    }

    /// What its limit depends on, for the task that moves limits. `None`: it shares nothing.
    pub(crate) fn need(&self, memory: &Memory) -> Option<Need> {
        let Shared { share, least, most, headroom } = self.shared?;
        let usage = memory.frame_use();
        let [_, reads, ..] = self.store.counts();
        Some(Need { share, least, most, limit: usage.limit, taken: usage.data, headroom, reads })
    }

    /// Its limit is another one from now on. Returns whether that is possible.
    pub(crate) fn move_limit(&self, memory: &Memory, limit: u64) -> bool {
        let before = memory.frame_use().limit;
        let is_set = memory.set_limit(limit).is_ok();
        if is_set {
            self.counts.granted(limit.saturating_sub(before));
        }
        if memory.wants_frames() > 0 {
            schedule::wake(self.task);
        }
        is_set
    }

    /// All pages that can leave do so at once, to a store in memory. For a guest that measures itself. Returns how many left;
    /// `None`: the store is another one.
    pub(crate) fn swap_out(&self, memory: &Memory) -> Option<u64> {
        let Some(Kind::Memory(store)) = self.store.kind() else { return None };
        let delay = store.set_delay(0);
        let mut left = 0;
        // An interrupt that is pending ends each call after a page.
        while let Ok(relief) = self.store.while_pages_leave(|| self.hand.lock().make_room(memory, u64::MAX)) {
            let pages = relief.freed + relief.started;
            if pages == 0 && !relief.is_interrupted {
                break;
            }
            left += pages;
        }
        store.set_delay(delay);
        self.counts.left(left);
        Some(left)
    }

    /// The source of a guest that comes by post-copy, for the pages that have not come.
    pub(crate) fn peer(&self) -> Option<&peer::Source> {
        self.store.peer()
    }

    /// Whether the guest was started with a store. Else it has come by post-copy.
    pub(crate) fn is_own(&self) -> bool {
        self.store.kind().is_some()
    }

    /// What a vCPU does while a page is absent.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// N3: whether the task has given up to make room.
    pub(crate) fn rests(&self) -> bool {
        self.rests.load(Ordering::Relaxed)
    }

    /// What the scheduler calls the task.
    pub(crate) fn task(&self) -> EntityId {
        self.task
    }

    /// Where pages arrive for this vCPU.
    pub(crate) fn arrivals(&self, vcpu: usize) -> &Arrivals {
        &self.arrivals[vcpu]
    }

    /// How this vCPU has waited for pages.
    pub(crate) fn waits(&self, vcpu: usize) -> &Waits {
        self.counts.waits(vcpu)
    }

    /// Its figures.
    pub(crate) fn figures(&self, memory: &Memory) -> Figures {
        self.counts.figures(memory, self.share, self.store.taken(), self.store.absent(), self.store.counts())
    }

    /// What counts the working set.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// When the next transfer ends; `None` if none is on its way.
    pub(crate) fn next_end(&self) -> Option<u64> {
        self.store.next_end()
    }

    /// D1: ends transfers whose time has come. Returns the time of the next alarm.
    pub(crate) fn end_some(&self, memory: &Memory) -> u64 {
        for _ in 0..ENDS {
            if !self.store.end_next(memory) {
                return self.store.next_end().unwrap_or(NEVER);
            }
        }
        match self.store.next_end() {
            Some(end) if end <= timer::machine_time() => {
                schedule::wake(self.task);
                NEVER
            }
            next => next.unwrap_or(NEVER),
        }
    }

    /// A1: a vCPU has asked for this page.
    pub(crate) fn asked(&self, page: Ipa) {
        if self.store.takes_time() && self.ahead.lock().wanted(page) {
            schedule::wake(self.task);
        }
    }

    /// A piece of the task's work.
    pub(crate) fn work(&self, memory: &Memory) -> Progress {
        if self.store.end_next(memory) || self.read_ahead(memory) {
            return Progress::More;
        }
        let wanted = memory.wants_frames();
        if wanted == 0 || self.store.failed_writes() >= PATIENCE && !self.begins_anew(memory) {
            return Progress::Finished;
        }
        let relief = self.store.while_pages_leave(|| self.hand.lock().make_room(memory, wanted.min(PIECE)));
        self.counts.left(relief.map_or(0, |relief| relief.freed + relief.started));
        match relief {
            // All pages are on their way, or pinned: their completions wake the task.
            Ok(Relief { freed: 0, started: 0, is_interrupted: false }) => Progress::Finished,
            Ok(Relief { freed: 0, .. }) => Progress::More,
            Ok(_) => {
                self.store.forget_failed_writes();
                Progress::More
            }
            Err(error) => {
                self.causes.lock().leaving = Some(Cause::NoRoom(error));
                memory.fail_waiting();
                Progress::Finished
            }
        }
    }

    /// A2. Returns whether there was a page to look at.
    fn read_ahead(&self, memory: &Memory) -> bool {
        let Some(page) = self.ahead.lock().take() else { return false };
        if self.store.read_ahead(memory, page) == Err(NotBegun::NoFrame) {
            self.ahead.lock().forget();
        }
        true
    }

    /// N2 and N3. Returns whether the task's rest is over.
    #[cold]
    fn begins_anew(&self, memory: &Memory) -> bool {
        if !self.rests.swap(true, Ordering::Relaxed) {
            memory.fail_waiting();
            return false;
        }
        let is_awaited = memory.frame_use().waiting > 0;
        if is_awaited {
            self.rests.store(false, Ordering::Relaxed);
            self.store.forget_failed_writes();
        }
        is_awaited
    }

    /// Why this page cannot be brought, or any if it is not known which.
    pub(crate) fn why(&self, page: Option<Ipa>) -> Why {
        Why { cause: self.causes.lock().of(page), disk: self.disk }
    }
}

impl Shared {
    fn of(config: &Config<'_>, share: u64, headroom: u64) -> Self {
        /// The part of its share that a guest keeps however old its pages are.
        const KEPT: u64 = 8;
        let working = FRAMES_PER_VCPU * u64::from(config.cpus) + headroom;
        Self { share, least: working.max(share / KEPT).min(share), most: SwapMemory::places(config), headroom }
    }
}

/// The machine's disk with this serial number, which has this many places.
fn disk(id: &[u8; host_devices::disk::ID], places: u64) -> Result<&'static dyn HostDisk, SwapError> {
    let disk = host_devices::disk(id).ok_or(SwapError::NoDisk)?;
    if disk.is_read_only() {
        return Err(SwapError::ReadOnly);
    }
    let (has, needs) = (disk.sectors() / SECTORS_IN_KIB, places.saturating_mul(PAGE >> 10));
    if has < needs {
        return Err(SwapError::Small { has, needs });
    }
    Ok(disk)
}

/// The memory of a guest's store.
pub struct StoreMemory(Vec<twofold_stage2::Run>);

impl StoreMemory {
    /// Takes what the guest's store needs from its frames: for the store, and for EL2's heap.
    pub fn take(config: &Config<'_>, frames: &mut Frames) -> Result<Self, SwapError> {
        let SwapMemory { store, heap } = SwapMemory::of(config);
        let mut take = || frames.take(HUGE_PAGE / PAGE).ok_or(SwapError::NoMemory(store + heap));
        for _ in 0..heap {
            let run = take()?;
            let start = run.pa().raw();
            // SAFETY: RAM that is mapped one to one. It was taken, and its only owner ends here.
            unsafe { heap::add(start..start + run.size()) };
        }
        (0..store).map(|_| take()).collect::<Result<_, _>>().map(Self)
    }
}

/// Reports to a guest, by its place among the guests.
struct Notifier {
    guest: usize,
}

impl Notifier {
    fn guest(&self) -> Option<(&'static Vm, &'static Swap)> {
        // Before the guests are installed, nothing waits.
        let vm = vm::all().get(self.guest)?;
        Some((vm, vm.swap()?))
    }
}

impl Notify for Notifier {
    /// D3 and D4.
    fn arrived(&self, waiter: Waiter, arrival: Arrival) {
        let Some((vm, swap)) = self.guest() else { return };
        match waiter {
            Waiter::Vcpu { vcpu, ticket } => {
                let vcpu = vcpu as usize;
                if swap.arrivals(vcpu).complete(ticket, arrival) == Completion::Kick {
                    vm.devices().gic.kick_for(vcpu);
                }
            }
            RESTART => schedule::wake(vm.task()),
            Waiter::Other(number) => vm.devices().virtio.arrived(number, arrival),
        }
    }

    fn failed(&self, failure: &Failure) {
        if let Some((vm, swap)) = self.guest() {
            swap.causes.lock().note(failure);
            vm.refused(format_args!("{failure}"));
        }
    }

    fn frames_wanted(&self) {
        if let Some((_, swap)) = self.guest() {
            schedule::wake(swap.task);
        }
    }
}

const PAGE: u64 = 4096;
const SECTORS_IN_KIB: u64 = 2;
const MICROSECONDS: u64 = 1_000_000;
/// Pages that a vCPU may wait for at a time, as `twofold_memory::async_fault` has slots for them.
const PAGES_PER_VCPU: usize = 66;
