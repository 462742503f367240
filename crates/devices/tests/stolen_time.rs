// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stolen time against a naive sum, over memory whose page comes and goes.

use std::cell::{Cell, RefCell};
use std::num::NonZeroU64;

use proptest::collection::vec;
use proptest::prelude::*;
use twofold_abi::pv_time;
use twofold_devices::stolen_time::{BadAddress, Off};
use twofold_devices::{GuestRam, RamError, StateError, StolenTime};

const AREA: u64 = 0x90a_0040;
const ALL: [Off; 5] = [Off::Runnable, Off::WaitsForPage, Off::WaitsForDevice, Off::Idle, Off::Stopped];

/// One page with the structure, and its log.
struct Ram {
    bytes: RefCell<[u8; 64]>,
    fails: Cell<Option<RamError>>,
    /// Each write, as a dirty log would see it.
    writes: RefCell<Vec<(u64, usize)>>,
}

impl Ram {
    fn new() -> Self {
        Self { bytes: RefCell::new([0; 64]), fails: Cell::new(None), writes: RefCell::default() }
    }

    /// What the guest reads.
    fn stolen(&self) -> u64 {
        u64::from_le_bytes(self.bytes.borrow()[8..16].try_into().unwrap())
    }
}

impl GuestRam for Ram {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), RamError> {
        panic!("the model has no need to read");
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), RamError> {
        if let Some(error) = self.fails.get() {
            return Err(error);
        }
        let first = (address - AREA) as usize;
        self.bytes.borrow_mut()[first..][..bytes.len()].copy_from_slice(bytes);
        self.writes.borrow_mut().push((address, bytes.len()));
        Ok(())
    }
}

fn hertz(frequency: u64) -> NonZeroU64 {
    NonZeroU64::new(frequency).unwrap()
}

fn vcpu(frequency: u64) -> StolenTime {
    StolenTime::new(AREA, hertz(frequency)).unwrap()
}

fn ask(vcpu: &mut StolenTime, ram: &Ram) -> Option<i64> {
    vcpu.call(pv_time::STOLEN_TIME, 0, ram)
}

#[test]
fn only_a_runnable_vcpu_is_robbed() {
    for off in ALL {
        let (mut vcpu, ram) = (vcpu(1_000_000_000), Ram::new());
        vcpu.enter(100, &ram).unwrap();
        assert_eq!(ask(&mut vcpu, &ram), Some(AREA as i64));
        vcpu.leave(off, 1000);
        vcpu.enter(1700, &ram).unwrap();
        let expected = if off == Off::Runnable { 700 } else { 0 };
        assert_eq!((vcpu.stolen(1700), ram.stolen()), (expected, expected), "{off:?}");
    }
}

/// A vCPU waits for a page, becomes runnable when it comes, and gets a CPU later: only the last part is stolen.
#[test]
fn a_wait_and_the_queue_after_it_are_told_apart() {
    let (mut vcpu, ram) = (vcpu(1_000_000_000), Ram::new());
    vcpu.enter(0, &ram).unwrap();
    ask(&mut vcpu, &ram);
    for (off, at) in [
        (Off::WaitsForPage, 10),
        (Off::Runnable, 500),
        (Off::Idle, 530),
        (Off::Runnable, 900),
        (Off::Stopped, 905),
        (Off::Runnable, 5000),
    ] {
        vcpu.leave(off, at);
    }
    vcpu.enter(5001, &ram).unwrap();
    assert_eq!(ram.stolen(), 30 + 5 + 1);
}

#[test]
fn the_calls_are_those_of_the_specification() {
    let (mut vcpu, ram) = (vcpu(1), Ram::new());
    let known = [(0xc500_0020, Some(0)), (0xc500_0021, Some(0)), (0xc500_0022, Some(-1)), (u64::MAX, Some(-1))];
    for (asked, answer) in known {
        assert_eq!(vcpu.call(0xc500_0020, asked, &ram), answer);
    }
    assert_eq!(vcpu.call(0xc500_0022, 0, &ram), None);
    assert_eq!(vcpu.call(0x8400_0000, 0, &ram), None);
    assert!(ram.writes.borrow().is_empty());
    ram.bytes.borrow_mut().fill(0xff);
    assert_eq!(vcpu.call(0xc500_0021, 7, &ram), Some(AREA as i64));
    assert_eq!(*ram.bytes.borrow(), [0; 64], "revision 0, attributes 0, nothing stolen");
}

#[test]
fn time_before_the_first_call_is_not_stolen_and_a_second_call_goes_on() {
    let (mut vcpu, ram) = (vcpu(1_000_000_000), Ram::new());
    vcpu.leave(Off::Runnable, 0);
    vcpu.enter(1_000_000, &ram).unwrap();
    assert!(ram.writes.borrow().is_empty());
    ask(&mut vcpu, &ram);
    vcpu.leave(Off::Runnable, 2_000_000);
    vcpu.enter(2_000_009, &ram).unwrap();
    vcpu.leave(Off::Stopped, 3_000_000);
    vcpu.enter(4_000_000, &ram).unwrap();
    ask(&mut vcpu, &ram);
    assert_eq!(ram.stolen(), 9);
}

#[test]
fn an_absent_page_is_written_later_with_the_latest_value() {
    let (mut vcpu, ram) = (vcpu(1_000_000_000), Ram::new());
    let absent = RamError::Absent(AREA);
    ram.fails.set(Some(absent));
    assert_eq!(ask(&mut vcpu, &ram), Some(AREA as i64), "the guest need not wait");
    for entry in 1..4 {
        vcpu.leave(Off::Runnable, entry * 100);
        assert_eq!(vcpu.enter(entry * 100 + 10, &ram), Err(absent));
        assert_eq!(vcpu.enter(entry * 100 + 20, &ram), Err(absent), "it tries at each entry");
    }
    ram.bytes.borrow_mut().fill(0xff);
    ram.fails.set(None);
    vcpu.enter(500, &ram).unwrap();
    assert_eq!((ram.stolen(), ram.bytes.borrow()[..8].to_vec()), (30, vec![0; 8]));
}

#[test]
fn an_entry_without_stolen_time_writes_nothing() {
    let (mut vcpu, ram) = (vcpu(1_000_000_000), Ram::new());
    ask(&mut vcpu, &ram);
    let writes = ram.writes.borrow().len();
    for entry in 0..100 {
        vcpu.enter(entry, &ram).unwrap();
        vcpu.leave(Off::Idle, entry);
    }
    assert_eq!(ram.writes.borrow().len(), writes);
    vcpu.leave(Off::Runnable, 200);
    vcpu.enter(201, &ram).unwrap();
    assert_eq!(ram.writes.borrow()[writes..], [(AREA + 8, 8)], "one aligned store, which the dirty log sees");
}

#[test]
fn an_address_without_ram_is_not_supported() {
    for error in [RamError::NotRam(AREA), RamError::ReadOnly(AREA)] {
        let (mut vcpu, ram) = (vcpu(1), Ram::new());
        ram.fails.set(Some(error));
        assert_eq!(ask(&mut vcpu, &ram), Some(-1));
        assert_eq!(vcpu.enter(0, &ram), Ok(()));
    }
    for area in [8, 63, 1 << 52, !63] {
        assert_eq!(StolenTime::new(area, hertz(1)).unwrap_err(), BadAddress(area));
    }
}

#[test]
fn states_that_are_none_are_refused() {
    let state = vcpu(1).state(0);
    let wanted = StolenTime::STATE_SIZE;
    let refused = |state: &[u8]| StolenTime::from_state(state, hertz(1)).unwrap_err();
    assert_eq!(refused(&state[1..]), StateError::Length { found: wanted - 1, wanted });
    for (offset, value, error) in [
        (0, 2, StateError::Version(2)),
        (2, 2, StateError::Impossible("reserved bits")),
        (7, 1, StateError::Impossible("reserved bits")),
        (8, 0x41, StateError::Impossible("an address at which no structure can be")),
        (15, 1, StateError::Impossible("an address at which no structure can be")),
        (16, 1, StateError::Impossible("time that was stolen before the guest asked")),
    ] {
        let mut state = state;
        state[offset] = value;
        assert_eq!(refused(&state), error, "{offset}");
    }
}

#[derive(Clone, Debug)]
enum Event {
    Pass(u64),
    Leave(usize),
    Enter,
    Ask,
    /// The page leaves or comes back.
    Page(bool),
    Restore,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0_u64..1_000_000).prop_map(Event::Pass),
        4 => (0..ALL.len()).prop_map(Event::Leave),
        3 => Just(Event::Enter),
        1 => Just(Event::Ask),
        2 => any::<bool>().prop_map(Event::Page),
        1 => Just(Event::Restore),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn agrees_with_a_naive_sum(
        frequency in prop_oneof![Just(62_500_000_u64), Just(1_000_000_000), Just(1), 1_u64..5_000_000_000],
        restores in any::<bool>(),
        events in vec(event(), 0..80),
    ) {
        // A restore rounds to whole nanoseconds, which the sum of ticks does not show.
        let frequency = if restores { 1_000_000_000 } else { frequency };
        let (mut vcpu, ram) = (vcpu(frequency), Ram::new());
        let (mut now, mut off, mut asked) = (0, Some(Off::Stopped), false);
        // One entry for each tick would be the naive way; an entry for each stretch is as plain.
        let mut stolen: Vec<u128> = Vec::new();
        let mut shown = 0;
        for event in events {
            match event {
                Event::Pass(ticks) => {
                    now += ticks;
                    if asked && off == Some(Off::Runnable) {
                        stolen.push(ticks.into());
                    }
                }
                Event::Leave(to) => {
                    off = Some(ALL[to]);
                    vcpu.leave(ALL[to], now);
                }
                Event::Enter => {
                    off = None;
                    let absent = ram.fails.get().is_some();
                    if vcpu.enter(now, &ram).is_ok() && asked {
                        let sum = stolen.iter().sum::<u128>() * 1_000_000_000 / u128::from(frequency);
                        prop_assert_eq!(u128::from(ram.stolen()), sum);
                    } else {
                        prop_assert!(absent || !asked);
                    }
                }
                Event::Ask if off.is_none() => {
                    prop_assert_eq!(ask(&mut vcpu, &ram), Some(AREA as i64));
                    asked = true;
                }
                Event::Ask => {}
                Event::Page(absent) => ram.fails.set(absent.then_some(RamError::Absent(AREA))),
                Event::Restore if restores => {
                    let state = vcpu.state(now);
                    vcpu = StolenTime::from_state(&state, hertz(frequency)).unwrap();
                    prop_assert_eq!(vcpu.state(now), state);
                    off = Some(Off::Stopped);
                }
                Event::Restore => {}
            }
            prop_assert!(ram.stolen() >= shown);
            shown = ram.stolen();
        }
        let sum = stolen.iter().sum::<u128>() * 1_000_000_000 / u128::from(frequency);
        prop_assert_eq!(u128::from(vcpu.stolen(now)), sum);
    }
}
