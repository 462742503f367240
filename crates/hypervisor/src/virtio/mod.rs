// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's virtio devices: the models of `twofold_devices::virtio`, their locks, and what is behind them.
//!
//! | file | contents |
//! |---|---|
//! | this one | the transports, the locks, and which CPU does a device's work |
//! | `disk`, `memory_disk`, `machine_disk` | a disk and its requests; in memory; on a disk of the machine |
//! | `card` | a network card |
//! | `console`, `random`, `balloon` | the virtio console; random bytes; memory that the guest gives up |
//! | `absent` | the absent pages that a device waits for |
//! | [`make`] | the devices that a bundle asks for |
//! | [`host`] | what the machine's disks and cards have to do for those of guests |
//! | [`network`] | a network between guests, and its lock |
//!
//! # Which CPU works
//!
//! A vCPU that notifies a device does the work at once: for a few frames or a request that is all there is, and nothing is
//! scheduled. It stops when an interrupt waits for this CPU, or when the model has done as much as one call may do. The rest
//! is the I/O task's, an entity in the guest's own group of the scheduler. So a guest pays for its own devices.
//!
//! * V1: a vCPU that accesses a device's registers takes the device's lock.
//! * V2: the model answers. If that asks for no work, V4 follows.
//! * V3: the device works. A device that could do more is noted as due.
//! * V4: the vCPU sets the device's line, and releases the lock.
//! * V5: without a lock, it wakes the I/O task if the device is due.
//! * F1: a far end that has something (a frame, a completion, room), or a page that has arrived (`absent`), notes the
//!   device as due and wakes the task ([`Waker`]). It holds no lock of the guest.
//! * I1: the task takes its *turn*: a lock that it alone holds. If the guest may not run, it releases it, and has finished.
//! * I2: for each device that is due, it takes the note, then the device's lock, and does V3 and V4.
//! * I3: it releases its turn. If a device is due, it goes on after this CPU has taken its interrupts.
//!
//! The order of locks is: turn, device, then one of: the UART (for the virtio console), the network or the machine's disk;
//! the guest's memory; then the interrupt controller, then the scheduler.
//!
//! No wake-up is lost: a note is made after what it is about, and taken before the device looks for that (I2). A task that
//! finishes in I1 leaves the notes, and the guest's continuation and its restart wake it again.
//!
//! # Stop, reset, end
//!
//! A guest has stopped when no vCPU has a turn and neither has the task: [`VirtioDevices::has_turn`] tries the lock of I1,
//! by the argument of `life` for the vCPUs. From then on nothing writes to the guest's memory. What far ends complete
//! waits for I2. A reset comes after that: [`VirtioDevices::reset`] resets every model, and what a disk of the machine
//! still works on is an orphan. An ended guest takes no further turn.
//!
//! If the page that a device waits for cannot come, the guest cannot go on: the I/O task says so, as a vCPU would.

mod absent;
mod balloon;
mod card;
mod console;
mod disk;
pub mod host;
mod machine_disk;
pub mod make;
mod memory_disk;
pub mod network;
pub(crate) mod random;
mod saved;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use spin::Mutex;
use twofold_abi::virt;
use twofold_devices::virtio::{Console, Next, Rng};
use twofold_devices::{InterruptLine, Width};
use twofold_memory::async_fault::Arrival;
use twofold_vmm::scheduler::EntityId;

use self::absent::Waits;
pub(crate) use self::absent::waiters;
use self::balloon::Balloon;
use self::card::Card;
use self::disk::Disk;
use self::host::Waker;
use crate::granule::Memory;
use crate::guest_ram::Ram;
use crate::mmio::Operation;
use crate::schedule;
use crate::schedule::cpu::Progress;
use crate::vm::Vm;

/// The virtio devices of a guest.
pub struct VirtioDevices {
    slots: Vec<Slot>,
    /// I1.
    turn: Mutex<()>,
    /// The I/O task; `None` if there are no devices.
    task: Option<EntityId>,
    /// The waker of the console.
    console: Option<Waker>,
}

/// A register of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    transport: usize,
    offset: u64,
}

struct Slot {
    waker: Waker,
    /// A page that the device waits for cannot come.
    has_failed: AtomicBool,
    device: Mutex<Device>,
}

struct Device {
    kind: Kind,
    waits: Waits,
    /// The level of its line, as the interrupt controller knows it.
    level: bool,
    /// How often the guest has notified it.
    notifications: u64,
}

/// A device that cannot go on, by the number of its transport.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("virtio device {0} needs a page that is in the store, and cannot be brought")]
pub(crate) struct CannotGoOn(usize);

/// A device, with its far end.
pub(crate) enum Kind {
    /// A disk.
    Disk(Box<Disk>),
    /// A network card.
    Card(Box<Card>),
    /// The virtio console.
    Console(Box<Console>),
    /// Random bytes.
    Random(Rng),
    /// A memory balloon.
    Balloon(Box<Balloon>),
}

/// What a device's work needs of its guest.
#[derive(Clone, Copy)]
pub(crate) struct Around<'a> {
    pub(crate) vm: &'a Vm,
    /// The vCPU of this guest that is loaded on this CPU.
    pub(crate) here: Option<usize>,
}

impl Place {
    /// The register at this address.
    #[must_use]
    pub fn at(ipa: u64) -> Option<Self> {
        let offset = ipa.checked_sub(virt::VIRTIO_BASE)?;
        let transport = (offset / virt::VIRTIO_SIZE) as usize;
        (transport < virt::VIRTIO_COUNT).then_some(Self { transport, offset: offset % virt::VIRTIO_SIZE })
    }
}

impl VirtioDevices {
    /// The devices of a guest, in the order of their transports, each with its waker.
    fn new(task: Option<EntityId>, devices: Vec<(Kind, Waker)>) -> Self {
        let is_console = |(kind, waker): &(Kind, Waker)| matches!(kind, Kind::Console(_)).then_some(*waker);
        let console = devices.iter().find_map(is_console);
        let slot = |(number, (kind, waker))| {
            let waits = Waits::new(number);
            let device = Mutex::new(Device { kind, waits, level: false, notifications: 0 });
            Slot { waker, has_failed: AtomicBool::new(false), device }
        };
        Self { slots: devices.into_iter().enumerate().map(slot).collect(), turn: Mutex::new(()), task, console }
    }

    /// P3: a page has arrived for this waiter, or cannot come.
    pub(crate) fn arrived(&self, waiter: u64, arrival: Arrival) {
        let Some(slot) = absent::device_of(waiter).and_then(|number| self.slots.get(number)) else { return };
        if arrival == Arrival::Failed {
            slot.has_failed.store(true, Ordering::Relaxed);
        }
        slot.waker.wake();
    }

    /// The I/O task.
    #[must_use]
    pub fn task(&self) -> Option<EntityId> {
        self.task
    }

    /// Whether the I/O task has its turn.
    #[must_use]
    pub fn has_turn(&self) -> bool {
        self.turn.try_lock().is_none()
    }

    /// The guest may run again: the task looks at what came meanwhile.
    pub fn go_on(&self) {
        if let Some(task) = self.task {
            schedule::wake(task);
        }
    }

    /// Asks the guest to keep this number of bytes of its RAM. Returns whether it has a balloon.
    pub(crate) fn keep(&self, bytes: u64, around: Around<'_>) -> bool {
        let mut found = false;
        for (number, slot) in self.slots.iter().enumerate() {
            let mut device = slot.device.lock();
            let mut line = device.level;
            if let Kind::Balloon(balloon) = &mut device.kind {
                balloon.keep(bytes, &mut line);
                found = true;
            }
            device.set_line(number, line, around);
        }
        found
    }

    /// F1 for the virtio console, if there is one: it has input, or room.
    pub fn wake_console(&self) {
        if let Some(waker) = &self.console {
            waker.wake();
        }
    }

    /// Whether there is a virtio console.
    #[must_use]
    pub fn has_console(&self) -> bool {
        self.console.is_some()
    }

    /// V1 to V5. Returns the value of a load.
    #[inline(never)]
    pub(crate) fn access(&self, at: Place, width: Width, operation: Operation, around: Around<'_>) -> u64 {
        let Some(slot) = self.slots.get(at.transport) else { return empty(at.offset, width, operation) };
        let mut device = slot.device.lock();
        let value = match operation {
            Operation::Read => return device.kind.read(at.offset, width),
            Operation::Write(value) => value,
        };
        let mut line = device.level;
        let mut is_due = false;
        if device.kind.write(at.offset, width, value, &mut line) {
            device.notifications += 1;
            is_due = device.work(around, &mut line);
        }
        device.set_line(at.transport, line, around);
        drop(device);
        if is_due {
            slot.waker.wake();
        }
        0
    }

    /// A piece of the I/O task's work: I1 to I3.
    ///
    /// # Errors
    ///
    /// A device cannot go on.
    pub(crate) fn work(&self, around: Around<'_>) -> Result<Progress, CannotGoOn> {
        let _turn = self.turn.lock();
        if around.vm.has_stopped() {
            return Ok(Progress::Finished);
        }
        let mut progress = Progress::Finished;
        for (number, slot) in self.slots.iter().enumerate() {
            if !slot.waker.take() {
                continue;
            }
            if slot.has_failed.swap(false, Ordering::Relaxed) {
                return Err(CannotGoOn(number));
            }
            let mut device = slot.device.lock();
            let mut line = device.level;
            if device.work(around, &mut line) {
                slot.waker.note();
                progress = Progress::More;
            }
            device.set_line(number, line, around);
        }
        Ok(progress)
    }

    /// All devices are as after a reset. No vCPU has a turn, and neither has the task.
    pub(crate) fn reset(&self, gic: &crate::gic::guest::GuestGic, memory: &Memory) {
        for (number, slot) in self.slots.iter().enumerate() {
            let mut device = slot.device.lock();
            let mut line = false;
            device.kind.reset(&mut line);
            device.waits.forget(memory);
            slot.has_failed.store(false, Ordering::Relaxed);
            device.level = false;
            gic.set_shared(None, interrupt(number), false);
            // A far end may have something left, which it learns to forget at the next look.
            slot.waker.note();
        }
    }

    /// Calls `each` with group, name and value of the devices' counts; not at all if there are none.
    pub fn for_each_count(&self, each: impl FnMut(&str, &str, u64)) {
        Self::for_each_sum(core::iter::once(self), each);
    }

    /// As [`for_each_count`](Self::for_each_count), with the sums over several guests.
    pub fn for_each_sum<'a>(guests: impl Iterator<Item = &'a Self>, mut each: impl FnMut(&str, &str, u64)) {
        let mut sums = [0; COUNTS.len()];
        let mut slots = guests.flat_map(|guest| &guest.slots).peekable();
        if slots.peek().is_none() {
            return;
        }
        for slot in slots {
            let device = slot.device.lock();
            let counts = [device.notifications, device.waits.count].into_iter().chain(device.kind.counts());
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        for ((group, name), sum) in COUNTS.iter().zip(sums) {
            each(group, name, sum);
        }
    }
}

/// The counts of a guest's devices, in the order of [`Kind::counts`], after those that all have.
const COUNTS: [(&str, &str); OF_ALL + OF_KIND] = [
    ("virtio", "notifications"),
    ("virtio", "pages_awaited"),
    ("disk", "requests"),
    ("disk", "bytes_read"),
    ("disk", "bytes_written"),
    ("disk", "errors"),
    ("net", "frames_sent"),
    ("net", "bytes_sent"),
    ("net", "frames_received"),
    ("net", "bytes_received"),
    ("net", "frames_dropped"),
    ("balloon", "pages"),
    ("virtio", "frames_given_up"),
];

/// The counts that all devices have, and those that depend on the kind.
const OF_ALL: usize = 2;
const OF_KIND: usize = 11;

impl Device {
    /// V3, with the steps of [`absent`]. Returns whether there is more to do now.
    fn work(&mut self, around: Around<'_>, line: &mut impl InterruptLine) -> bool {
        let ram = Ram::new(around.vm.memory());
        let is_due = self.kind.work(around, &ram, line);
        let (memory, met) = (ram.memory(), ram.into_absent());
        if !met.is_empty() {
            self.waits.ask(memory, &met);
            around.vm.pages_asked_for();
        }
        is_due
    }

    /// V4.
    fn set_line(&mut self, transport: usize, level: bool, around: Around<'_>) {
        if self.level != level {
            self.level = level;
            around.vm.devices().gic.set_shared(around.here, interrupt(transport), level);
        }
    }
}

impl Kind {
    fn read(&self, offset: u64, width: Width) -> u64 {
        match self {
            Self::Disk(disk) => disk.block.read(offset, width),
            Self::Card(card) => card.net.read(offset, width),
            Self::Console(console) => console.read(offset, width),
            Self::Random(random) => random.read(offset, width),
            Self::Balloon(balloon) => balloon.device.read(offset, width),
        }
    }

    /// V2. Returns whether it asks for work.
    fn write(&mut self, offset: u64, width: Width, value: u64, line: &mut impl InterruptLine) -> bool {
        match self {
            Self::Disk(disk) => disk.block.write(offset, width, value, line),
            Self::Card(card) => card.net.write(offset, width, value, line),
            Self::Console(console) => console.write(offset, width, value, line),
            Self::Random(random) => random.write(offset, width, value, line),
            Self::Balloon(balloon) => balloon.device.write(offset, width, value, line),
        }
    }

    /// V3. Returns whether there is more to do now.
    fn work(&mut self, around: Around<'_>, ram: &Ram<'_>, line: &mut impl InterruptLine) -> bool {
        let next = match self {
            Self::Disk(disk) => disk.work(ram, line),
            Self::Card(card) => card.work(ram, line),
            Self::Console(console) => console::work(console, around.vm, ram, line),
            Self::Random(random) => random::work(random, around.vm, ram, line),
            Self::Balloon(balloon) => balloon.work(ram, line),
        };
        match next {
            // The page's arrival is an event of its own.
            Next::Idle | Next::Absent(_) => false,
            Next::Again => true,
            Next::Broken(fault) => {
                around.vm.refused(format_args!("a virtio driver broke a rule: {fault}"));
                // What the far end holds of before is an orphan now.
                true
            }
        }
    }

    fn reset(&mut self, line: &mut impl InterruptLine) {
        match self {
            Self::Disk(disk) => disk.block.reset(line),
            Self::Card(card) => card.reset(line),
            Self::Console(console) => console.reset(line),
            Self::Random(random) => random.reset(line),
            Self::Balloon(balloon) => balloon.device.reset(line),
        }
    }

    fn counts(&self) -> [u64; OF_KIND] {
        match self {
            Self::Disk(disk) => {
                let disk::Counts { requests, read, written, errors } = disk.counts;
                [requests, read, written, errors, 0, 0, 0, 0, 0, 0, 0]
            }
            Self::Card(card) => {
                let (card::Counts { sent, bytes_sent, received, bytes_received }, dropped) = card.counts();
                [0, 0, 0, 0, sent, bytes_sent, received, bytes_received, dropped, 0, 0]
            }
            Self::Balloon(balloon) => [0, 0, 0, 0, 0, 0, 0, 0, 0, balloon.device.actual().into(), balloon.given_up],
            Self::Console(_) | Self::Random(_) => [0; _],
        }
    }
}

/// The interrupt of a transport, as an INTID.
fn interrupt(transport: usize) -> u32 {
    virt::VIRTIO_INTERRUPT + transport as u32
}

/// A transport without a device has an identity, and the device number 0 (VIRTIO 1.2, 4.2.2).
fn empty(offset: u64, width: Width, operation: Operation) -> u64 {
    const MAGIC: u64 = u32::from_le_bytes(*b"virt") as u64;
    match (operation, width, offset) {
        (Operation::Read, Width::Word, 0) => MAGIC,
        (Operation::Read, Width::Word, 4) => 2,
        _ => 0,
    }
}
