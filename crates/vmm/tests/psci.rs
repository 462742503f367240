// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests PSCI's answers (Arm DEN0022), call by call: the vCPU that a call names, the addresses where it may start, and
//! the state after a failed start.

use std::cell::{Cell, RefCell};
use std::fmt;

use twofold_vmm::psci::{NotStarted, Reply, Vcpus, call};

const VERSION: u64 = 0x8400_0000;
const CPU_SUSPEND: u64 = 0x8400_0001;
const CPU_OFF: u64 = 0x8400_0002;
const CPU_ON_32: u64 = 0x8400_0003;
const CPU_ON_64: u64 = 0xc400_0003;
const AFFINITY_INFO_32: u64 = 0x8400_0004;
const AFFINITY_INFO_64: u64 = 0xc400_0004;
const MIGRATE_INFO_TYPE: u64 = 0x8400_0006;
const SYSTEM_OFF: u64 = 0x8400_0008;
const SYSTEM_RESET: u64 = 0x8400_0009;
const FEATURES: u64 = 0x8400_000a;

const SUCCESS: i64 = 0;
const NOT_SUPPORTED: i64 = -1;
const INVALID_PARAMETERS: i64 = -2;
const ALREADY_ON: i64 = -4;
const ON_PENDING: i64 = -5;
const INTERNAL_FAILURE: i64 = -6;
const INVALID_ADDRESS: i64 = -9;

/// Affinities of the vCPUs; the last one has a part above 32 bits.
const MPIDRS: [u64; 3] = [0, 0x101, 0x1_0000_0002];
const RAM: u64 = 0x4000_0000;
/// Arbitrary bits in the upper half of a register, which a 32-bit call must ignore.
const JUNK: u64 = 0xdead_beef << 32;

#[derive(Default)]
struct Fake {
    on: [Cell<bool>; 3],
    /// The firmware's error for a start.
    error: Cell<Option<NotStarted<&'static str>>>,
    /// Whether the CPUs that are off still run: they are marked off first.
    leaving: Cell<bool>,
    started: RefCell<Vec<(usize, u64, u64)>>,
    refused: RefCell<Vec<String>>,
}

impl Vcpus for Fake {
    type Why = &'static str;

    fn find(&self, mpidr: u64) -> Option<usize> {
        MPIDRS.iter().position(|of| *of == mpidr)
    }

    fn is_ram(&self, address: u64) -> bool {
        (RAM..RAM + 0x1000).contains(&address)
    }

    fn try_on(&self, index: usize) -> bool {
        !self.on[index].replace(true)
    }

    fn set_off(&self, index: usize) {
        self.on[index].set(false);
    }

    fn start(&self, index: usize, entry: u64, argument: u64) -> Result<(), NotStarted<&'static str>> {
        assert!(self.on[index].get(), "vCPU {index} is started without being marked on");
        self.started.borrow_mut().push((index, entry, argument));
        self.error.get().map_or(Ok(()), Err)
    }

    fn is_off(&self, index: usize) -> bool {
        !self.on[index].get() && !self.leaving.get()
    }

    fn refused(&self, why: fmt::Arguments) {
        self.refused.borrow_mut().push(why.to_string());
    }
}

impl Fake {
    /// Creates the fake with vCPU 0 on, which makes the calls.
    fn new() -> Self {
        let fake = Self::default();
        fake.on[0].set(true);
        fake
    }

    fn answer(&self, arguments: [u64; 4]) -> i64 {
        match call(self, 0, &arguments) {
            Reply::Return(value) => value as i64,
            reply => panic!("{reply:?}"),
        }
    }

    fn is_on(&self) -> [bool; 3] {
        [0, 1, 2].map(|index| self.on[index].get())
    }
}

#[test]
fn a_vcpu_starts_at_the_address_of_its_call() {
    let fake = Fake::new();
    assert_eq!(fake.answer([CPU_ON_64, MPIDRS[2], RAM + 8, 1 << 40 | 7]), SUCCESS);
    assert_eq!(fake.started.take(), [(2, RAM + 8, 1 << 40 | 7)]);
    assert_eq!(fake.is_on(), [true, false, true]);
    assert_eq!(fake.answer([CPU_ON_64, MPIDRS[2], RAM, 0]), ALREADY_ON);
    assert_eq!(fake.started.take(), []);
}

#[test]
fn a_32_bit_call_has_32_bit_arguments() {
    let fake = Fake::new();
    assert_eq!(fake.answer([CPU_ON_32, MPIDRS[1] | JUNK, RAM | JUNK, 7 | JUNK]), SUCCESS);
    assert_eq!(fake.started.take(), [(1, RAM, 7)]);
    assert_eq!(fake.answer([AFFINITY_INFO_32, MPIDRS[1] | JUNK, JUNK, 0]), 0);
    // A 64-bit call does not name the vCPU of the lower half alone.
    assert_eq!(fake.answer([CPU_ON_64, MPIDRS[1] | JUNK, RAM, 0]), INVALID_PARAMETERS);
    assert_eq!(fake.answer([AFFINITY_INFO_64, MPIDRS[1] | JUNK, 0, 0]), INVALID_PARAMETERS);
    assert_eq!(fake.answer([FEATURES, CPU_ON_64 | JUNK, 0, 0]), SUCCESS);
}

#[test]
fn no_vcpu_starts_where_no_ram_is() {
    let fake = Fake::new();
    for entry in [0, 0x0900_0000, RAM - 4, RAM + 0x1000, 1 << 48, u64::MAX] {
        assert_eq!(fake.answer([CPU_ON_64, MPIDRS[1], entry, 0]), INVALID_ADDRESS, "{entry:#x}");
    }
    assert_eq!((fake.started.take(), fake.is_on()), (vec![], [true, false, false]));
    assert_eq!(fake.answer([CPU_ON_64, 0x77, 0, 0]), INVALID_PARAMETERS, "the vCPU is checked first");
    assert_eq!(fake.answer([CPU_ON_64, MPIDRS[1], RAM, 0]), SUCCESS);
}

#[test]
fn a_start_that_fails_leaves_the_vcpu_off() {
    let fake = Fake::new();
    for (error, expected) in [
        (NotStarted::AlreadyOn, ALREADY_ON),
        (NotStarted::OnPending, ON_PENDING),
        (NotStarted::Failed("the firmware failed"), INTERNAL_FAILURE),
        (NotStarted::Failed("no such CPU"), INTERNAL_FAILURE),
    ] {
        fake.error.set(Some(error));
        assert_eq!(fake.answer([CPU_ON_64, MPIDRS[1], RAM, 0]), expected, "{error:?}");
        assert_eq!(fake.is_on(), [true, false, false], "{error:?}");
    }
    assert_eq!(fake.refused.take().len(), 2, "each INTERNAL_FAILURE has a reason in the log");
    fake.error.set(None);
    assert_eq!(fake.answer([CPU_ON_64, MPIDRS[1], RAM, 0]), SUCCESS);
}

#[test]
fn affinity_info_is_of_one_vcpu() {
    const ON: i64 = 0;
    const OFF: i64 = 1;
    let fake = Fake::new();
    for function in [AFFINITY_INFO_32, AFFINITY_INFO_64] {
        let info = |mpidr, level| fake.answer([function, mpidr, level, 0]);
        assert_eq!((info(MPIDRS[0], 0), info(MPIDRS[1], 0)), (ON, OFF));
        assert_eq!(info(0x77, 0), INVALID_PARAMETERS);
        for level in [1, 2, 3, 4] {
            assert_eq!(info(MPIDRS[0], level), INVALID_PARAMETERS, "level {level}");
        }
    }
    fake.leaving.set(true);
    assert_eq!(fake.answer([AFFINITY_INFO_64, MPIDRS[1], 0, 0]), ON, "until its CPU is off");
}

#[test]
fn each_function_has_its_answer() {
    let fake = Fake::new();
    assert_eq!(fake.answer([VERSION, 0, 0, 0]), 0x1_0001);
    assert_eq!(fake.answer([CPU_SUSPEND, 0, 0, 0]), SUCCESS);
    assert_eq!(fake.answer([FEATURES, CPU_ON_64, 0, 0]), SUCCESS);
    assert_eq!(fake.answer([MIGRATE_INFO_TYPE, 0, 0, 0]), 2, "there is no Trusted OS to migrate");
    assert_eq!(fake.answer([FEATURES, 0x8400_000e, 0, 0]), NOT_SUPPORTED);
    for function in [0x8400_000e, 0, u64::MAX] {
        assert_eq!(fake.answer([function, 0, 0, 0]), NOT_SUPPORTED, "{function:#x}");
    }
    assert_eq!(call(&fake, 0, &[SYSTEM_OFF, 0, 0, 0]), Reply::SystemOff);
    assert_eq!(call(&fake, 0, &[SYSTEM_RESET, 0, 0, 0]), Reply::SystemReset);
    assert_eq!(fake.is_on(), [true, false, false]);
    assert_eq!(call(&fake, 0, &[CPU_OFF, 0, 0, 0]), Reply::Off);
    assert_eq!(fake.is_on(), [false; 3]);
}
