// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests which service answers a guest's call (Arm DEN0028), what a guest can discover, and that any registers have an
//! answer.

use proptest::prelude::*;
use twofold_abi::{async_fault, vendor};
use twofold_vmm::calls::{Host, Mitigation, Reply, Workaround, call};
use twofold_vmm::power::{self, Power, Start};

const SMCCC_VERSION: u64 = 0x8000_0000;
const ARCH_FEATURES: u64 = 0x8000_0001;
const SOC_ID: u64 = 0x8000_0002;
const WORKAROUNDS: [(u64, Workaround); 3] = [
    (0x8000_8000, Workaround::BranchTarget),
    (0x8000_7fff, Workaround::StoreBypass),
    (0x8000_3fff, Workaround::BranchHistory),
];
const PV_TIME_FEATURES: u64 = 0xc500_0020;
const PV_TIME_ST: u64 = 0xc500_0021;
const PSCI_VERSION: u64 = 0x8400_0000;
const SYSTEM_OFF: u64 = 0x8400_0008;
const TRNG_VERSION: u64 = 0x8400_0050;
const TRNG_FEATURES: u64 = 0x8400_0051;
const TRNG_UUID: u64 = 0x8400_0052;
const RND_32: u64 = 0x8400_0053;
const RND_64: u64 = 0xc400_0053;

const NOT_SUPPORTED: i64 = -1;

struct Fake {
    stolen_time: Option<u64>,
    /// How often a vCPU asked for its structure of stolen time.
    asked: usize,
    words: Option<Vec<u64>>,
    mitigation: Mitigation,
}

impl Fake {
    fn new() -> Self {
        Self { stolen_time: None, asked: 0, words: None, mitigation: Mitigation::Unknown }
    }
}

impl Host for Fake {
    fn is_ram(&self, _address: u64) -> bool {
        true
    }

    fn has_stolen_time(&self) -> bool {
        self.stolen_time.is_some()
    }

    fn stolen_time(&mut self, vcpu: usize) -> Option<u64> {
        self.asked += 1;
        Some(self.stolen_time? + 64 * vcpu as u64)
    }

    fn has_random(&self) -> bool {
        self.words.is_some()
    }

    fn random(&mut self) -> Option<u64> {
        self.words.as_mut()?.pop()
    }

    fn vendor(&mut self, vcpu: usize, arguments: [u64; 4]) -> Option<i64> {
        assert!(matches!(arguments[0] >> 16, 0x8600 | 0xc600), "{arguments:x?} are no call of the vendor's");
        (arguments[0] == async_fault::QUERY.into()).then_some(1000 + 10 * (arguments[1] % 8) as i64 + vcpu as i64)
    }

    fn mitigation(&self, _workaround: Workaround) -> Mitigation {
        self.mitigation
    }
}

fn running() -> Power {
    let mut power = Power::new([0, 1], Start { entry: 0, argument: 0 });
    power.begin(0);
    power
}

fn reply(host: &mut Fake, arguments: [u64; 4]) -> Reply {
    call(&mut running(), host, 0, arguments)
}

fn value(host: &mut Fake, function: u64, argument: u64) -> i64 {
    match reply(host, [function, argument, 0, 0]) {
        Reply::Power(power::Reply::Return(value)) => value as i64,
        Reply::Values([value, rest @ ..]) => {
            assert_eq!(rest, [0; 3], "{function:#x}");
            value as i64
        }
        reply => panic!("{function:#x}: {reply:?}"),
    }
}

#[test]
fn the_convention_and_its_features_can_be_discovered() {
    let host = &mut Fake::new();
    assert_eq!(value(host, SMCCC_VERSION, 0), 0x1_0001);
    // The number is in w0.
    assert_eq!(value(host, SMCCC_VERSION | 0xabc << 32, 0), 0x1_0001);
    for (function, expected) in [(SMCCC_VERSION, 0), (ARCH_FEATURES, 0), (SOC_ID, NOT_SUPPORTED), (0, NOT_SUPPORTED)] {
        assert_eq!(value(host, ARCH_FEATURES, function), expected, "{function:#x}");
    }
    assert_eq!(value(host, PSCI_VERSION, 0), 0x1_0001);
    for function in [SOC_ID, 0, 1, 0x8200_0000, 0x8300_0000, 0x8500_0000, 0x8700_0000, 0xb200_0000, 0xc000_0001] {
        assert_eq!(value(host, function, 0), NOT_SUPPORTED, "{function:#x}");
    }
}

#[test]
fn a_workaround_is_what_the_machine_needs() {
    for (function, workaround) in WORKAROUNDS {
        let host = &mut Fake::new();
        let unneeded = if workaround == Workaround::StoreBypass { -2 } else { 1 };
        for (mitigation, feature) in
            [(Mitigation::Unknown, NOT_SUPPORTED), (Mitigation::NotNeeded, unneeded), (Mitigation::Call, 0)]
        {
            host.mitigation = mitigation;
            assert_eq!(value(host, ARCH_FEATURES, function), feature, "{workaround:?} {mitigation:?}");
        }
        assert_eq!(reply(host, [function, 1 | 7 << 32, 0, 0]), Reply::Mitigate(workaround, 1));
        host.mitigation = Mitigation::NotNeeded;
        assert_eq!(value(host, function, 1), 0);
        host.mitigation = Mitigation::Unknown;
        assert_eq!(value(host, function, 1), NOT_SUPPORTED);
    }
}

#[test]
fn stolen_time_is_discovered_where_it_is() {
    let host = &mut Fake::new();
    for (function, argument) in [
        (ARCH_FEATURES, PV_TIME_FEATURES),
        (PV_TIME_FEATURES, PV_TIME_ST),
        (PV_TIME_FEATURES, PV_TIME_FEATURES),
        (PV_TIME_FEATURES, PV_TIME_ST | 0xabc << 32),
        (PV_TIME_ST, 0),
    ] {
        host.stolen_time = None;
        assert_eq!(value(host, function, argument), NOT_SUPPORTED, "{function:#x}");
        host.stolen_time = Some(0x4000_0000);
        let expected = if function == PV_TIME_ST { 0x4000_0000 } else { 0 };
        assert_eq!(value(host, function, argument), expected, "{function:#x}");
    }
    assert_eq!(value(host, PV_TIME_FEATURES, 0xc500_0022), NOT_SUPPORTED);
    assert_eq!(host.asked, 2, "to look for it is not to ask for it");
}

#[test]
fn the_vendors_range_says_who_answers() {
    let host = &mut Fake::new();
    assert_eq!(reply(host, [vendor::CALL_UID.into(), 0, 0, 0]), Reply::Values(vendor::UID.map(u64::from)));
    assert_eq!(reply(host, [vendor::CALL_REVISION.into(), 0, 0, 0]), Reply::Values([1, 0, 0, 0]));
    // The upper half of x0 is not the number's.
    assert_eq!(value(host, u64::from(async_fault::QUERY) | 5 << 40, 2), 1020);
    assert_eq!(value(host, 0xc600_ffff, 0), NOT_SUPPORTED);
    assert_eq!(value(host, 0x8600_0000, 0), NOT_SUPPORTED);
}

#[test]
fn random_numbers_are_there_where_a_source_is() {
    let host = &mut Fake::new();
    for function in [TRNG_VERSION, TRNG_FEATURES, TRNG_UUID, RND_32, RND_64] {
        assert_eq!(value(host, function, TRNG_VERSION), NOT_SUPPORTED, "{function:#x}");
    }
    host.words = Some(Vec::new());
    assert_eq!(value(host, TRNG_VERSION, 0), 0x1_0000);
    for function in [TRNG_VERSION, TRNG_FEATURES, TRNG_UUID, RND_32, RND_64] {
        assert_eq!(value(host, TRNG_FEATURES, function), 0, "{function:#x}");
    }
    assert_eq!(value(host, TRNG_FEATURES, 0x8400_0054), NOT_SUPPORTED);
    for function in [0x8400_0054, 0x8400_005f, 0xc400_0050, 0xc400_0052] {
        assert_eq!(value(host, function, 0), NOT_SUPPORTED, "{function:#x}");
    }
    let uuid = reply(host, [TRNG_UUID, 0, 0, 0]);
    let Reply::Values(uuid) = uuid else { panic!("{uuid:?}") };
    assert!(uuid.iter().all(|word| *word <= u32::MAX.into()) && uuid[0] != u32::MAX.into());
}

#[test]
fn as_many_random_bits_come_as_were_asked_for() {
    let words = || Some(vec![u64::MAX, 0x1111_2222_3333_4444, 0x5555_6666_7777_8888]);
    let host = &mut Fake::new();
    for (function, bits, expected) in [
        (RND_64, 192, [0, u64::MAX, 0x1111_2222_3333_4444, 0x5555_6666_7777_8888]),
        (RND_64, 129, [0, 1, 0x1111_2222_3333_4444, 0x5555_6666_7777_8888]),
        (RND_64, 64, [0, 0, 0, 0x5555_6666_7777_8888]),
        (RND_64, 68, [0, 0, 4, 0x5555_6666_7777_8888]),
        (RND_64, 4, [0, 0, 0, 8]),
        (RND_32, 96, [0, 0xffff_ffff, 0x3333_4444, 0x7777_8888]),
        (RND_32, 36, [0, 0, 4, 0x7777_8888]),
        (RND_32, 1 | 1 << 32, [0, 0, 0, 0]),
        (RND_64, 0, [-2i64 as u64, 0, 0, 0]),
        (RND_64, 193, [-2i64 as u64, 0, 0, 0]),
        (RND_32, 97, [-2i64 as u64, 0, 0, 0]),
    ] {
        host.words = words();
        assert_eq!(reply(host, [function, bits, 0, 0]), Reply::Values(expected), "{bits} bits");
    }
    // The source dries up in the middle: no bit of it is returned.
    host.words = Some(vec![7]);
    assert_eq!(reply(host, [RND_64, 65, 0, 0]), Reply::Values([-3i64 as u64, 0, 0, 0]));
}

#[test]
fn after_the_end_no_call_has_an_effect() {
    let (mut power, host) = (running(), &mut Fake::new());
    host.words = Some(vec![7]);
    call(&mut power, host, 0, [SYSTEM_OFF, 0, 0, 0]);
    for function in [RND_64, SMCCC_VERSION, async_fault::QUERY.into(), PSCI_VERSION, 0x8000_8000] {
        let reply = call(&mut power, host, 0, [function, 64, 0, 0]);
        assert_eq!(reply, Reply::Power(power::Reply::Stop), "{function:#x}");
    }
    assert_eq!(host.words, Some(vec![7]));
}

proptest! {
    /// Any registers have an answer, and every number of every service is reached.
    #[test]
    fn any_registers_have_an_answer(
        service in prop::sample::select(vec![0_u64, 0x8000_0000, 0x8400_0000, 0xc400_0000, 0xc500_0000, 0x8600_0000]),
        number in prop_oneof![0_u64..0x100, any::<u64>()],
        arguments: [u64; 3],
        caller in 0_usize..3,
    ) {
        let [a, b, c] = arguments;
        let mut host = Fake { stolen_time: Some(0), words: Some(vec![1; 3]), ..Fake::new() };
        host.mitigation = Mitigation::NotNeeded;
        call(&mut running(), &mut host, caller, [service ^ number, a, b, c]);
    }
}
