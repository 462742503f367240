// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A place for one guest in this process: a machine whose memory is a file that other processes can read.
//!
//! Invariant: the frames are either here or in the one guest that was made of them.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, ensure};
use twofold_machine::arena::{Arena, ArenaOptions, Backing as Kind};
use twofold_machine::fast::{FastMachine, FastPlatform};
use twofold_machine::vm::Vm;
use twofold_memory::swap::{PageStore, SwapOptions};
use twofold_memory::{Backing, Frames, GuestMemory, Pages, Slot, SlotId};
use twofold_migration::stream;
use twofold_stage2::{Geometry, Ipa, Kib4, Pa, Vmid};

use super::arrivals::Arrivals;
use super::settings::{ADDRESS_BITS, PAGE, Settings};
use crate::features::TODAY;

/// A place for a guest.
pub struct Place {
    machine: Arc<FastMachine>,
    frames: Option<Frames>,
}

/// A guest's memory, before it has vCPUs.
pub struct Made {
    /// The machine.
    pub machine: Arc<FastMachine>,
    /// The virtual machine.
    pub vm: Vm<FastPlatform>,
    /// The memslots.
    pub slots: Vec<(SlotId, stream::Slot)>,
    /// Where vCPUs wait for absent pages.
    pub arrivals: Arc<Arrivals>,
}

impl Place {
    /// A place whose memory was touched, so that the host's first touch of a page is in no figure.
    ///
    /// # Errors
    ///
    /// The memory does not fit.
    pub fn new(settings: &Settings) -> anyhow::Result<Self> {
        let size = needed(settings.memory);
        let arena = Arena::new(&ArenaOptions::new(size, Kind::Shmem))?;
        for offset in (0..size).step_by(PAGE as usize) {
            arena.store(arena.base() + offset, 0).context("the machine's memory is smaller than its plan")?;
        }
        let machine = FastMachine::new(Arc::new(arena), TODAY, settings.vcpus as usize)?;
        let mut frames = Frames::new(TODAY);
        frames.add(machine.arena().donate());
        Ok(Self { machine, frames: Some(frames) })
    }

    /// The machine.
    pub fn machine(&self) -> &Arc<FastMachine> {
        &self.machine
    }

    /// The path by which other processes open the memory, and the physical address of its first byte.
    ///
    /// # Errors
    ///
    /// The memory has no file.
    pub fn memory_file(&self) -> anyhow::Result<(PathBuf, Pa)> {
        let file = self.machine.arena().file().context("the machine's memory has no file")?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        Ok((path.into(), self.machine.arena().base()))
    }

    /// Makes a guest without content. With a store, its pages may be absent.
    ///
    /// # Errors
    ///
    /// A guest is here already, or a memslot is refused.
    pub fn make(
        &mut self,
        settings: &Settings,
        slots: &[stream::Slot],
        store: Option<Box<dyn PageStore>>,
    ) -> anyhow::Result<Made> {
        let frames = self.frames.take().context("this place has a guest")?;
        let arrivals = Arc::new(Arrivals::new(settings.vcpus));
        let mut memory = {
            let geometry = Geometry::new(Kib4, ADDRESS_BITS.into(), &TODAY)?;
            GuestMemory::new(FastPlatform(Arc::clone(&self.machine)), geometry, Vmid::new(1), frames, Pages::Largest)?
        };
        let mut ids = Vec::new();
        let added = slots.iter().try_for_each(|slot| -> anyhow::Result<()> {
            let start = slot.first.checked_mul(PAGE).map(Ipa::new).context("an address beyond 64 bits")?;
            let size = slot.pages.checked_mul(PAGE).filter(|size| *size <= settings.memory);
            let range = start..start + size.context("a memslot that is larger than the guest's memory")?;
            let slot_id = memory.add_slot(Slot { range, backing: Backing::Ram, writable: !slot.read_only });
            ids.push((slot_id.map_err(|refused| refused.error)?, *slot));
            Ok(())
        });
        let attached = added.and_then(|()| {
            let Some(store) = store else { return Ok(()) };
            // Each vCPU may wait for a page.
            let options = SwapOptions { vcpus: settings.vcpus, others: settings.vcpus, headroom: 0 };
            Ok(memory.attach_store(store, Box::new(Arc::clone(&arrivals)), &options)?)
        });
        if let Err(error) = attached {
            self.frames = Some(memory.destroy(drop));
            return Err(error);
        }
        Ok(Made { machine: Arc::clone(&self.machine), vm: Vm::new(memory), slots: ids, arrivals })
    }

    /// Takes back the frames of a guest that has ended.
    pub fn end(&mut self, vm: Vm<FastPlatform>) {
        self.frames = Some(vm.destroy());
    }

    /// Checks that no guest is here.
    ///
    /// # Errors
    ///
    /// One is.
    pub fn is_free(&self) -> anyhow::Result<()> {
        ensure!(self.frames.is_some(), "this place has a guest");
        Ok(())
    }
}

/// Bytes of the machine's memory for a guest: its own, and tables.
pub fn needed(memory: u64) -> u64 {
    let tables = memory.div_ceil(HUGE_PAGE) * PAGE;
    memory.next_multiple_of(HUGE_PAGE) + tables.next_multiple_of(HUGE_PAGE) + SPARE
}

const HUGE_PAGE: u64 = 2 << 20;
/// Table pages of the upper levels, and what stays free for them while a store is attached.
const SPARE: u64 = 4 << 20;
