// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A card: frames in both directions, in order, and a card that is full.

use std::collections::VecDeque;
use std::rc::Rc;

use twofold_devices::virtio::Net;
use twofold_devices::virtio::net::{FRAME_MAX, NetModel, Port};
use twofold_fuzz_hypervisor::host_devices::card::{Card, FRAMES, Full};

use crate::bus::{Bus, Machine, Memory, Registers};

const MAC: [u8; 6] = [2, b't', b'f', 1, 0, 0];

#[derive(Default)]
struct Cable {
    sent: Vec<Vec<u8>>,
    incoming: VecDeque<Vec<u8>>,
}

impl Port for Cable {
    fn has_room(&self) -> bool {
        true
    }

    fn send(&mut self, frame: &[u8]) {
        self.sent.push(frame.to_vec());
    }

    fn incoming(&self) -> Option<&[u8]> {
        self.incoming.front().map(Vec::as_slice)
    }

    fn consume(&mut self) {
        self.incoming.pop_front();
    }
}

type TheBus = Rc<Bus<NetModel, Cable>>;
type TheCard = Card<Machine, Registers<NetModel, Cable>>;

fn card() -> (TheBus, TheCard) {
    let bus = Bus::new(Net::new(MAC), Cable::default());
    let card = Card::new(Registers(bus.clone())).expect("the card is a good one");
    assert_eq!(card.mac(), MAC);
    (bus, card)
}

fn work(bus: &TheBus) {
    bus.is_notified.set(true);
    bus.poll(|net, cable, line| net.poll(&Memory, cable, line));
}

#[test]
fn frames_pass_in_order() {
    let (bus, mut card) = card();
    let frame = |number: usize| vec![number as u8; 14 + number * 37 % (FRAME_MAX - 13)];
    for number in 0..500 {
        assert_eq!(card.send(&frame(number)), Ok(()));
        bus.far_end.borrow_mut().incoming.push_back(frame(number + 1));
        work(&bus);
        let mut came = None;
        assert!(card.receive(|frame| came = Some(frame.to_vec())));
        assert_eq!(came, Some(frame(number + 1)));
        assert!(!card.receive(|_| panic!("there is no other one")));
    }
    assert!(bus.far_end.borrow().sent.iter().enumerate().all(|(number, sent)| *sent == frame(number)));
}

#[test]
fn a_card_has_room_for_a_number_of_frames() {
    let (bus, mut card) = card();
    for round in 0..5 {
        // The first try of a later round takes back what the device has sent.
        for _ in 0..FRAMES {
            assert_eq!(card.send(&[round; 60]), Ok(()));
        }
        assert_eq!(card.send(&[round; 60]), Err(Full));
        bus.far_end.borrow_mut().incoming.extend((0..2 * FRAMES).map(|number| vec![number as u8; 60]));
        work(&bus);
        let mut numbers = Vec::new();
        while card.receive(|frame| numbers.push(frame[0])) {
            work(&bus);
        }
        assert!(numbers.iter().copied().eq(0..2 * FRAMES as u8), "none is lost");
    }
    assert_eq!(bus.far_end.borrow().sent.len(), 5 * FRAMES);
}

#[test]
fn what_is_no_frame_is_dropped() {
    let (bus, mut card) = card();
    for length in [0, 13, FRAME_MAX + 1] {
        assert_eq!(card.send(&vec![0; length]), Ok(()));
    }
    work(&bus);
    assert!(bus.far_end.borrow().sent.is_empty());
}
