// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the engine at EL2, against a real MMU: an image that runs one of them per boot.
//!
//! The boot loader's command line selects the action: `list` names all tests, `run=NAME` runs one. The image answers
//! with lines of the control channel ([`twofold_abi::control`]), and the exit status is the verdict too. A test that is
//! listed with `expect=17` ends in a panic report, and the report contains each text that the test announces with
//! `expect: TEXT`.
//!
//! Invariant: a boot runs one test, so no test sees another one's memory, tables or TLB entries.
//!
//! | module | purpose |
//! |---|---|
//! | [`agent`], [`exit`](mod@exit) | a guest that makes one access on command, and the result |
//! | [`canary`] | a guest that fills every register it can write, and checks them at each turn |
//! | [`machine`], [`hand_mapped_guest`] | frames, and the engine's tables for them |
//! | [`demand`] | a guest whose memory is mapped on faults |
//! | [`guest_mmu`] | the guest's own tables |
//! | [`omit`] | a platform that can leave an instruction out |
//! | [`other_cpu`] | the same guest on a second CPU |
//! | [`check`] | checks, and the reasons of their failures |
//! | [`test`](mod@test), [`tests`] | the form of a test; the tests |
#![no_std]
#![no_main]

extern crate alloc;

mod agent;
mod canary;
#[macro_use]
mod check;
mod demand;
mod exit;
mod guest_mmu;
mod hand_mapped_guest;
mod machine;
mod omit;
mod other_cpu;
#[macro_use]
mod test;
mod tests;

use twofold_abi::{control as word, exit as status};
use twofold_hypervisor::board::Board;
use twofold_hypervisor::{control, error, shutdown};

use crate::machine::Machine;
use crate::test::Test;

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
    shutdown::exit(status)
}
