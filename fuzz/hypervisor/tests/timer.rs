// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the emulated physical timer, and that EL2's own is set as a guest's wants it.

use proptest::prelude::*;
use twofold_fuzz_hypervisor::faked;
use twofold_fuzz_hypervisor::registers::access::Access;
use twofold_fuzz_hypervisor::timer::{self, Due, PhysicalTimer};

const COUNTER: [u64; 5] = [3, 3, 14, 0, 1];
const VALUE: [u64; 5] = [3, 3, 14, 2, 0];
const CONTROL: [u64; 5] = [3, 3, 14, 2, 1];
const COMPARE: [u64; 5] = [3, 3, 14, 2, 2];

fn write(timer: &mut PhysicalTimer, encoding: [u64; 5], value: u64, now: u64) -> Option<bool> {
    let mut x = [0; 31];
    x[3] = value;
    timer.access(&Access { encoding, rt: 3, is_read: false }, &mut x, now)
}

fn read(timer: &mut PhysicalTimer, encoding: [u64; 5], now: u64) -> u64 {
    let mut x = [u64::MAX; 31];
    assert_eq!(timer.access(&Access { encoding, rt: 3, is_read: true }, &mut x, now), Some(false));
    x[3]
}

/// Arm ARM DDI 0487K.a, D11.2.4: the timer fires when the counter reaches the compare value.
#[test]
fn it_fires_when_its_time_has_come() {
    let mut timer = PhysicalTimer::default();
    assert_eq!(timer.due(u64::MAX), Due::Never);
    assert_eq!(write(&mut timer, COMPARE, 100, 0), Some(true));
    assert_eq!(timer.due(100), Due::Never);
    assert_eq!(write(&mut timer, CONTROL, !2, 0), Some(true));
    assert_eq!((timer.due(99), timer.due(100)), (Due::At(100), Due::Now));
    assert_eq!((read(&mut timer, CONTROL, 99), read(&mut timer, CONTROL, 100)), (0b001, 0b101));
    // Masked: the status is still there, the interrupt is not.
    write(&mut timer, CONTROL, 3, 0);
    assert_eq!((timer.due(100), read(&mut timer, CONTROL, 100)), (Due::Never, 0b111));
    // Disabled.
    write(&mut timer, CONTROL, 0, 0);
    assert_eq!((timer.due(100), read(&mut timer, CONTROL, 100)), (Due::Never, 0));
}

/// A time that comes after the line was seen low and before EL2's timer is set is not forgotten.
#[test]
fn el2s_timer_is_for_a_line_that_is_not_known_to_be_high() {
    let mut timer = PhysicalTimer::default();
    write(&mut timer, COMPARE, 100, 0);
    assert_eq!(timer.rise(false), None);
    write(&mut timer, CONTROL, 1, 0);
    assert_eq!(timer.due(99), Due::At(100));
    assert_eq!(timer.rise(timer.due(99) == Due::Now), Some(100));
    assert_eq!(timer.rise(timer.due(100) == Due::Now), None);
    write(&mut timer, CONTROL, 3, 0);
    assert_eq!(timer.rise(false), None);
}

/// D11.2.4: the timer value is the compare value less the counter, of 32 bits with a sign.
#[test]
fn the_timer_value_is_relative() {
    let mut timer = PhysicalTimer::default();
    write(&mut timer, VALUE, 0xdead_0000_0000_0010, 1 << 40);
    assert_eq!(read(&mut timer, COMPARE, 0), (1 << 40) + 0x10);
    assert_eq!(read(&mut timer, VALUE, (1 << 40) + 0x20), 0xffff_fff0);
    write(&mut timer, VALUE, 0xffff_ffff, 5);
    assert_eq!(read(&mut timer, COMPARE, 0), 4);
}

#[test]
fn the_counter_is_the_guests_and_read_only() {
    let mut timer = PhysicalTimer::default();
    assert_eq!(read(&mut timer, COUNTER, 7), 7);
    assert_eq!(read(&mut timer, [3, 3, 14, 0, 5], 8), 8);
    assert_eq!(write(&mut timer, COUNTER, 1, 7), None);
    assert_eq!(write(&mut timer, [3, 3, 14, 3, 1], 1, 7), None, "the virtual timer does not trap");
}

#[test]
fn a_write_from_the_zero_register_writes_zero() {
    let mut timer = PhysicalTimer::default();
    write(&mut timer, CONTROL, 3, 0);
    let from_zero = Access { encoding: CONTROL, rt: 31, is_read: false };
    assert_eq!(timer.access(&from_zero, &mut [3; 31], 0), Some(true));
    assert_eq!(timer.control(), 0);
}

/// A guest that comes from elsewhere brings its timer. Its control has ENABLE and IMASK; ISTATUS is hardware's.
#[test]
fn a_timer_from_elsewhere_has_what_a_guest_can_set() {
    for control in 0..8 {
        let timer = PhysicalTimer::with(77, control);
        let values = timer.map(|timer| (timer.compare(), timer.control()));
        assert_eq!(values, (control < 4).then_some((77, control)), "{control:#b}");
    }
    assert_eq!(PhysicalTimer::with(77, 1 << 63), None);
}

#[test]
fn el2s_timer_is_on_only_with_a_time() {
    timer::arm(77);
    assert_eq!((faked::read("CNTHP_CVAL_EL2"), faked::read("CNTHP_CTL_EL2")), (77, 1));
    timer::arm(u64::MAX);
    assert_eq!(faked::read("CNTHP_CTL_EL2"), 0);
}

proptest! {
    /// What is due follows from what the guest reads back.
    #[test]
    fn what_is_due_is_what_the_registers_say(writes: Vec<(u8, u64, u64)>, now: u64) {
        let mut timer = PhysicalTimer::default();
        for (register, value, at) in writes {
            write(&mut timer, [VALUE, CONTROL, COMPARE][usize::from(register) % 3], value, at);
        }
        let (control, compare) = (read(&mut timer, CONTROL, now), read(&mut timer, COMPARE, now));
        let expected = match control & 0b111 {
            0b101 => Due::Now,
            0b001 => Due::At(compare),
            _ => Due::Never,
        };
        prop_assert_eq!(timer::is_enabled(timer.control()), control & 1 != 0);
        prop_assert_eq!(timer.due(now), expected);
        prop_assert_eq!(control & !0b111, 0);
    }
}
