// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A second CPU, with its own agent in the same guest.
//!
//! Invariant: it does nothing between two requests, so only the first CPU's broadcasts change its TLB.

use spin::Mutex;
use twofold_hypervisor::registers::{self, Confinement};
use twofold_hypervisor::{cpus, platform, read_sysreg, vm};

use crate::agent::{Agent, Command};
use crate::check::Outcome;
use crate::exit::Exit;
use crate::hand_mapped_guest::{self, AGENT, HandMappedGuest};
use crate::machine::Machine;

/// The second CPU.
pub struct OtherCpu(());

struct Request {
    vtcr: u64,
    vttbr: u64,
    command: Command,
    address: u64,
}

static REQUEST: Mutex<Option<Request>> = Mutex::new(None);
static ANSWER: Mutex<Option<Result<u64, Exit>>> = Mutex::new(None);

impl OtherCpu {
    /// Starts the second CPU.
    pub fn start(machine: &Machine) -> Outcome<Self> {
        cpus::start(machine.board, 1, serve)?;
        Ok(Self(()))
    }

    /// Executes the command in `guest` on that CPU, and waits for the result.
    pub fn run(&self, guest: &HandMappedGuest, command: Command, address: u64) -> Result<u64, Exit> {
        let (vtcr, vttbr) = (guest.stage2.vtcr(), guest.stage2.vttbr());
        *REQUEST.lock() = Some(Request { vtcr, vttbr, command, address });
        wait(&ANSWER)
    }
}

fn serve(_index: usize) {
    // SAFETY: no guest has run on this CPU; the hypervisor itself uses this value.
    unsafe { registers::set_for(&Confinement { hcr: vm::hcr(&platform::features()), ..Confinement::default() }) };
    let mut agent = Agent::new(AGENT.raw());
    loop {
        let request = wait(&REQUEST);
        // Loaded once, so that not even a register write can hide a stale entry.
        if read_sysreg!(VTTBR_EL2) != request.vttbr {
            hand_mapped_guest::load_tables(request.vtcr, request.vttbr);
        }
        *ANSWER.lock() = Some(agent.run(request.command, request.address, 0));
    }
}

fn wait<T>(mailbox: &Mutex<Option<T>>) -> T {
    loop {
        if let Some(content) = mailbox.lock().take() {
            return content;
        }
        core::hint::spin_loop();
    }
}
