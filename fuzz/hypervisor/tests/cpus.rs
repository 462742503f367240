// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests how a CPU starts: the data that it reads is published before the firmware is called, because the call itself
//! orders nothing. Also tests the places of its stacks and guard pages.

use std::iter;

use twofold_abi::virt;
use twofold_fuzz_hypervisor::board::Board;
use twofold_fuzz_hypervisor::cpus::{StartError, is_guard, looks_at_kicks, stacks, start, will_look};
use twofold_fuzz_hypervisor::power::{Conduit, UNKNOWN_CPU};
use twofold_fuzz_hypervisor::{Done, done, faked, guards};

fn board(cpus: &[u64]) -> Board {
    Board {
        ram: iter::once(virt::RAM_BASE..virt::RAM_BASE + (1 << 30)).collect(),
        reserved: Default::default(),
        no_map: Default::default(),
        gicd: 0..0,
        gicr: Default::default(),
        maintenance_interrupt: Default::default(),
        uart: 0..0,
        rtc: None,
        virtio: Default::default(),
        psci: Conduit::Smc,
        cpus: cpus.iter().copied().collect(),
        bundle: None,
        bootargs: "",
        timer_interrupts: [1, 13, 4].into_iter().collect(),
        uart_interrupts: [0, 1, 4].into_iter().collect(),
        dtb: 0..0,
    }
}

#[test]
fn a_barrier_is_between_the_stores_and_the_call() {
    assert_eq!(start(&board(&[0, 0x100]), 1, |_| ()), Ok(()));
    assert_eq!(done(), [Done::DsbIshst, Done::CpuOn(0x100)]);
}

#[test]
fn a_cpu_that_is_not_there_is_refused() {
    assert_eq!(start(&board(&[0]), 1, |_| ()), Err(StartError::NoSuchCpu(1)));
    assert_eq!(done(), []);
    let error = StartError::Firmware(1, smccc::psci::Error::InvalidParameters);
    assert_eq!(start(&board(&[0, UNKNOWN_CPU]), 1, |_| ()), Err(error));
}

/// A kick of another CPU, or of one that does not look, needs an interrupt.
#[test]
fn a_cpu_looks_for_its_own_kicks_and_only_while_it_says_so() {
    const CPU: usize = 2;
    start(&board(&[0, 0x100, 0x200]), CPU, |_| ()).unwrap();
    let emergency_guard = guards()[2 * CPU + 1].clone();
    faked::set("TPIDR_EL2", emergency_guard.end + (16 << 10));
    assert!(!looks_at_kicks(CPU));
    will_look(true);
    assert_eq!([0, 1, CPU].map(looks_at_kicks), [false, false, true]);
    will_look(false);
    assert!(!looks_at_kicks(CPU));
}

/// A CPU's area: a guard page, 64 KiB of stack, a guard page, 16 KiB of emergency stack, the `Cpu`.
#[test]
fn each_stack_is_above_a_guard_page() {
    const PAGE: usize = 4096;
    let guards: Vec<_> = guards().into_iter().map(|guard| guard.start as usize..guard.end as usize).collect();
    assert_eq!(guards.len(), 2 * virt::MAX_CPUS as usize);
    for of_cpu in guards.chunks(2) {
        let [guard, emergency_guard] = of_cpu else { panic!("each CPU has two guard pages") };
        let stack = guard.end..emergency_guard.start;
        let emergency = emergency_guard.end..emergency_guard.end + (16 << 10);
        assert_eq!([guard.len(), emergency_guard.len(), stack.len()], [PAGE, PAGE, 64 << 10]);
        faked::set("TPIDR_EL2", emergency.end as u64);
        assert_eq!(stacks(), [stack.clone(), emergency.clone()]);
        for (address, expected) in [
            (guard.start - 1, false),
            (guard.start, true),
            (guard.end - 1, true),
            (stack.start, false),
            (stack.end - 1, false),
            (stack.end, true),
            (emergency.start - 1, true),
            (emergency.start, false),
        ] {
            assert_eq!(is_guard(address as u64), expected, "{address:#x} of {of_cpu:#x?}");
        }
    }
}
