// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves how a CPU is started: what it reads is published before the firmware is called, which orders nothing by itself.

use std::iter;

use twofold_abi::virt;
use twofold_fuzz_hypervisor::board::Board;
use twofold_fuzz_hypervisor::cpus::{StartError, start};
use twofold_fuzz_hypervisor::power::{Conduit, UNKNOWN_CPU};
use twofold_fuzz_hypervisor::{Done, done};

fn board(cpus: &[u64]) -> Board {
    Board {
        ram: iter::once(virt::RAM_BASE..virt::RAM_BASE + (1 << 30)).collect(),
        reserved: Default::default(),
        no_map: Default::default(),
        gicd: 0..0,
        gicr: Default::default(),
        uart: 0..0,
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
