// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control channel, with a launcher that asks. The runner sends a hello and two commands, and reads the answers.

use twofold_abi::channel::{Command, GuestState, Reason};
use twofold_hypervisor::{control, read_sysreg, timer};

use crate::check::Outcome;
use crate::machine::Machine;

tests!(control::a_launcher_that_asks_is_answered);

/// Ends with the command to quit; so a command that does not come is a hang.
fn a_launcher_that_asks_is_answered(_: Machine) -> Outcome {
    let mut asked = 0;
    loop {
        let quits = control::poll(&[GuestState::Running], |command, launcher| {
            asked += 1;
            match command.command() {
                Command::Statistics => {
                    command.figure(command.guest(), "test.asked", asked, launcher);
                    command.done(launcher);
                    false
                }
                Command::Quit => {
                    command.done(launcher);
                    true
                }
                other => {
                    command.refused(Reason::Failed, format_args!("{other:?} is for another test"), launcher);
                    false
                }
            }
        });
        if quits == Some(true) {
            return Ok(());
        }
        // QEMU takes what has come only while no CPU has its lock, which an access to a register takes.
        let start = timer::machine_time();
        while timer::machine_time() - start < read_sysreg!(CNTFRQ_EL0) / 1000 {}
    }
}
