// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's calls, with good and bad arguments.

use twofold_abi::async_fault::{
    ACKNOWLEDGE, DISABLE, ENABLE, INTID, INVALID_PARAMETER, NO_TOKEN, NOT_SUPPORTED, QUERY, SUCCESS, TOKENS_MAX,
    VERSION, flags, query,
};
use twofold_memory::async_fault::{Mode, Next};

use crate::rig::{AREA, AREA_PAGE, Rig};

#[test]
fn a_query_returns_each_fact() {
    let mut rig = Rig::new(Mode::Pv);
    for (fact, answer) in [
        (query::VERSION, i64::from(VERSION)),
        (query::FLAGS, flags::KERNEL as i64),
        (query::INTID, i64::from(INTID)),
        (query::TOKENS_MAX, TOKENS_MAX as i64),
        (4, INVALID_PARAMETER),
        (u64::MAX, INVALID_PARAMETER),
    ] {
        assert_eq!(rig.call(QUERY, fact, 0), answer);
    }
    assert!((16..32).contains(&INTID), "a PPI");
}

#[test]
fn without_announcements_the_calls_do_not_exist() {
    for mode in [Mode::Off, Mode::Halt] {
        let mut rig = Rig::new(mode);
        for function in [QUERY, ENABLE, DISABLE, ACKNOWLEDGE] {
            assert_eq!(rig.call(function, AREA, 0), NOT_SUPPORTED, "{mode:?}");
        }
    }
}

#[test]
fn other_calls_are_not_answered_here() {
    let mut rig = Rig::new(Mode::Pv);
    for function in [QUERY - 1, ACKNOWLEDGE + 1, 0x8400_0000] {
        assert_eq!(rig.faults.call(&rig.arrivals, &mut rig.host, [function.into(), 0, 0]), None);
    }
    let with_upper_half = [u64::from(QUERY) | 1 << 32, query::VERSION, 0];
    let answer = rig.faults.call(&rig.arrivals, &mut rig.host, with_upper_half);
    assert_eq!(answer, Some(VERSION.into()), "SMCCC reads W0");
}

#[test]
fn a_wrong_area_or_flag_is_refused() {
    let mut rig = Rig::new(Mode::Pv);
    for (area, flags) in [
        (AREA + 32, 0),
        (AREA + 4, 0),
        (AREA_PAGE.raw() + 4096, 0),
        (u64::MAX - 63, 0),
        (AREA, 2),
        (AREA, flags::ALL | 1 << 63),
    ] {
        assert_eq!(rig.call(ENABLE, area, flags), INVALID_PARAMETER, "{area:#x} {flags:#x}");
    }
    assert!(matches!(rig.fault(1), Next::Wait(_)), "nothing was enabled");
    assert_eq!(rig.call(ENABLE, AREA, flags::ALL), SUCCESS);
}

#[test]
fn to_enable_twice_or_disable_twice_is_refused() {
    let mut rig = Rig::enabled();
    let token = rig.announced(1);
    assert_eq!(rig.call(ENABLE, AREA + 64, flags::KERNEL), INVALID_PARAMETER);
    assert!(rig.arrive(1));
    assert_eq!(rig.before_entry(), Next::Enter);
    assert_eq!(rig.take_ready(), token, "the first area is still in use");
    rig.disable();
    assert_eq!(rig.call(DISABLE, 0, 0), INVALID_PARAMETER);
    assert_eq!(rig.acknowledge(NO_TOKEN), INVALID_PARAMETER);
    assert_eq!(rig.host.lowered, 1);
}
