// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The virtio devices that a bundle asks for, made before any guest runs: what they need is there, or nothing starts.

use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use twofold_abi::bundle::{self, NETWORKS_MAX, devices, disk};
use twofold_devices::virtio::block::DiskConfig;
use twofold_devices::virtio::{Console, Rng};
use twofold_memory::{Frames, HUGE_PAGE};
use twofold_stage2::{Features, Platform, Run};
use twofold_vmm::guests::{self, Guest};
use twofold_vmm::name::Name;
use twofold_vmm::scheduler::EntityId;
use twofold_vmm::switch::{PortId, Switch};

use super::balloon::Balloon;
use super::card::Card;
use super::disk::{Backing, Disk};
use super::host::{BUFFER, HostCard, HostDisk, TRANSFERS, Waker};
use super::machine_disk::MachineBacking;
use super::memory_disk::MemoryDisk;
use super::network::{Network, Uplink};
use super::{Kind, VirtioDevices};
use crate::{heap, log};

/// Why the devices of a guest cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The machine lacks a disk.
    #[error("guest {name:?}: --disk {number}: the machine has no disk with this serial number that can be used")]
    NoDisk {
        /// The guest.
        name: Name,
        /// The disk's place, from 1.
        number: usize,
    },
    /// A disk of the machine is smaller than a part of it.
    #[error("guest {name:?}: --disk {number}: it ends at sector {end}, and the machine's disk has {sectors} sectors")]
    Short {
        /// The guest.
        name: Name,
        /// The disk's place, from 1.
        number: usize,
        /// The first sector behind the guest's.
        end: u64,
        /// Sectors of the machine's disk.
        sectors: u64,
    },
    /// A disk of the machine cannot be written.
    #[error("guest {name:?}: --disk {number}: the machine's disk is read-only: give it with `,ro`")]
    ReadOnly {
        /// The guest.
        name: Name,
        /// The disk's place, from 1.
        number: usize,
    },
    /// The machine lacks a card.
    #[error("--net: the machine has no card with the address of network {0}'s uplink that can be used")]
    NoCard(u32),
    /// Free memory has too few large pieces.
    #[error("--disk, --net: the free memory is too broken up for the guests' devices: use fewer or smaller ones")]
    Broken,
    /// EL2's heap is full.
    #[error("--net: EL2 has too little memory for the networks of the guests: {0}; give fewer cards or fewer networks")]
    NoHeap(#[from] TryReserveError),
}

/// The machine's devices, by what names them in a bundle.
#[derive(Clone, Copy)]
pub struct Machine {
    /// A disk, by its serial number.
    pub disk: fn(&[u8; disk::ID_MAX]) -> Option<&'static dyn HostDisk>,
    /// A card, by its address.
    pub card: fn([u8; 6]) -> Option<&'static dyn HostCard>,
}

/// What guests' devices are made from.
pub struct Supplies {
    machine: Machine,
    networks: Vec<Option<Wiring>>,
    /// Memory for the disks in memory, in the order of guests and of their disks.
    memory: Vec<Vec<Run>>,
}

/// A network, and the port that is plugged in next.
struct Wiring {
    network: &'static Network,
    next: u16,
}

impl Supplies {
    /// Takes memory from `frames`, for EL2's heap and for disks, and makes the networks.
    ///
    /// # Errors
    ///
    /// [`DeviceError`].
    pub fn new(guests: &[Guest<'_>], frames: &mut Frames, machine: Machine) -> Result<Self, DeviceError> {
        const { assert!((TRANSFERS * BUFFER + size_of::<Disk>()) as u64 + (32 << 10) <= guests::HOST_DISK_MEMORY) };
        const { assert!(size_of::<Disk>() as u64 + (32 << 10) <= guests::DEVICE_MEMORY) };
        let needed = guests::device_memory(guests);
        if needed != 0 {
            for run in take(frames, needed)? {
                // SAFETY: frames are mapped one to one, and these have left the free ones for ever.
                unsafe { heap::add(run.pa().raw()..run.pa().raw() + run.size()) };
            }
        }
        let networks = (0..NETWORKS_MAX).map(|number| wire(guests, number, machine)).collect::<Result<_, _>>()?;
        let disks = guests.iter().flat_map(|guest| guest.config.disks).filter(|disk| disk.kind.get() == disk::MEMORY);
        let mut memory =
            disks.map(|disk| take(frames, disk.sectors.get() * bundle::SECTOR)).collect::<Result<Vec<_>, _>>()?;
        memory.reverse();
        Ok(Self { machine, networks, memory })
    }

    /// The devices of the next guest, whose I/O task this is.
    ///
    /// # Errors
    ///
    /// [`DeviceError`].
    pub fn devices<P: Platform>(
        &mut self,
        guest: &Guest<'_>,
        task: Option<EntityId>,
        has_random: bool,
        (platform, features): (&P, &Features),
    ) -> Result<VirtioDevices, DeviceError> {
        let Guest { name, config, .. } = guest;
        let mut all = Vec::new();
        let Some(task) = task else { return Ok(VirtioDevices::new(None, all)) };
        for (record, number) in config.disks.iter().zip(1..) {
            let waker = Waker::new(task);
            let (sectors, backing) = match record.kind.get() {
                disk::MEMORY => {
                    let memory = self.memory.pop().ok_or(DeviceError::Broken)?;
                    (record.sectors.get(), Backing::Memory(MemoryDisk::new(memory, platform, features)))
                }
                _ => self.machine_disk(record, *name, number, waker)?,
            };
            let is_read_only = record.flags.get() & disk::READ_ONLY != 0;
            let config = DiskConfig { sectors, is_read_only, id: record.id };
            all.push((Kind::Disk(Box::new(Disk::new(config, backing))), waker));
        }
        for net in config.nets {
            let waker = Waker::new(task);
            let wiring = self.networks.get_mut(net.network.get() as usize).and_then(Option::as_mut);
            let wiring = wiring.ok_or(DeviceError::Broken)?;
            let port = wiring.network.port(PortId(wiring.next));
            wiring.next += 1;
            port.set_waker(waker);
            all.push((Kind::Card(Box::new(Card::new(net.mac, port))), waker));
        }
        if config.devices & devices::CONSOLE != 0 {
            // The size of a screen that says nothing else.
            all.push((Kind::Console(Box::new(Console::new(80, 25))), Waker::new(task)));
        }
        if config.devices & devices::RANDOM != 0 {
            if !has_random {
                log!("guest {name:?}: the CPUs have no source of random numbers, so its device for them has no bytes");
            }
            all.push((Kind::Random(Rng::new()), Waker::new(task)));
        }
        if config.devices & devices::BALLOON != 0 {
            all.push((Kind::Balloon(Box::new(Balloon::new(config.memory))), Waker::new(task)));
        }
        Ok(VirtioDevices::new(Some(task), all))
    }

    fn machine_disk(
        &self,
        record: &bundle::Disk,
        name: Name,
        number: usize,
        waker: Waker,
    ) -> Result<(u64, Backing), DeviceError> {
        let disk = (self.machine.disk)(&record.id).ok_or(DeviceError::NoDisk { name, number })?;
        if disk.is_read_only() && record.flags.get() & disk::READ_ONLY == 0 {
            return Err(DeviceError::ReadOnly { name, number });
        }
        let (start, sectors) = (record.start.get(), disk.sectors());
        let end = match record.sectors.get() {
            0 => sectors,
            own => start.saturating_add(own),
        };
        if end > sectors || start > end {
            return Err(DeviceError::Short { name, number, end: end.max(start), sectors });
        }
        let own = Some(record.sectors.get()).filter(|sectors| *sectors != 0);
        Ok((end - start, Backing::Machine(Box::new(MachineBacking::new(disk, start, end - start, own, waker)))))
    }
}

/// Makes a network, if there are cards for it, and plugs the machine's card in.
fn wire(guests: &[Guest<'_>], number: u32, machine: Machine) -> Result<Option<Wiring>, DeviceError> {
    let (plugs, uplink) = guests::plugs(guests, number);
    if plugs.is_empty() {
        return Ok(None);
    }
    log!("network {number}: {} ports, {} KiB", plugs.len(), Switch::memory(plugs.len()) >> 10);
    let network: &'static Network = Box::leak(Box::new(Network::new(&plugs)?));
    if let Some(mac) = uplink {
        let card = (machine.card)(mac).ok_or(DeviceError::NoCard(number))?;
        card.attach(Uplink::new(network.port(PortId(plugs.len() as u16 - 1))));
    }
    Ok(Some(Wiring { network, next: 0 }))
}

/// Takes whole huge pages for this number of bytes, in few pieces.
fn take(frames: &mut Frames, bytes: u64) -> Result<Vec<Run>, DeviceError> {
    const HUGE: u64 = HUGE_PAGE / 4096;
    let mut left = bytes.div_ceil(HUGE_PAGE) * HUGE;
    let mut runs = Vec::new();
    let mut piece = 1 << left.checked_ilog2().unwrap_or(0);
    while left != 0 {
        piece = piece.min(1 << left.ilog2());
        match frames.take(piece) {
            Some(run) => {
                runs.push(run);
                left -= piece;
            }
            None if piece == HUGE => return Err(DeviceError::Broken),
            None => piece /= 2,
        }
    }
    Ok(runs)
}
