// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the decoding of a guest's access to a device.

use proptest::prelude::*;
use twofold_devices::Width;
use twofold_fuzz_hypervisor::mmio::{Access, Order};

const DATA_ABORT: u64 = 0x24 << 26 | 1 << 25;
const ISV: u64 = 1 << 24;
const SSE: u64 = 1 << 21;
const SF: u64 = 1 << 15;
const WRITE: u64 = 1 << 6;

fn syndrome(sas: u64, register: u64, bits: u64) -> u64 {
    DATA_ABORT | ISV | sas << 22 | register << 16 | bits | 0b111
}

/// Each form of load: `ldrb`, `ldrsb` to W and X, and so on, from the architecture's description of the instructions.
#[test]
fn a_load_extends_as_its_instruction_does() {
    let value = 0x8182_8384_8586_8788;
    for (sas, bits, expected) in [
        (0, 0, 0x88),
        (0, SSE, 0xffff_ff88),
        (0, SSE | SF, 0xffff_ffff_ffff_ff88),
        (1, 0, 0x8788),
        (1, SSE, 0xffff_8788),
        (1, SSE | SF, 0xffff_ffff_ffff_8788),
        (2, 0, 0x8586_8788),
        (2, SSE | SF, 0xffff_ffff_8586_8788),
        (3, SF, value),
    ] {
        let access = Access::from_syndrome(syndrome(sas, 5, bits)).unwrap();
        let mut x = [u64::MAX; 31];
        access.load(&mut x, value, Order::Little);
        let mut all = [u64::MAX; 31];
        all[5] = expected;
        assert_eq!(x, all, "SAS {sas}, {bits:#x}");
        assert!(!access.is_write);
    }
}

#[test]
fn a_store_has_the_width_of_its_instruction() {
    let mut x = [0; 31];
    x[30] = 0x8182_8384_8586_8788;
    for (sas, width, little, big) in [
        (0, Width::Byte, 0x88, 0x88),
        (1, Width::Half, 0x8788, 0x8887),
        (2, Width::Word, 0x8586_8788, 0x8887_8685),
        (3, Width::Double, 0x8182_8384_8586_8788, 0x8887_8685_8483_8281),
    ] {
        let access = Access::from_syndrome(syndrome(sas, 30, WRITE)).unwrap();
        assert!(access.is_write && access.width == width);
        assert_eq!((access.stored(&x, Order::Little), access.stored(&x, Order::Big)), (little, big));
    }
}

#[test]
fn the_zero_register_reads_zero_and_is_not_written() {
    let mut x = [7; 31];
    let access = Access::from_syndrome(syndrome(3, 31, WRITE)).unwrap();
    assert_eq!(access.stored(&x, Order::Little), 0);
    access.load(&mut x, 9, Order::Little);
    assert_eq!(x, [7; 31]);
}

#[test]
fn what_the_syndrome_does_not_describe_is_no_access() {
    let good = syndrome(2, 0, 0);
    assert!(Access::from_syndrome(good).is_some());
    assert_eq!(Access::from_syndrome(good | !0 << 32), Access::from_syndrome(good), "ISS2 is above the class");
    for bad in [good & !ISV, good | 1 << 8, good | 1 << 7, good ^ 1 << 26, good ^ 1 << 28] {
        assert_eq!(Access::from_syndrome(bad), None, "{bad:#x}");
    }
}

#[test]
fn the_order_of_bytes_is_that_of_the_accessing_level() {
    const EE: u64 = 1 << 25;
    const E0E: u64 = 1 << 24;
    const EL1H: u64 = 5;
    const EL0: u64 = 0;
    const AARCH32: u64 = 1 << 4;
    for (pstate, sctlr, order) in [
        (EL1H, E0E, Order::Little),
        (EL1H, EE, Order::Big),
        (EL0, EE, Order::Little),
        (EL0, E0E, Order::Big),
        (AARCH32, EE | E0E, Order::Little),
        (AARCH32 | 1 << 9, 0, Order::Big),
    ] {
        assert_eq!(Order::of(pstate, sctlr), order, "{pstate:#x} {sctlr:#x}");
    }
}

proptest! {
    /// Each field is where the manual has it, whatever the others hold.
    #[test]
    fn each_field_is_decoded_by_itself(bits: u64, class in prop_oneof![Just(0x24_u64), 0_u64..64], valid in 0_u64..8) {
        let clear = !(0x3f << 26 | 1 << 24 | 1 << 8 | 1 << 7);
        let syndrome = bits & clear | class << 26 | (valid & 1) << 24 | (valid >> 1 & 1) << 8 | (valid >> 2) << 7;
        let field = |high: u64, low: u64| syndrome >> low & ((2 << (high - low)) - 1);
        let access = Access::from_syndrome(syndrome);
        prop_assert_eq!(access.is_some(), class == 0x24 && valid == 1);
        if let Some(access) = access {
            prop_assert_eq!(access.width.bytes(), 1 << field(23, 22));
            prop_assert_eq!(access.is_write, field(6, 6) == 1);
            let x = core::array::from_fn(|register| register as u64 + 1);
            let register = field(20, 16);
            prop_assert_eq!(access.stored(&x, Order::Little), if register == 31 { 0 } else { register + 1 });
            let mut x = [0; 31];
            access.load(&mut x, u64::MAX, Order::Little);
            let narrow = u64::MAX >> (64 - 8 * access.width.bytes());
            let value = if field(21, 21) == 1 { u64::MAX } else { narrow };
            let value = if field(15, 15) == 1 { value } else { value & 0xffff_ffff };
            prop_assert_eq!(x.get(register as usize).copied().unwrap_or(value), value);
            prop_assert_eq!(x.iter().filter(|other| **other != 0).count(), usize::from(register != 31));
        }
    }

    /// One bit of each register decides about the order.
    #[test]
    fn one_bit_decides_about_the_order(pstate: u64, sctlr: u64) {
        let bit = |register: u64, bit: u32| register >> bit & 1 == 1;
        let is_big = if bit(pstate, 4) {
            bit(pstate, 9)
        } else if pstate >> 2 & 3 == 0 {
            bit(sctlr, 24)
        } else {
            bit(sctlr, 25)
        };
        prop_assert_eq!(Order::of(pstate, sctlr) == Order::Big, is_big);
    }

    /// No syndrome panics, and a value that is stored is loaded again.
    #[test]
    fn a_stored_value_is_loaded_again(syndrome: u64, value: u64, is_big: bool) {
        let order = if is_big { Order::Big } else { Order::Little };
        if let Some(access) = Access::from_syndrome(syndrome) {
            let mut x = [value; 31];
            let stored = access.stored(&x, order);
            prop_assert_eq!(stored & !access.width.mask(), 0);
            access.load(&mut x, stored, order);
            // The architecture has no load of 64 bits into a W register.
            prop_assume!(access.width != Width::Double || syndrome & SF != 0);
            prop_assert_eq!(access.stored(&x, order), stored);
        }
    }
}
