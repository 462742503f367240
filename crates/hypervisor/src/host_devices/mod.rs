// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's disks and network cards, which stand behind those of the guests: virtio devices over MMIO.
//!
//! | file | contents |
//! |---|---|
//! | this one | which devices there are, and their interrupts |
//! | [`negotiate`], [`dma`] | the first steps with a device; memory that is shared with it |
//! | [`disk`], [`card`] | the drivers, which know no guest |
//! | [`clients`] | a disk and the guests' disks on it |
//! | [`uplink`] | a card, and the network that it joins with the outside |
//!
//! A guest's disk finds the machine's by its serial number, a network its card by the address.
//!
//! # Interrupts, in labelled steps
//!
//! * **I1** A device has done something, and its interrupt reaches the boot CPU. If a guest runs there, it is an exit.
//! * **I2** The CPU reads and acknowledges the device's reasons. From here on a new event is a new interrupt.
//! * **I3** It takes the device's lock. A disk's requests that have ended go to their clients, at most [`disk::SLOTS`] of them;
//!   the clients' tasks are woken. For a card, the card's task is woken.
//! * **I4** The tasks do the rest, in pieces. What a guest's disk costs is charged to that guest's task; what a card costs, to
//!   the card's own.
//!
//! So the guest that an interrupt happens to stop pays for I1 to I3 only: some hundred instructions for each request. No CPU
//! ever waits for a device once guests run.
//!
//! # Locking
//!
//! A disk's lock is taken under that of a guest's device; a card's lock is taken by its task and nothing else. Under a disk's
//! lock the scheduler's is taken, under a card's that of its network, and under that the scheduler's.

pub mod card;
pub mod clients;
pub mod disk;
pub mod dma;
pub mod negotiate;
pub mod uplink;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::NonNull;

use spin::Once;
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceType, Transport};

use crate::board::{self, Board, Shared};
use crate::channel::{Deadline, PATIENCE};
use crate::serial_port::wire::{MAGIC, VERSION, register};
use crate::{channel, log};

use clients::MachineDisk;
use disk::Disk;
use negotiate::Unusable;
use uplink::MachineCard;

/// The machine's devices that guests may use.
#[derive(Default)]
struct Found {
    disks: Vec<&'static MachineDisk>,
    cards: Vec<&'static MachineCard>,
}

static FOUND: Once<Found> = Once::new();

/// Sets up all disks and network cards of the machine. One that cannot be used is logged and left out. It is called once,
/// before the interrupts are set up.
pub fn find(board: &Board) {
    FOUND.call_once(|| {
        let mut found = Found::default();
        for transport in &board.virtio {
            if channel::is_at(transport.registers.start) {
                continue;
            }
            let at = transport.registers.start;
            if let Err(error) = found.add(transport) {
                log!("the virtio device at {at:#x} is not used: {error}");
            }
        }
        found
    });
}

/// The disk with this serial number.
#[must_use]
pub fn disk(id: &[u8; disk::ID]) -> Option<&'static MachineDisk> {
    FOUND.get()?.disks.iter().copied().find(|disk| disk.id() == *id)
}

/// The card with this address.
#[must_use]
pub fn card(mac: [u8; 6]) -> Option<&'static MachineCard> {
    cards().iter().copied().find(|card| card.mac() == mac)
}

/// All cards.
#[must_use]
pub fn cards() -> &'static [&'static MachineCard] {
    FOUND.get().map_or(&[], |found| &found.cards)
}

/// The interrupts of all of them.
pub fn interrupts() -> impl Iterator<Item = Shared> {
    let found = FOUND.get().into_iter();
    found.flat_map(|found| {
        let disks = found.disks.iter().map(|disk| disk.registers().interrupt);
        disks.chain(found.cards.iter().map(|card| card.registers().interrupt))
    })
}

/// Takes what the devices have done so far, as I2 and I3. It is called once, when the interrupts are set up and every task can
/// be woken. An edge from before that is lost, and a device whose reasons stay would never make another one.
pub(crate) fn begin() {
    let Some(found) = FOUND.get() else { return };
    found.disks.iter().for_each(|disk| disk.interrupt());
    found.cards.iter().for_each(|card| card.interrupt());
}

/// I1: an interrupt, if it is of one of them.
#[cold]
pub(crate) fn interrupt(intid: u32) {
    let Some(found) = FOUND.get() else { return };
    // Devices may share an interrupt.
    for disk in found.disks.iter().filter(|disk| disk.registers().interrupt.intid == intid) {
        disk.interrupt();
    }
    for card in found.cards.iter().filter(|card| card.registers().interrupt.intid == intid) {
        card.interrupt();
    }
}

/// Why a device is left out.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum LeftOut {
    #[error(transparent)]
    Unusable(#[from] Unusable),
    #[error("the device tree names no shared interrupt of it")]
    NoInterrupt,
    #[error("its accesses are not coherent with the caches: its node has no `dma-coherent`")]
    NotCoherent,
    #[error("its registers: {0}")]
    Registers(&'static str),
}

impl Found {
    /// Adds the device on a transport, if it is a disk or a card.
    fn add(&mut self, transport: &board::Transport) -> Result<(), LeftOut> {
        let base = transport.registers.start as usize;
        let registers = |interrupt| Registers { base, interrupt };
        let look = Registers { base, interrupt: Shared { intid: 0, is_edge: false } };
        let kind = look.read(register::DEVICE_ID);
        if look.read(register::MAGIC) != MAGIC || !KINDS.contains(&kind) {
            return Ok(());
        }
        if look.read(register::VERSION) != VERSION {
            return Err(Unusable::Legacy.into());
        }
        if !transport.is_coherent {
            return Err(LeftOut::NotCoherent);
        }
        let interrupt = transport.interrupt.ok_or(LeftOut::NoInterrupt)?;
        let header = core::ptr::with_exposed_provenance_mut::<VirtIOHeader>(base);
        let header = NonNull::new(header).ok_or(LeftOut::Registers("their address is 0"))?;
        let size = (transport.registers.end - transport.registers.start) as usize;
        // SAFETY: the device tree has a virtio transport there, which `el2_mmu` maps as Device memory for ever. Only this
        // driver uses it, except that `Registers` acknowledges interrupts, which the driver does not.
        let transport = unsafe { MmioTransport::new(header, size) };
        let transport = transport.map_err(|_| LeftOut::Registers("they are no virtio transport"))?;
        match transport.device_type() {
            DeviceType::Block => {
                let deadline = Deadline::after(PATIENCE);
                let disk = Disk::new(transport, || !deadline.has_passed())?;
                let (id, sectors) = (disk.id(), disk.sectors());
                let name = id.split(|byte| *byte == 0).next().unwrap_or(&[]);
                log!("the machine's disk {:?}: {sectors} sectors", name.escape_ascii());
                self.disks.push(Box::leak(Box::new(MachineDisk::new(registers(interrupt), disk))));
            }
            DeviceType::Network => {
                let card = card::Card::new(transport)?;
                self.cards.push(Box::leak(Box::new(MachineCard::new(registers(interrupt), card))));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Network cards and disks.
const KINDS: [u32; 2] = [1, 2];

/// The registers of a device that its interrupt is about.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    base: usize,
    interrupt: Shared,
}

/// Reasons of an interrupt: the device's configuration has changed.
pub const CONFIGURATION: u32 = 1 << 1;

impl Registers {
    /// I2. Returns the reasons.
    pub fn acknowledge(&self) -> u32 {
        let reasons = self.read(register::INTERRUPT_STATUS);
        if reasons != 0 {
            let register = core::ptr::with_exposed_provenance_mut::<u32>(self.base + register::INTERRUPT_ACKNOWLEDGE);
            // SAFETY: a virtio transport is mapped there. The write ends the interrupt, and changes nothing else.
            unsafe { register.write_volatile(reasons) };
        }
        reasons
    }

    fn read(&self, offset: usize) -> u32 {
        let register = core::ptr::with_exposed_provenance::<u32>(self.base + offset);
        // SAFETY: a virtio transport is mapped there, and reading these registers changes nothing.
        unsafe { register.read_volatile() }
    }
}
