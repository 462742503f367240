// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Snapshots: a guest into a file, and back.

use std::fs::File;
use std::io::{Read as _, Seek, Write as _};
use std::sync::atomic::Ordering;
use std::time::Duration;

use embedded_io::{ErrorKind, ErrorType, Read, Write};
use twofold_memory::dirty::Tracker;
use twofold_migration::commit::{Event, Owner, Ownership, Side, State};
use twofold_migration::plan::Wanted;
use twofold_migration::precopy::{Cause, Postcopy, Precopy};
use twofold_migration::ram::RamError;
use twofold_migration::receive::{Receive, ReceiveError, Received};
use twofold_migration::snapshot::{NO_ANSWERS, Stopped, save};
use twofold_migration::stream::Compression;
use twofold_migration::{Cancel, Section};

use crate::guest::{Guest, Swap, capabilities, hello, name, places};
use crate::link::{Arbiter, Virtual};
use crate::moved::{Move, Still, first};
use crate::sides::{Source, Target, state};
use crate::store::{Mood, Store};

/// A file with the traits of `embedded_io`. Time passes as bytes are written.
struct Disk<'v, 'g>(File, Option<&'v Virtual<'g>>);

impl ErrorType for Disk<'_, '_> {
    type Error = ErrorKind;
}

impl Write for Disk<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        self.0.write_all(bytes).map_err(|_| ErrorKind::Other)?;
        if let Some(clock) = self.1 {
            clock.pass(bytes.len() as u64 * clock.byte);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        self.0.flush().map_err(|_| ErrorKind::Other)
    }
}

impl Read for Disk<'_, '_> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, ErrorKind> {
        self.0.read(bytes).map_err(|_| ErrorKind::Other)
    }
}

/// Returns the bytes of a stopped guest.
fn saved(guest: &Guest, owned: Ownership, compression: Compression) -> Vec<u8> {
    let images = [Section { name: name("image"), instance: 0, version: 1, bytes: vec![9; 70_000] }];
    let ram = guest.ram(Tracker::Manual);
    let stopped = Stopped { ram: &ram, hello: hello(1), images: &images, state: &state(guest), owned };
    let mut bytes = Vec::new();
    let written = save(&stopped, &mut bytes, compression, &Still).unwrap();
    assert_eq!(written, bytes.len() as u64);
    bytes
}

fn read<S: Read + Send>(source: S, target: &mut Target<'_>) -> Result<Received<S>, ReceiveError> {
    let receive = Receive { here: capabilities(), sections: 1 << 20, runtime: &Still };
    receive.run(vec![source], &Side::new(Owner { host: 1, incarnation: 0 }, State::START), target)
}

#[test]
fn a_guest_that_is_restored_and_saved_at_once_has_the_same_bytes() {
    for compression in [Compression::Off, Compression::Lz4] {
        let [mut here, mut there] = places();
        let guest = here.boot(1, (40, 80));
        guest.work(0, 500);
        guest.running.store(false, Ordering::Relaxed);
        let bytes = saved(&guest, first(), compression);
        assert_eq!(saved(&guest, first(), compression), bytes, "each time the same");
        let arbiter = Arbiter::new(first());
        let mut target = Target::new(&mut there, None, &arbiter);
        let received = read(&bytes[..], &mut target).unwrap();
        assert_eq!(received.from, first());
        let restored = target.guest.take().unwrap();
        assert_eq!(restored.digests(), guest.digests());
        assert_eq!(saved(&restored, received.from, compression), bytes);
        // Pages that are zero took no memory.
        assert!(restored.vm.memory().counts().frames_zeroed <= guest.vm.memory().counts().frames_zeroed);
        restored.running.store(true, Ordering::Relaxed);
        restored.work(0, 500);
    }
}

/// A running guest into a file.
fn live(guest: &Guest, file: &File, arbiter: &Arbiter) -> (Side, Vec<u64>) {
    let clock = Virtual::new(guest, 10, &[20_000]);
    let (all, mut source) = (Move::new(Tracker::Adaptive), Source::new(&clock, arbiter));
    let mut side = Side::new(first().owner, State::Running { owned: first() });
    let precopy = Precopy {
        ram: &guest.ram(all.tracker),
        hello: hello(1),
        wanted: Wanted { rounds: 3, ..all.wanted },
        limit: None,
        compression: Compression::Lz4,
        postcopy: Postcopy::Off,
        runtime: &clock,
        cancel: &Cancel::new(),
    };
    let disk = Disk(file.try_clone().unwrap(), Some(&clock));
    let offered = precopy.run(vec![disk], NO_ANSWERS, &mut side, &mut source).unwrap();
    assert!(offered.broken.is_none() && offered.sent.last_pages > 0);
    assert!(matches!(side.state(), State::InDoubt { .. }));
    (side, source.stopped.unwrap())
}

#[test]
fn a_guest_that_was_saved_goes_on_and_its_file_never_wins() {
    let [mut here, mut there] = places();
    let (guest, arbiter, mut file) = (here.boot(1, (40, 80)), Arbiter::new(first()), tempfile::tempfile().unwrap());
    let (mut side, stopped) = live(&guest, &file, &arbiter);
    let clock = Virtual::new(&guest, 0, &[0]);
    let mut source = Source::new(&clock, &arbiter);
    source.stopped = Some(stopped.clone());
    assert!(matches!(side.raise(Event::Cancel, &mut source), State::Running { .. }));
    let written = guest.done();
    guest.work(0, 500);

    file.rewind().unwrap();
    let mut target = Target::new(&mut there, None, &arbiter);
    let received = read(Disk(file.try_clone().unwrap(), None), &mut target).unwrap();
    let mut other = Side::new(Owner { host: 1, incarnation: 0 }, State::START);
    assert!(matches!(received.take(&mut other, &mut target).0, State::Idle { .. }), "the guest runs at its source");
    assert!(target.guest.is_none() && target.digests.is_none());

    // As another guest, with a record of its own, it is what was saved.
    file.rewind().unwrap();
    let _received = read(Disk(file, None), &mut target).unwrap();
    let copy = target.guest.take().unwrap();
    assert_eq!((copy.digests(), copy.done()), (stopped, written));
    copy.running.store(true, Ordering::Relaxed);
    copy.work(0, 500);
    guest.work(0, 500);
}

#[test]
fn a_guest_moves_through_a_file_once() {
    let [mut here, mut there] = places();
    let (guest, arbiter, mut file) = (here.boot(1, (40, 80)), Arbiter::new(first()), tempfile::tempfile().unwrap());
    let (mut side, stopped) = live(&guest, &file, &arbiter);
    let mut taken = Vec::new();
    for number in 0..2 {
        file.rewind().unwrap();
        let mut target = Target::new(&mut there, None, &arbiter);
        let received = read(Disk(file.try_clone().unwrap(), None), &mut target).unwrap();
        let mut other = Side::new(Owner { host: 1, incarnation: number }, State::START);
        taken.push(matches!(received.take(&mut other, &mut target).0, State::Running { .. }));
        if let Some(guest) = target.guest.take() {
            assert_eq!(target.digests.take().unwrap(), stopped);
            guest.work(0, 100);
            there.end(guest);
        }
    }
    assert_eq!(taken, [true, false]);
    let clock = Virtual::new(&guest, 0, &[0]);
    let mut source = Source::new(&clock, &arbiter);
    assert!(matches!(side.raise(Event::Tick, &mut source), State::Idle { .. }));
    assert!(source.released);
}

#[test]
fn a_file_that_is_cut_is_no_guest() {
    let [mut here, mut there] = places();
    let guest = here.boot(1, (40, 80));
    guest.running.store(false, Ordering::Relaxed);
    let bytes = saved(&guest, first(), Compression::Lz4);
    let arbiter = Arbiter::new(first());
    for end in (0..bytes.len()).step_by(bytes.len() / 60).chain([bytes.len() - 1]) {
        let mut target = Target::new(&mut there, None, &arbiter);
        let error = read(&bytes[..end], &mut target).unwrap_err();
        assert!(error.to_string().contains("the stream is cut"), "{error}");
        assert!(target.guest.is_none());
    }
    let full = &mut [0; 1000][..];
    let stopped = Stopped {
        ram: &guest.ram(Tracker::Manual),
        hello: hello(1),
        images: &[],
        state: &state(&guest),
        owned: first(),
    };
    assert!(save(&stopped, full, Compression::Off, &Still).is_err(), "a disk that is full");
}

/// They are read from the store and stay there; a store that is silent is the reason for no snapshot.
#[test]
fn a_guest_with_absent_pages_is_saved_from_its_store() {
    let [mut here, mut there] = places();
    let store = Store::new(300_000, 1);
    here.swap = Some(Swap::with(&store, None));
    let guest = here.boot(1, (40, 80));
    guest.work(0, 500);
    guest.leave();
    guest.running.store(false, Ordering::Relaxed);
    guest.leaves.store(false, Ordering::Relaxed);
    let (absent, used) = (guest.absent(), guest.vm.memory().frame_use());
    assert!(absent > 50, "{absent}");
    let (clock, patience) = (Virtual::new(&guest, 10, &[0]), Duration::from_millis(10));
    let ram = guest.ram(Tracker::Manual).with_patience(patience);
    let stopped = Stopped { ram: &ram, hello: hello(1), images: &[], state: &state(&guest), owned: first() };
    let mut bytes = Vec::new();
    save(&stopped, &mut bytes, Compression::Lz4, &clock).unwrap();
    assert_eq!((guest.absent(), guest.vm.memory().frame_use()), (absent, used), "nothing has become resident");
    store.get().mood = Mood::Silent;
    let silent = save(&stopped, Vec::new(), Compression::Off, &clock).unwrap_err();
    let Cause::Ram(RamError::Silent { waited, .. }) = silent else { panic!("{silent}") };
    assert!(waited >= patience, "{waited:?}");
    assert!(silent.to_string().contains("have not come from their store in 10"), "{silent}");
    store.get().mood = Mood::Answers;
    let arbiter = Arbiter::new(first());
    let mut target = Target::new(&mut there, None, &arbiter);
    assert_eq!(read(&bytes[..], &mut target).unwrap().from, first());
    let restored = target.guest.take().unwrap();
    assert_eq!(restored.digests(), guest.digests());
    restored.running.store(true, Ordering::Relaxed);
    restored.work(0, 500);
}
