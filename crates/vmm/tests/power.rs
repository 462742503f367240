// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests PSCI 1.1 (Arm DEN0022) call by call, and random calls of eight vCPUs against a naive model.

use proptest::prelude::*;
use twofold_vmm::power::{End, Power, Reply, RestoreError, Saved, Start, State};

const VERSION: u32 = 0x8400_0000;
const CPU_SUSPEND_32: u32 = 0x8400_0001;
const CPU_SUSPEND_64: u32 = 0xc400_0001;
const CPU_OFF: u32 = 0x8400_0002;
const CPU_ON_32: u32 = 0x8400_0003;
const CPU_ON_64: u32 = 0xc400_0003;
const AFFINITY_INFO_32: u32 = 0x8400_0004;
const AFFINITY_INFO_64: u32 = 0xc400_0004;
const MIGRATE_INFO_TYPE: u32 = 0x8400_0006;
const SYSTEM_OFF: u32 = 0x8400_0008;
const SYSTEM_RESET: u32 = 0x8400_0009;
const FEATURES: u32 = 0x8400_000a;
const SYSTEM_RESET2_32: u32 = 0x8400_0012;
const SYSTEM_RESET2_64: u32 = 0xc400_0012;

const SUCCESS: i64 = 0;
const NOT_SUPPORTED: i64 = -1;
const INVALID_PARAMETERS: i64 = -2;
const ALREADY_ON: i64 = -4;
const ON_PENDING: i64 = -5;
const INVALID_ADDRESS: i64 = -9;

/// Two groups of four; the last vCPU has a part above 32 bits.
const AFFINITIES: [u64; 8] = [0, 1, 2, 3, 0x100, 0x101, 0x1_0000, 0x1_0000_0002];
const RAM: std::ops::Range<u64> = 0x4000_0000..0x4000_1000;
const BOOT: Start = Start { entry: 0x4000_0080, argument: 0x4000_0900 };
/// Arbitrary bits in the upper half of a register, which a 32-bit call must ignore.
const JUNK: u64 = 0xdead_beef << 32;

/// A guest whose first vCPU runs.
fn power() -> Power {
    let mut power = Power::new(AFFINITIES, BOOT);
    assert_eq!(power.begin(0), Some(BOOT));
    power
}

fn call(power: &mut Power, caller: usize, function: u32, arguments: [u64; 3]) -> Option<Reply> {
    power.call(caller, function, arguments, |address| RAM.contains(&address))
}

fn value(reply: Option<Reply>) -> i64 {
    match reply {
        Some(Reply::Return(value)) => value as i64,
        Some(Reply::Start(value, _)) => value as i64,
        None => NOT_SUPPORTED,
        reply => panic!("{reply:?}"),
    }
}

fn answer(power: &mut Power, function: u32, arguments: [u64; 3]) -> i64 {
    value(call(power, 0, function, arguments))
}

/// The state after CPU_ON of `vcpu`, and after its first instruction.
fn switch_on(power: &mut Power, vcpu: usize) {
    let start = Start { entry: RAM.start + 4 * vcpu as u64, argument: vcpu as u64 };
    let reply = call(power, 0, CPU_ON_64, [AFFINITIES[vcpu], start.entry, start.argument]);
    assert_eq!(reply, Some(Reply::Start(0, vcpu)));
    assert_eq!(power.state(vcpu), Some(State::OnPending(start)));
    assert_eq!((power.begin(vcpu), power.state(vcpu)), (Some(start), Some(State::On)));
}

#[test]
fn a_vcpu_is_pending_from_its_call_to_its_first_instruction() {
    let mut power = power();
    let on = [AFFINITIES[7], RAM.start + 8, 1 << 40 | 7];
    let start = Start { entry: RAM.start + 8, argument: 1 << 40 | 7 };
    assert_eq!(call(&mut power, 0, CPU_ON_64, on), Some(Reply::Start(0, 7)));
    assert_eq!(answer(&mut power, CPU_ON_64, on), ON_PENDING);
    assert_eq!(answer(&mut power, AFFINITY_INFO_64, [AFFINITIES[7], 0, 0]), 2);
    assert_eq!(power.begin(7), Some(start));
    assert_eq!(answer(&mut power, CPU_ON_64, on), ALREADY_ON);
    assert_eq!(answer(&mut power, AFFINITY_INFO_64, [AFFINITIES[7], 0, 0]), 0);
    assert_eq!((power.begin(7), power.begin(8)), (None, None), "a vCPU begins once");
    assert_eq!(answer(&mut power, CPU_ON_64, [AFFINITIES[0], RAM.start, 0]), ALREADY_ON, "itself");
}

#[test]
fn the_reason_of_a_refusal_is_the_first_in_order() {
    let mut power = power();
    for entry in [0, 0x0900_0000, RAM.start - 4, RAM.end, 1 << 48, u64::MAX, RAM.start + 1, RAM.start + 2] {
        assert_eq!(answer(&mut power, CPU_ON_64, [AFFINITIES[1], entry, 0]), INVALID_ADDRESS, "{entry:#x}");
        assert_eq!(answer(&mut power, CPU_ON_64, [0x77, entry, 0]), INVALID_PARAMETERS, "{entry:#x}");
        assert_eq!(answer(&mut power, CPU_ON_64, [0, entry, 0]), INVALID_ADDRESS, "{entry:#x}");
    }
    assert_eq!(power.state(1), Some(State::Off));
}

#[test]
fn a_32_bit_call_has_32_bit_arguments() {
    let mut power = power();
    let on = [AFFINITIES[1] | JUNK, RAM.start | JUNK, 7 | JUNK];
    assert_eq!(answer(&mut power, CPU_ON_64, on), INVALID_PARAMETERS);
    assert_eq!(answer(&mut power, CPU_ON_32, on), SUCCESS);
    assert_eq!(power.begin(1), Some(Start { entry: RAM.start, argument: 7 }));
    assert_eq!(answer(&mut power, AFFINITY_INFO_32, [1 | JUNK, JUNK, JUNK]), 0);
    assert_eq!(answer(&mut power, AFFINITY_INFO_64, [1 | JUNK, 0, 0]), INVALID_PARAMETERS);
    assert_eq!(answer(&mut power, AFFINITY_INFO_64, [1, JUNK, 0]), INVALID_PARAMETERS);
    assert_eq!(answer(&mut power, FEATURES, [u64::from(CPU_ON_64) | JUNK, 0, 0]), SUCCESS);
    assert_eq!(call(&mut power, 1, CPU_SUSPEND_32, [JUNK, 0, 0]), Some(Reply::Suspend(0)));
    assert_eq!(call(&mut power, 0, SYSTEM_RESET2_32, [JUNK, JUNK, 0]), Some(Reply::End(End::WarmReset)));
}

#[test]
fn affinity_info_is_of_a_group() {
    let mut power = power();
    let info = |power: &mut Power, target, level| answer(power, AFFINITY_INFO_64, [target, level, 0]);
    // The first group has a vCPU that is on; what is below the level is ignored.
    assert_eq!((info(&mut power, 0, 1), info(&mut power, 0xee, 1), info(&mut power, 0xffee, 2)), (0, 0, 0));
    assert_eq!((info(&mut power, 0x100, 1), info(&mut power, 0x1_0000, 2)), (1, 1));
    assert_eq!((info(&mut power, 0, 3), info(&mut power, 1 << 32, 3)), (0, 1));
    switch_on(&mut power, 4);
    assert_eq!((info(&mut power, 0x105, 1), info(&mut power, 0x105, 0)), (0, INVALID_PARAMETERS));
    // Pending is more than off, and less than on.
    assert_eq!(call(&mut power, 4, CPU_OFF, [0; 3]), Some(Reply::Off));
    assert_eq!(info(&mut power, 0x100, 1), 1);
    assert_eq!(answer(&mut power, CPU_ON_64, [0x101, RAM.start, 0]), SUCCESS);
    assert_eq!((info(&mut power, 0x100, 1), info(&mut power, 0x100, 2)), (2, 0));
    for (target, level) in [(0, 4), (0, u64::MAX), (0x200, 1), (2 << 32, 3), (1 << 24, 0), (1 << 24, 3), (1 << 40, 3)] {
        assert_eq!(info(&mut power, target, level), INVALID_PARAMETERS, "{target:#x} of level {level}");
    }
}

#[test]
fn a_suspended_vcpu_is_on_and_waits_for_an_interrupt() {
    for function in [CPU_SUSPEND_32, CPU_SUSPEND_64] {
        let mut power = power();
        switch_on(&mut power, 1);
        assert!(!power.resume(1), "it does not wait");
        assert_eq!(call(&mut power, 1, function, [0, u64::MAX, 0]), Some(Reply::Suspend(0)));
        assert_eq!(power.state(1), Some(State::Suspended));
        assert_eq!(answer(&mut power, AFFINITY_INFO_64, [1, 0, 0]), 0);
        assert_eq!(answer(&mut power, CPU_ON_64, [1, RAM.start, 0]), ALREADY_ON);
        assert!(power.resume(1) && !power.resume(1));
        assert_eq!(power.state(1), Some(State::On));
        // Power-down, a group of vCPUs, another state, reserved bits.
        for state in [1 << 16, 1 << 24, 1, 1 << 17, 1 << 31] {
            assert_eq!(value(call(&mut power, 1, function, [state, RAM.start, 0])), INVALID_PARAMETERS, "{state:#x}");
        }
        assert!(!power.resume(8));
    }
}

#[test]
fn the_first_end_counts_and_nothing_happens_after_it() {
    for (function, arguments, end) in [
        (SYSTEM_OFF, [0; 3], End::PowerOff),
        (SYSTEM_RESET, [0; 3], End::ColdReset),
        (SYSTEM_RESET2_32, [0, 7, 0], End::WarmReset),
        (SYSTEM_RESET2_64, [0, 7, 0], End::WarmReset),
    ] {
        let mut power = power();
        switch_on(&mut power, 1);
        assert_eq!(answer(&mut power, CPU_ON_64, [2, RAM.start, 0]), SUCCESS);
        assert_eq!(call(&mut power, 0, function, arguments), Some(Reply::End(end)));
        let before = power.save();
        for other in [SYSTEM_OFF, SYSTEM_RESET, CPU_OFF, VERSION, CPU_SUSPEND_64, 0x8400_001f] {
            assert_eq!(call(&mut power, 1, other, [0; 3]), Some(Reply::Stop), "{other:#x}");
        }
        assert_eq!((power.begin(2), power.end(), power.save()), (None, Some(end), before));
        power.restart();
        assert_eq!((power.end(), power.state(1), power.state(2)), (None, Some(State::Off), Some(State::Off)));
        assert_eq!((power.begin(1), power.begin(0)), (None, Some(BOOT)));
    }
    let mut power = power();
    for kind in [1, 0x7fff_ffff, 1 << 31, u64::from(u32::MAX)] {
        assert_eq!(answer(&mut power, SYSTEM_RESET2_32, [kind, 0, 0]), INVALID_PARAMETERS, "{kind:#x}");
        assert_eq!(answer(&mut power, SYSTEM_RESET2_64, [kind, 0, 0]), INVALID_PARAMETERS, "{kind:#x}");
    }
    assert_eq!(power.end(), None);
}

#[test]
fn features_are_exactly_what_is_answered() {
    const SMCCC_VERSION: u64 = 0x8000_0000;
    let mut power = power();
    assert_eq!(answer(&mut power, VERSION, [0; 3]), 0x1_0001);
    assert_eq!(answer(&mut power, MIGRATE_INFO_TYPE, [0; 3]), 2);
    assert_eq!(answer(&mut power, FEATURES, [SMCCC_VERSION, 0, 0]), SUCCESS);
    let mut there = Vec::new();
    for function in (0x8400_0000..0x8400_0100).chain(0xc400_0000..0xc400_0100) {
        let feature = answer(&mut power, FEATURES, [u64::from(function), 0, 0]);
        // Each call is made of another guest, since it may end it.
        let is_answered = call(&mut power.clone(), 0, function, [u64::MAX; 3]).is_some();
        assert_eq!(feature, if is_answered { SUCCESS } else { NOT_SUPPORTED }, "{function:#x}");
        there.extend(is_answered.then_some(function));
    }
    let offsets = |first: u32| there.iter().filter(move |one| **one & !0xff == first).map(|one| one & 0xff);
    assert_eq!(offsets(0x8400_0000).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 6, 8, 9, 0xa, 0x12]);
    assert_eq!(offsets(0xc400_0000).collect::<Vec<_>>(), [1, 3, 4, 0x12]);
}

#[test]
fn a_guest_without_a_vcpu_that_is_on_is_dead() {
    let mut power = power();
    switch_on(&mut power, 3);
    assert_eq!(call(&mut power, 0, CPU_OFF, [0; 3]), Some(Reply::Off));
    assert!(!power.is_dead());
    assert_eq!(call(&mut power, 3, CPU_OFF, [0; 3]), Some(Reply::Off));
    assert!(power.is_dead());
    assert_eq!(call(&mut power, 3, VERSION, [0; 3]), Some(Reply::Stop), "it is off");
    assert_eq!(call(&mut power, 9, VERSION, [0; 3]), Some(Reply::Stop), "there is no such vCPU");
}

#[test]
fn an_impossible_state_is_refused_and_changes_nothing() {
    let mut power = power();
    let before = power.save();
    let saved = Saved { states: vec![State::On; 7], end: None };
    assert_eq!(power.restore(&saved), Err(RestoreError::Count { saved: 7, here: 8 }));
    let mut saved = Saved { states: vec![State::On; 8], end: None };
    saved.states[5] = State::OnPending(Start { entry: 6, argument: 0 });
    assert_eq!(power.restore(&saved), Err(RestoreError::Entry { vcpu: 5, entry: 6 }));
    assert_eq!(power.save(), before);
    saved.states[5] = State::OnPending(Start { entry: 8, argument: 0 });
    assert_eq!(power.restore(&saved), Ok(()));
    assert_eq!(power.save(), saved);
}

/// One vCPU of the model: whether it is off, the start that it was asked for, whether it waits.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    off: [bool; 8],
    asked: [Option<(u64, u64)>; 8],
    waits: [bool; 8],
    ended: Option<&'static str>,
}

impl Model {
    fn new() -> Self {
        let mut model = Self { off: [true; 8], ..Self::default() };
        model.off[0] = false;
        model
    }

    /// The answer as text, from the specification's tables, with no thought for speed.
    fn call(&mut self, caller: usize, function: u32, arguments: [u64; 3]) -> String {
        if self.ended.is_some() || self.off[caller] || self.asked[caller].is_some() || self.waits[caller] {
            return "stop".into();
        }
        let wide = function >> 24 == 0xc4;
        let cut = |value: u64| if wide { value } else { value % (1 << 32) };
        let [a, b, c] = arguments.map(cut);
        let field = |value: u64, level: usize| value >> [0, 8, 16, 32][level] & 0xff;
        let has_reserved = |value: u64| value >> 40 != 0 || value >> 24 & 0xff != 0;
        let same = |one: u64, other: u64, from: usize| (from..4).all(|at| field(one, at) == field(other, at));
        let of_level = |level: usize| -> Vec<usize> {
            (0..8).filter(|vcpu| !has_reserved(a) && same(AFFINITIES[*vcpu], a, level)).collect()
        };
        match function {
            VERSION => "65537".into(),
            MIGRATE_INFO_TYPE => "2".into(),
            CPU_ON_32 | CPU_ON_64 => {
                let Some(target) = of_level(0).first().copied() else { return "-2".into() };
                if b % 4 != 0 || !RAM.contains(&b) {
                    "-9".into()
                } else if self.asked[target].is_some() {
                    "-5".into()
                } else if !self.off[target] {
                    "-4".into()
                } else {
                    (self.off[target], self.asked[target]) = (false, Some((b, c)));
                    format!("start {target}")
                }
            }
            AFFINITY_INFO_32 | AFFINITY_INFO_64 if b > 3 => "-2".into(),
            AFFINITY_INFO_32 | AFFINITY_INFO_64 => {
                let group = of_level(b as usize);
                let any = |is: &dyn Fn(usize) -> bool| group.iter().any(|vcpu| is(*vcpu));
                if group.is_empty() {
                    "-2".into()
                } else if any(&|vcpu| !self.off[vcpu] && self.asked[vcpu].is_none()) {
                    "0".into()
                } else if any(&|vcpu| self.asked[vcpu].is_some()) {
                    "2".into()
                } else {
                    "1".into()
                }
            }
            CPU_SUSPEND_32 | CPU_SUSPEND_64 if a % (1 << 32) != 0 => "-2".into(),
            CPU_SUSPEND_32 | CPU_SUSPEND_64 => {
                self.waits[caller] = true;
                "suspend".into()
            }
            CPU_OFF => {
                self.off[caller] = true;
                "off".into()
            }
            SYSTEM_OFF | SYSTEM_RESET => self.end(if function == SYSTEM_OFF { "PowerOff" } else { "ColdReset" }),
            SYSTEM_RESET2_32 | SYSTEM_RESET2_64 if a % (1 << 32) == 0 => self.end("WarmReset"),
            SYSTEM_RESET2_32 | SYSTEM_RESET2_64 => "-2".into(),
            _ => "-1".into(),
        }
    }

    fn end(&mut self, how: &'static str) -> String {
        self.ended = Some(how);
        format!("end {how}")
    }
}

fn shown(reply: Option<Reply>) -> String {
    match reply {
        None => "-1".into(),
        Some(Reply::Return(value)) => (value as i64).to_string(),
        Some(Reply::Start(0, vcpu)) => format!("start {vcpu}"),
        Some(Reply::Suspend(0)) => "suspend".into(),
        Some(Reply::Off) => "off".into(),
        Some(Reply::Stop) => "stop".into(),
        Some(Reply::End(end)) => format!("end {end:?}"),
        reply => panic!("{reply:?}"),
    }
}

#[derive(Clone, Debug)]
enum Event {
    Call(usize, u32, [u64; 3]),
    Begin(usize),
    Interrupt(usize),
    Restart,
    SaveAndRestore,
}

fn events() -> impl Strategy<Value = Event> {
    let functions = prop_oneof![
        12 => Just(CPU_ON_64), 4 => Just(CPU_ON_32), 8 => Just(AFFINITY_INFO_64), 3 => Just(AFFINITY_INFO_32),
        6 => Just(CPU_SUSPEND_64), 2 => Just(CPU_SUSPEND_32), 6 => Just(CPU_OFF), 1 => Just(VERSION),
        1 => Just(MIGRATE_INFO_TYPE), 1 => prop::sample::select(vec![SYSTEM_OFF, SYSTEM_RESET]),
        1 => prop::sample::select(vec![SYSTEM_RESET2_32, SYSTEM_RESET2_64]),
        1 => 0x8400_000b_u32..0x8400_0012,
    ];
    let target = prop_oneof![
        8 => prop::sample::select(AFFINITIES.to_vec()),
        2 => prop::sample::select(AFFINITIES.to_vec()).prop_map(|affinity| affinity | JUNK),
        2 => 0_u64..0x400, 1 => any::<u64>(), 2 => Just(0),
    ];
    let entry = prop_oneof![6 => RAM, 4 => (RAM.start / 4..RAM.end / 4).prop_map(|at| at * 4), 3 => 0_u64..6, 1 => any::<u64>()];
    prop_oneof![
        20 => (0_usize..8, functions, target, entry, any::<u64>())
            .prop_map(|(caller, function, a, b, c)| Event::Call(caller, function, [a, b, c])),
        8 => (0_usize..8).prop_map(Event::Begin),
        4 => (0_usize..8).prop_map(Event::Interrupt),
        1 => Just(Event::Restart),
        1 => Just(Event::SaveAndRestore),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Each answer and each state is the naive model's, also after a save and a restore at any step.
    #[test]
    fn a_naive_model_agrees(events in prop::collection::vec(events(), 1..80)) {
        let (mut power, mut model) = (power(), Model::new());
        for event in events {
            match event {
                Event::Call(caller, function, arguments) => {
                    let expected = model.call(caller, function, arguments);
                    prop_assert_eq!(shown(call(&mut power, caller, function, arguments)), expected, "{:x?}", event);
                }
                Event::Begin(vcpu) => {
                    let expected = if model.ended.is_none() { model.asked[vcpu].take() } else { None };
                    let began = power.begin(vcpu).map(|start| (start.entry, start.argument));
                    prop_assert_eq!(began, expected);
                }
                Event::Interrupt(vcpu) => {
                    prop_assert_eq!(power.resume(vcpu), model.waits[vcpu]);
                    model.waits[vcpu] = false;
                }
                Event::Restart => {
                    // Only after an end: before, vCPUs run.
                    if model.ended.is_some() {
                        power.restart();
                        prop_assert_eq!(power.begin(0), Some(BOOT));
                        model = Model::new();
                    }
                }
                Event::SaveAndRestore => {
                    let saved = power.save();
                    power = Power::new(AFFINITIES, BOOT);
                    prop_assert_eq!(power.restore(&saved), Ok(()));
                }
            }
            prop_assert_eq!(power.is_dead(), model.off == [true; 8]);
        }
    }
}
