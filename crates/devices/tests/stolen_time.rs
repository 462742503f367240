// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stolen time against a naive sum, over memory whose page comes and goes.

use std::cell::{Cell, RefCell};
use std::num::NonZeroU64;

use proptest::collection::vec;
use proptest::prelude::*;
use twofold_devices::stolen_time::BadAddress;
use twofold_devices::{GuestRam, RamError, StateError, StolenTime};

const AREA: u64 = 0x90a_0040;

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

const GIGAHERTZ: u64 = 1_000_000_000;

#[test]
fn what_was_counted_before_the_first_call_is_not_stolen_and_a_second_call_goes_on() {
    let (mut vcpu, ram) = (vcpu(GIGAHERTZ), Ram::new());
    vcpu.enter(1_000_000, &ram).unwrap();
    assert!(ram.writes.borrow().is_empty() && !vcpu.is_asked());
    assert_eq!(vcpu.ask(1_000_005, &ram), Some(AREA));
    assert!(vcpu.is_asked());
    vcpu.enter(1_000_014, &ram).unwrap();
    assert_eq!((vcpu.stolen(), ram.stolen()), (9, 9));
    assert_eq!(vcpu.ask(1_000_014, &ram), Some(AREA));
    assert_eq!(ram.stolen(), 9);
    // An earlier count changes nothing.
    vcpu.enter(7, &ram).unwrap();
    assert_eq!(ram.stolen(), 9);
}

#[test]
fn each_call_writes_the_whole_structure() {
    let (mut vcpu, ram) = (vcpu(GIGAHERTZ), Ram::new());
    for count in [0, 5] {
        ram.bytes.borrow_mut().fill(0xff);
        assert_eq!(vcpu.ask(count, &ram), Some(AREA));
        let mut expected = [0; 64];
        expected[8] = count as u8;
        assert_eq!(*ram.bytes.borrow(), expected, "revision 0, attributes 0, and what was stolen");
    }
}

/// A vCPU is in a queue when its guest stops, and still when it goes on.
#[test]
fn a_stop_is_not_stolen() {
    let (mut vcpu, ram) = (vcpu(GIGAHERTZ), Ram::new());
    vcpu.ask(0, &ram);
    vcpu.add(30);
    vcpu.skip(5000);
    vcpu.enter(5001, &ram).unwrap();
    assert_eq!(ram.stolen(), 30 + 1);
}

#[test]
fn a_guest_that_begins_anew_begins_at_zero() {
    let (mut vcpu, ram) = (vcpu(GIGAHERTZ), Ram::new());
    vcpu.ask(0, &ram);
    vcpu.enter(100, &ram).unwrap();
    vcpu.reset();
    let writes = ram.writes.borrow().len();
    vcpu.enter(200, &ram).unwrap();
    assert_eq!((ram.writes.borrow().len(), vcpu.stolen()), (writes, 0));
    vcpu.ask(300, &ram);
    vcpu.enter(301, &ram).unwrap();
    assert_eq!(ram.stolen(), 1);
}

#[test]
fn an_absent_page_is_written_later_with_the_latest_value() {
    let (mut vcpu, ram) = (vcpu(GIGAHERTZ), Ram::new());
    let absent = RamError::Absent(AREA);
    ram.fails.set(Some(absent));
    assert_eq!(vcpu.ask(0, &ram), Some(AREA), "the guest need not wait");
    for turn in 1..4 {
        assert_eq!(vcpu.enter(turn * 10, &ram), Err(absent));
        assert_eq!(vcpu.enter(turn * 10, &ram), Err(absent), "it tries at each turn");
    }
    ram.bytes.borrow_mut().fill(0xff);
    ram.fails.set(None);
    vcpu.enter(30, &ram).unwrap();
    assert_eq!((ram.stolen(), ram.bytes.borrow()[..8].to_vec()), (30, vec![0; 8]));
}

#[test]
fn a_turn_without_stolen_time_writes_nothing() {
    let (mut vcpu, ram) = (vcpu(GIGAHERTZ), Ram::new());
    vcpu.ask(200, &ram);
    let writes = ram.writes.borrow().len();
    for _ in 0..100 {
        vcpu.enter(200, &ram).unwrap();
    }
    assert_eq!(ram.writes.borrow().len(), writes);
    vcpu.enter(201, &ram).unwrap();
    assert_eq!(ram.writes.borrow()[writes..], [(AREA + 8, 8)], "one aligned store, which the dirty log sees");
}

#[test]
fn an_address_without_ram_is_not_supported() {
    for error in [RamError::NotRam(AREA), RamError::ReadOnly(AREA)] {
        let (mut vcpu, ram) = (vcpu(1), Ram::new());
        ram.fails.set(Some(error));
        assert_eq!(vcpu.ask(0, &ram), None);
        assert_eq!(vcpu.enter(0, &ram), Ok(()));
    }
    for area in [8, 63, 1 << 52, !63] {
        assert_eq!(StolenTime::new(area, hertz(1)).unwrap_err(), BadAddress(area));
    }
}

#[test]
fn states_that_are_none_are_refused() {
    let state = vcpu(1).state();
    let wanted = StolenTime::STATE_SIZE;
    let refused = |state: &[u8]| StolenTime::from_state(state, hertz(1), 0).unwrap_err();
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
    /// The vCPU waits for a CPU.
    Wait(u64),
    Enter,
    Ask,
    Stop,
    GoOn,
    /// The page leaves or comes back.
    Page(bool),
    Restore,
    Reset,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0_u64..1_000_000).prop_map(Event::Wait),
        6 => Just(Event::Enter),
        3 => Just(Event::Ask),
        2 => Just(Event::Stop),
        2 => Just(Event::GoOn),
        3 => any::<bool>().prop_map(Event::Page),
        2 => Just(Event::Restore),
        1 => Just(Event::Reset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn agrees_with_a_naive_sum(
        frequency in prop_oneof![Just(62_500_000_u64), Just(GIGAHERTZ), Just(1), 1_u64..5_000_000_000],
        restores in any::<bool>(),
        events in vec(event(), 0..80),
    ) {
        // A restore rounds to whole nanoseconds, which the sum of ticks does not show.
        let frequency = if restores { GIGAHERTZ } else { frequency };
        let (mut vcpu, ram) = (vcpu(frequency), Ram::new());
        let (mut count, mut asked, mut runs) = (7, false, true);
        vcpu.skip(count);
        let mut stolen: Vec<u64> = Vec::new();
        let sum = |stolen: &[u64]| {
            stolen.iter().map(|ticks| u128::from(*ticks)).sum::<u128>() * 1_000_000_000 / u128::from(frequency)
        };
        let mut shown = 0;
        for event in events {
            match event {
                Event::Wait(ticks) => {
                    count += ticks;
                    if asked && runs {
                        stolen.push(ticks);
                    }
                }
                Event::Enter if runs => {
                    let absent = ram.fails.get().is_some();
                    if vcpu.enter(count, &ram).is_ok() && asked {
                        prop_assert_eq!(u128::from(ram.stolen()), sum(&stolen));
                    } else {
                        prop_assert!(absent || !asked);
                    }
                }
                Event::Ask if runs => {
                    prop_assert_eq!(vcpu.ask(count, &ram), Some(AREA));
                    asked = true;
                }
                Event::Stop if runs => {
                    vcpu.add(count);
                    runs = false;
                }
                Event::GoOn if !runs => {
                    vcpu.skip(count);
                    runs = true;
                }
                Event::Page(absent) => ram.fails.set(absent.then_some(RamError::Absent(AREA))),
                Event::Restore if restores && !runs => {
                    let state = vcpu.state();
                    count = count.wrapping_mul(0x9e37_79b9) >> 32;
                    vcpu = StolenTime::from_state(&state, hertz(frequency), count).unwrap();
                    prop_assert_eq!(vcpu.state(), state);
                }
                Event::Reset => {
                    vcpu.reset();
                    stolen.clear();
                    (asked, shown) = (false, 0);
                    ram.bytes.borrow_mut().fill(0);
                }
                _ => {}
            }
            prop_assert!(ram.stolen() >= shown);
            shown = ram.stolen();
        }
        if runs {
            vcpu.add(count);
        }
        prop_assert_eq!(u128::from(vcpu.stolen()), sum(&stolen));
    }
}
