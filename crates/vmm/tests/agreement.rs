// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests CPUs with different features: a guest uses the features that all CPUs have. A CPU that lacks a feature in use
//! is refused by name.

use twofold_stage2::{Features, IdRegisters};
use twofold_vmm::agreement::{Unfit, agree, check};

/// The registers of QEMU 7.2's `-cpu max`.
const MAX: IdRegisters = IdRegisters {
    id_aa64mmfr0: 0x0000_0323_1020_1126,
    id_aa64mmfr1: 0x0000_0110_1021_1122,
    id_aa64mmfr2: 0x1021_0110_1001_1011,
    id_aa64isar0: 0x1221_1111_1021_2120,
    ctr: 0x8444_c004,
    dczid: 7,
};
const RAM_END: u64 = 0x8000_0000;

fn boot() -> Features {
    Features::from_registers(&MAX)
}

fn with(change: impl Fn(&mut IdRegisters)) -> IdRegisters {
    let mut registers = MAX;
    change(&mut registers);
    registers
}

#[test]
fn equal_cpus_lose_nothing() {
    assert_eq!(agree(boot(), [], RAM_END), Ok(boot()));
    assert_eq!(agree(boot(), [Some(MAX); 3], RAM_END), Ok(boot()));
}

#[test]
fn each_feature_that_one_cpu_lacks_is_used_on_none() {
    let fwb = with(|cpu| cpu.id_aa64mmfr2 &= !(0xf << 40));
    let hafdbs = with(|cpu| cpu.id_aa64mmfr1 &= !0xf);
    let lines = with(|cpu| cpu.ctr = cpu.ctr & !(0xf << 16 | 0xf) | 3 << 16 | 2);
    let ttl = with(|cpu| cpu.id_aa64mmfr2 &= !(0xf << 48));
    let range = with(|cpu| cpu.id_aa64isar0 &= !(0xf << 56));
    let zeroing = with(|cpu| cpu.dczid = 4);
    let no_zeroing = with(|cpu| cpu.dczid = 0x17);
    let addresses = with(|cpu| cpu.id_aa64mmfr0 = cpu.id_aa64mmfr0 & !0xf | 2);

    let common = |cpu: IdRegisters| agree(boot(), [Some(MAX), Some(cpu), Some(MAX)], RAM_END).unwrap();
    assert_eq!(common(fwb), boot().with_forced_write_back(false));
    assert_eq!(common(hafdbs), boot().with_hardware_access_flag(false).with_hardware_dirty_state(false));
    assert_eq!(common(lines), boot().with_data_line(32).with_instruction_line(16));
    assert_eq!(common(ttl), boot().with_tlbi_level_hint(false));
    assert_eq!(common(range), boot().with_tlbi_range(false));
    assert_eq!(common(zeroing), boot().with_zero_block(64));
    assert_eq!(common(no_zeroing), boot().with_zero_block(0));
    assert_eq!(common(addresses), boot().with_pa_bits(40));

    // In reverse: a feature that only the boot CPU lacks stays off, and its smaller lines stay in use.
    let small = Features::from_registers(&lines);
    assert_eq!(agree(small, [Some(MAX)], RAM_END), Ok(small));
}

#[test]
fn a_cpu_that_does_not_answer_is_refused_by_name() {
    let error = agree(boot(), [Some(MAX), None], RAM_END).unwrap_err();
    assert_eq!(error, Unfit::Silent { cpu: 2 });
    assert_eq!(error.to_string(), "CPU 2 does not answer: use fewer vCPUs");
}

#[test]
fn a_cpu_that_cannot_reach_the_ram_is_refused_by_name() {
    let short = with(|cpu| cpu.id_aa64mmfr0 &= !0xf);
    assert!(agree(boot(), [Some(short)], 1 << 32).is_ok());
    let error = agree(boot(), [Some(MAX), Some(MAX), Some(short)], (1 << 32) + 4096).unwrap_err();
    assert_eq!(error, Unfit::ShortAddresses { cpu: 3, bits: 32, end: (1 << 32) + 4096 });
}

#[test]
fn a_cpu_that_cannot_keep_what_is_in_use_is_refused_by_name() {
    let in_use = agree(boot(), [Some(MAX)], RAM_END).unwrap();
    assert_eq!(check(1, &in_use, &boot()), Ok(()));
    let lesser = Features::from_registers(&with(|cpu| cpu.id_aa64mmfr2 &= !(0xf << 40)));
    assert_eq!(check(1, &in_use, &lesser), Err(Unfit::Lacks { cpu: 1, feature: "forced_write_back" }));
    let error = check(1, &in_use, &lesser).unwrap_err();
    assert_eq!(error.to_string(), "CPU 1 lacks forced_write_back, which this guest's tables already use");
    // A guest without forced write-back runs there.
    assert_eq!(check(1, &in_use.common(&lesser), &lesser), Ok(()));
}
