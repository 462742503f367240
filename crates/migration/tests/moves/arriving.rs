// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a target does with what comes, in which order: with a memory that notes each call, and in which pages wait for
//! frames.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use twofold_migration::commit::{Embedder, Owner, Ownership, Request, Side, State};
use twofold_migration::ram::{PageWrite, Queued, RamError, TargetRam};
use twofold_migration::receive::{Host, JoinError, Receive, ReceiveError};
use twofold_migration::stream::{Compression, Hello, Message, Slot, Writer};
use twofold_migration::{PageSet, Runtime, Section};

use crate::guest::{PAGE, capabilities, hello, name};
use crate::moved::first;

/// A clock that waits move.
#[derive(Default)]
struct Waits(AtomicU64);

impl Runtime for Waits {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn wait(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// A target's embedder, and its memory.
#[derive(Default)]
struct Notes {
    /// A line for each section, page, and set of absent pages.
    lines: Mutex<Vec<String>>,
    /// The looks after which a page with content gets a frame.
    looks: u64,
    looked: AtomicU64,
    absent: Option<PageSet>,
}

impl Notes {
    fn note(&self, line: String) {
        self.lines.lock().unwrap().push(line);
    }
}

struct Ram<'n>(&'n Notes);

struct Waiting<'n>(&'n Notes, u64);

impl<'n> TargetRam for Ram<'n> {
    type Queued = Waiting<'n>;

    fn write(&self, slot: usize, page: u64, content: Option<&[u8]>) -> Result<PageWrite<Waiting<'n>>, RamError> {
        self.0.note(format!("page {page} of {slot}"));
        let waits = content.is_some() && self.0.looks > 0;
        Ok(if waits { PageWrite::Later(Waiting(self.0, page)) } else { PageWrite::Done })
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(1)
    }
}

impl Queued for Waiting<'_> {
    fn look(&mut self, _: Option<&[u8]>) -> Result<bool, RamError> {
        let looks = self.0.looked.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(looks <= 100, "it waits for ever");
        Ok(looks >= self.0.looks)
    }

    fn silent(&self, waited: Duration) -> RamError {
        RamError::Embedder(format!("page {} waits since {waited:?}", self.1))
    }
}

impl Embedder for Notes {
    fn ask(&mut self, _: Request) -> Option<Ownership> {
        None
    }

    fn run(&mut self) {}

    fn boot(&mut self) {}

    fn release(&mut self) {}

    fn announce(&mut self, _: Ownership) {}
}

impl Host for Notes {
    type Ram<'a> = Ram<'a>;

    fn build(&mut self, _: &Hello, _: &[Slot], _: bool) -> Result<(), String> {
        Ok(())
    }

    fn ram(&self) -> Result<Ram<'_>, RamError> {
        Ok(Ram(self))
    }

    fn section(&mut self, section: Section) -> Result<(), String> {
        self.note(format!("section {}", section.name));
        Ok(())
    }

    fn absent(&mut self, absent: &PageSet) -> Result<(), String> {
        self.absent = Some(absent.clone());
        Ok(())
    }

    fn ready(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn answer(&mut self, _: &Message) {}
}

/// Receives a guest; returns the time that it took.
fn receive(streams: &[Vec<u8>], host: &mut Notes) -> Result<Duration, ReceiveError> {
    let clock = Waits::default();
    let side = Side::new(Owner { host: 1, incarnation: 0 }, State::START);
    let receive = Receive { here: capabilities(), sections: 1 << 20, runtime: &clock };
    let _ = receive.run(streams.iter().map(|stream| &stream[..]).collect(), &side, host)?;
    Ok(clock.now())
}

/// A stream of a guest with one memslot: its first round has what `pages` writes, and `end` writes what follows the last.
fn stream(
    (number, streams): (u16, u16),
    pages: u64,
    round: impl FnOnce(&mut Writer<Vec<u8>>),
    end: impl FnOnce(&mut Writer<Vec<u8>>),
) -> Vec<u8> {
    let mut writer = Writer::with_absent(Vec::new(), Compression::Off);
    writer.hello(&Hello { stream: number, streams, memory: pages * PAGE, ..hello(1) }).unwrap();
    writer.slots(&[Slot { number: 3, read_only: false, first: 0, pages }]).unwrap();
    if number == 0 {
        writer.section(name("image"), 0, 1, &[7; 9]).unwrap();
    }
    writer.round(false).unwrap();
    round(&mut writer);
    writer.end_round().unwrap();
    writer.round(true).unwrap();
    writer.end_round().unwrap();
    end(&mut writer);
    writer.end(first()).unwrap();
    writer.into_sink()
}

#[test]
fn images_come_before_pages() {
    let state = |writer: &mut Writer<Vec<u8>>| writer.section(name("vcpu"), 0, 1, &[1]).unwrap();
    let sent = stream((0, 1), 1, |writer| writer.zero_pages(3, 0, 1).unwrap(), state);
    let mut notes = Notes::default();
    assert_eq!(receive(&[sent], &mut notes), Ok(Duration::ZERO));
    assert_eq!(*notes.lines.lock().unwrap(), ["section image", "page 0 of 0", "section vcpu"]);
}

#[test]
fn a_page_in_two_streams_is_found_wherever_it_is() {
    for page in [0, 63, 64] {
        let whole = |writer: &mut Writer<Vec<u8>>| writer.zero_pages(3, 0, 65).unwrap();
        let again = |writer: &mut Writer<Vec<u8>>| writer.zero_pages(3, page, 1).unwrap();
        let streams = [stream((0, 2), 65, whole, |_| ()), stream((1, 2), 65, again, |_| ())];
        let repeated = JoinError::Repeated { slot: 3, page };
        assert_eq!(receive(&streams, &mut Notes::default()), Err(ReceiveError::Join(repeated)));
    }
}

#[test]
fn a_page_that_never_came_is_found_wherever_it_is() {
    for page in [0, 63, 64] {
        let others = |writer: &mut Writer<Vec<u8>>| {
            for other in (0..65).filter(|other| *other != page) {
                writer.zero_pages(3, other, 1).unwrap();
            }
        };
        let never = JoinError::NeverCame { slot: 3, page };
        let refused = receive(&[stream((0, 1), 65, others, |_| ())], &mut Notes::default());
        assert_eq!(refused, Err(ReceiveError::Join(never)));
    }
}

#[test]
fn the_embedder_learns_which_pages_are_absent() {
    let all = |writer: &mut Writer<Vec<u8>>| writer.zero_pages(3, 0, 140).unwrap();
    let absent = |writer: &mut Writer<Vec<u8>>| writer.absent(3, 64, &[1 << 63, 0b1001]).unwrap();
    let mut notes = Notes::default();
    assert!(receive(&[stream((0, 1), 140, all, absent)], &mut notes).is_ok());
    assert_eq!(notes.absent.unwrap().words(0), [0, 1 << 63, 0b1001]);
}

#[test]
fn a_page_waits_for_a_frame_as_long_as_the_memory_says() {
    // The looks are 50 microseconds apart.
    let late = Err("page 0 waits since 1ms".to_owned());
    for (looks, result, looked) in [(1, Ok(0), 1), (3, Ok(100), 3), (21, Ok(1000), 21), (22, late, 21)] {
        let page = |writer: &mut Writer<Vec<u8>>| writer.page(3, 0, &[1; 4096]).unwrap();
        let mut notes = Notes { looks, ..Notes::default() };
        let received = receive(&[stream((0, 1), 1, page, |_| ())], &mut notes);
        let received = received.map(|time| time.as_micros()).map_err(|error| error.to_string());
        assert_eq!((received, notes.looked.into_inner()), (result, looked));
    }
}
