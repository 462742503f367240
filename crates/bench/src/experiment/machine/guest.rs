// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest: its memslots, its stage-1 tables, and the setup of its hypervisor.
//!
//! Invariant: the stage-1 tables are in a memslot of their own without a dirty log, so table walks dirty no logged
//! page.

use std::sync::Arc;

use anyhow::Context;
use twofold_machine::arena::Arena;
use twofold_machine::fast::{FastMachine, FastPlatform, HostCaches, this_cpu};
use twofold_machine::guest_tables::TablesInRam;
use twofold_machine::program::Stage1Registers;
use twofold_memory::{Backing, Frames, GuestMemory, Pages, Slot, SlotId};
use twofold_stage2::{Geometry, Ipa, IpaRange, Kib4, Level, Vmid};
use twofold_workload::stage1::{Memory, Stage1};

use super::memory::Plan;
use crate::experiment::setup::Setup;
use crate::experiment::target::REGION;
use crate::features::TODAY;

/// A guest and its machine.
pub struct MachineGuest {
    /// The machine.
    pub machine: Arc<FastMachine>,
    /// The guest's memory.
    pub memory: GuestMemory<FastPlatform>,
    /// The memslots of its regions.
    pub slots: Vec<SlotId>,
    /// The IPA of its first region.
    pub start: Ipa,
    /// The register values of its stage 1.
    pub stage1: Stage1Registers,
}

impl MachineGuest {
    /// Makes a guest that has touched no memory yet. No other guest has its memory.
    pub fn new(setup: &Setup, plan: &Plan, arena: Arc<Arena>) -> anyhow::Result<Self> {
        let features = TODAY.with_forced_write_back(setup.forced_write_back);
        let machine = FastMachine::with_caches(Arc::clone(&arena), features, setup.vcpus, caches(setup)?)?;
        let (donated, tables) = plan.parts(&arena)?;
        let mut frames = Frames::new(features);
        frames.add(tables);
        let geometry = Geometry::new(Kib4, plan.layout.pa_bits(), &features)?;
        let platform = FastPlatform(Arc::clone(&machine));
        let mut memory = GuestMemory::new(platform, geometry, Vmid::new(1), frames, Pages::Largest)?;
        memory.set_policies(setup.policies, this_cpu);
        let own = Ipa::new(0)..Ipa::new(plan.stage1);
        memory.add_slot(Slot { range: own.clone(), backing: Backing::Ram, writable: true })?;
        let (size, largest) = (plan.memory / setup.slots as u64, largest(setup.backing.page()));
        let mut slots = Vec::new();
        let mut donated = donated.into_run();
        for offset in (0..plan.memory).step_by(size as usize) {
            let (frames, rest) = donated.split_at(size).ok().context("a memslot ends beyond the guest's memory")?;
            donated = rest;
            let range = plan.start + offset..plan.start + offset + size;
            slots.push(memory.add_slot(Slot {
                range,
                backing: Backing::Preallocated { frames, largest },
                writable: true,
            })?);
        }
        let stage1 = stage1(&memory, own, plan)?;
        Ok(Self { machine, memory, slots, start: plan.start, stage1 })
    }
}

/// The level of the largest leaf for memory in pages of this size.
fn largest(page: u64) -> Level {
    match page {
        ..MIB_2 => Level::L3,
        MIB_2..GIB => Level::L2,
        GIB.. => Level::L1,
    }
}

const MIB_2: u64 = 2 << 20;
const GIB: u64 = 1 << 30;

/// The host's cache maintenance, if the CPU has no forced write-back. Otherwise cleaning is free.
fn caches(setup: &Setup) -> anyhow::Result<Option<HostCaches>> {
    if setup.forced_write_back {
        return Ok(None);
    }
    let caches = HostCaches::find();
    caches.map(Some).context("this CPU lets no process clean its caches, so the cost cannot be measured here")
}

/// Builds the guest's stage-1 tables in a range of its RAM, and returns its register values.
fn stage1(memory: &GuestMemory<FastPlatform>, own: IpaRange, plan: &Plan) -> anyhow::Result<Stage1Registers> {
    let mut tables = TablesInRam::new(memory, own);
    let stage1 = Stage1::new(plan.layout, &mut tables)?;
    stage1.map(&mut tables, REGION, plan.start.raw(), plan.memory, Memory::Normal)?;
    Ok(stage1.registers().into())
}
