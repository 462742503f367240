// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sessions on the control channel, by the steps of `docs/control.md`.

use std::cell::RefCell;

use proptest::collection::vec;
use proptest::prelude::*;
use twofold_abi::channel::wire::{VERSION, WINDOW_MAX};
use twofold_abi::channel::{Command, FrameReader, FrameWriter, GuestState, Reason, ToHypervisor, ToLauncher};
use twofold_vmm::console::{CHUNK, Console};
use twofold_vmm::session::{Guests, Launcher, Sent, Session};

/// An answer: its guest, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Begin,
    Welcome { version: u16, guests: u16, session: u64 },
    State(Option<u16>, GuestState),
    Done(Option<u16>, u32),
    Refused(Option<u16>, Option<u32>, Reason),
    Figure(Option<u16>, u32, String, u64),
    Position(Option<u16>, u64, u64),
    InputCredit(Option<u16>, u32),
    Part(Option<u16>, u32, Vec<u8>),
}

#[derive(Default)]
struct Answers(Vec<Answer>);

impl Launcher for Answers {
    fn begin(&mut self) {
        self.0.push(Answer::Begin);
    }

    fn send(&mut self, guest: Option<u16>, message: &ToLauncher<'_>) {
        // What cannot be read again is no message.
        let mut writer = FrameWriter::new();
        let wire = message.write(guest, &mut writer).unwrap();
        let mut reader = FrameReader::new();
        let stream = [&[0], wire].concat();
        let frame = reader.read(&mut &stream[..]).unwrap().unwrap();
        self.0.push(match ToLauncher::read(&frame).unwrap() {
            ToLauncher::Welcome { version, guests, session } => Answer::Welcome { version, guests, session },
            ToLauncher::State { state, .. } => Answer::State(guest, state),
            ToLauncher::Done(request) => Answer::Done(guest, request),
            ToLauncher::Refused { request, reason, text } => {
                assert!(!text.is_empty());
                Answer::Refused(guest, request, reason)
            }
            ToLauncher::Statistic { request, key, value } => Answer::Figure(guest, request, key.to_owned(), value),
            ToLauncher::Position { output, input } => Answer::Position(guest, output, input),
            ToLauncher::InputCredit(bytes) => Answer::InputCredit(guest, bytes),
            ToLauncher::Part { request, bytes } => Answer::Part(guest, request, bytes.to_vec()),
            other => panic!("{other:?} is no answer"),
        });
    }

    fn offer(&mut self, guest: Option<u16>, message: &ToLauncher<'_>) -> bool {
        self.send(guest, message);
        true
    }
}

const GUESTS: [GuestState; 2] = [GuestState::Running, GuestState::Stopped];

/// The second guest's console is on the channel, the first one's is not.
struct Second(RefCell<Console>);

impl Second {
    fn new() -> Self {
        Self(RefCell::new(Console::new(64, 16)))
    }
}

impl Guests for Second {
    fn count(&self) -> u16 {
        GUESTS[..].count()
    }

    fn state(&self, guest: u16) -> GuestState {
        GUESTS[..].state(guest)
    }

    fn console<T>(&self, guest: u16, act: impl FnOnce(&mut Console) -> T) -> Option<T> {
        (guest == 1).then(|| act(&mut self.0.borrow_mut()))
    }
}

/// Both guests' consoles are on the channel.
struct Both([RefCell<Console>; 2]);

impl Guests for Both {
    fn count(&self) -> u16 {
        2
    }

    fn state(&self, guest: u16) -> GuestState {
        GUESTS[..].state(guest)
    }

    fn console<T>(&self, guest: u16, act: impl FnOnce(&mut Console) -> T) -> Option<T> {
        Some(act(&mut self.0[usize::from(guest)].borrow_mut()))
    }
}

/// The texts of refusals.
#[derive(Default)]
struct Texts(Vec<String>);

impl Launcher for Texts {
    fn begin(&mut self) {}

    fn send(&mut self, _: Option<u16>, message: &ToLauncher<'_>) {
        if let ToLauncher::Refused { text, .. } = message {
            self.0.push((*text).to_owned());
        }
    }

    fn offer(&mut self, _: Option<u16>, message: &ToLauncher<'_>) -> bool {
        panic!("{message:?} is no refusal")
    }
}

fn frame(guest: Option<u16>, message: &ToHypervisor<'_>) -> Vec<u8> {
    message.write(guest, &mut FrameWriter::new()).unwrap().to_vec()
}

fn hello(lowest: u16, highest: u16, session: u64) -> Vec<u8> {
    [&[0][..], &frame(None, &ToHypervisor::Hello { lowest, highest, session })].concat()
}

fn command(request: u32, guest: Option<u16>, command: Command) -> Vec<u8> {
    frame(guest, &ToHypervisor::Command { request, command })
}

/// Reads all of the stream, in pieces of this size. Statistics have one figure, and a guest that stops refuses.
fn answers(session: &mut Session, stream: &[u8], size: usize) -> Vec<Answer> {
    with_console(session, &Second::new(), stream, size)
}

fn with_console(session: &mut Session, console: &Second, stream: &[u8], size: usize) -> Vec<Answer> {
    let mut answers = Answers::default();
    for mut piece in stream.chunks(size) {
        while let Some(asked) = session.read(&mut piece, console, &mut answers) {
            match asked.command() {
                Command::Stop => {
                    let why = "it is off ".repeat(100);
                    asked.refused(Reason::State, format_args!("{why}"), session, &mut answers);
                }
                Command::Statistics => {
                    asked.figure(asked.guest(), "exits.hvc", 7, session, &mut answers);
                    asked.done(session, &mut answers);
                }
                _ => asked.done(session, &mut answers),
            }
        }
    }
    answers.0
}

fn welcome(session: u64) -> Vec<Answer> {
    let welcome = Answer::Welcome { version: VERSION, guests: 2, session };
    let states = (0..).zip(GUESTS).map(|(guest, state)| Answer::State(Some(guest), state));
    let console = [Answer::Position(Some(1), 0, 0), Answer::InputCredit(Some(1), 16)];
    [Answer::Begin, welcome].into_iter().chain(states).chain(console).collect()
}

#[test]
fn a_session_begins_and_answers_each_command_once() {
    let stream = [
        hello(0, 9, 42),
        command(1, None, Command::Statistics),
        command(2, Some(1), Command::Stop),
        command(3, None, Command::Quit),
    ];
    for size in [1, 7, 4096] {
        let mut expected = welcome(42);
        expected.extend([
            Answer::Figure(None, 1, "exits.hvc".to_owned(), 7),
            Answer::Done(None, 1),
            Answer::Refused(Some(1), Some(2), Reason::State),
            Answer::Done(None, 3),
        ]);
        assert_eq!(answers(&mut Session::new(), &stream.concat(), size), expected, "in pieces of {size}");
    }
}

#[test]
fn nothing_is_taken_before_a_session() {
    let mut session = Session::new();
    let stream = [&[0][..], &command(1, None, Command::Quit), &frame(Some(0), &ToHypervisor::OutputCredit(9))].concat();
    let refused = |request| Answer::Refused(if request == Some(1) { None } else { Some(0) }, request, Reason::Kind);
    assert_eq!(answers(&mut session, &stream, 4096), [refused(Some(1)), refused(None)]);
    assert!(!session.is_open());
    // Versions that have nothing in common: no session, and the one before is over.
    answers(&mut session, &hello(VERSION, VERSION, 1), 4096);
    assert!(session.is_open());
    let stream = [hello(VERSION + 1, VERSION + 9, 2), command(1, None, Command::Quit)].concat();
    let version = Answer::Refused(None, None, Reason::Version);
    assert_eq!(answers(&mut session, &stream, 4096), [Answer::Begin, version, refused(Some(1))]);
}

#[test]
fn a_new_session_forgets_credit_and_sends_again_what_was_not_taken() {
    let (mut session, second) = (Session::new(), Second::new());
    let console = || second.0.borrow_mut();
    let up = |message: ToHypervisor<'_>| frame(Some(1), &message);
    let over = Answer::Refused(Some(1), None, Reason::Credit);
    (0..20).for_each(|byte| console().write(byte).unwrap());
    let credit = |bytes| up(ToHypervisor::OutputCredit(bytes));
    let stream = [hello(1, 1, 1), credit(WINDOW_MAX), credit(1)].concat();
    let mut expected = welcome(1);
    expected.push(over.clone());
    assert_eq!(with_console(&mut session, &second, &stream, 4096), expected);
    let mut bytes = [0; CHUNK];
    assert_eq!(console().chunk(&mut bytes), 20);
    console().sent(20);
    // Input beyond what was granted, and output that was not sent.
    let stream = [
        up(ToHypervisor::Input(&[1; 17])),
        up(ToHypervisor::Input(&[2; 16])),
        up(ToHypervisor::Input(&[3])),
        up(ToHypervisor::Taken(21)),
        up(ToHypervisor::Taken(5)),
        up(ToHypervisor::Taken(4)),
    ];
    let refused = with_console(&mut session, &second, &stream.concat(), 4096);
    assert_eq!(refused, [over.clone(), over.clone(), over.clone(), over]);
    assert_eq!(console().input(), [2; 16]);
    // There is no room for input, and no credit until there is.
    let mut expected = welcome(2);
    expected.truncate(4);
    expected.push(Answer::Position(Some(1), 5, 16));
    assert_eq!(with_console(&mut session, &second, &hello(1, 1, 2), 4096), expected);
    assert_eq!(console().chunk(&mut bytes), 0);
    with_console(&mut session, &second, &credit(3), 4096);
    assert_eq!((console().chunk(&mut bytes), &bytes[..3]), (3, &[5, 6, 7][..]));
    // A launcher that has more than it could report skips that, and no more.
    let stream = [hello(1, 1, 3), up(ToHypervisor::Taken(18)), credit(100)].concat();
    with_console(&mut session, &second, &stream, 4096);
    assert_eq!((console().chunk(&mut bytes), &bytes[..2]), (2, &[18, 19][..]));
}

#[test]
fn an_answer_of_an_older_session_is_not_sent() {
    let mut session = Session::new();
    let mut answers = Answers::default();
    let take = |session: &mut Session, stream: Vec<u8>, answers: &mut Answers| {
        session.read(&mut &stream[..], &GUESTS[..], answers)
    };
    let stop = |request| command(request, Some(0), Command::Stop);
    let stream = [hello(1, 1, 1), stop(1), stop(2), stop(3)].concat();
    let mut bytes = &stream[..];
    let [first, second, third] = [(); 3].map(|()| session.read(&mut bytes, &GUESTS[..], &mut answers).unwrap());
    second.part(b"half", &session, &mut answers);
    assert_eq!(answers.0.last(), Some(&Answer::Part(Some(0), 2, b"half".to_vec())));
    second.done(&session, &mut answers);
    assert_eq!(answers.0.last(), Some(&Answer::Done(Some(0), 2)));
    // Also if the next one is refused.
    assert!(take(&mut session, hello(VERSION + 1, VERSION + 1, 2), &mut answers).is_none());
    let before = answers.0.clone();
    first.part(b"half", &session, &mut answers);
    first.figure(None, "exits.hvc", 1, &session, &mut answers);
    third.done(&session, &mut answers);
    first.refused(Reason::Failed, format_args!("too late"), &session, &mut answers);
    assert_eq!(answers.0, before);
}

#[test]
fn content_is_kept_for_the_next_command_that_takes_it() {
    let (mut session, guests) = (Session::new(), Second::new());
    let content = |guest: u16, bytes: &[u8]| frame(Some(guest), &ToHypervisor::Content(bytes));
    let mut read = |parts: &[Vec<u8>]| {
        let (stream, mut answers, mut contents) = (parts.concat(), Answers::default(), Vec::new());
        let mut stream = &*stream;
        while let Some(asked) = session.read(&mut stream, &guests, &mut answers) {
            contents.push(asked.content().to_vec());
            asked.done(&session, &mut answers);
        }
        let refused = answers.0.into_iter().filter(|answer| matches!(answer, Answer::Refused(..))).count();
        (contents, refused)
    };
    let took = |contents: &[&[u8]], refused| (contents.iter().map(|bytes| bytes.to_vec()).collect::<Vec<_>>(), refused);
    read(&[vec![0], hello(1, 1, 5)]);
    let restore = |request, guest| command(request, Some(guest), Command::Restore);
    let other = command(9, Some(0), Command::Statistics);
    assert_eq!(read(&[content(1, b"first"), restore(8, 1)]), took(&[b"first"], 0));
    assert_eq!(
        read(&[content(0, b"ab"), content(0, b"c"), other, restore(1, 0), restore(2, 0)]),
        took(&[b"", b"abc", b""], 0),
        "a command that takes none leaves it"
    );
    assert_eq!(read(&[content(0, b"ab"), content(1, b"c"), restore(3, 1), restore(4, 0)]), took(&[b"", b"ab"], 1));
    let most = vec![content(0, &[7; 1024]); 64].concat();
    let (contents, refused) = read(&[most, content(0, b"x"), restore(5, 0)]);
    assert_eq!((contents[0].len(), refused), (64 << 10, 1));
    read(&[content(0, b"lost"), vec![0], hello(1, 1, 6)]);
    assert_eq!(read(&[restore(6, 0)]), took(&[b""], 0), "a session has its own");
}

#[test]
fn a_state_is_announced_once_and_only_in_a_session() {
    let (mut session, mut answers) = (Session::new(), Answers::default());
    session.announce(0, GuestState::Reset, &mut answers);
    assert_eq!(answers.0, []);
    assert!(session.read(&mut &hello(1, 1, 1)[..], &GUESTS[..], &mut answers).is_none());
    let begun = answers.0.len();
    let states = [GuestState::Running, GuestState::Reset, GuestState::Reset, GuestState::Running];
    states.iter().for_each(|state| session.announce(0, *state, &mut answers));
    // A guest that came later.
    session.announce(3, GuestState::Running, &mut answers);
    session.announce(3, GuestState::Running, &mut answers);
    session.announce(0, GuestState::Running, &mut answers);
    session.announce(3, GuestState::Running, &mut answers);
    session.announce(4, GuestState::Stopped, &mut answers);
    let expected =
        [(0, GuestState::Reset), (0, GuestState::Running), (3, GuestState::Running), (4, GuestState::Stopped)];
    assert_eq!(answers.0[begun..], expected.map(|(guest, state)| Answer::State(Some(guest), state)));
}

#[test]
fn what_cannot_be_taken_is_refused_by_its_reason() {
    let mut session = Session::new();
    let no_message =
        |kind, guest, payload: &[u8]| FrameWriter::new().write(kind, guest, payload, &[]).unwrap().to_vec();
    let stream = [
        hello(1, 1, 1),
        command(5, Some(2), Command::Reset),
        frame(Some(0), &ToHypervisor::Input(b"ls\n")),
        frame(Some(9), &ToHypervisor::OutputCredit(1)),
        no_message(0x77, None, b"?"),
        no_message(0x02, None, b"?"),
        command(6, None, Command::Quit)[..5].to_vec(),
        vec![0],
    ];
    let refused = |guest, request, reason| Answer::Refused(guest, request, reason);
    let mut expected = welcome(1);
    expected.extend([
        refused(Some(2), Some(5), Reason::Guest),
        refused(Some(0), None, Reason::Guest),
        refused(Some(9), None, Reason::Guest),
        refused(None, None, Reason::Kind),
        refused(None, None, Reason::Malformed),
        refused(None, None, Reason::Malformed),
    ]);
    assert_eq!(answers(&mut session, &stream.concat(), 4096), expected);
}

#[test]
fn a_refusal_says_why() {
    let (mut session, mut texts) = (Session::new(), Texts::default());
    let stream = [hello(1, 1, 1), command(5, Some(2), Command::Reset), hello(VERSION + 1, VERSION + 1, 2)].concat();
    assert!(session.read(&mut &stream[..], &GUESTS[..], &mut texts).is_none());
    assert_eq!(texts.0, ["the last guest is 1".to_owned(), format!("this is version {VERSION}")]);
}

/// A session begins with credit for each console's input, and ends for each console.
#[test]
fn each_console_has_its_part_of_a_session() {
    let both = Both([(); 2].map(|()| RefCell::new(Console::new(64, 16))));
    let (mut session, mut answers) = (Session::new(), Answers::default());
    assert!(session.read(&mut &hello(1, 1, 1)[..], &both, &mut answers).is_none());
    let credit = answers.0.iter().filter(|answer| matches!(answer, Answer::InputCredit(..))).collect::<Vec<_>>();
    assert_eq!(credit, [&Answer::InputCredit(Some(0), 16), &Answer::InputCredit(Some(1), 16)]);
    let chunks = |both: &Both| [0, 1].map(|guest: usize| both.0[guest].borrow_mut().chunk(&mut [0; CHUNK]));
    for (guest, console) in (0..).zip(&both.0) {
        console.borrow_mut().write(b'x').unwrap();
        let credit = [&[0][..], &frame(Some(guest), &ToHypervisor::OutputCredit(9))].concat();
        assert!(session.read(&mut &credit[..], &both, &mut answers).is_none());
    }
    assert_eq!(chunks(&both), [1, 1]);
    assert!(session.read(&mut &hello(VERSION + 1, VERSION + 1, 2)[..], &both, &mut answers).is_none());
    assert_eq!(chunks(&both), [0, 0]);
}

#[test]
fn a_guest_without_a_console_sends_nothing() {
    let (mut session, second, mut answers) = (Session::new(), Second::new(), Answers::default());
    assert!(session.read(&mut &hello(1, 1, 1)[..], &second, &mut answers).is_none());
    let before = answers.0.len();
    assert_eq!((session.send(&second, &mut answers), answers.0.len()), (Sent::Nothing, before));
}

fn piece() -> impl Strategy<Value = Vec<u8>> {
    let guest = prop_oneof![Just(None), (0_u16..4).prop_map(Some)];
    prop_oneof![
        vec(any::<u8>(), 0..40),
        (0_u16..3, 0_u16..3, any::<u64>()).prop_map(|(lowest, more, session)| hello(lowest, lowest + more, session)),
        (1_u32.., guest.clone(), 0_usize..5)
            .prop_map(|(request, guest, which)| { command(request, guest, Command::ALL[which]) }),
        (0_u16..4, 1..=WINDOW_MAX).prop_map(|(guest, bytes)| frame(Some(guest), &ToHypervisor::OutputCredit(bytes))),
    ]
}

proptest! {
    /// Any bytes are answered the same way however they are cut up. Each command has one answer.
    #[test]
    fn any_bytes_have_the_same_answers(pieces in vec(piece(), 0..30), size in 1_usize..50) {
        let stream = pieces.concat();
        let whole = answers(&mut Session::new(), &stream, usize::MAX);
        prop_assert_eq!(&answers(&mut Session::new(), &stream, size), &whole);
        let mut reader = FrameReader::new();
        let (mut left, mut commands) = (&stream[..], Vec::new());
        while let Some(frame) = reader.read(&mut left) {
            if let Ok(Ok(ToHypervisor::Command { request, .. })) = frame.map(|frame| ToHypervisor::read(&frame)) {
                commands.push(request);
            }
        }
        let answered = whole.iter().filter_map(|answer| match answer {
            Answer::Done(_, request) | Answer::Refused(_, Some(request), _) => Some(*request),
            _ => None,
        });
        prop_assert_eq!(answered.collect::<Vec<_>>(), commands);
    }
}
