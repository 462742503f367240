// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Consoles on the control channel: guests that write and read, a sender that comes only when it is asked to, and launchers
//! that grant or not, are cut off anywhere, and come back. The naive model is a number: byte `n` of a stream is known, so
//! whatever is lost, doubled or out of order differs.

use std::cell::RefCell;
use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;
use twofold_abi::channel::wire::ENCODED_MAX;
use twofold_abi::channel::{
    Command, FrameReader, FrameWriter, GuestState, Reason, ReceiveCredit, SendCredit, ToHypervisor, ToLauncher,
};
use twofold_vmm::console::{CHUNK, Console, Notice};
use twofold_vmm::session::{Guests, Launcher, Sent, Session};

const GUESTS: usize = 3;
const OUTPUT: usize = 4096;
const INPUT: usize = 64;

/// Byte `number` of a stream.
fn byte(stream: usize, number: u64) -> u8 {
    let mixed = (number ^ (stream as u64) << 40).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// The streams: each guest's output, then each guest's input.
fn input_of(guest: usize) -> usize {
    GUESTS + guest
}

/// A guest with its UART.
#[derive(Default)]
struct Guest {
    written: u64,
    read: u64,
    /// The UART was full, and has not interrupted since.
    is_blocked: bool,
}

/// What EL2 has.
struct Hypervisor {
    session: Session,
    consoles: Vec<Console>,
    guests: Vec<Guest>,
    /// The task has to run.
    is_asked: bool,
    commands: usize,
}

/// The consoles with their guests' UARTs.
struct Uarts<'a>(RefCell<(&'a mut [Console], &'a mut [Guest])>);

impl Guests for Uarts<'_> {
    fn count(&self) -> u16 {
        GUESTS as u16
    }

    fn state(&self, _guest: u16) -> GuestState {
        GuestState::Running
    }

    fn console<T>(&self, guest: u16, act: impl FnOnce(&mut Console) -> T) -> Option<T> {
        // A UART whose lock is held twice is a panic here.
        let (consoles, guests) = &mut *self.0.borrow_mut();
        let (console, guest) = (consoles.get_mut(usize::from(guest))?, &mut guests[usize::from(guest)]);
        let done = act(console);
        if guest.is_blocked && console.has_room() {
            guest.is_blocked = false;
        }
        Some(done)
    }
}

/// The stream to the launcher, which has a capacity.
struct Stream {
    bytes: VecDeque<u8>,
    capacity: usize,
    is_first: bool,
}

impl Launcher for Stream {
    fn begin(&mut self) {
        self.is_first = true;
    }

    fn send(&mut self, guest: Option<u16>, message: &ToLauncher<'_>) {
        if let ToLauncher::Refused { reason, text, .. } = message {
            // The end of a frame that was cut.
            assert_eq!(*reason, Reason::Malformed, "{text}");
        }
        if std::mem::take(&mut self.is_first) {
            self.bytes.push_back(0);
        }
        self.bytes.extend(message.write(guest, &mut FrameWriter::new()).unwrap());
    }

    fn offer(&mut self, guest: Option<u16>, message: &ToLauncher<'_>) -> bool {
        let is_room = self.bytes.len() < self.capacity;
        if is_room {
            self.send(guest, message);
        }
        is_room
    }
}

impl Hypervisor {
    fn new() -> Self {
        Self {
            session: Session::new(),
            consoles: (0..GUESTS).map(|_| Console::new(OUTPUT, INPUT)).collect(),
            guests: (0..GUESTS).map(|_| Guest::default()).collect(),
            is_asked: false,
            commands: 0,
        }
    }

    /// The guest writes this many bytes, until its UART is full.
    fn write(&mut self, guest: usize, count: usize) {
        let (console, state) = (&mut self.consoles[guest], &mut self.guests[guest]);
        for _ in 0..count {
            if state.is_blocked {
                break;
            }
            match console.write(byte(guest, state.written)) {
                Ok(()) => state.written += 1,
                Err(_) => state.is_blocked = true,
            }
        }
        self.is_asked |= console.notice() != Notice::None;
    }

    /// The guest reads this many bytes, or as many as there are.
    fn read(&mut self, guest: usize, count: usize) {
        let (console, state) = (&mut self.consoles[guest], &mut self.guests[guest]);
        let mut left = count;
        while left > 0 && !console.input().is_empty() {
            let piece = console.input().len().min(left);
            for &found in &console.input()[..piece] {
                assert_eq!(found, byte(input_of(guest), state.read), "input {} of guest {guest}", state.read);
                state.read += 1;
            }
            console.read(piece);
            left -= piece;
        }
        self.is_asked |= console.notice() != Notice::None;
    }

    /// What the launcher has sent comes.
    fn receive(&mut self, bytes: &[u8], stream: &mut Stream) {
        let mut left = bytes;
        let uarts = Uarts(RefCell::new((&mut self.consoles, &mut self.guests)));
        while let Some(asked) = self.session.read(&mut left, &uarts, stream) {
            self.commands += 1;
            asked.done(&self.session, stream);
        }
        self.is_asked |= !bytes.is_empty();
    }

    /// The task runs, if it was asked to.
    fn send(&mut self, stream: &mut Stream) {
        let uarts = Uarts(RefCell::new((&mut self.consoles, &mut self.guests)));
        while std::mem::take(&mut self.is_asked) {
            // A device without room interrupts when it has some: then the task is asked again.
            self.is_asked = self.session.send(&uarts, stream) == Sent::Some;
        }
    }
}

/// A launcher.
struct Client {
    reader: FrameReader,
    session: u64,
    has_begun: bool,
    guests: Vec<End>,
    done: usize,
}

/// A launcher's end of a console.
#[derive(Default)]
struct End {
    /// Its position has come. Before that the launcher cannot report what it has, so it grants nothing (S8).
    is_open: bool,
    received: VecDeque<u8>,
    grants: ReceiveCredit,
    credit: SendCredit,
    /// The next byte of input.
    input: u64,
}

/// What stays when a launcher goes.
#[derive(Default, Clone, Copy)]
struct Kept {
    /// Bytes of output that it has written to a file.
    taken: u64,
    /// Bytes of input that it was given.
    given: u64,
}

impl Client {
    fn new(session: u64, to: &mut VecDeque<u8>) -> Self {
        let hello = ToHypervisor::Hello { lowest: 1, highest: 1, session };
        to.push_back(0);
        to.extend(hello.write(None, &mut FrameWriter::new()).unwrap());
        let guests = (0..GUESTS).map(|_| End::default()).collect();
        Self { reader: FrameReader::new(), session, has_begun: false, guests, done: 0 }
    }

    fn receive(&mut self, mut bytes: &[u8], kept: &[Kept], to: &mut VecDeque<u8>) {
        while let Some(frame) = self.reader.read(&mut bytes) {
            // Only what is older than this session is cut.
            let Ok(frame) = frame else {
                assert!(!self.has_begun, "{frame:?}");
                continue;
            };
            let message = ToLauncher::read(&frame).unwrap();
            if let ToLauncher::Welcome { session, .. } = message {
                self.has_begun = session == self.session;
            }
            if !self.has_begun {
                continue;
            }
            let guest = usize::from(frame.guest.unwrap_or_default());
            let end = &mut self.guests[guest];
            match message {
                ToLauncher::Position { output, input } => {
                    let taken = kept[guest].taken;
                    assert!(output <= taken, "output {taken} to {output} of guest {guest} is lost");
                    (end.input, end.is_open) = (input, true);
                    let message = ToHypervisor::Taken(taken);
                    to.extend(message.write(frame.guest, &mut FrameWriter::new()).unwrap());
                }
                ToLauncher::Output(bytes) => {
                    end.grants.received(bytes.len()).expect("no more than was granted");
                    end.received.extend(bytes);
                }
                ToLauncher::InputCredit(bytes) => end.credit.granted(bytes).unwrap(),
                ToLauncher::Done(_) => self.done += 1,
                _ => {}
            }
        }
    }

    /// Takes this many bytes, then grants what there is room for.
    fn take(&mut self, guest: usize, count: usize, window: usize, kept: &mut Kept, to: &mut VecDeque<u8>) {
        let end = &mut self.guests[guest];
        if !end.is_open {
            return;
        }
        let mut send = |message: ToHypervisor<'_>| {
            to.extend(message.write(Some(guest as u16), &mut FrameWriter::new()).unwrap());
        };
        let count = count.min(end.received.len());
        for found in end.received.drain(..count) {
            assert_eq!(found, byte(guest, kept.taken), "output {} of guest {guest}", kept.taken);
            kept.taken += 1;
        }
        if count > 0 {
            send(ToHypervisor::Taken(kept.taken));
        }
        if let Some(bytes) = end.grants.grant(window.saturating_sub(end.received.len())) {
            send(ToHypervisor::OutputCredit(bytes));
        }
    }

    /// Sends as much of what it was given as there is credit for.
    fn give(&mut self, guest: usize, kept: &Kept, to: &mut VecDeque<u8>) {
        let end = &mut self.guests[guest];
        if !self.has_begun {
            return;
        }
        let count = end.credit.take((kept.given - end.input).min(100) as usize) as u64;
        if count > 0 {
            let bytes: Vec<_> = (end.input..end.input + count).map(|number| byte(input_of(guest), number)).collect();
            end.input += count;
            to.extend(ToHypervisor::Input(&bytes).write(Some(guest as u16), &mut FrameWriter::new()).unwrap());
        }
    }
}

/// A step of a schedule.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize, usize),
    Read(usize, usize),
    /// This many bytes reach the hypervisor.
    Arrive(usize),
    Send,
    /// This many bytes reach the launcher.
    Return(usize),
    Take(usize, usize),
    Give(usize, usize),
    /// The launcher goes when this many of its bytes are written, and another one comes.
    Cut(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let guest = 0..GUESTS;
    prop_oneof![
        6 => (guest.clone(), 0..2 * OUTPUT).prop_map(|(guest, count)| Step::Write(guest, count)),
        4 => (guest.clone(), 0..INPUT).prop_map(|(guest, count)| Step::Read(guest, count)),
        6 => (0..300_usize).prop_map(Step::Arrive),
        6 => Just(Step::Send),
        6 => (0..2000_usize).prop_map(Step::Return),
        6 => (guest.clone(), 0..1000_usize).prop_map(|(guest, count)| Step::Take(guest, count)),
        4 => (guest, 0..200_usize).prop_map(|(guest, count)| Step::Give(guest, count)),
        1 => (0..60_usize).prop_map(Step::Cut),
    ]
}

/// The most that a launcher is sent without credit: the welcome, the positions, and what a cut frame is refused with.
const GREETING: usize = 400;

struct World {
    /// Launchers that have come since the stream to them was last empty.
    launchers: usize,
    hypervisor: Hypervisor,
    client: Client,
    stream: Stream,
    to: VecDeque<u8>,
    kept: [Kept; GUESTS],
    windows: [usize; GUESTS],
}

impl World {
    fn new(windows: [usize; GUESTS], capacity: usize) -> Self {
        let mut to = VecDeque::new();
        let client = Client::new(1, &mut to);
        let stream = Stream { bytes: [0].into(), capacity, is_first: false };
        Self { launchers: 1, hypervisor: Hypervisor::new(), client, stream, to, kept: Default::default(), windows }
    }

    fn step(&mut self, step: Step) {
        let Self { launchers, hypervisor, client, stream, to, kept, windows } = self;
        match step {
            Step::Write(guest, count) => hypervisor.write(guest, count),
            Step::Read(guest, count) => hypervisor.read(guest, count),
            Step::Arrive(count) => {
                let bytes: Vec<_> = to.drain(..count.min(to.len())).collect();
                hypervisor.receive(&bytes, stream);
            }
            Step::Send => hypervisor.send(stream),
            Step::Return(count) => {
                let was_full = stream.bytes.len() >= stream.capacity;
                let bytes: Vec<_> = stream.bytes.drain(..count.min(stream.bytes.len())).collect();
                client.receive(&bytes, kept, to);
                // The device's interrupt.
                hypervisor.is_asked |= was_full;
            }
            Step::Take(guest, count) => client.take(guest, count, windows[guest], &mut kept[guest], to),
            Step::Give(guest, count) => {
                kept[guest].given += count as u64;
                client.give(guest, &kept[guest], to);
            }
            Step::Cut(count) => {
                to.truncate(count);
                *client = Client::new(client.session + 1, to);
                *launchers += 1;
            }
        }
        // A frame of output is the last that the capacity allows. Greetings do not ask for room.
        let most = stream.capacity + ENCODED_MAX + *launchers * GREETING;
        assert!(stream.bytes.len() <= most, "{} bytes of {most}", stream.bytes.len());
        if stream.bytes.is_empty() {
            *launchers = 1;
        }
    }

    /// All goes on without further writes, until nothing changes. The guests in `read` have launchers that take.
    fn settle(&mut self, read: &[usize]) {
        let (mut before, mut rounds) = (None, 0);
        // A round or two may only carry credit.
        while rounds < 4 {
            let kept = self.kept.map(|kept| kept.taken);
            let guests = self.hypervisor.guests.iter().map(|guest| (guest.written, guest.read)).collect::<Vec<_>>();
            let now = Some((kept, guests, self.client.done, self.client.has_begun));
            rounds = if now == before { rounds + 1 } else { 0 };
            before = now;
            for &guest in read {
                self.step(Step::Take(guest, usize::MAX));
                self.step(Step::Give(guest, 0));
                self.step(Step::Read(guest, usize::MAX));
            }
            self.step(Step::Arrive(usize::MAX));
            self.step(Step::Send);
            self.step(Step::Return(usize::MAX));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever the schedule: nothing is lost, doubled or out of order in either direction, nothing is sent beyond credit,
    /// and nothing waits for ever.
    #[test]
    fn nothing_is_lost_however_launchers_come_and_go(
        steps in vec(step(), 0..400),
        windows in [1..1500_usize, 1..1500_usize, 1..1500_usize],
        capacity in 1..4000_usize,
    ) {
        let mut world = World::new(windows, capacity);
        for step in steps {
            world.step(step);
        }
        world.settle(&[0, 1, 2]);
        for (guest, kept) in world.kept.iter().enumerate() {
            let state = &world.hypervisor.guests[guest];
            prop_assert!(!state.is_blocked);
            prop_assert_eq!(kept.taken, state.written, "output of guest {}", guest);
            prop_assert_eq!(kept.given, state.read, "input of guest {}", guest);
        }
    }
}

/// Nothing reads guest 0's console, and nothing grants for it. It fills its own buffer and no other guest's; commands are
/// answered. When a launcher takes it at last, all is there.
#[test]
fn a_console_that_nothing_reads_holds_up_only_its_guest() {
    let mut world = World::new([0, 900, 100], 2000);
    world.settle(&[1, 2]);
    for round in 1..=200 {
        (0..GUESTS).for_each(|guest| world.step(Step::Write(guest, 300)));
        let command = ToHypervisor::Command { request: round, command: Command::Statistics };
        world.to.extend(command.write(None, &mut FrameWriter::new()).unwrap());
        // Arrives, is answered before any console, and comes back behind what was sent before.
        world.step(Step::Arrive(usize::MAX));
        world.step(Step::Return(usize::MAX));
        assert_eq!(world.client.done, round as usize);
        for _ in 0..8 {
            [1, 2].into_iter().for_each(|guest| world.step(Step::Take(guest, 300)));
            world.step(Step::Arrive(usize::MAX));
            world.step(Step::Send);
            world.step(Step::Return(usize::MAX));
        }
        assert_eq!(world.hypervisor.guests[1].written, 300 * u64::from(round));
        assert_eq!(world.hypervisor.guests[2].written, 300 * u64::from(round));
    }
    assert!(world.hypervisor.guests[0].is_blocked);
    assert_eq!((world.hypervisor.guests[0].written, world.kept[0].taken), (OUTPUT as u64, 0));
    world.windows[0] = 200;
    world.settle(&[0, 1, 2]);
    assert!(!world.hypervisor.guests[0].is_blocked);
    world.step(Step::Write(0, 10));
    world.settle(&[0]);
    assert_eq!(world.kept[0].taken, OUTPUT as u64 + 10);
}

/// Consoles that all have much to send take turns, a frame each.
#[test]
fn consoles_take_turns() {
    let mut world = World::new([OUTPUT; GUESTS], usize::MAX / 2);
    world.settle(&[0, 1, 2]);
    (0..GUESTS).for_each(|guest| world.step(Step::Write(guest, OUTPUT)));
    world.step(Step::Send);
    let bytes: Vec<_> = world.stream.bytes.drain(..).collect();
    let (mut left, mut turns) = (&bytes[..], Vec::new());
    let mut reader = FrameReader::new();
    assert!(reader.read(&mut &[0][..]).is_none());
    while let Some(frame) = reader.read(&mut left) {
        turns.push(frame.unwrap().guest.unwrap());
    }
    assert_eq!(turns.len(), GUESTS * OUTPUT / CHUNK);
    assert!(turns.windows(GUESTS).all(|turns| (0..GUESTS as u16).all(|guest| turns.contains(&guest))), "{turns:?}");
}

/// A guest's bytes are noticed once in a while, not each for itself.
#[test]
fn notices_are_few() {
    let mut console = Console::new(OUTPUT, INPUT);
    console.write(b'a').unwrap();
    assert_eq!(console.notice(), Notice::None, "there is no session");
    assert_eq!(console.begin(), (0, 0));
    console.granted(65536).unwrap();
    let mut bytes = [0; CHUNK];
    assert_eq!(console.chunk(&mut bytes), 1);
    console.sent(1);
    assert_eq!(console.chunk(&mut bytes), 0);
    let mut notices = Vec::new();
    for number in 0..OUTPUT - 1 {
        console.write(number as u8).unwrap();
        notices.push(console.notice());
    }
    assert!(console.write(0).is_err());
    let at = |notice| notices.iter().position(|&other| other == notice);
    assert_eq!((at(Notice::Soon), at(Notice::Now)), (Some(0), Some(OUTPUT / 2 - 1)));
    assert_eq!(notices.iter().filter(|&&notice| notice != Notice::None).count(), 2);
}

#[test]
fn a_new_console_has_nothing_to_send_to_take_or_to_grant() {
    let mut console = Console::new(OUTPUT, INPUT);
    assert_eq!((console.chunk(&mut [0; CHUNK]), console.grant(), console.untaken()), (0, None, 0));
    assert!(console.taken(1).is_err() && !console.has_input() && !console.has_notice());
}

#[test]
fn output_counts_until_it_is_taken() {
    let mut console = Console::new(OUTPUT, INPUT);
    console.begin();
    console.granted(65536).unwrap();
    (0..3).for_each(|byte| console.write(byte).unwrap());
    console.sent(3);
    console.taken(2).unwrap();
    assert_eq!(console.untaken(), 1);
}

/// A console with a session, whose input is full.
fn with_input() -> Console {
    let mut console = Console::new(OUTPUT, INPUT);
    console.begin();
    assert_eq!(console.grant(), Some(INPUT as u32));
    console.receive(&[7; INPUT]).unwrap();
    assert!(console.has_input());
    console
}

#[test]
fn a_grant_is_asked_for_once_and_when_it_is_due() {
    let mut console = with_input();
    console.read(INPUT / 2);
    assert!(console.has_notice() && console.notice() == Notice::Soon && !console.has_notice());
    console.read(1);
    assert_eq!(console.notice(), Notice::None, "the sender was asked");
    assert_eq!(console.grant(), Some(INPUT as u32 / 2 + 1));
    console.read(1);
    assert_eq!(console.notice(), Notice::None, "a byte is no grant");
}

#[test]
fn without_a_session_input_is_read_and_nothing_granted() {
    let mut console = with_input();
    console.end();
    console.read(INPUT);
    assert_eq!((console.notice(), console.grant(), console.has_input()), (Notice::None, None, false));
}

#[test]
fn output_is_noticed_if_the_sender_has_left_and_there_is_credit() {
    for (credit, notice) in [(0, Notice::None), (1, Notice::Soon)] {
        let mut console = Console::new(OUTPUT, INPUT);
        console.begin();
        console.granted(credit).unwrap();
        assert_eq!(console.chunk(&mut [0; CHUNK]), 0);
        console.write(b'a').unwrap();
        assert_eq!(console.notice(), notice, "credit for {credit}");
    }
    let mut console = Console::new(OUTPUT, INPUT);
    console.begin();
    console.granted(2).unwrap();
    console.write(b'a').unwrap();
    assert_eq!(console.chunk(&mut [0; CHUNK]), 1);
    console.write(b'b').unwrap();
    assert_eq!(console.notice(), Notice::None, "the sender is at it");
}
