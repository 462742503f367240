// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What may happen to an interrupt controller, at random.

use twofold_devices::Width;

use crate::model::Place;
use crate::random::Random;

/// The linked PPI.
pub const TIMER: u32 = 27;
/// The number of SPIs.
pub const SPIS: u32 = 96;

/// Interrupts that most events concern, so that they meet each other. Equal and different banks.
const HOT: [u32; 18] = [0, 1, 2, 15, 16, 20, TIMER, 30, 32, 33, 34, 35, 36, 63, 64, 65, 96, 127];
const PRIORITIES: [u8; 10] = [0x00, 0x08, 0x40, 0x48, 0x50, 0x80, 0xa0, 0xa8, 0xf0, 0xf8];

/// One event. A guest's is of the vCPU that executes it.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    Acknowledge {
        group1: bool,
    },
    HighestPending {
        group1: bool,
    },
    End,
    Deactivate {
        intid: u32,
    },
    Mask(u8),
    Point {
        group1: bool,
        value: u8,
    },
    Enable {
        group1: bool,
        on: bool,
    },
    Configure {
        common: bool,
        split: bool,
    },
    Send {
        group1: bool,
        alias: bool,
        value: u64,
    },
    Read {
        place: Place,
        offset: u32,
        width: Width,
    },
    Write {
        place: Place,
        offset: u32,
        width: Width,
        value: u64,
    },
    /// A line of a device, or of an unlinked PPI; changed by a CPU that has no vCPU, or by the vCPU's.
    Line {
        intid: u32,
        level: bool,
        outside: bool,
    },
    /// The physical timer of the vCPU.
    Timer {
        level: bool,
    },
    /// The vCPU goes to another CPU, or to none.
    Move,
    /// All vCPUs are unloaded, and the state goes through bytes.
    Restore,
}

/// A guest's driver: all is enabled, in group 1 and of one priority, and SPIs go to the first vCPU.
pub fn setup(affinities: &[u32]) -> Vec<Event> {
    let write = |place, offset, value| Event::Write { place, offset, width: Width::Word, value };
    let mut events = vec![Event::Mask(0xff), Event::Enable { group1: true, on: true }];
    let mut banks: Vec<(Place, u32)> = (0..affinities.len()).map(|of| (Place::Redistributor(of), 0x1_0000)).collect();
    banks.extend((1..=SPIS / 32).map(|n| (Place::Distributor, n * 4)));
    for (place, base) in banks {
        events.push(write(place, base + 0x80, 0xffff_ffff));
        events.push(write(place, base + 0x100, 0xffff_ffff));
    }
    events.push(write(Place::Distributor, 0, 3));
    events
}

/// What sends an event at random.
#[derive(Clone, Debug)]
pub struct Events {
    pub random: Random,
    pub affinities: Vec<u32>,
}

impl Events {
    pub fn next(&mut self) -> Event {
        let random = &mut self.random;
        match random.below(100) {
            0..20 => Event::Acknowledge { group1: !random.one_in(4) },
            20..34 => Event::End,
            34..41 => Event::Deactivate { intid: random.pick(&HOT) },
            41..43 => Event::HighestPending { group1: !random.one_in(4) },
            43..45 => Event::Mask(if random.one_in(4) { random.pick(&PRIORITIES) } else { 0xff }),
            45..46 => Event::Point { group1: random.one_in(2), value: random.below(8) as u8 },
            46..49 => Event::Enable { group1: random.one_in(2), on: !random.one_in(6) },
            49..51 => Event::Configure { common: random.one_in(4), split: random.one_in(3) },
            51..59 => self.send(),
            59..84 => self.access(),
            84..93 => {
                let intid = random.pick(&HOT[4..]);
                let intid = if intid == TIMER { 33 } else { intid };
                Event::Line { intid, level: random.one_in(2), outside: random.one_in(2) }
            }
            93..97 => Event::Timer { level: !random.one_in(3) },
            97..99 => Event::Move,
            _ if random.one_in(4) => Event::Restore,
            _ => Event::Move,
        }
    }

    /// One that traps.
    pub fn trap(&mut self) -> Event {
        if self.random.one_in(3) { self.send() } else { self.access() }
    }

    fn send(&mut self) -> Event {
        let random = &mut self.random;
        let affinity = u64::from(random.pick(&self.affinities));
        let target = (affinity >> 24) << 48
            | (affinity >> 16 & 0xff) << 32
            | (affinity >> 8 & 0xff) << 16
            | (affinity >> 4 & 15) << 44
            | if random.one_in(3) { random.next() & 0xffff } else { 1 << (affinity & 15) };
        let all = u64::from(random.one_in(6)) << 40;
        let sgi = if random.one_in(8) { random.next() & 15 } else { random.next() % 3 };
        let value = if random.one_in(30) { random.next() } else { target | all | sgi << 24 };
        let group1 = !random.one_in(4);
        Event::Send { group1, alias: !group1 && random.one_in(2), value }
    }

    fn access(&mut self) -> Event {
        let random = &mut self.random;
        let intid = random.pick(&HOT);
        let place = match intid {
            0..32 => Place::Redistributor(random.below(self.affinities.len())),
            _ => Place::Distributor,
        };
        let base = if intid < 32 { 0x1_0000 } else { 0 };
        let read = random.one_in(3);
        let (offset, width, value) = match random.below(32) {
            0..22 => {
                let kinds = [0x80, 0x100, 0x100, 0x100, 0x100, 0x180, 0x200, 0x200, 0x280, 0x300, 0x380, 0x380];
                let kind = random.pick(&kinds);
                let kind = if read { random.pick(&[0x80, 0x100, 0x200, 0x280, 0x300, 0x300, 0x380]) } else { kind };
                let mut mask = 0;
                for hot in HOT {
                    if hot / 32 == intid / 32 && random.one_in(if kind == 0x100 { 2 } else { 5 }) {
                        mask |= 1 << (hot % 32);
                    }
                }
                // All in one group, all inactive: else little happens after a while.
                if kind == 0x80 && !random.one_in(3) || kind == 0x380 && random.one_in(2) {
                    mask = 0xffff_ffff;
                }
                (base + kind + intid / 32 * 4, Width::Word, mask)
            }
            22..25 if random.one_in(2) => {
                let word = u32::from_le_bytes([(); 4].map(|()| random.pick(&PRIORITIES)));
                (base + 0x400 + (intid & !3), Width::Word, word.into())
            }
            22..25 => (base + 0x400 + intid, Width::Byte, random.pick(&PRIORITIES).into()),
            25..26 => (base + 0xc00 + intid / 16 * 4, Width::Word, random.next() & 0xffff_ffff),
            26..29 if intid >= 32 => {
                let affinity = u64::from(random.pick(&self.affinities));
                let route = (affinity >> 24) << 32 | affinity & 0xff_ffff;
                let route = if random.one_in(12) { random.next() } else { route };
                let low = random.one_in(4);
                let width = if low { Width::Word } else { Width::Double };
                (0x6000 + intid * 8 + if low { 4 * (route as u32 & 1) } else { 0 }, width, route & width.mask())
            }
            26..30 => {
                let value = if random.one_in(4) { random.next() & 3 } else { 3 };
                let place = Place::Distributor;
                return if read {
                    Event::Read { place, offset: 0, width: Width::Word }
                } else {
                    Event::Write { place, offset: 0, width: Width::Word, value }
                };
            }
            _ => {
                let width = random.pick(&[Width::Byte, Width::Half, Width::Word, Width::Word, Width::Double]);
                let high = if intid < 32 { 0x2_0000 } else { 0x1_0000 };
                let offset = if random.one_in(4) { random.below(high) } else { random.below(0x1000) + base as usize };
                let aligned = offset & !(width.bytes() as usize - 1);
                let offset = if random.one_in(4) { offset } else { aligned };
                (offset as u32, width, random.next() & random.next() & width.mask())
            }
        };
        if read { Event::Read { place, offset, width } } else { Event::Write { place, offset, width, value } }
    }
}
