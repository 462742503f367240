// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest whose memory is mapped on faults, like a virtual machine's.

use alloc::vec::Vec;

use twofold_hypervisor::abort;
use twofold_memory::{Answer, Backing, Done, GuestFault, GuestMemory, Pages, Slot, SlotId};
use twofold_stage2::{Geometry, Ipa, IpaRange, Kib4, Pa, Window};

use crate::agent::{self, Agent, Command};
use crate::check::{Failure, Outcome};
use crate::exit::{Exit, Stopped};
use crate::hand_mapped_guest::{IPA_BITS, VMID, load_tables};
use crate::machine::{BLOCK_2M, Machine, PAGE};
use crate::omit::Omit;

/// The guest.
pub struct Demand {
    pub memory: GuestMemory<Omit>,
    pub agent: Agent,
    /// The slot of the guest's RAM at [`RAM`].
    pub ram: SlotId,
}

/// The result of an access.
#[derive(Debug, PartialEq, Eq)]
pub struct Access {
    /// The value, or an exception in the guest.
    pub end: Result<u64, Exit>,
    /// The answer to each of its faults.
    pub faults: Vec<Done>,
}

/// The start of the RAM that does not hold the agent.
pub const RAM: Ipa = Ipa::new(0x8000_0000);
/// The agent's place, in RAM of its own that is too small for blocks.
pub const AGENT: Ipa = Ipa::new(0x4000_0000);

impl Demand {
    /// A guest with `ram` bytes of RAM at [`RAM`].
    pub fn new(machine: &mut Machine, pages: Pages, ram: u64) -> Outcome<Self> {
        let geometry = Geometry::new(Kib4, IPA_BITS, &machine.features)?;
        let frames = machine.used_frames(32 * BLOCK_2M)?;
        // SAFETY: EL2 maps all RAM one to one; only this guest uses the frames.
        let platform = unsafe { Omit::new(machine.metadata) };
        let mut memory = GuestMemory::new(platform, geometry, VMID, frames, pages)?;
        memory.add_slot(slot(AGENT..AGENT + PAGE, true))?;
        let ram = memory.add_slot(slot(RAM..RAM + ram, true))?;
        let mut guest = Self { memory, agent: Agent::new(AGENT.raw()), ram };
        guest.memory.write(AGENT, agent::program())?;
        load_tables(guest.memory.stage2().vtcr(), guest.memory.stage2().vttbr());
        guest.memory.stage2().invalidate_all();
        guest.run(Command::Rest, Ipa::new(0), 0)?.end?;
        Ok(guest)
    }

    /// Adds RAM.
    pub fn add_ram(&mut self, range: IpaRange, writable: bool) -> Outcome<SlotId> {
        Ok(self.memory.add_slot(slot(range, writable))?)
    }

    /// Adds the registers of a device, which the guest may access.
    pub fn add_device(&mut self, range: IpaRange, start: Pa) -> Outcome<SlotId> {
        // SAFETY: the agent makes the accesses that the test requests, to registers that a guest may read and write.
        let window = unsafe { Window::new(start, range.end - range.start) };
        Ok(self.memory.add_slot(Slot { range, backing: Backing::Device(window), writable: true })?)
    }

    pub fn load(&mut self, ipa: Ipa) -> Outcome<Access> {
        self.run(Command::Load, ipa, 0)
    }

    pub fn store(&mut self, ipa: Ipa, value: u64) -> Outcome<Access> {
        self.run(Command::Store, ipa, value)
    }

    pub fn fetch(&mut self, ipa: Ipa) -> Outcome<Access> {
        self.run(Command::Fetch, ipa, 0)
    }

    /// Runs a command until it ends, and answers its faults like a hypervisor.
    pub fn run(&mut self, command: Command, ipa: Ipa, value: u64) -> Outcome<Access> {
        let mut faults = Vec::new();
        let mut end = self.agent.run(command, ipa.raw(), value);
        while let Err(Exit::Fault(stopped)) = end {
            check!(faults.len() < 8, "the access to {ipa} makes no progress: {faults:?}");
            match self.answer(&stopped)? {
                Answer::Retry(done) => faults.push(done),
                Answer::Skip => self.agent.context().skip(),
                Answer::Absent => check!(false, "an absent page, without a page store"),
                Answer::ExternalAbort => {
                    let Stopped { esr, far, ipa, .. } = stopped;
                    abort::refuse(&self.memory, self.agent.context(), esr, far, ipa);
                }
            }
            end = self.agent.resume();
        }
        Ok(Access { end, faults })
    }

    /// The answer of the guest's memory to a fault.
    pub fn answer(&mut self, stopped: &Stopped) -> Outcome<Answer> {
        let Stopped { fault, ipa, .. } = *stopped;
        let fault = GuestFault { ipa, kind: fault.kind, access: fault.access };
        self.memory.fault(&fault).map_err(Failure::from)
    }
}

fn slot(range: IpaRange, writable: bool) -> Slot {
    Slot { range, backing: Backing::Ram, writable }
}
