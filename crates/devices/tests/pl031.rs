// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clock against a naive model that counts second by second.

use proptest::collection::vec;
use proptest::prelude::*;
use twofold_devices::{Pl031, StateError, Width};

const DR: u64 = 0x00;
const MR: u64 = 0x04;
const LR: u64 = 0x08;
const CR: u64 = 0x0c;
const IMSC: u64 = 0x10;
const RIS: u64 = 0x14;
const MIS: u64 = 0x18;
const ICR: u64 = 0x1c;
const WIDTHS: [Width; 4] = [Width::Byte, Width::Half, Width::Word, Width::Double];
const NOW: u64 = 1_800_000_000;

/// A clock that ticks.
struct Naive {
    wall: u64,
    counter: u32,
    registers: [u32; 8],
}

impl Naive {
    fn get(&self, offset: u64) -> u32 {
        match offset {
            DR => self.counter,
            CR => 1,
            MIS => self.get(IMSC) & self.get(RIS),
            MR..=LR | IMSC..=RIS | ICR => self.registers[offset as usize / 4],
            0xfe0..0x1000 => [0x31, 0x10, 0x04, 0, 0x0d, 0xf0, 0x05, 0xb1][(offset as usize - 0xfe0) / 4],
            _ => 0,
        }
    }

    fn compare(&mut self) {
        if self.counter == self.get(MR) {
            self.registers[RIS as usize / 4] = 1;
        }
    }

    fn advance(&mut self, now: u64) {
        while self.wall < now {
            (self.wall, self.counter) = (self.wall + 1, self.counter.wrapping_add(1));
            self.compare();
        }
        if self.wall > now {
            self.counter = self.counter.wrapping_sub((self.wall - now) as u32);
            self.wall = now;
            self.compare();
        }
    }

    fn set(&mut self, offset: u64, value: u32) {
        match offset {
            MR => self.registers[1] = value,
            LR => (self.registers[2], self.counter) = (value, value),
            IMSC => self.registers[4] = value & 1,
            ICR if value & 1 == 1 => self.registers[5] = 0,
            _ => {}
        }
        if [MR, LR].contains(&offset) {
            self.compare();
        }
    }

    fn read(&self, offset: u64, width: Width) -> u64 {
        let low = u64::from(self.get(offset & !3)) >> (8 * (offset & 3));
        match width {
            Width::Double => low | u64::from(self.get((offset & !3).wrapping_add(4))) << 32,
            _ => low & width.mask(),
        }
    }

    fn write(&mut self, offset: u64, width: Width, value: u64) {
        if offset & 3 == 0 {
            self.set(offset, (value & width.mask()) as u32);
            if width == Width::Double {
                self.set(offset.wrapping_add(4), (value >> 32) as u32);
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Read(u64, Width),
    Write(u64, Width, u64),
    /// A write of MR or LR near the counter.
    Near(u64, i32),
    Pass(u64),
    SetBack(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let register = prop_oneof![8 => (0_u64..8).prop_map(|index| index * 4), 1 => 0_u64..0x1000, 1 => any::<u64>()];
    let width = prop_oneof![6 => Just(Width::Word), 1 => prop::sample::select(WIDTHS.to_vec())];
    prop_oneof![
        2 => (register.clone(), width.clone()).prop_map(|(offset, width)| Event::Read(offset, width)),
        2 => (register, width, any::<u64>()).prop_map(|(offset, width, value)| Event::Write(offset, width, value)),
        2 => (prop::sample::select(vec![MR, LR]), -20..20).prop_map(|(register, near)| Event::Near(register, near)),
        3 => (0_u64..30).prop_map(Event::Pass),
        1 => (0_u64..30).prop_map(Event::SetBack),
    ]
}

fn agree(events: Vec<Event>) {
    let (mut clock, mut line, mut now) = (Pl031::new(NOW), false, NOW);
    let mut naive = Naive { wall: NOW, counter: NOW as u32, registers: [0; 8] };
    for (index, event) in events.into_iter().enumerate() {
        match event {
            Event::Read(offset, width) => {
                naive.advance(now);
                let value = clock.read(offset, width, now, &mut line);
                assert_eq!(value, naive.read(offset, width), "{index}: {event:x?}");
            }
            Event::Write(offset, width, value) => {
                naive.advance(now);
                clock.write(offset, width, value, now, &mut line);
                naive.write(offset, width, value);
            }
            Event::Near(offset, near) => {
                naive.advance(now);
                let value = u64::from(naive.counter.wrapping_add_signed(near));
                clock.write(offset, Width::Word, value, now, &mut line);
                naive.write(offset, Width::Word, value);
            }
            Event::Pass(seconds) => {
                // The naive clock says if it was right to sleep until the time that `due` says.
                let due = clock.due();
                for _ in 0..seconds {
                    now += 1;
                    naive.advance(now);
                    let level = naive.get(MIS) == 1;
                    assert_eq!(level, line || due.is_some_and(|due| now >= due), "{index}: {due:?} at {now}");
                }
                clock.advance(now, &mut line);
            }
            Event::SetBack(seconds) => {
                now -= seconds;
                naive.advance(now);
                clock.advance(now, &mut line);
            }
        }
        assert_eq!(line, naive.get(MIS) == 1, "{index}: {event:x?}");
        assert!(!line || clock.due().is_none(), "{index}: nothing is due while the line is up");
        let state = clock.state();
        let restored = Pl031::from_state(&state).unwrap();
        assert_eq!((&restored, restored.state()), (&clock, state));
        clock = restored;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn agrees_with_a_clock_that_ticks(events in vec(event(), 0..60)) {
        agree(events);
    }

    #[test]
    fn any_bytes_are_refused_or_kept(state in vec(any::<u8>(), Pl031::STATE_SIZE), mask in 0_u8..3, raw in 0_u8..3) {
        let mut state = state;
        state[..4].copy_from_slice(&[1, 0, mask, raw]);
        let clock = Pl031::from_state(&state);
        prop_assert_eq!(clock.is_ok(), mask < 2 && raw < 2);
        if let Ok(mut clock) = clock {
            prop_assert_eq!(clock.state().to_vec(), state);
            let _ = (clock.due(), clock.read(DR, Width::Word, 0, &mut false));
        }
    }
}

#[test]
fn every_offset_and_width_agrees() {
    let mut events = Vec::new();
    for offset in (0..0x1008).chain(u64::MAX - 9..=u64::MAX) {
        for width in WIDTHS {
            for value in [0, u64::MAX, 0x0123_4567_89ab_cdef] {
                events.extend([Event::Write(offset, width, value), Event::Pass(1), Event::Read(offset, width)]);
            }
        }
    }
    agree(events);
}

#[test]
fn starts_at_wall_time_and_is_found_by_linux() {
    let mut clock = Pl031::new(NOW);
    let mut read = |offset| clock.read(offset, Width::Word, NOW + 5, &mut false);
    assert_eq!((read(DR), read(CR)), (NOW + 5, 1));
    let id: u64 = (0..4).map(|index| read(0xfe0 + 4 * index) << (8 * index)).sum();
    assert_eq!(id & 0xf_ffff, 0x4_1031);
}

/// Wall time beyond 32 bits, and matches as far away as they can be.
#[test]
fn the_counter_wraps() {
    let (mut line, wall) = (false, (1_u64 << 32) + 10);
    let mut clock = Pl031::new(wall);
    assert_eq!(clock.read(DR, Width::Word, wall, &mut line), 10);
    clock.write(IMSC, Width::Word, 1, wall, &mut line);
    clock.write(MR, Width::Word, 9, wall, &mut line);
    assert_eq!((clock.due(), line), (Some(wall + u64::from(u32::MAX)), false));
    clock.advance(wall + u64::from(u32::MAX) - 1, &mut line);
    assert!(!line);
    clock.advance(wall + u64::from(u32::MAX), &mut line);
    assert!(line);
    clock.write(ICR, Width::Word, 1, wall + u64::from(u32::MAX), &mut line);
    assert_eq!((line, clock.due()), (false, Some(wall + u64::from(u32::MAX) + (1 << 32))));
    clock.advance(u64::MAX, &mut line);
    assert!(line);
    clock.write(ICR, Width::Word, 1, u64::MAX, &mut line);
    assert_eq!(clock.due(), None, "later than any time there is");
}

#[test]
fn states_that_are_none_are_refused() {
    let mut state = Pl031::new(NOW).state();
    let wanted = Pl031::STATE_SIZE;
    assert_eq!(wanted, 24);
    assert_eq!(Pl031::from_state(&state[1..]), Err(StateError::Length { found: wanted - 1, wanted }));
    state[2] = 2;
    assert_eq!(Pl031::from_state(&state), Err(StateError::Impossible("reserved bits of IMSC or RIS")));
    state[0] = 9;
    assert_eq!(Pl031::from_state(&state), Err(StateError::Version(9)));
}
