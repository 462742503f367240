// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A card of the machine, and the task that moves frames between it and a network of guests.
//!
//! # The task, in pieces
//!
//! * **U1** A frame from the card goes to the network, which copies it. The card's buffer goes back to the card.
//! * **U2** A frame from the network goes to the card, which copies it. If the card is full, the task keeps the frame until the
//!   card's next interrupt.
//!
//! A piece is one U1 and one U2. The task is woken by the card's interrupt, and by the first frame that the network has for
//! it. No wake-up is lost: a task that is woken while it runs has another turn.
//!
//! The card takes all frames that reach it. (It has no filter: the addresses behind it are the guests'.)

use spin::{Mutex, Once};
use twofold_vmm::scheduler::{Decision, EntityId};
use twofold_vmm::switch::Received;
use virtio_drivers::transport::mmio::MmioTransport;

use super::Registers;
use super::card::Card;
use super::dma::Machine;
use crate::schedule;
use crate::schedule::cpu::{Entity, Progress, ThisCpu};
use crate::switch::Switch;
use crate::virtio::host::{HostCard, Waker};
use crate::virtio::network::Uplink;

/// A card of the machine.
pub struct MachineCard {
    registers: Registers,
    mac: [u8; 6],
    /// Locked by the task.
    state: Mutex<State>,
    uplink: Once<Uplink>,
    task: Once<EntityId>,
}

struct State {
    driver: Card<Machine, MmioTransport<'static>>,
    /// A frame for which the card had no room.
    kept: Option<Received>,
}

impl MachineCard {
    pub(super) fn new(registers: Registers, driver: Card<Machine, MmioTransport<'static>>) -> Self {
        let mac = driver.mac();
        let state = Mutex::new(State { driver, kept: None });
        Self { registers, mac, state, uplink: Once::new(), task: Once::new() }
    }

    /// Its address.
    pub(super) fn mac(&self) -> [u8; 6] {
        self.mac
    }

    pub(super) fn registers(&self) -> &Registers {
        &self.registers
    }

    /// Whether it joins a network with the outside.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.uplink.is_completed()
    }

    /// What the scheduler calls the task of this card. It is set once, after [`attach`](HostCard::attach) and before any guest
    /// runs.
    pub fn set_task(&self, task: EntityId) {
        self.task.call_once(|| task);
        if let Some(uplink) = self.uplink.get() {
            uplink.set_waker(Waker::new(task));
        }
    }

    /// I2 and I3.
    pub(super) fn interrupt(&self) {
        let _reasons = self.registers.acknowledge();
        if let Some(task) = self.task.get() {
            schedule::wake(*task);
        }
    }

    /// A piece.
    fn work(&self) -> Progress {
        let Some(uplink) = self.uplink.get() else { return Progress::Finished };
        let mut state = self.state.lock();
        let State { driver, kept } = &mut *state;
        let came = driver.receive(|frame| uplink.send(frame));
        let went = match kept.take().or_else(|| uplink.take()) {
            None => false,
            Some(frame) if driver.send(frame.bytes()).is_ok() => {
                uplink.give_back(frame);
                true
            }
            Some(frame) => {
                *kept = Some(frame);
                false
            }
        };
        if came || went { Progress::More } else { Progress::Finished }
    }
}

impl HostCard for MachineCard {
    fn attach(&self, uplink: Uplink) {
        self.uplink.call_once(|| uplink);
    }
}

/// The task of a card.
pub(crate) struct CardTask {
    card: &'static MachineCard,
    entity: EntityId,
}

impl CardTask {
    /// The task of a card that has one.
    pub(crate) fn of(card: &'static MachineCard) -> Option<Self> {
        card.task.get().map(|entity| Self { card, entity: *entity })
    }
}

impl Entity for CardTask {
    fn id(&self) -> EntityId {
        self.entity
    }

    fn turn(&self, cpu: &mut ThisCpu, _: &mut Switch, decision: Decision) -> Decision {
        cpu.work(decision, || self.card.work())
    }
}
