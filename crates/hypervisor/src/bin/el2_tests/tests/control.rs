// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control channel, with a launcher that asks. The runner sends a hello and two commands, and reads the answers.

use twofold_abi::channel::{Command, GuestState, Reason};
use twofold_hypervisor::channel::{self, Polled};
use twofold_hypervisor::{read_sysreg, timer};
use twofold_vmm::console::Console;
use twofold_vmm::session::{Asked, Guests};

use crate::check::Outcome;
use crate::machine::Machine;

tests!(control::a_launcher_that_asks_is_answered);

/// One guest, which runs.
struct One;

impl Guests for One {
    fn count(&self) -> u16 {
        1
    }

    fn state(&self, _guest: u16) -> GuestState {
        GuestState::Running
    }

    fn console<T>(&self, _guest: u16, _act: impl FnOnce(&mut Console) -> T) -> Option<T> {
        None
    }
}

/// Ends with the command to quit; so a command that does not come is a hang.
fn a_launcher_that_asks_is_answered(_: Machine) -> Outcome {
    let mut asked = 0;
    loop {
        match channel::poll(&One) {
            Polled::Command(command) => {
                asked += 1;
                if answer(command, asked) == Command::Quit {
                    return Ok(());
                }
            }
            Polled::More => {}
            Polled::Nothing => {
                // QEMU takes what has come only while no CPU has its lock, which an access to a register takes.
                let start = timer::machine_time();
                while timer::machine_time() - start < read_sysreg!(CNTFRQ_EL0) / 1000 {}
            }
        }
    }
}

/// Answers a command, and returns what it was.
fn answer(asked: Asked, number: u64) -> Command {
    let command = asked.command();
    let _ = channel::with_session(|session, launcher| match command {
        Command::Statistics => {
            asked.figure(asked.guest(), "test.asked", number, session, launcher);
            asked.done(session, launcher);
        }
        Command::Quit => asked.done(session, launcher),
        other => {
            asked.refused(Reason::Failed, format_args!("{other:?} is for another test"), session, launcher);
        }
    });
    command
}
