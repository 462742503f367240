// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The switch between guests' cards, against its rules and against a naive model.

use std::collections::VecDeque;

use proptest::prelude::*;
use twofold_vmm::switch::{CARD_ADDRESSES, FRAME_MAX, FRAME_MIN, Plug, PortId, QUEUE, Switch};

type Address = [u8; 6];

const ALL: Address = [0xff; 6];
const OUTSIDE: Address = [0x52, 0, 0, 0, 0, 2];

fn card(number: u8) -> Address {
    [2, 0, 0, 0, 0, number]
}

fn frame(to: Address, from: Address, mark: u8) -> Vec<u8> {
    [&to[..], &from[..], &[8, 0, mark][..]].concat()
}

/// Three cards, and an uplink.
fn plugs() -> [Plug; 4] {
    [Plug::Card(card(0)), Plug::Card(card(1)), Plug::Card(card(2)), Plug::Uplink]
}

fn send(switch: &mut Switch, port: u16, bytes: &[u8]) -> Vec<u16> {
    let mut woken = Vec::new();
    let mut buffer = switch.buffer().expect("a port has one frame in hand");
    buffer.fill(bytes);
    switch.forward(PortId(port), buffer, |port| woken.push(port.0));
    woken
}

fn receive(switch: &mut Switch, port: u16) -> Option<Vec<u8>> {
    let received = switch.take(PortId(port))?;
    let bytes = received.bytes().to_vec();
    switch.give_back(received);
    Some(bytes)
}

fn waiting(switch: &mut Switch) -> Vec<u16> {
    (0..4).filter(|port| std::iter::from_fn(|| receive(switch, *port)).count() > 0).collect()
}

#[test]
fn a_port_that_is_unplugged_gets_nothing_and_is_forgotten() {
    let mut switch = Switch::new(&[Plug::Uplink; 4]).unwrap();
    send(&mut switch, 1, &frame(ALL, card(1), 7));
    assert!([0, 2, 3].into_iter().all(|port| switch.has_frame(PortId(port))) && !switch.has_frame(PortId(1)));
    assert_eq!(waiting(&mut switch), [0, 2, 3]);
    send(&mut switch, 0, &frame(card(1), card(0), 7));
    switch.unplug(PortId(1));
    assert_eq!(waiting(&mut switch), [0; 0], "what waited is dropped");
    // Its address is not known any more, and it gets nothing itself.
    send(&mut switch, 0, &frame(card(1), card(0), 7));
    assert_eq!(waiting(&mut switch), [2, 3]);
    switch.plug(PortId(1));
    send(&mut switch, 0, &frame(card(1), card(0), 7));
    assert_eq!(waiting(&mut switch), [1, 2, 3]);
}

#[test]
fn a_frame_goes_where_its_address_is() {
    let mut switch = Switch::new(&plugs()).unwrap();
    let bytes = frame(card(1), card(0), 7);
    assert_eq!(send(&mut switch, 0, &bytes), [1]);
    assert_eq!(receive(&mut switch, 1), Some(bytes));
    assert_eq!(waiting(&mut switch), [0; 0]);
    // To all, and to an address that is not known.
    for to in [ALL, OUTSIDE] {
        send(&mut switch, 0, &frame(to, card(0), 7));
        assert_eq!(waiting(&mut switch), [1, 2, 3]);
    }
    // Never back.
    send(&mut switch, 0, &frame(card(0), card(0), 7));
    assert_eq!(waiting(&mut switch), [0; 0]);
    // The outside's address is known once it has sent.
    send(&mut switch, 3, &frame(card(1), OUTSIDE, 7));
    assert_eq!(waiting(&mut switch), [1]);
    send(&mut switch, 0, &frame(OUTSIDE, card(0), 7));
    assert_eq!(waiting(&mut switch), [3]);
}

#[test]
fn no_card_takes_the_address_of_another_port() {
    let mut switch = Switch::new(&plugs()).unwrap();
    // That of a card.
    send(&mut switch, 0, &frame(ALL, card(1), 7));
    send(&mut switch, 3, &frame(ALL, card(1), 7));
    assert_eq!(waiting(&mut switch), [0; 0]);
    // That of the outside, even if the card was the first to use it.
    send(&mut switch, 0, &frame(card(2), OUTSIDE, 7));
    send(&mut switch, 3, &frame(card(2), OUTSIDE, 7));
    assert_eq!(receive(&mut switch, 2).and(receive(&mut switch, 2)), Some(frame(card(2), OUTSIDE, 7)));
    send(&mut switch, 0, &frame(ALL, OUTSIDE, 7));
    assert_eq!(waiting(&mut switch), [0; 0]);
    send(&mut switch, 1, &frame(OUTSIDE, card(1), 7));
    assert_eq!(waiting(&mut switch), [3]);
    // One that another card has learned for itself.
    let nested = [2, 9, 9, 9, 9, 9];
    send(&mut switch, 1, &frame(card(2), nested, 7));
    send(&mut switch, 0, &frame(card(2), nested, 7));
    assert_eq!(switch.counters(PortId(0)).refused, 3);
    assert_eq!(waiting(&mut switch), [2]);
    send(&mut switch, 0, &frame(nested, card(0), 7));
    assert_eq!(waiting(&mut switch), [1]);
}

#[test]
fn a_card_that_invents_addresses_makes_no_other_one_forgotten() {
    let mut switch = Switch::new(&plugs()).unwrap();
    let nested = |number| [2, 9, 9, 9, 9, number];
    send(&mut switch, 3, &frame(card(1), OUTSIDE, 7));
    send(&mut switch, 1, &frame(card(0), nested(0), 7));
    waiting(&mut switch);
    for number in 1..=CARD_ADDRESSES as u8 + 1 {
        send(&mut switch, 0, &frame(card(0), nested(number), 7));
    }
    for (to, ports) in [(OUTSIDE, &[3][..]), (nested(0), &[1]), (nested(2), &[0]), (nested(1), &[0, 1, 3])] {
        send(&mut switch, 2, &frame(to, card(2), 7));
        assert_eq!(waiting(&mut switch), ports, "{to:?}");
    }
}

#[test]
fn frames_that_are_none_are_refused() {
    let mut switch = Switch::new(&plugs()).unwrap();
    let group = [3, 0, 0, 0, 0, 9];
    for bytes in
        [vec![], vec![0; FRAME_MIN - 1], vec![1; FRAME_MAX + 1], frame(card(1), group, 7), frame(card(1), [0; 6], 7)]
    {
        send(&mut switch, 0, &bytes);
    }
    assert_eq!(switch.counters(PortId(0)).refused, 5);
    let mut longest = frame(card(1), card(0), 7);
    longest.resize(FRAME_MAX, 9);
    send(&mut switch, 0, &longest);
    assert_eq!(receive(&mut switch, 1), Some(longest));
    assert_eq!(receive(&mut switch, 1), None);
}

/// Two addresses and a type are the shortest frame.
#[test]
fn a_frame_may_have_no_content() {
    let mut switch = Switch::new(&plugs()).unwrap();
    let shortest = &frame(card(1), card(0), 7)[..14];
    send(&mut switch, 0, &shortest[..13]);
    assert_eq!((receive(&mut switch, 1), switch.counters(PortId(0)).refused), (None, 1));
    send(&mut switch, 0, shortest);
    assert_eq!(receive(&mut switch, 1).as_deref(), Some(shortest));
    let counters = switch.counters(PortId(0));
    assert_eq!((counters.forwarded, counters.refused, counters.dropped), (1, 1, 0));
}

/// Free places of the table are no addresses, nor is what is left in them.
#[test]
fn a_frame_to_an_address_that_no_port_has_goes_to_all() {
    let mut switch = Switch::new(&plugs()).unwrap();
    let (nowhere, lowest) = ([0; 6], [0, 0, 0, 0, 0, 1]);
    let others = |switch: &mut Switch, to| {
        send(switch, 0, &frame(to, card(0), 7));
        waiting(switch)
    };
    for to in [nowhere, lowest, [0, 0, 0, 0, 0, 2]] {
        assert_eq!(others(&mut switch, to), [1, 2, 3], "{to:x?}");
    }
    // An address moves from a card's port to the uplink, and is forgotten there.
    let moved = [4, 0, 0, 0, 0, 4];
    for (port, behind) in [(1, vec![1]), (3, vec![3])] {
        send(&mut switch, port, &frame(card(0), moved, 7));
        let _ = waiting(&mut switch);
        assert_eq!(others(&mut switch, moved), behind);
        for to in [nowhere, lowest] {
            assert_eq!(others(&mut switch, to), [1, 2, 3], "{to:x?}");
        }
    }
    switch.unplug(PortId(3));
    switch.plug(PortId(3));
    for to in [moved, nowhere, lowest] {
        assert_eq!(others(&mut switch, to), [1, 2, 3], "{to:x?}");
    }
}

/// An address of any value but 0 is learned.
#[test]
fn the_lowest_address_is_one() {
    let mut switch = Switch::new(&plugs()).unwrap();
    let lowest = [0, 0, 0, 0, 0, 1];
    send(&mut switch, 1, &frame(card(0), lowest, 7));
    let _ = waiting(&mut switch);
    send(&mut switch, 0, &frame(lowest, card(0), 7));
    assert_eq!(waiting(&mut switch), [1]);
}

/// 34 buffers of 2 KiB and 4 KiB of lists a port, 64 addresses of an uplink, and 4 KiB.
#[test]
fn the_memory_is_that_of_buffers_and_addresses() {
    assert_eq!(Switch::memory(0), 5 << 10);
    assert_eq!(Switch::memory(3), 3 * (72 << 10) + (5 << 10));
}

/// Port 1 takes nothing: ports 0 and 2 go on.
#[test]
fn a_slow_port_stalls_no_other() {
    let mut switch = Switch::new(&plugs()).unwrap();
    for mark in 0..=255 {
        send(&mut switch, 0, &frame(ALL, card(0), mark));
        assert_eq!(receive(&mut switch, 2).map(|bytes| bytes[14]), Some(mark));
    }
    assert_eq!(switch.counters(PortId(1)).dropped, 256 - QUEUE as u64);
    let marks: Vec<_> = std::iter::from_fn(|| receive(&mut switch, 1)).map(|bytes| bytes[14]).collect();
    assert_eq!(marks, (0..QUEUE as u8).collect::<Vec<_>>());
}

/// Every queue is full, and each port has a frame in either hand: there is a buffer for each.
#[test]
fn there_is_always_a_buffer() {
    let mut switch = Switch::new(&plugs()).unwrap();
    for _ in 0..=QUEUE {
        for port in 0..3 {
            for to in (0..3).filter(|to| *to != port) {
                send(&mut switch, port, &frame(card(to as u8), card(port as u8), 7));
            }
            send(&mut switch, 3, &frame(card(port as u8), OUTSIDE, 7));
            send(&mut switch, port, &frame(OUTSIDE, card(port as u8), 7));
        }
    }
    let received: Vec<_> = (0..4).filter_map(|port| switch.take(PortId(port))).collect();
    for port in 0..3 {
        send(&mut switch, 3, &frame(card(port), OUTSIDE, 7));
    }
    send(&mut switch, 0, &frame(OUTSIDE, card(0), 7));
    let sending: Vec<_> = (0..4).filter_map(|_| switch.buffer()).collect();
    assert_eq!((received.len(), sending.len()), (4, 4));
    assert!(switch.buffer().is_none(), "no buffer is more than that");
    received.into_iter().for_each(|frame| switch.give_back(frame));
    sending.into_iter().for_each(|buffer| switch.forward(PortId(0), buffer, |_| {}));
    (0..4).for_each(|port| switch.clear(PortId(port)));
    let all = std::iter::from_fn(|| switch.buffer()).count();
    assert_eq!(all, 4 * (QUEUE + 2), "no buffer is lost");
}

/// The rules again, without windows: so it is used with fewer addresses than a port learns.
#[derive(Default)]
struct Model {
    learned: Vec<(Address, u16)>,
    queues: [VecDeque<Vec<u8>>; 4],
}

impl Model {
    fn owner(&self, address: Address) -> Option<u16> {
        let own = (0..3).find(|port| card(*port as u8) == address);
        own.or_else(|| self.learned.iter().find(|(known, _)| *known == address).map(|(_, port)| *port))
    }

    fn send(&mut self, port: u16, bytes: &[u8]) -> Vec<u16> {
        let (to, from): (Address, Address) = (bytes[..6].try_into().unwrap(), bytes[6..12].try_into().unwrap());
        if from[0] & 1 != 0 {
            return Vec::new();
        }
        match self.owner(from) {
            None => self.learned.push((from, port)),
            Some(owner) if owner == port => {}
            Some(_) if port == 3 && from[1] != 0 => self.learned.iter_mut().for_each(|entry| {
                if entry.0 == from {
                    entry.1 = 3;
                }
            }),
            Some(_) => return Vec::new(),
        }
        let one = if to[0] & 1 == 0 { self.owner(to) } else { None };
        let mut woken = Vec::new();
        for other in (0..4).filter(|other| *other != port && one.is_none_or(|one| one == *other)) {
            let queue = &mut self.queues[usize::from(other)];
            if queue.len() < QUEUE {
                if queue.is_empty() {
                    woken.push(other);
                }
                queue.push_back(bytes.to_vec());
            }
        }
        woken
    }
}

proptest! {
    #[test]
    fn it_does_as_the_model(events in prop::collection::vec((0..4_u16, 0..10_usize, 0..10_usize, any::<u8>(), 0..3_u8), 1..600)) {
        let addresses = [
            card(0), card(1), card(2), [2, 1, 0, 0, 0, 0], [2, 1, 0, 0, 0, 1], [2, 1, 0, 0, 0, 2], ALL,
            [1, 0, 0x5e, 0, 0, 1], [2, 1, 0, 0, 0, 3], [2, 1, 0, 0, 0, 4],
        ];
        let (mut switch, mut model) = (Switch::new(&plugs()).unwrap(), Model::default());
        for (port, to, from, mark, what) in events {
            if what == 0 {
                prop_assert_eq!(receive(&mut switch, port), model.queues[usize::from(port)].pop_front());
            } else {
                let bytes = frame(addresses[to], addresses[from], mark);
                prop_assert_eq!(send(&mut switch, port, &bytes), model.send(port, &bytes));
            }
        }
        for port in 0..4 {
            let left: Vec<_> = std::iter::from_fn(|| receive(&mut switch, port)).collect();
            prop_assert_eq!(left, Vec::from(std::mem::take(&mut model.queues[usize::from(port)])));
        }
    }
}
