// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The framed control channel: against a naive reader, over streams that are cut, and with consoles that nothing reads.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;
use twofold_abi::channel::wire::{ENCODED_MAX, FRAME_MAX, PAYLOAD_MAX, WINDOW_MAX, kind};
use twofold_abi::channel::{
    Command, CreditError, Frame, FrameError, FrameReader, FrameWriter, GuestState, MessageError, Reason, ReceiveCredit,
    SendCredit, ToHypervisor, ToLauncher, TooLong,
};

/// A frame of its own.
type Owned = (u8, Option<u16>, Vec<u8>);

fn written((kind, guest, payload): &Owned) -> Vec<u8> {
    FrameWriter::new().write(*kind, *guest, &[], payload).unwrap().to_vec()
}

/// All that a reader returns, if the bytes come in pieces of these sizes.
fn read(reader: &mut FrameReader, mut bytes: &[u8], sizes: &[usize]) -> Vec<Result<Owned, FrameError>> {
    let (mut results, mut sizes) = (Vec::new(), sizes.iter().cycle());
    while !bytes.is_empty() {
        let (mut piece, rest) = bytes.split_at((*sizes.next().unwrap_or(&usize::MAX)).clamp(1, bytes.len()));
        bytes = rest;
        while let Some(result) = reader.read(&mut piece) {
            results.push(result.map(|Frame { kind, guest, payload }| (kind, guest, payload.to_vec())));
        }
        assert!(piece.is_empty());
    }
    results
}

/// A reader that has everything before it: splits at delimiters, then takes each part apart.
fn naive(bytes: &[u8]) -> Vec<Result<Owned, FrameError>> {
    let mut parts: Vec<_> = bytes.split(|&byte| byte == 0).collect();
    // What lies before the first delimiter may be a tail; after the last one nothing has ended, but may be too long.
    let open = if parts.len() > 1 { parts.pop() } else { None };
    parts.remove(0);
    let too_long = |part: &[u8]| unstuffed(part).0.len() > FRAME_MAX;
    let mut results: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).map(naive_frame).collect();
    if open.is_some_and(too_long) {
        results.push(Err(FrameError::TooLong));
    }
    results
}

/// The bytes that are certain so far, and whether the last block is whole.
fn unstuffed(mut part: &[u8]) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    while let Some((&code, rest)) = part.split_first() {
        let block = usize::from(code) - 1;
        bytes.extend(&rest[..block.min(rest.len())]);
        if rest.len() < block {
            return (bytes, false);
        }
        part = &rest[block..];
        if code != 0xff && !part.is_empty() {
            bytes.push(0);
        }
    }
    (bytes, true)
}

fn naive_frame(part: &[u8]) -> Result<Owned, FrameError> {
    let (bytes, whole) = unstuffed(part);
    if bytes.len() > FRAME_MAX {
        return Err(FrameError::TooLong);
    }
    if !whole {
        return Err(FrameError::Cut);
    }
    let &[kind, reserved, guest0, guest1, length0, length1, ref payload @ ..] = &bytes[..] else {
        return Err(FrameError::NoHeader(bytes.len()));
    };
    let wanted = usize::from(length0) + 256 * usize::from(length1);
    if payload.len() != wanted {
        return Err(FrameError::Length { found: payload.len(), wanted });
    }
    if reserved != 0 {
        return Err(FrameError::Reserved(reserved));
    }
    let guest = u16::from(guest0) + 256 * u16::from(guest1);
    Ok((kind, (guest != 0xffff).then_some(guest), payload.to_vec()))
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => vec(any::<u8>(), 0..40),
        // Runs around the length of a block, with and without zeros.
        2 => (200_usize..700, any::<u8>()).prop_map(|(length, byte)| vec![byte; length]),
        1 => vec(prop_oneof![Just(0_u8), Just(1), Just(0xff)], 0..PAYLOAD_MAX),
        // A guest that writes what looks like frames.
        1 => vec(Just(b"\x07\x87\x01\xff\xff\x02\x01\x02\x02".to_vec()), 0..50).prop_map(|frames| frames.concat()),
    ]
}

fn guest() -> impl Strategy<Value = Option<u16>> {
    prop_oneof![Just(None), (0_u16..0xffff).prop_map(Some), Just(Some(0))]
}

fn frame() -> impl Strategy<Value = Owned> {
    (any::<u8>(), guest(), payload())
}

fn text(most: usize) -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..most / 4).prop_map(|text| text.into_iter().collect())
}

/// A message of either direction is made from the kind and these.
fn body() -> impl Strategy<Value = (u8, u32, u64, usize, Vec<u8>, String, String)> {
    let bytes = vec(any::<u8>(), 1..=PAYLOAD_MAX);
    let number = prop_oneof![1_u32..=WINDOW_MAX, Just(WINDOW_MAX)];
    (0_u8..18, number, any::<u64>(), 0_usize..64, bytes, text(512), "[a-z0-9_]{1,8}(\\.[a-z0-9_]{1,8}){0,6}")
}

/// Writes the message, reads it from the wire, and compares.
fn round_trip(body: (u8, u32, u64, usize, Vec<u8>, String, String), guest: u16) {
    let (which, number, value, index, bytes, text, key) = body;
    let mut writer = FrameWriter::new();
    let (some, none) = (Some(guest), None);
    let pick = |most: usize| index % most;
    let (low, high) = (value as u16 >> 1, (value as u16 >> 1) + (value >> 48) as u16 / 4);
    let up = match which {
        0 => Some((none, ToHypervisor::Hello { lowest: low, highest: high.max(low), session: value })),
        1 => Some((
            [some, none][pick(2)],
            ToHypervisor::Command { request: number, command: Command::ALL[pick(Command::ALL.len())] },
        )),
        2 => Some((some, ToHypervisor::Input(&bytes))),
        3 => Some((some, ToHypervisor::OutputCredit(number))),
        14 => Some((some, ToHypervisor::Taken(value))),
        16 => Some((some, ToHypervisor::Content(&bytes))),
        _ => None,
    };
    if let Some((guest, message)) = up {
        let wire = message.write(guest, &mut writer).unwrap();
        let mut reader = FrameReader::new();
        assert!(reader.read(&mut &[0][..]).is_none());
        let frame = reader.read(&mut &*wire).unwrap().unwrap();
        assert_eq!((ToHypervisor::read(&frame), frame.guest), (Ok(message), guest));
        assert_eq!(ToLauncher::read(&frame), Err(MessageError::Kind(frame.kind)));
        return;
    }
    // Longer than a text may be.
    let line = text.replace(['\n', '\r'], " ") + &key.repeat(8);
    let message = match which {
        4 => ToLauncher::Welcome { version: low, guests: guest, session: value },
        5 => ToLauncher::Done(number),
        6 => ToLauncher::Refused {
            request: [Some(number), None][pick(2)],
            reason: Reason::ALL[pick(Reason::ALL.len())],
            text: &text,
        },
        7 => ToLauncher::Output(&bytes),
        8 => ToLauncher::InputCredit(number),
        9 => ToLauncher::Statistic { request: number, key: &key, value },
        10 => ToLauncher::State { state: GuestState::ALL[pick(GuestState::ALL.len())], text: &text },
        11 => ToLauncher::Log(&text),
        12 => ToLauncher::Line(&line),
        15 => ToLauncher::Position { output: value, input: value >> 7 ^ u64::from(number) },
        17 => ToLauncher::Part { request: number, bytes: &bytes[..bytes.len().min(PAYLOAD_MAX - 4)] },
        _ => ToLauncher::Trace(&bytes),
    };
    let guest = if matches!(which, 4 | 12 | 13) { none } else { some };
    let wire = message.write(guest, &mut writer).unwrap();
    let mut reader = FrameReader::new();
    assert!(reader.read(&mut &[0][..]).is_none());
    let frame = reader.read(&mut &*wire).unwrap().unwrap();
    assert_eq!((ToLauncher::read(&frame), frame.guest), (Ok(message), guest));
    assert_eq!(ToHypervisor::read(&frame), Err(MessageError::Kind(frame.kind)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_message_is_read_as_it_was_written(body in body(), guest in 0_u16..0xffff) {
        round_trip(body, guest);
    }

    #[test]
    fn frames_are_read_as_they_were_written(frames in vec(frame(), 0..12), sizes in vec(1_usize..300, 0..5)) {
        let mut stream = vec![0];
        for frame in &frames {
            let bytes = written(frame);
            prop_assert!(bytes.len() <= ENCODED_MAX && bytes.iter().position(|&byte| byte == 0) == Some(bytes.len() - 1));
            stream.extend(bytes);
        }
        let expected: Vec<_> = frames.into_iter().map(Ok).collect();
        prop_assert_eq!(&read(&mut FrameReader::new(), &stream, &sizes), &expected);
        prop_assert_eq!(naive(&stream), expected);
    }

    /// Any bytes, some of them changed frames: the reader returns what the naive one does, however they are cut up.
    #[test]
    fn any_bytes_are_read_as_by_the_naive_reader(
        pieces in vec(
            prop_oneof![
                vec(any::<u8>(), 0..30),
                vec(prop_oneof![4 => Just(0xff_u8), 1 => 1_u8..4, 1 => Just(0)], 0..600),
                frame().prop_map(|frame| written(&frame)),
                (frame(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(frame, at, byte)| {
                    let mut bytes = written(&frame);
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                    bytes
                }),
            ],
            0..8,
        ),
        sizes in vec(1_usize..300, 0..5),
    ) {
        let stream = pieces.concat();
        prop_assert_eq!(read(&mut FrameReader::new(), &stream, &sizes), naive(&stream));
    }

    /// A sender is cut anywhere and another one begins: the whole frames of both are read, and nothing else.
    #[test]
    fn a_cut_costs_at_most_the_frame_that_was_cut(
        before in vec(frame(), 1..6),
        after in vec(frame(), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut reader = FrameReader::new();
        let bytes: Vec<_> = before.iter().flat_map(written).collect();
        let cut = cut.index(bytes.len() + 1);
        // A whole frame that lacks its delimiter only is whole, once the next session begins.
        let mut ends = before.iter().scan(0, |end, frame| { *end += written(frame).len(); Some(*end) });
        let whole = ends.by_ref().take_while(|&end| end - 1 <= cut).count();
        prop_assert!(read(&mut reader, &[0], &[]).is_empty());
        let mut results = read(&mut reader, &bytes[..cut], &[]);
        let rest: Vec<_> = [0].into_iter().chain(after.iter().flat_map(written)).collect();
        results.extend(read(&mut reader, &rest, &[]));
        let errors = results.iter().filter(|result| result.is_err()).count();
        prop_assert!(errors <= 1, "{:?}", results);
        let frames: Vec<_> = results.into_iter().filter_map(Result::ok).collect();
        let expected: Vec<_> = before.into_iter().take(whole).chain(after).collect();
        prop_assert_eq!(frames, expected);
    }

    /// A receiver begins anywhere, with a guest's bytes before it: it reads the frames that begin after that, no others.
    #[test]
    fn a_reader_that_comes_late_reads_no_forged_frame(
        frames in vec(frame(), 1..8),
        start in any::<prop::sample::Index>(),
    ) {
        let bytes: Vec<_> = frames.iter().flat_map(written).collect();
        let start = start.index(bytes.len());
        let results = read(&mut FrameReader::new(), &bytes[start..], &[]);
        let missed = bytes[..start].iter().filter(|&&byte| byte == 0).count() + 1;
        let expected: Vec<_> = frames.into_iter().skip(missed).map(Ok).collect();
        prop_assert_eq!(results, expected);
    }

    #[test]
    fn any_frame_is_a_message_or_is_refused(kind in prop_oneof![0_u8..6, 0x80_u8..0x8a, any::<u8>()], guest in guest(),
        payload in vec(prop_oneof![3 => 0_u8..3, 1 => any::<u8>()], 0..40)) {
        let frame = Frame { kind, guest, payload: &payload };
        let mut writer = FrameWriter::new();
        let expected = written(&(kind, guest, payload.clone()));
        if let Ok(message) = ToHypervisor::read(&frame) {
            prop_assert_eq!(message.write(guest, &mut writer).unwrap(), &expected[..]);
        }
        if let Ok(message) = ToLauncher::read(&frame) {
            prop_assert_eq!(message.write(guest, &mut writer).unwrap(), &expected[..]);
        }
    }
}

#[test]
fn the_longest_frames_fit() {
    for byte in [0, 1, 0xff] {
        let frame = (byte, None, vec![byte; PAYLOAD_MAX]);
        let mut stream = vec![0];
        stream.extend(written(&frame));
        assert!(stream.len() <= 1 + ENCODED_MAX);
        assert_eq!(read(&mut FrameReader::new(), &stream, &[1]), [Ok(frame)]);
    }
    let long = [0; PAYLOAD_MAX];
    assert_eq!(FrameWriter::new().write(1, None, &[1], &long), Err(TooLong(PAYLOAD_MAX + 1)));
}

/// Frames are written and read in words where that is possible. Here each kind of byte is at each place of a word and of a
/// block of the greatest length.
#[test]
fn words_and_bytes_are_the_same_frames() {
    for run in (0..24).chain(230..280).chain(490..530) {
        for behind in [&[0_u8][..], &[0, 9], &[0, 0, 9, 0], &[1, 0, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1], &[0; 40]] {
            let payload = [&vec![7; run][..], behind, &[0xff; 11], behind].concat();
            let stream = [&[0], &written(&(1, Some(2), payload.clone()))[..]].concat();
            let frame = [Ok((1, Some(2), payload))];
            assert_eq!(naive(&stream), frame, "{run} bytes, then {behind:?}");
            for size in [1, 3, 8, 9, usize::MAX] {
                assert_eq!(read(&mut FrameReader::new(), &stream, &[size]), frame, "{run} bytes, then {behind:?}");
            }
        }
    }
}

/// An endless frame is reported once, and the reader is in step after its end.
#[test]
fn a_frame_without_end_is_reported_once() {
    let mut reader = FrameReader::new();
    assert!(read(&mut reader, &vec![7; 100_000], &[]).is_empty(), "it may be a tail");
    assert!(read(&mut reader, &[0], &[]).is_empty());
    assert_eq!(read(&mut reader, &vec![7; 100_000], &[13]), [Err(FrameError::TooLong)]);
    let frame = (9, Some(3), vec![0, 1, 2]);
    let mut rest = vec![0];
    rest.extend(written(&frame));
    assert_eq!(read(&mut reader, &rest, &[1]), [Ok(frame)]);
}

#[test]
fn what_is_no_message_is_refused_by_name() {
    let up = |kind, guest, payload: &[u8]| ToHypervisor::read(&Frame { kind, guest, payload }).unwrap_err();
    let down = |kind, guest, payload: &[u8]| ToLauncher::read(&Frame { kind, guest, payload }).unwrap_err();
    let hello = |lowest: u8, highest: u8, reserved: u8| {
        [&b"TWOFCTRL"[..], &[lowest, 0, highest, 0, reserved, 0, 0, 0], &[9; 8]].concat()
    };
    let field = |field, value| MessageError::Field { field, value };
    let length = |kind, found| MessageError::Length { kind, found };
    for (error, expected) in [
        (up(0x77, None, &[]), MessageError::Kind(0x77)),
        (up(kind::LOG, None, &[]), MessageError::Kind(kind::LOG)),
        (down(kind::INPUT, Some(0), b"x"), MessageError::Kind(kind::INPUT)),
        (up(kind::HELLO, None, &hello(2, 1, 0)), field("the highest version", 1)),
        (up(kind::HELLO, None, &hello(1, 2, 8)), field("a reserved field", 8)),
        (up(kind::HELLO, Some(0), &hello(1, 1, 0)), MessageError::Guest { kind: kind::HELLO, has: true }),
        (up(kind::HELLO, None, &[b'x'; 24]), MessageError::Magic([b'x'; 8])),
        (up(kind::HELLO, None, &hello(1, 1, 0)[1..]), length(kind::HELLO, 23)),
        (up(kind::COMMAND, None, &[0, 0, 0, 0, 0, 0, 0, 0]), field("the request", 0)),
        (up(kind::COMMAND, None, &[1, 0, 0, 0, 0xff, 0, 0, 0]), field("the command", 0xff)),
        (up(kind::COMMAND, None, &[1, 0, 0, 0, 15, 4, 2, 0]), field("the argument", 0x204)),
        (up(kind::COMMAND, None, &[1, 0, 0, 0, 16, 0, 1, 0]), field("the argument", 0x100)),
        (up(kind::COMMAND, None, &[1, 0, 0, 0, 11, 1, 0, 0]), field("the argument", 1)),
        (up(kind::CONTENT, Some(0), &[]), length(kind::CONTENT, 0)),
        (up(kind::CONTENT, None, b"x"), MessageError::Guest { kind: kind::CONTENT, has: false }),
        (down(kind::PART, Some(0), &[1, 0, 0, 0]), length(kind::PART, 4)),
        (down(kind::PART, Some(0), &[0, 0, 0, 0, 9]), field("the request", 0)),
        (down(kind::PART, None, &[1, 0, 0, 0, 9]), MessageError::Guest { kind: kind::PART, has: false }),
        (up(kind::COMMAND, None, &[1, 0, 0, 0, 0, 0, 0, 1]), field("the argument", 1 << 16)),
        (up(kind::INPUT, Some(0), &[]), length(kind::INPUT, 0)),
        (up(kind::INPUT, None, b"x"), MessageError::Guest { kind: kind::INPUT, has: false }),
        (up(kind::OUTPUT_CREDIT, Some(0), &[0; 4]), field("the credit", 0)),
        (up(kind::OUTPUT_CREDIT, Some(0), &[1, 0, 1, 0]), field("the credit", 0x1_0001)),
        (up(kind::OUTPUT_CREDIT, None, &[1, 0, 0, 0]), MessageError::Guest { kind: kind::OUTPUT_CREDIT, has: false }),
        (down(kind::DONE, None, &[0; 4]), field("the request", 0)),
        (down(kind::REFUSED, None, &[0, 0, 0, 0, 9, 0]), field("the reason", 9)),
        (down(kind::REFUSED, None, &[0; 5]), length(kind::REFUSED, 5)),
        (down(kind::OUTPUT, None, b"x"), MessageError::Guest { kind: kind::OUTPUT, has: false }),
        (down(kind::STATE, None, &[5]), field("the state", 5)),
        (down(kind::STATE, None, &[]), length(kind::STATE, 0)),
        (down(kind::LOG, None, &[0xff]), MessageError::Text),
        (down(kind::LOG, None, &[b'x'; 513]), MessageError::Text),
        (down(kind::LINE, None, &[0xff]), MessageError::Text),
        (down(kind::LINE, None, b"twofold:log a\ntwofold:exit 0"), MessageError::Text),
        (down(kind::LINE, Some(0), b"twofold:exit 0"), MessageError::Guest { kind: kind::LINE, has: true }),
        (down(kind::TRACE, None, &[]), length(kind::TRACE, 0)),
        (down(kind::TRACE, Some(3), b"x"), MessageError::Guest { kind: kind::TRACE, has: true }),
        (down(kind::STATISTIC, None, b"\x01\0\0\0\0\0\0\0\0\0\0\0exits..all"), MessageError::Text),
        (down(kind::STATISTIC, None, b"\x01\0\0\0\0\0\0\0\0\0\0\0Exits"), MessageError::Text),
        (down(kind::STATISTIC, None, b"\x01\0\0\0\0\0\0\0\0\0\0\0"), MessageError::Text),
    ] {
        assert_eq!(error, expected);
    }
}

#[test]
fn credit_is_kept_and_its_breach_is_named() {
    let (mut sender, mut receiver) = (SendCredit::default(), ReceiveCredit::default());
    assert_eq!(sender.take(1), 0, "a session begins with none");
    let grant = receiver.grant(100).unwrap();
    assert_eq!(receiver.grant(100), None, "no more than there is room");
    sender.granted(grant).unwrap();
    assert_eq!(sender.take(70), 70);
    receiver.received(70).unwrap();
    assert_eq!(receiver.grant(40), None, "10 bytes are not worth a frame");
    assert_eq!(receiver.grant(100), Some(70));
    sender.granted(70).unwrap();
    assert_eq!(sender.take(1000), 100);
    assert_eq!(receiver.received(101), Err(CreditError::Overrun { sent: 101, unused: 100 }));
    receiver.received(100).unwrap();
    assert_eq!(receiver.grant(usize::MAX), Some(WINDOW_MAX));
    sender.granted(WINDOW_MAX).unwrap();
    assert_eq!(sender.granted(1), Err(CreditError::Grant { grant: 1, unused: WINDOW_MAX }));
    assert_eq!(sender.granted(u32::MAX), Err(CreditError::Grant { grant: u32::MAX, unused: WINDOW_MAX }));
}

/// The hypervisor's end with guests that write without end: answers first, then consoles in turns.
struct Hypervisor {
    credit: Vec<SendCredit>,
    answers: VecDeque<u32>,
    turn: usize,
    sent: Vec<usize>,
}

const WINDOW: usize = 300;
const GUESTS: u16 = 3;

impl Hypervisor {
    fn receive(&mut self, frame: &Frame<'_>) {
        match ToHypervisor::read(frame).unwrap() {
            ToHypervisor::Command { request, .. } => self.answers.push_back(request),
            ToHypervisor::OutputCredit(bytes) => {
                self.credit[usize::from(frame.guest.unwrap())].granted(bytes).unwrap();
            }
            message => panic!("{message:?}"),
        }
    }

    /// The next frame, if there is one.
    fn next(&mut self, writer: &mut FrameWriter) -> Option<Vec<u8>> {
        if let Some(request) = self.answers.pop_front() {
            return Some(ToLauncher::Done(request).write(None, writer).unwrap().to_vec());
        }
        for _ in 0..GUESTS {
            self.turn = (self.turn + 1) % usize::from(GUESTS);
            let bytes = self.credit[self.turn].take(64);
            if bytes > 0 {
                self.sent[self.turn] += bytes;
                let guest = Some(self.turn as u16);
                return Some(ToLauncher::Output(&[0; 64][..bytes]).write(guest, writer).unwrap().to_vec());
            }
        }
        None
    }
}

/// Guest 0's console is never read by anyone, and all guests write without end. Commands are still answered soon, and
/// the other consoles go on. Without credit, the launcher would have to keep or drop what comes, or stop reading.
#[test]
fn a_console_that_nothing_reads_holds_up_nothing() {
    let mut hypervisor = Hypervisor {
        credit: vec![SendCredit::default(); GUESTS.into()],
        answers: VecDeque::new(),
        turn: 0,
        sent: vec![0; GUESTS.into()],
    };
    let (mut writer, mut up, mut down) = (FrameWriter::new(), FrameReader::new(), FrameReader::new());
    // The launcher: bytes of each console that its user has not read, and the stream, which has a capacity.
    let mut credit = vec![ReceiveCredit::default(); GUESTS.into()];
    let mut unread = [0_usize; GUESTS as usize];
    let (mut stream, mut commands): (VecDeque<u8>, VecDeque<u8>) = ([0].into(), [0].into());
    let mut asked: VecDeque<(u32, usize)> = VecDeque::new();
    let mut answered = 0;
    for step in 0..20_000_usize {
        for guest in 0..GUESTS {
            let index = usize::from(guest);
            if let Some(bytes) = credit[index].grant(WINDOW - unread[index]) {
                commands.extend(ToHypervisor::OutputCredit(bytes).write(Some(guest), &mut writer).unwrap());
            }
            if guest != 0 && step % 3 == 0 {
                unread[index] = unread[index].saturating_sub(10);
            }
        }
        if step % 50 == 0 {
            let request = step as u32 + 1;
            let message = ToHypervisor::Command { request, command: Command::Statistics };
            commands.extend(message.write(None, &mut writer).unwrap());
            asked.push_back((request, step));
        }
        let bytes: Vec<_> = commands.drain(..).collect();
        let mut bytes = &bytes[..];
        while let Some(frame) = up.read(&mut bytes) {
            hypervisor.receive(&frame.unwrap());
        }
        while stream.len() < 2000 {
            let Some(frame) = hypervisor.next(&mut writer) else { break };
            stream.extend(frame);
        }
        // The launcher reads a little each time.
        let bytes: Vec<_> = stream.drain(..stream.len().min(40)).collect();
        let mut bytes = &bytes[..];
        while let Some(frame) = down.read(&mut bytes) {
            let frame = frame.unwrap();
            match ToLauncher::read(&frame).unwrap() {
                ToLauncher::Done(request) => {
                    let (expected, since) = asked.pop_front().unwrap();
                    // All windows, with their frames' heads, are at most before it in the stream.
                    let most = usize::from(GUESTS) * WINDOW * 74 / 64 / 40 + 4;
                    assert!(request == expected && step - since <= most, "{} steps", step - since);
                    answered += 1;
                }
                ToLauncher::Output(bytes) => {
                    let guest = usize::from(frame.guest.unwrap());
                    credit[guest].received(bytes.len()).unwrap();
                    unread[guest] += bytes.len();
                    assert!(unread[guest] <= WINDOW);
                }
                message => panic!("{message:?}"),
            }
        }
    }
    assert!(answered > 390, "{answered}");
    assert_eq!(hypervisor.sent[0], WINDOW, "nothing read it");
    assert!(hypervisor.sent[1..].iter().all(|&sent| sent > 50_000), "{:?}", hypervisor.sent);
}
