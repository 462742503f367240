// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A defect at EL2: one report with the necessary facts, and exit status 17.
//!
//! Each test announces the texts that the report must contain (`expect: TEXT` lines), and the test runner compares. A
//! test that returns has failed.

use core::arch::asm;
use core::hint::black_box;
use core::sync::atomic::{AtomicBool, Ordering};

use twofold_hypervisor::{channel, cpus, log, read_sysreg, timer};
use twofold_stage2::Access;

use crate::check::{Failure, Outcome};
use crate::hand_mapped_guest::{HERE, HandMappedGuest};
use crate::machine::{Machine, PAGE};

tests!(panics:
    report::a_panic_is_reported_with_the_last_exits,
    report::a_store_to_text_is_refused,
    report::a_store_to_constants_is_refused,
    report::a_call_into_data_is_refused,
    report::a_call_into_the_stack_is_refused,
    report::a_load_of_what_is_not_mapped_is_reported,
    report::an_undefined_instruction_is_reported,
    report::a_stack_overflow_is_reported,
    report::two_panics_give_one_report,
    report::a_panic_of_another_cpu_is_reported,
    report::a_panic_amid_a_send_is_reported,
    report::a_panic_is_reported_after_another_cpu_failed_amid_a_send,
);

fn expect(texts: &[&str]) {
    for text in texts {
        log!("expect: {text}");
    }
}

fn lived() -> Outcome {
    Err(Failure::new("EL2 continued"))
}

/// Every report contains these.
const REGISTERS: [&str; 4] = ["ESR_EL2", "ELR_EL2", "FAR_EL2", "backtrace:"];

fn a_panic_is_reported_with_the_last_exits(mut machine: Machine) -> Outcome {
    let (mut guest, _) = HandMappedGuest::with_page(&mut machine, Access::READ)?;
    guest.load(HERE)?;
    let _ = guest.load(HERE + PAGE);
    expect(&REGISTERS);
    expect(&[
        "panic on CPU 0: on purpose",
        "report.rs:",
        "0x0000000040001000", // FAR_EL2 of the last fault
        "vCPU 0 exit -1: data_abort",
        "vCPU 0 exit -2: hvc",
    ]);
    panic!("on purpose")
}

fn a_store_to_text_is_refused(_: Machine) -> Outcome {
    expect(&REGISTERS);
    expect(&["exception at EL2 on CPU 0", "data abort at EL2, a write"]);
    store_to(a_store_to_text_is_refused as *const () as u64);
    lived()
}

fn a_store_to_constants_is_refused(_: Machine) -> Outcome {
    expect(&REGISTERS);
    expect(&["exception at EL2 on CPU 0", "data abort at EL2, a write"]);
    store_to(crate::agent::program().as_ptr() as u64);
    lived()
}

fn store_to(address: u64) {
    // SAFETY: the memory there is read-only, so it does not change: the store ends the image.
    unsafe { asm!("str xzr, [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

fn a_call_into_data_is_refused(mut machine: Machine) -> Outcome {
    expect(&REGISTERS);
    expect(&["exception at EL2 on CPU 0", "instruction abort at EL2"]);
    let frame = machine.page()?;
    frame.write(0, crate::agent::function(1));
    call(frame.pa.raw());
    lived()
}

fn a_call_into_the_stack_is_refused(_: Machine) -> Outcome {
    expect(&REGISTERS);
    expect(&["exception at EL2 on CPU 0", "instruction abort at EL2"]);
    let code = black_box([crate::agent::function(1)]);
    call(code.as_ptr() as u64);
    lived()
}

fn call(address: u64) {
    // SAFETY: the memory there is not executable, so the call ends the image. Otherwise the function there would return
    // at once and change only x0.
    unsafe { asm!("blr {}", in(reg) address, out("x0") _, out("x30") _, options(nostack)) };
}

fn a_load_of_what_is_not_mapped_is_reported(_: Machine) -> Outcome {
    expect(&REGISTERS);
    expect(&["exception at EL2 on CPU 0", "data abort at EL2, a read", "0x0000500000001238"]);
    // SAFETY: nothing is mapped there: the load ends the image.
    unsafe { asm!("ldr {0}, [{0}]", inout(reg) 0x5000_0000_1238_u64 => _, options(nostack, preserves_flags)) };
    lived()
}

fn an_undefined_instruction_is_reported(_: Machine) -> Outcome {
    expect(&REGISTERS);
    expect(&["exception at EL2 on CPU 0", "undefined instruction"]);
    // SAFETY: ends the image.
    unsafe { asm!("udf #0", options(nostack)) };
    lived()
}

fn a_stack_overflow_is_reported(_: Machine) -> Outcome {
    expect(&REGISTERS);
    expect(&["stack overflow at EL2 on CPU 0"]);
    black_box(deeper(0));
    lived()
}

#[allow(unconditional_recursion, reason = "that is the test")]
fn deeper(depth: u64) -> u64 {
    let mut room = black_box([depth; 32]);
    room[0] = deeper(depth + 1);
    black_box(&room).iter().sum()
}

fn two_panics_give_one_report(machine: Machine) -> Outcome {
    expect(&["panic on CPU"]);
    cpus::start(machine.board, 1, |_| panic!("on purpose, there"))?;
    panic!("on purpose, here")
}

fn a_panic_of_another_cpu_is_reported(machine: Machine) -> Outcome {
    expect(&REGISTERS);
    expect(&["panic on CPU 1: on purpose, there"]);
    cpus::start(machine.board, 1, |_| panic!("on purpose, there"))?;
    loop {
        core::hint::spin_loop();
    }
}

fn a_panic_amid_a_send_is_reported(_: Machine) -> Outcome {
    expect(&REGISTERS);
    expect(&["panic on CPU 0: amid a send"]);
    channel::hold();
    panic!("amid a send")
}

/// CPU 0 reports, most likely: it panics first, and CPU 1 fails later. CPU 1 has the channel and gives it up.
fn a_panic_is_reported_after_another_cpu_failed_amid_a_send(machine: Machine) -> Outcome {
    static HELD: AtomicBool = AtomicBool::new(false);
    expect(&REGISTERS);
    expect(&["panic on CPU", "beside a send"]);
    cpus::start(machine.board, 1, |_| {
        channel::hold();
        HELD.store(true, Ordering::Release);
        let start = timer::machine_time();
        while timer::machine_time() - start < read_sysreg!(CNTFRQ_EL0) / 4 {}
        panic!("beside a send, there")
    })?;
    while !HELD.load(Ordering::Acquire) {
        core::hint::spin_loop();
    }
    panic!("beside a send, here")
}
