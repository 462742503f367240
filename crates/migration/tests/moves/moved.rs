// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One move of a guest, on one clock: the source on this thread, the target on another.

use std::thread;
use std::time::Duration;

use twofold_machine::fast::FastPlatform;
use twofold_memory::dirty::Tracker;
use twofold_migration::commit::{Event, Owner, Ownership, Side, State};
use twofold_migration::plan::{Plan, Wanted};
use twofold_migration::precopy::{Failed, Offered, Postcopy, Precopy};
use twofold_migration::ram::{GuestRam, SourceRam};
use twofold_migration::receive::{Receive, ReceiveError};
use twofold_migration::stream::{Capabilities, Compression, Hello};
use twofold_migration::{Answers, Cancel, Runtime};

use crate::guest::{Guest, Place, capabilities, hello};
use crate::link::{Arbiter, Cut, Receiver, Sender, Sink, Virtual, pipe};
use crate::sides::{Source, Target};
use crate::slow::Slow;

/// A guest that moves, and everything that may go wrong.
pub struct Move {
    pub tracker: Tracker,
    pub compression: Compression,
    pub streams: usize,
    pub wanted: Wanted,
    pub limit: Option<u64>,
    pub tells_apart: bool,
    /// Nanoseconds for a byte, and writes a second of each vCPU.
    pub byte: u64,
    pub rates: Vec<u64>,
    /// Nanoseconds that the log takes to report a memslot.
    pub get: u64,
    pub here: Capabilities,
    pub change: fn(&mut Hello),
    /// The stream that is cut, and where; the last number stands for the answers.
    pub cut: Option<(usize, Cut)>,
    pub unsaved: Option<String>,
}

/// What became of it.
pub struct Moved {
    pub result: Result<Offered<()>, Failed>,
    pub received: Result<(), ReceiveError>,
    /// The digests of the stopped source, and of the target before its first entry.
    pub digests: (Option<Vec<u64>>, Option<Vec<u64>>),
    /// The guest at the target, if it was built there.
    pub there: Option<Guest>,
    pub sides: [State; 2],
    pub plans: Vec<(u64, u64, Plan)>,
    pub throttles: Vec<Vec<u16>>,
    pub slowed: Vec<u16>,
    pub calls: u64,
    pub refused: Vec<String>,
}

impl Move {
    pub fn new(tracker: Tracker) -> Self {
        let (downtime, fixed) = (Duration::from_millis(2), Duration::from_millis(1));
        Self {
            tracker,
            compression: Compression::Off,
            streams: 1,
            wanted: Wanted { downtime, fixed, rounds: 30, throttle: 990, forced: true },
            limit: None,
            tells_apart: false,
            // 100 MB/s, and 10,000 writes a second.
            byte: 10,
            rates: vec![10_000],
            get: 0,
            here: capabilities(),
            change: |_| (),
            cut: None,
            unsaved: None,
        }
    }

    /// Moves the guest, if nothing hinders it.
    pub fn go(&self, from: &Guest, to: &mut Place, arbiter: &Arbiter) -> Moved {
        self.go_with(from, to, arbiter, |ram| ram, &Cancel::new(), None)
    }

    /// The same with a broken memory, and a hook at each write to a stream.
    pub fn go_with<'g, M: SourceRam>(
        &self,
        from: &'g Guest,
        to: &mut Place,
        arbiter: &Arbiter,
        ram: impl FnOnce(GuestRam<'g, FastPlatform>) -> M,
        cancel: &Cancel,
        hook: Option<&'g (dyn Fn(u64) + Sync)>,
    ) -> Moved {
        let record = *arbiter.record.lock().unwrap();
        let other = Owner { host: 1, incarnation: record.epoch };
        let (mut there, mut here) =
            (Side::new(other, State::START), Side::new(record.owner, State::Running { owned: record }));
        let cut = |number| self.cut.filter(|(stream, _)| *stream == number).map(|(_, cut)| cut);
        let at_bytes = |number| match cut(number) {
            Some(Cut::Bytes(bytes)) => Some(bytes),
            _ => None,
        };
        let (sinks, sources): (Vec<Sender>, Vec<Receiver>) =
            (0..self.streams).map(|number| pipe(at_bytes(number))).unzip();
        let (answer, answers) = pipe(at_bytes(self.streams));
        let mut clock = Virtual::new(from, self.byte, &self.rates);
        clock.hook = hook;
        let clock = &clock;
        let mut source = Source::new(clock, arbiter);
        source.tells_apart = self.tells_apart;
        source.unsaved.clone_from(&self.unsaved);
        let mut hello = hello(self.rates.len() as u32);
        (self.change)(&mut hello);
        thread::scope(|scope| {
            let receives = scope.spawn(|| {
                let mut target = Target::new(to, Some(answer), arbiter);
                let receive = Receive { here: self.here.clone(), sections: 1 << 20, runtime: &Still };
                // Connections may come in any order.
                let sources = sources.into_iter().rev().collect();
                let received = receive.run(sources, &there, &mut target).map(|received| {
                    let _ = received.take(&mut there, &mut target);
                });
                settle(&mut there, &mut target);
                let Target { guest, digests, refused, .. } = target;
                (received, guest, digests, refused, there.state())
            });
            let precopy = Precopy {
                ram: &Slow { ram: ram(from.ram(self.tracker)), clock, get: self.get },
                hello,
                wanted: self.wanted,
                limit: self.limit,
                compression: self.compression,
                postcopy: Postcopy::Off,
                runtime: clock,
                cancel,
            };
            let sink = |(number, sender)| Sink { sender, clock, cut: cut(number) };
            let sinks = sinks.into_iter().enumerate().map(sink).collect();
            let mut answers = Answers::new(answers);
            let result = precopy.run(sinks, Some(&mut answers), &mut here, &mut source);
            let result = result.map(|Offered { sent, broken, .. }| Offered { sent, broken, postcopy: None });
            if result.is_ok() {
                match answers.taken() {
                    Ok(now) => here.raise(Event::Record(now), &mut source),
                    // The guest is wanted back.
                    Err(_) => here.raise(Event::Cancel, &mut source),
                };
            }
            drop(answers);
            settle(&mut here, &mut source);
            let (received, there, digests, refused, state) = receives.join().unwrap();
            Moved {
                result,
                received,
                digests: (source.stopped, digests),
                there,
                sides: [here.state(), state],
                plans: source.plans,
                throttles: source.throttles,
                slowed: clock.slowed.lock().unwrap().clone(),
                calls: clock.calls.load(std::sync::atomic::Ordering::Relaxed),
                refused,
            }
        })
    }
}

/// Asks the arbiter until the side is not in doubt any more.
fn settle(side: &mut Side, embedder: &mut impl twofold_migration::commit::Embedder) {
    while matches!(side.state(), State::InDoubt { .. }) {
        side.raise(Event::Tick, embedder);
    }
}

impl Moved {
    /// Checks that exactly one side runs, and that its memory is what it is to be. Returns the guest at the target, if
    /// that is the one.
    #[track_caller]
    pub fn check(self, from: &Guest, to: &mut Place, arbiter: &Arbiter) -> Option<Guest> {
        let record = *arbiter.record.lock().unwrap();
        let Self { digests: (stopped, first), there, sides, .. } = self;
        match (sides, there) {
            ([State::Idle { .. }, State::Running { owned }], Some(there)) => {
                assert_eq!(owned, record, "it owns the guest");
                let (stopped, first) = (stopped.expect("it was stopped"), first.expect("it was entered"));
                let differ: Vec<_> = (0..stopped.len()).filter(|&page| stopped[page] != first[page]).collect();
                assert!(differ.is_empty(), "pages {differ:?} differ");
                Some(there)
            }
            ([State::Running { owned }, State::Idle { .. }], None) => {
                assert_eq!(owned, record, "it owns the guest");
                assert!(!from.logs(), "a log still runs");
                assert!(to.frames.is_some(), "the target keeps what came");
                assert!(from.running.load(std::sync::atomic::Ordering::Relaxed));
                // That it went on as it was stopped was checked then. It may have written since.
                assert!(self.slowed.iter().all(|&slowed| slowed == 0), "it is slowed down still");
                None
            }
            (sides, there) => panic!("{sides:?}, and a guest at the target: {}", there.is_some()),
        }
    }
}

/// A runtime without a clock, for the target.
pub struct Still;

impl Runtime for Still {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn wait(&self, _: Duration) {}
}

/// The record of a guest that runs at the first place.
pub fn first() -> Ownership {
    Ownership { owner: Owner { host: 0, incarnation: 0x0102_0304_0506_0708 }, epoch: 0x1112_1314_1516_1718 }
}
