// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the engine at EL2, against a real MMU: an image that runs one of them per boot.
//!
//! The boot loader's command line says what to do: `list` names all tests, `run=NAME` runs one. The answers are lines
//! of the control channel ([`twofold_abi::control`]); the verdict is the exit status as well. A test that is
//! listed with `expect=17` ends in a panic report, and what it announces with `expect: TEXT` is in that report.
//!
//! Invariant: a boot runs one test, so no test finds what another left in memory, tables or TLB.
//!
//! | module | is |
//! |---|---|
//! | [`agent`], [`exit`](mod@exit) | a guest that does one access on command, and what becomes of it |
//! | [`machine`], [`guest`] | frames, and tables of the engine over them |
//! | [`demand`] | a guest whose memory comes by faults |
//! | [`guest_mmu`] | the guest's own tables |
//! | [`omit`] | the platform that can leave an instruction out |
//! | [`other_cpu`] | the same guest on a second CPU |
//! | [`check`] | how a test says what is wrong |
//! | [`tests`] | the tests |
#![no_std]
#![no_main]

extern crate alloc;

mod agent;
#[macro_use]
mod check;
mod demand;
mod exit;
mod guest;
mod guest_mmu;
mod machine;
mod omit;
mod other_cpu;
mod tests;

use twofold_abi::{control as word, exit as status};
use twofold_hypervisor::board::Board;
use twofold_hypervisor::{control, error, power};

use crate::machine::Machine;
use crate::tests::Test;

twofold_hypervisor::entry!(main);

fn main(board: &'static Board) -> ! {
    let mut arguments = board.bootargs.split_whitespace().filter(|argument| *argument != word::BOOT_ARGUMENT);
    match (arguments.next(), arguments.next()) {
        (Some("list"), None) => list(),
        (Some(argument), None) if argument.starts_with("run=") => run(board, &argument["run=".len()..]),
        _ => refuse(format_args!("the command line is {:?}: give it `list` or `run=NAME`", board.bootargs)),
    }
}

fn list() -> ! {
    for test in tests::all() {
        let expect = if test.panics { " expect=17" } else { "" };
        control::line(word::TEST, format_args!("{}{expect}", test.name));
    }
    finish(status::POWER_OFF)
}

fn run(board: &'static Board, name: &str) -> ! {
    let Some(Test { name, run, .. }) = tests::all().find(|test| test.name == name) else {
        refuse(format_args!("there is no test {name:?}: `list` names them"))
    };
    match run(Machine::take_over(board)) {
        Ok(()) => {
            control::line(word::PASS, format_args!("{name}"));
            finish(status::POWER_OFF)
        }
        Err(failure) => {
            control::line(word::FAIL, format_args!("{name} {failure}"));
            finish(status::TEST_FAILED)
        }
    }
}

fn refuse(why: core::fmt::Arguments) -> ! {
    error!("{why}");
    finish(status::CANNOT_START)
}

fn finish(status: i32) -> ! {
    control::end("tests");
    power::exit(status)
}
