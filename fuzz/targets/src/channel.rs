// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The framed control channel. Two targets: what the hypervisor reads, and what the launcher reads.

use std::cell::RefCell;

use twofold_abi::channel::wire::{CONTENT_MAX, ENCODED_MAX, PAYLOAD_MAX};
use twofold_abi::channel::{
    Command, Frame, FrameError, FrameReader, FrameWriter, GuestState, MessageError, Reason, ReceiveCredit, SendCredit,
    ToHypervisor, ToLauncher,
};
use twofold_vmm::console::Console;
use twofold_vmm::session::{Guests, Launcher, PART_MAX, Sent, Session};

/// Any bytes are frames and errors, the same ones however they are cut up. Each frame is one message or is refused, and
/// a message is written as the frame that it was read from. Any payload comes back. Credit holds whatever is granted.
pub fn channel_hypervisor(data: &[u8]) {
    let mut credit = SendCredit::default();
    let mut granted = 0;
    each_frame(data, |frame, writer| {
        let message = ToHypervisor::read(frame)?;
        if let ToHypervisor::OutputCredit(bytes) = message {
            granted += if credit.granted(bytes).is_ok() { bytes as usize } else { 0 };
            granted -= credit.take(bytes as usize / 2 + 1);
        }
        Ok(message.write(frame.guest, writer).expect("it was read from a frame").to_vec())
    });
    assert_eq!(credit.take(usize::MAX), granted);
    session(data);
}

/// Guests of which two have their consoles on the channel.
struct Three([RefCell<Console>; 2]);

impl Guests for Three {
    fn count(&self) -> u16 {
        3
    }

    fn state(&self, _guest: u16) -> GuestState {
        GuestState::Running
    }

    fn console<T>(&self, guest: u16, act: impl FnOnce(&mut Console) -> T) -> Option<T> {
        Some(act(&mut self.0.get(usize::from(guest))?.borrow_mut()))
    }
}

/// A session answers any bytes, each command once, and each answer is a message. Guests write and read meanwhile, and their
/// output goes out.
fn session(data: &[u8]) {
    let (mut session, mut answers, mut asked) = (Session::new(), Answers::default(), Vec::new());
    let guests = Three(core::array::from_fn(|_| RefCell::new(Console::new(512, 64))));
    let mut bytes = data;
    while let Some(command) = session.read(&mut bytes, &guests, &mut answers) {
        asked.push(command.command());
        match command.command() {
            Command::Stop => command.refused(Reason::State, format_args!("{data:?}"), &session, &mut answers),
            Command::Statistics | Command::Dirty | Command::Split | Command::Coalesce => {
                command.figure(command.guest(), "dirty.found", data.len() as u64, &session, &mut answers);
                command.done(&session, &mut answers);
            }
            Command::Save | Command::Read(_) | Command::Written(_) | Command::Frames(_) | Command::Wanted => {
                if command.guest().is_some() {
                    command.part(&data[..data.len().clamp(1, PART_MAX)], &session, &mut answers);
                }
                command.done(&session, &mut answers);
            }
            Command::Restore
            | Command::Write(_)
            | Command::Clear(_)
            | Command::Absent(_)
            | Command::Fill(_)
            | Command::Zero(_) => {
                assert!(command.content().len() <= CONTENT_MAX.min(data.len()));
                command.done(&session, &mut answers);
            }
            Command::Balloon(_)
            | Command::Continue
            | Command::Reset
            | Command::Quit
            | Command::DirtyStart
            | Command::DirtyStop
            | Command::Track(_) => {
                command.done(&session, &mut answers);
            }
        }
        for console in &guests.0 {
            let mut console = console.borrow_mut();
            let _full = (0..100).try_for_each(|byte| console.write(byte));
            let count = console.input().len();
            console.read(count);
        }
        // No console has more than its buffer.
        let frames = (0..).take_while(|_| session.send(&guests, &mut answers) == Sent::Some).count();
        assert!(frames <= 2 * 512, "{frames} frames");
    }
    assert!(bytes.is_empty());
    let refused = asked.iter().filter(|&&command| command == Command::Stop).count();
    assert_eq!(answers.done, asked.len() - refused);
    let found = [Command::Statistics, Command::Dirty, Command::Split, Command::Coalesce];
    assert_eq!(answers.figures, asked.iter().filter(|command| found.contains(command)).count());
    assert!(answers.refused >= refused);
}

#[derive(Default)]
struct Answers {
    done: usize,
    refused: usize,
    figures: usize,
}

impl Launcher for Answers {
    fn begin(&mut self) {}

    fn offer(&mut self, guest: Option<u16>, message: &ToLauncher<'_>) -> bool {
        self.send(guest, message);
        true
    }

    fn send(&mut self, guest: Option<u16>, message: &ToLauncher<'_>) {
        let mut writer = FrameWriter::new();
        let wire = message.write(guest, &mut writer).expect("an answer fits into a frame");
        let [Ok((kind, guest, payload))] = &read(&[&[0], wire].concat(), usize::MAX)[..] else { panic!("no frame") };
        let frame = Frame { kind: *kind, guest: *guest, payload };
        match ToLauncher::read(&frame).expect("an answer is a message") {
            ToLauncher::Done(_) => self.done += 1,
            ToLauncher::Refused { .. } => self.refused += 1,
            ToLauncher::Statistic { key: "dirty.found", .. } => self.figures += 1,
            _ => {}
        }
    }
}

/// The same of what comes to the launcher. More output than it has room for is an error, and is not counted.
pub fn channel_launcher(data: &[u8]) {
    let mut credit = ReceiveCredit::default();
    let mut unused = 0;
    each_frame(data, |frame, writer| {
        let message = ToLauncher::read(frame)?;
        match message {
            ToLauncher::Output(bytes) => match credit.received(bytes.len()) {
                Ok(()) => unused -= bytes.len(),
                Err(_) => assert!(bytes.len() > unused),
            },
            // Any number will do as a room.
            ToLauncher::Done(room) => unused += credit.grant(room as usize).unwrap_or(0) as usize,
            _ => {}
        }
        Ok(message.write(frame.guest, writer).expect("it was read from a frame").to_vec())
    });
}

/// A frame of its own, or an error.
type Owned = Result<(u8, Option<u16>, Vec<u8>), FrameError>;

/// Calls `message` for each frame; it returns the bytes of the message that it reads.
fn each_frame(data: &[u8], mut message: impl FnMut(&Frame<'_>, &mut FrameWriter) -> Result<Vec<u8>, MessageError>) {
    let Some((&size, stream)) = data.split_first() else { return };
    let mut writer = FrameWriter::new();
    // Any bytes are a payload, which is read as it was written.
    let payload = &stream[..stream.len().min(PAYLOAD_MAX)];
    let bytes = writer.write(size, None, &[], payload).expect("it is short enough");
    assert_eq!(read(&[&[0], bytes].concat(), usize::MAX), [Ok((size, None, payload.to_vec()))]);
    let whole = read(stream, usize::MAX);
    assert_eq!(whole, read(stream, usize::from(size).max(1)));
    // What came before the first delimiter is nothing; each end of a frame is one result at most.
    let delimiters = stream.iter().filter(|&&byte| byte == 0).count();
    assert!(whole.len() <= delimiters.max(usize::from(stream.len() > ENCODED_MAX)));
    for (kind, guest, payload) in whole.into_iter().filter_map(Result::ok) {
        let bytes = writer.write(kind, guest, &[], &payload).expect("it was read from a frame").to_vec();
        assert_eq!(read(&[&[0], &bytes[..]].concat(), usize::MAX), [Ok((kind, guest, payload.clone()))]);
        let frame = Frame { kind, guest, payload: &payload };
        if let Ok(again) = message(&frame, &mut writer) {
            assert_eq!(again, bytes);
        }
    }
}

fn read(stream: &[u8], size: usize) -> Vec<Owned> {
    let (mut reader, mut results) = (FrameReader::new(), Vec::new());
    for mut piece in stream.chunks(size) {
        while let Some(result) = reader.read(&mut piece) {
            results.push(result.map(|Frame { kind, guest, payload }| (kind, guest, payload.to_vec())));
        }
    }
    results
}
