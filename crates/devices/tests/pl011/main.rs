// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The UART against a naive model, as Linux's driver uses it, and over saved and restored states.

mod naive;

use proptest::collection::vec;
use proptest::prelude::*;
use twofold_devices::pl011::{ByteSink, Full, error};
use twofold_devices::{Pl011, StateError, Width};

use naive::Naive;

const DR: u64 = 0x00;
const RSR: u64 = 0x04;
const FR: u64 = 0x18;
const LCR_H: u64 = 0x2c;
const CR: u64 = 0x30;
const IFLS: u64 = 0x34;
const IMSC: u64 = 0x38;
const RIS: u64 = 0x3c;
const MIS: u64 = 0x40;
const ICR: u64 = 0x44;
const WIDTHS: [Width; 4] = [Width::Byte, Width::Half, Width::Word, Width::Double];
const TXFF: u64 = 1 << 5;
const TX: u64 = 1 << 5;
const RX: u64 = 1 << 4;
const RT: u64 = 1 << 6;
/// CR: UARTEN, TXE and RXE.
const ON: u64 = 0x301;

/// A sink that takes `room` more bytes.
#[derive(Clone, Default)]
struct Sink {
    room: usize,
    taken: Vec<u8>,
}

impl ByteSink for Sink {
    fn put(&mut self, byte: u8) -> Result<(), Full> {
        self.room = self.room.checked_sub(1).ok_or(Full)?;
        self.taken.push(byte);
        Ok(())
    }
}

/// A UART with its sink and its line.
struct Board {
    uart: Pl011,
    sink: Sink,
    line: bool,
}

impl Board {
    fn new(room: usize) -> Self {
        Self { uart: Pl011::new(), sink: Sink { room, taken: Vec::new() }, line: false }
    }

    fn read(&mut self, offset: u64) -> u64 {
        self.uart.read(offset, Width::Word, &mut self.line)
    }

    fn write(&mut self, offset: u64, value: u64) {
        self.uart.write(offset, Width::Word, value, &mut self.sink, &mut self.line);
    }

    fn transmit(&mut self, room: usize) {
        self.sink.room += room;
        self.uart.transmit(&mut self.sink, &mut self.line);
    }
}

#[derive(Clone, Debug)]
enum Event {
    Read(u64, Width),
    Write(u64, Width, u64),
    Receive(Vec<u8>),
    Character(u16),
    Room(usize),
    /// The sink gets room, and the UART learns it only when it tries.
    SilentRoom(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let register = prop_oneof![
        8 => Just(DR),
        6 => prop::sample::select(vec![RSR, FR, LCR_H, CR, IFLS, IMSC, RIS, MIS, ICR]),
        1 => 0_u64..0x1000,
        1 => any::<u64>(),
    ];
    let width = prop_oneof![6 => Just(Width::Word), 1 => prop::sample::select(WIDTHS.to_vec())];
    let value = prop_oneof![any::<u64>(), prop::sample::select(vec![0x70, 0x301, 0x381, 0x10, 0x7ff, 0])];
    prop_oneof![
        4 => (register.clone(), width.clone()).prop_map(|(offset, width)| Event::Read(offset, width)),
        6 => (register, width, value).prop_map(|(offset, width, value)| Event::Write(offset, width, value)),
        2 => vec(any::<u8>(), 0..40).prop_map(Event::Receive),
        1 => any::<u16>().prop_map(Event::Character),
        2 => (0_usize..40).prop_map(Event::Room),
        1 => (0_usize..40).prop_map(Event::SilentRoom),
    ]
}

/// Both do the same, and so does a UART that is saved and restored after each event.
fn agree(events: Vec<Event>) {
    let (mut board, mut naive) = (Board::new(3), Naive::new(3));
    for (index, event) in events.into_iter().enumerate() {
        match event.clone() {
            Event::Read(offset, width) => {
                let value = board.uart.read(offset, width, &mut board.line);
                assert_eq!(value, naive.read(offset, width), "{index}: {event:x?}");
            }
            Event::Write(offset, width, value) => {
                board.uart.write(offset, width, value, &mut board.sink, &mut board.line);
                naive.write(offset, width, value);
            }
            Event::Receive(bytes) => {
                let room = board.uart.room();
                let taken = board.uart.receive(&bytes, &mut board.line);
                assert_eq!(taken, naive.receive(&bytes), "{index}: {event:x?}");
                assert_eq!(taken, room.min(bytes.len()));
            }
            Event::Character(character) => {
                board.uart.receive_character(character, &mut board.line);
                if !naive.bit(CR, 7) {
                    naive.arrive(u64::from(character & 0x7ff));
                    naive.pause();
                }
            }
            Event::Room(room) => {
                board.transmit(room);
                naive.sink.room += room;
                naive.transmit();
            }
            Event::SilentRoom(room) => {
                board.sink.room += room;
                naive.sink.room += room;
            }
        }
        assert_eq!(board.line, naive.line(), "{index}: {event:x?}");
        assert_eq!(board.line, board.uart.interrupt());
        assert_eq!(board.sink.taken, naive.sink.taken, "{index}: {event:x?}");
        assert_eq!(board.uart.waiting(), naive.waiting.len());
        let state = board.uart.state();
        board.uart = Pl011::from_state(&state).unwrap_or_else(|error| panic!("{index}: {event:x?}: {error}"));
        assert_eq!(board.uart.state(), state);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn agrees_with_the_naive_model(events in vec(event(), 0..120)) {
        agree(events);
    }

    /// A guest that looks at TXFF before each byte loses none, whatever the sink does.
    #[test]
    fn no_byte_is_lost_or_reordered(
        fifo in any::<bool>(),
        bytes in vec(any::<u8>(), 0..200),
        rooms in vec(0_usize..9, 1..20),
    ) {
        let mut board = Board::new(0);
        board.write(LCR_H, if fifo { 0x70 } else { 0x60 });
        let mut rooms = rooms.iter().cycle();
        let mut sent = 0;
        while sent < bytes.len() {
            if board.read(FR) & TXFF == 0 {
                board.write(DR, bytes[sent].into());
                sent += 1;
            } else {
                // All rooms may be 0.
                board.transmit(1 + rooms.next().unwrap());
            }
        }
        board.transmit(usize::MAX / 2);
        prop_assert_eq!(&board.sink.taken, &bytes);
    }

    /// Bytes are no state, or the state that is saved again. No access of the restored UART panics.
    #[test]
    fn any_bytes_are_refused_or_kept(
        state in vec(prop_oneof![8 => Just(0_u8), 1 => any::<u8>()], Pl011::STATE_SIZE),
        events in vec(event(), 0..20),
    ) {
        let mut state = state;
        state[0] = 1;
        state[1] = 0;
        if let Ok(uart) = Pl011::from_state(&state) {
            prop_assert_eq!(uart.state().to_vec(), state);
            let mut board = Board { line: uart.interrupt(), uart, sink: Sink::default() };
            for event in events {
                match event {
                    Event::Read(offset, width) => _ = board.uart.read(offset, width, &mut board.line),
                    Event::Write(offset, width, value) =>
                        board.uart.write(offset, width, value, &mut board.sink, &mut board.line),
                    Event::Receive(bytes) => _ = board.uart.receive(&bytes, &mut board.line),
                    Event::Character(character) => board.uart.receive_character(character, &mut board.line),
                    Event::Room(room) | Event::SilentRoom(room) => board.transmit(room),
                }
                prop_assert!(Pl011::from_state(&board.uart.state()).is_ok());
            }
        }
    }
}

#[test]
fn every_offset_and_width_agrees() {
    for fifo in [0, 0x10] {
        let mut events = vec![Event::Write(LCR_H, Width::Word, fifo), Event::Write(CR, Width::Word, ON)];
        for offset in (0..0x1008).chain(u64::MAX - 9..=u64::MAX) {
            for width in WIDTHS {
                for value in [0, u64::MAX, 0x0123_4567_89ab_cdef] {
                    events.push(Event::Receive(vec![1, 2]));
                    events.push(Event::Write(offset, width, value));
                    events.push(Event::Read(offset, width));
                }
            }
        }
        agree(events);
    }
}

/// The ID by which Linux's driver finds the device, and by whose revision it takes the FIFOs to have 32 places.
#[test]
fn has_the_identity_of_r1p5() {
    let mut board = Board::new(0);
    let mut id = |first: u64| (0..4).map(|index| board.read(first + 4 * index) << (8 * index)).sum::<u64>();
    assert_eq!((id(0xfe0), id(0xff0)), (0x0034_1011, 0xb105_f00d));
    board.write(LCR_H, 0x10);
    let places = (0..)
        .take_while(|_| {
            let free = board.read(FR) & TXFF == 0;
            board.write(DR, 0);
            free
        })
        .count();
    assert_eq!(places, 32);
}

/// Linux's early console: without any setup it waits for TXFF to clear, writes, and waits for BUSY to clear.
#[test]
fn the_early_console_needs_no_setup() {
    let mut board = Board::new(100);
    for byte in b"Booting Linux" {
        assert_eq!(board.read(FR) & TXFF, 0);
        board.write(DR, u64::from(*byte));
        assert_eq!(board.read(FR) & 0x8, 0);
    }
    assert_eq!(board.sink.taken, b"Booting Linux");
    assert!(!board.line);
}

/// Linux's driver fills the FIFO, unmasks the transmit interrupt, and writes 16 bytes for each without looking at TXFF.
#[test]
fn linux_sends_through_a_full_sink_and_loses_nothing() {
    let mut board = Board::new(0);
    board.write(LCR_H, 0x70);
    board.write(CR, ON);
    board.write(IFLS, 0x12);
    let bytes: Vec<u8> = (0..250).collect();
    let mut sent = 0;
    while board.read(FR) & TXFF == 0 {
        board.write(DR, bytes[sent].into());
        sent += 1;
    }
    assert_eq!(sent, 32);
    board.write(IMSC, TX);
    assert!(!board.line, "the FIFO is full");
    while sent < bytes.len() {
        board.transmit(15);
        assert!(!board.line, "17 bytes wait");
        board.transmit(1);
        assert!(board.line, "16 bytes wait");
        for _ in 0..16.min(bytes.len() - sent) {
            board.write(DR, bytes[sent].into());
            sent += 1;
        }
        assert_eq!(board.line, board.uart.waiting() <= 16);
    }
    board.transmit(100);
    assert_eq!(board.sink.taken, bytes);
}

/// A sink that always has room keeps the interrupt up, so a driver that counts on it gets on.
#[test]
fn each_byte_that_leaves_raises_the_transmit_interrupt() {
    for line_control in [0x60, 0x70] {
        let mut board = Board::new(100);
        board.write(LCR_H, line_control);
        board.write(IMSC, TX);
        assert!(!board.line, "nothing was sent");
        board.write(DR, 1);
        assert!(board.line);
        board.write(ICR, TX);
        assert!(!board.line);
        board.write(DR, 2);
        assert!(board.line);
    }
}

#[test]
fn the_receive_interrupts_follow_level_and_pause() {
    let mut board = Board::new(0);
    board.write(LCR_H, 0x70);
    assert_eq!(board.uart.receive(b"early", &mut board.line), 0, "the receiver is off");
    board.write(CR, ON);
    board.write(IMSC, RX | RT);
    assert_eq!(board.uart.receive(&[7; 15], &mut board.line), 15);
    assert_eq!(board.read(MIS), RT);
    assert_eq!(board.uart.receive(&[7; 40], &mut board.line), 17);
    assert_eq!((board.uart.room(), board.read(MIS)), (0, RX | RT));
    for _ in 0..16 {
        assert_eq!(board.read(DR), 7);
        assert!(board.read(RIS) & RX != 0);
    }
    board.read(DR);
    assert_eq!(board.read(MIS), RT);
    (0..15).for_each(|_| _ = board.read(DR));
    assert!(!board.line);
}

/// The character after a lost one carries the overrun; the one before does not.
#[test]
fn an_overrun_is_read_with_the_next_character() {
    let mut board = Board::new(0);
    board.write(LCR_H, 0x70);
    board.write(CR, ON);
    for byte in 0..33 {
        board.uart.receive_character(byte, &mut board.line);
    }
    assert_eq!((board.read(RSR), board.read(RIS) >> 10), (8, 1));
    assert_eq!(board.read(DR), 0);
    board.uart.receive_character(error::BREAK, &mut board.line);
    for byte in 1..32 {
        assert_eq!(board.read(DR), byte);
    }
    assert_eq!(board.read(DR), 0xc00);
    assert_eq!(board.read(RSR), 8 | 4);
    board.write(RSR, 0);
    assert_eq!(board.read(RSR), 0);
}

#[test]
fn loopback_reaches_the_receiver_and_not_the_sink() {
    let mut board = Board::new(100);
    board.write(LCR_H, 0x70);
    board.write(CR, ON | 0x80 | 0x800);
    assert_eq!(board.read(FR) & 0x107, 1, "only CTS, from RTS");
    board.write(DR, 0x5a);
    assert_eq!(board.uart.receive(b"x", &mut board.line), 0);
    assert_eq!((board.read(DR), board.sink.taken.len()), (0x5a, 0));
}

#[test]
fn states_that_no_uart_has_are_refused() {
    let mut board = Board::new(0);
    board.write(LCR_H, 0x70);
    board.write(CR, ON);
    board.uart.receive(&[1, 2, 3], &mut board.line);
    let state = board.uart.state();
    assert_eq!(Pl011::from_state(&state).unwrap().state(), state);
    let wanted = Pl011::STATE_SIZE;
    assert_eq!(wanted, 116);
    assert_eq!(Pl011::from_state(&state[1..]).unwrap_err(), StateError::Length { found: wanted - 1, wanted });
    for (offset, value, wanted) in [
        (0, 2, StateError::Version(2)),
        (2, 0x09, StateError::Impossible("reserved bits of CR")),
        (5, 0x08, StateError::Impossible("reserved bits of IMSC or RIS")),
        (7, 0x80, StateError::Impossible("reserved bits of IMSC or RIS")),
        (10, 0x40, StateError::Impossible("reserved bits of FBRD")),
        (11, 0x60, StateError::Impossible("more characters than the receive FIFO has places")),
        (12, 0x40, StateError::Impossible("reserved bits of IFLS")),
        (13, 8, StateError::Impossible("reserved bits of DMACR")),
        (15, 16, StateError::Impossible("reserved bits of RSR")),
        (16, 2, StateError::Impossible("an overrun that is neither 0 nor 1")),
        (17, 33, StateError::Impossible("more characters than the receive FIFO has places")),
        (17, 0, StateError::Impossible("a receive interrupt without a character")),
        (17, 2, StateError::Impossible("a character in an unused place")),
        (18, 33, StateError::Impossible("more bytes than the transmit FIFO has places")),
        (19, 1, StateError::Impossible("a reserved byte")),
        (21, 0x10, StateError::Impossible("reserved bits of a character")),
        (84, 1, StateError::Impossible("a byte in an unused place")),
    ] {
        let mut state = state;
        state[offset] = value;
        assert_eq!(Pl011::from_state(&state).unwrap_err(), wanted, "{offset}");
    }
}
