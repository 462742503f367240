// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Post-copy: the guest runs at the target while most of its pages are at the source, over links that are cut.
//!
//! There is no store of pages here: before each write, the test asks the target's state for the page, as a fault would.
//! Absent pages hold garbage, so a guest that goes by one is found. Each page that comes is compared with the digest of
//! the stopped source's.

use std::sync::atomic::Ordering;
use std::thread;

use embedded_io::ErrorKind;
use twofold_memory::dirty::Tracker;
use twofold_migration::commit::{Event, Owner, Ownership, Side, State};
use twofold_migration::plan::Wanted;
use twofold_migration::postcopy::{
    FetchError, Incoming, Need, Outgoing, ServeError, Served, Source as Sends, Target as Fetches, TargetState,
    resume_source, resume_target,
};
use twofold_migration::precopy::{Postcopy, Precopy, Sent};
use twofold_migration::ram::{Ahead, PageRead, PageWrite, RamError, TargetRam};
use twofold_migration::receive::{Receive, ReceiveError};
use twofold_migration::stream::{Compression, Message, Writer};
use twofold_migration::{AnswerError, Answers, Asked, Cancel};

use crate::guest::{Guest, Place, capabilities, hello, places};
use crate::link::{Arbiter, Receiver, Sender, Sink, Virtual, pipe};
use crate::moved::{Move, Still, first};
use crate::sides::{Source, Target};
use crate::{Random, setting};

/// A link in both directions.
pub struct Link<'g, 'v> {
    pub outgoing: Outgoing<Sink<'g, 'v>>,
    pub asked: Answers<Receiver>,
    pub incoming: Incoming<Receiver>,
    pub answers: Writer<Sender>,
}

/// A guest that has changed hands, and both sides' states.
pub struct Switched<'g, 'v> {
    pub link: Link<'g, 'v>,
    pub sends: Sends,
    fetches: Fetches,
    pub guest: Guest,
    pub stopped: Vec<u64>,
    sent: Sent,
}

/// Moves a guest, with pages left to come; `None` if none is left.
pub fn switch<'g, 'v>(
    all: &Move,
    postcopy: Postcopy,
    clock: &'v Virtual<'g>,
    to: &mut Place,
    streams: usize,
) -> Result<Option<Switched<'g, 'v>>, (ReceiveError, State)> {
    let arbiter = Arbiter::new(first());
    let from = clock.guest;
    let (sinks, sources): (Vec<Sender>, Vec<Receiver>) = (0..streams).map(|_| pipe(None)).unzip();
    let (answer, answers) = pipe(None);
    let mut here = Side::new(first().owner, State::Running { owned: first() });
    let mut source = Source::new(clock, &arbiter);
    let mut asked = Answers::new(answers);
    let vcpus = clock.rates.len() as u32;
    let (offered, received) = thread::scope(|scope| {
        let receives = scope.spawn(|| {
            let mut side = Side::new(Owner { host: 1, incarnation: 0 }, State::START);
            let mut target = Target::new(to, Some(answer), &arbiter);
            target.takes_absent = postcopy != Postcopy::Off && all.unsaved.is_none();
            let receive = Receive { here: capabilities(), sections: 1 << 20, runtime: &Still };
            let received = receive.run(sources, &side, &mut target)?;
            let (state, postcopy) = received.take(&mut side, &mut target);
            assert!(matches!(state, State::Running { .. }));
            Ok((target.guest.take().unwrap(), target.digests.take().unwrap(), postcopy, target.answers.take().unwrap()))
        });
        let precopy = Precopy {
            ram: &from.ram(all.tracker),
            hello: hello(vcpus),
            wanted: all.wanted,
            limit: None,
            compression: all.compression,
            postcopy,
            runtime: clock,
            cancel: &Cancel::new(),
        };
        let sinks = sinks.into_iter().map(|sender| Sink { sender, clock, cut: None }).collect();
        let offered = precopy.run(sinks, Some(&mut asked), &mut here, &mut source);
        if offered.is_ok() {
            match asked.taken() {
                Ok(now) => here.raise(Event::Record(now), &mut source),
                Err(_) => here.raise(Event::Cancel, &mut source),
            };
        }
        (offered, receives.join().unwrap())
    });
    assert!(!from.logs());
    let (guest, digests, came, answers) = received.map_err(|error| (error, here.state()))?;
    assert!(source.released, "the source releases the vCPUs");
    let (offered, stopped) = (offered.unwrap(), source.stopped.unwrap());
    let absent = came.as_ref().map(|(fetches, _)| fetches.absent().clone());
    for (place, page) in places_of().enumerate() {
        let absent = absent.as_ref().is_some_and(|absent| absent.contains(page.0, page.1));
        assert!(absent || digests[place] == stopped[place], "page {page:?} is not absent, and differs");
    }
    let (Some((sends, outgoing)), Some((fetches, incoming))) = (offered.postcopy, came) else { return Ok(None) };
    let link = Link { outgoing, asked, incoming, answers };
    Ok(Some(Switched { link, sends, fetches, guest, stopped, sent: offered.sent }))
}

/// All pages, in the order of the digests.
pub fn places_of() -> impl Iterator<Item = (usize, u64)> {
    crate::guest::slots()
        .into_iter()
        .enumerate()
        .flat_map(|(index, slot)| (0..slot.pages).map(move |page| (index, page)))
}

/// The memslot's index and page of a page that the guest writes to.
fn place_of(page: u64) -> (usize, u64) {
    if page < 300 { (1, page) } else { (2, page - 300) }
}

/// The owner of the guest, as the target knows it.
pub fn taken() -> Ownership {
    first().taken_by(Owner { host: 1, incarnation: 0 })
}

/// A new link, on which the source goes on, and the target by `resume`. Each direction is cut after some bytes.
pub fn relink<'g, 'v>(
    sends: &mut Sends,
    clock: &'v Virtual<'g>,
    cuts: [Option<u64>; 2],
    resume: impl FnOnce(Receiver, &mut Writer<Sender>) -> Result<Incoming<Receiver>, FetchError>,
) -> Result<Link<'g, 'v>, Cut> {
    let vcpus = clock.rates.len() as u32;
    let ((out, from_source), (answer, answers)) = (pipe(cuts[0]), pipe(cuts[1]));
    let (source, target) = thread::scope(|scope| {
        let source = scope.spawn(move || {
            let (mut asked, sink) = (Answers::new(answers), Sink { sender: out, clock, cut: None });
            let outgoing = resume_source(sink, (&hello(vcpus), Compression::Off), taken(), &mut asked, sends);
            outgoing.map(|outgoing| (outgoing, asked))
        });
        let mut answers = Writer::with_absent(answer, Compression::Off);
        let target = resume(from_source, &mut answers).map(|incoming| (incoming, answers));
        (source.join().unwrap(), target)
    });
    // If the source has not come to the end of its part, the target may have.
    let ((outgoing, asked), (incoming, answers)) = (source.map_err(Cut::Source)?, target.map_err(Cut::Target)?);
    Ok(Link { outgoing, asked, incoming, answers })
}

/// How a link ended.
#[derive(Debug)]
pub enum Cut {
    Source(ServeError),
    Asked(AnswerError),
    Target(FetchError),
}

impl<'g, 'v> Switched<'g, 'v> {
    /// A vCPU goes on by a write, if the page is here; else it asks for the page.
    fn step(&mut self, vcpu: usize) -> Result<bool, Cut> {
        let (page, _) = self.guest.vcpus.lock().unwrap()[vcpu].program().next();
        let (slot, page) = place_of(page);
        match self.fetches.need(slot, page) {
            Need::Here => {
                self.guest.work(vcpu, 1);
                return Ok(true);
            }
            Need::Ask => {
                let number = self.fetches.slots()[slot].number;
                let asked = self.link.answers.request(true, number, page, 1);
                asked.map_err(|error| Cut::Target(error.into()))?;
                let asked = self.link.asked.asked().map_err(Cut::Asked)?;
                assert_eq!(asked, Asked::Pages { waits: true, slot: number, page, count: 1 });
                self.sends.request(true, number, page, 1).unwrap();
            }
            Need::Wait | Need::Cut => {}
        }
        Ok(false)
    }

    /// The source sends a page, and the target stores it.
    fn page(&mut self, from: &Guest) -> Result<(), Cut> {
        let ram = from.ram(Tracker::Manual);
        let sent = self.link.outgoing.send(&mut self.sends, &ram, &mut Ahead::new()).map_err(Cut::Source)?;
        let Served::Page(slot, page) = sent else { return Ok(()) };
        let there = self.guest.ram(Tracker::Manual);
        let came = self.link.incoming.store(&mut self.fetches, &there).map_err(Cut::Target)?;
        assert_eq!((came.0, came.1), (slot, page));
        let place = places_of().position(|place| place == (slot, page)).unwrap();
        assert_eq!(self.guest.digest(slot, page), self.stopped[place], "page {page} of memslot {slot}");
        Ok(())
    }

    /// Goes on over a new link, which is cut after some bytes.
    fn reconnect(&mut self, clock: &'v Virtual<'g>, cuts: [Option<u64>; 2]) -> Result<(), Cut> {
        let (owned, hello, fetches) = (taken(), hello(clock.rates.len() as u32), &mut self.fetches);
        self.link = relink(&mut self.sends, clock, cuts, |stream, answers| {
            resume_target(stream, capabilities(), &hello, owned, answers, fetches)
        })?;
        // The pages that vCPUs wait for are asked for again.
        for _ in 0..self.fetches.waits().count() {
            let Asked::Pages { waits, slot, page, count } = self.link.asked.asked().map_err(Cut::Asked)? else {
                panic!("something else than a request")
            };
            self.sends.request(waits, slot, page, count).unwrap();
        }
        Ok(())
    }

    /// Checks that the guest stands still with a reason, and goes on where it needs no absent page.
    fn stands_still(&mut self, why: &Cut) {
        let why = match why {
            Cut::Source(error) => error.to_string(),
            Cut::Asked(error) => error.to_string(),
            Cut::Target(error) => error.to_string(),
        };
        self.fetches.cut(&why);
        if self.fetches.state() == TargetState::Complete {
            return;
        }
        let TargetState::Stopped { absent, .. } = self.fetches.state() else { panic!("it goes on") };
        let vcpus = self.guest.vcpus.lock().unwrap().len();
        for vcpu in 0..vcpus {
            let goes_on = (0..1000).all(|_| self.step(vcpu).unwrap());
            assert!(!goes_on || absent < 100, "{absent} pages are absent, and it needs none of them");
        }
    }
}

/// A guest with two vCPUs, at the first place.
fn boot(here: &mut Place) -> Guest {
    here.boot(2, (40, 80))
}

#[test]
fn a_guest_runs_before_its_pages_are_there() {
    for (compression, streams) in [(Compression::Off, 1), (Compression::Lz4, 3)] {
        let [mut here, mut there] = places();
        let from = boot(&mut here);
        let clock = Virtual::new(&from, 10, &[0, 0]);
        let all = Move { compression, ..Move::new(Tracker::Manual) };
        let mut switched = switch(&all, Postcopy::AtOnce, &clock, &mut there, streams).unwrap().unwrap();
        assert_eq!((switched.sends.left(), switched.sent.pages, switched.sent.rounds), (395, 0, 0));
        let (mut wrote, mut waited) = (0, 0);
        while switched.fetches.state() != TargetState::Complete {
            for vcpu in [0, 1] {
                match switched.step(vcpu).unwrap() {
                    true => wrote += 1,
                    false => waited += 1,
                }
            }
            switched.page(&from).unwrap();
        }
        assert!(wrote > 300 && waited < 400, "{wrote} writes, {waited} waits");
        assert_eq!(switched.sends.left(), 0);
        switched.link.answers.message(&Message::Complete).unwrap();
        assert_eq!(switched.link.asked.asked(), Ok(Asked::Complete));
        let Switched { guest, .. } = switched;
        here.end(from);
        guest.work(0, 500);
        guest.work(1, 500);
    }
}

#[test]
fn what_precopy_does_not_finish_comes_after() {
    let [mut here, mut there] = places();
    let from = here.boot(2, (390, 0));
    let wanted = Wanted { forced: false, throttle: 0, ..Move::new(Tracker::Adaptive).wanted };
    for (rates, tracker) in [([100, 100], Tracker::Adaptive), ([200_000, 1_000], Tracker::Hardware)] {
        let clock = Virtual::new(&from, 10, &rates);
        from.running.store(true, Ordering::Relaxed);
        let all = Move { wanted, ..Move::new(tracker) };
        match switch(&all, Postcopy::IfNeeded, &clock, &mut there, 2).unwrap() {
            None => {
                assert_eq!(rates[0], 100, "the rest fits");
                // The other case moves it once more.
                there = places().into_iter().next_back().unwrap();
            }
            Some(mut switched) => {
                assert_eq!(rates[0], 200_000);
                let left = switched.sends.left();
                assert!(left > 0 && left < 395 && switched.sent.pages >= 395 && switched.sent.last_pages == 0);
                assert_eq!(switched.fetches.absent().count(), left);
                for _ in 0..left {
                    let _ = [0, 1].map(|vcpu| switched.step(vcpu).unwrap());
                    switched.page(&from).unwrap();
                }
                assert_eq!(switched.fetches.state(), TargetState::Complete);
                switched.guest.work(0, 500);
            }
        }
    }
}

#[test]
fn a_guest_whose_link_is_cut_stands_still_and_goes_on() {
    let (cuts, seed) = (setting("TWOFOLD_CUTS", 60), setting("TWOFOLD_SEED", 1));
    println!("TWOFOLD_SEED={seed}");
    let (mut random, mut cut) = (Random(seed), 0);
    while cut < cuts {
        let [mut here, mut there] = places();
        let from = boot(&mut here);
        let clock = Virtual::new(&from, 10, &[0, 0]);
        let all = Move::new(Tracker::Manual);
        let mut switched = switch(&all, Postcopy::AtOnce, &clock, &mut there, 1).unwrap().unwrap();
        // The first link is cut between two records.
        let mut ended: Result<(), Cut> = Err(Cut::Target(FetchError::Ended));
        let mut done = false;
        while !done {
            if let Err(why) = ended {
                cut += 1;
                switched.stands_still(&why);
                let left = random.below(120_000);
                let cuts = [Some(left), None, Some(left % 900), Some(left)];
                let answers = if random.below(3) == 0 { Some(random.below(700)) } else { None };
                ended = switched.reconnect(&clock, [cuts[random.below(4) as usize], answers]);
                continue;
            }
            ended = (|| {
                let _ = [switched.step(0)?, switched.step(1)?];
                switched.page(&from)?;
                if switched.fetches.state() == TargetState::Complete {
                    let said = switched.link.answers.message(&Message::Complete);
                    said.map_err(|error| Cut::Target(error.into()))?;
                    assert_eq!(switched.link.asked.asked().map_err(Cut::Asked)?, Asked::Complete);
                    done = true;
                }
                Ok(())
            })();
        }
        assert_eq!(switched.sends.left(), 0);
        // The source's memory may be used for anything now.
        let Switched { guest, .. } = switched;
        here.end(from);
        guest.work(0, 1000);
        guest.work(1, 1000);
    }
    println!("{cut} links cut");
}

/// A source that does not know what has arrived sends it again.
#[test]
fn a_page_that_comes_again_does_not_replace_what_the_guest_wrote() {
    let [mut here, mut there] = places();
    let from = boot(&mut here);
    let clock = Virtual::new(&from, 10, &[0, 0]);
    let all = Move::new(Tracker::Manual);
    let mut switched = switch(&all, Postcopy::AtOnce, &clock, &mut there, 1).unwrap().unwrap();
    for _ in 0..395 {
        switched.page(&from).unwrap();
    }
    let wrote: Vec<_> = (0..50).map(|_| switched.step(0).unwrap()).collect();
    assert_eq!(wrote, [true; 50]);
    switched.reconnect(&clock, [None; 2]).unwrap();
    let mut lacks = twofold_migration::PageSet::none(switched.sends.slots());
    for (slot, page) in places_of() {
        lacks.insert(slot, page);
    }
    switched.sends.resume(lacks);
    let (ram, before) = (from.ram(Tracker::Manual), switched.guest.digests());
    let mut ahead = Ahead::new();
    while let Served::Page(slot, page) = switched.link.outgoing.send(&mut switched.sends, &ram, &mut ahead).unwrap() {
        let there = switched.guest.ram(Tracker::Manual);
        assert_eq!(switched.link.incoming.store(&mut switched.fetches, &there).unwrap(), (slot, page, false));
    }
    assert!(switched.guest.digests() == before, "a page was replaced");
    switched.guest.work(0, 500);
    // The control: a target that stores each page that comes.
    let mut bytes = [0; 4096];
    for (place, (slot, page)) in places_of().enumerate().filter(|(_, (slot, _))| *slot > 0) {
        let read = twofold_migration::ram::SourceRam::read(&ram, slot, page, &mut bytes).unwrap();
        assert!(matches!(read, PageRead::Done));
        let written = switched.guest.ram(Tracker::Manual).write(slot, page, Some(&bytes));
        assert!(matches!(written, Ok(PageWrite::Done)));
        assert_eq!(switched.guest.digest(slot, page), switched.stopped[place]);
    }
    assert!(switched.guest.digests() != before, "this is seen");
}

#[test]
fn a_link_to_another_guest_is_refused() {
    let [mut here, mut there] = places();
    let from = boot(&mut here);
    let clock = Virtual::new(&from, 10, &[0, 0]);
    let all = Move::new(Tracker::Manual);
    let mut switched = switch(&all, Postcopy::AtOnce, &clock, &mut there, 1).unwrap().unwrap();
    switched.page(&from).unwrap();
    let owned = first().taken_by(Owner { host: 1, incarnation: 0 });
    let mut resumed = |change: fn(&mut Writer<Vec<u8>>)| {
        let mut writer = Writer::with_absent(Vec::new(), Compression::Off);
        change(&mut writer);
        let bytes = writer.into_sink();
        let mut answers = Writer::with_absent(Vec::new(), Compression::Off);
        let target = &mut switched.fetches;
        let resumed = resume_target(&bytes[..], capabilities(), &hello(2), owned, &mut answers, target);
        assert_eq!(answers.bytes(), 0, "it learns nothing of the guest");
        resumed.map(|_| ()).unwrap_err().to_string()
    };
    let another = resumed(|writer| {
        writer.hello(&twofold_migration::stream::Hello { migration: [1; 16], ..hello(2) }).unwrap();
    });
    assert_eq!(another, "the new link is for another guest");
    let list = resumed(|writer| {
        let mut slots = crate::guest::slots();
        slots[1].number = 9;
        writer.hello(&hello(2)).unwrap();
        writer.slots(&slots).unwrap();
        writer.resume(first().taken_by(Owner { host: 1, incarnation: 0 })).unwrap();
    });
    assert_eq!(list, "the new link is for another list of memslots");
    let owner = resumed(|writer| {
        writer.hello(&hello(2)).unwrap();
        writer.slots(&crate::guest::slots()).unwrap();
        writer.resume(first()).unwrap();
    });
    assert_eq!(owner, "the new link is for another owner");
    let anew = resumed(|writer| {
        writer.hello(&hello(2)).unwrap();
        writer.slots(&crate::guest::slots()).unwrap();
        writer.round(false).unwrap();
    });
    assert_eq!(anew, "no resumption among absent pages");
    // The source refuses bits that the guest does not have.
    let mut answers = Writer::with_absent(Vec::new(), Compression::Off);
    answers.absent(0, 64, &[0, 0, 0, 0, 1]).unwrap();
    let bytes = answers.into_sink();
    let mut sink = Vec::new();
    let refused = resume_source(
        &mut sink,
        (&hello(2), Compression::Off),
        owned,
        &mut Answers::new(&bytes[..]),
        &mut switched.sends,
    );
    assert_eq!(refused.map(|_| ()).unwrap_err(), ServeError::NoSuchPages { slot: 0, page: 64 });
    assert_eq!(switched.sends.left(), 394);
}

#[test]
fn each_page_that_is_waited_for_is_asked_for_again() {
    let slots = crate::guest::slots();
    let mut target = Fetches::new(&slots, twofold_migration::PageSet::all(&slots));
    let pages = [(0, 0), (0, 1), (1, 5), (1, 6), (2, 0)];
    pages.iter().for_each(|&(slot, page)| assert_eq!(target.need(slot, page), Need::Ask));
    target.cut("reset");
    let mut link = Writer::with_absent(Vec::new(), Compression::Off);
    link.hello(&hello(2)).unwrap();
    link.slots(&slots).unwrap();
    link.resume(taken()).unwrap();
    let (link, mut answers) = (link.into_sink(), Writer::with_absent(Vec::new(), Compression::Off));
    resume_target(&link[..], capabilities(), &hello(2), taken(), &mut answers, &mut target).map(|_| ()).unwrap();
    let answers = answers.into_sink();
    let mut asked = Answers::new(&answers[..]);
    while asked.asked().unwrap() != Asked::Accepted {}
    for (slot, page) in pages {
        let slot = slots[slot].number;
        assert_eq!(asked.asked(), Ok(Asked::Pages { waits: true, slot, page, count: 1 }));
    }
    assert_eq!(asked.asked(), Err(AnswerError::Ended));
}

#[test]
fn a_source_goes_on_with_the_pages_that_the_target_lacks() {
    let slots = crate::guest::slots();
    let mut source = Sends::new(&slots, twofold_migration::PageSet::all(&slots));
    let mut answers = Writer::with_absent(Vec::new(), Compression::Off);
    answers.absent(0, 64, &[0b101]).unwrap();
    answers.message(&Message::Accepted).unwrap();
    let answers = answers.into_sink();
    let hello = (&hello(2), Compression::Off);
    resume_source(Vec::new(), hello, taken(), &mut Answers::new(&answers[..]), &mut source).map(|_| ()).unwrap();
    assert_eq!([source.next(), source.next(), source.next()], [Some((1, 64)), Some((1, 66)), None]);
}

#[test]
fn a_target_that_greets_is_refused() {
    let mut answers = Writer::new(Vec::new(), Compression::Off);
    answers.hello(&hello(2)).unwrap();
    let answers = answers.into_sink();
    let why = Answers::new(&answers[..]).asked().unwrap_err().to_string();
    assert_eq!(
        why,
        "the target's answers: record 0, which starts at byte 0: the guest's machine is virt-1, and this target builds \
         answers; the guest has 40 bits of physical address, and this target at most 0; the guest has 2 vCPUs, and this \
         target at most 0; the guest has 1617920 bytes of memory, and this target at most 0; the guest was given sve with \
         value 1, and this target does not have it"
    );
}

#[test]
fn a_target_without_a_store_refuses_absent_pages() {
    let [mut here, mut there] = places();
    let from = boot(&mut here);
    let clock = Virtual::new(&from, 10, &[0, 0]);
    let all = Move { unsaved: Some("the target takes none".into()), ..Move::new(Tracker::Manual) };
    let Err((refused, state)) = switch(&all, Postcopy::AtOnce, &clock, &mut there, 1) else { panic!("it is taken") };
    assert_eq!(refused.to_string(), "395 pages are absent, and this target needs all");
    assert!(matches!(state, State::Running { .. }), "the source takes it back");
    from.work(0, 100);
}

#[test]
fn a_page_without_a_memslot_is_not_sent() {
    let [mut here, mut there] = places();
    let from = boot(&mut here);
    let clock = Virtual::new(&from, 10, &[0, 0]);
    let all = Move::new(Tracker::Manual);
    let switched = switch(&all, Postcopy::AtOnce, &clock, &mut there, 1).unwrap().unwrap();
    let (mut outgoing, slots, ram) = (switched.link.outgoing, switched.sends.slots(), from.ram(Tracker::Manual));
    let before = outgoing.bytes();
    // The guest has the second memslot, but the stream does not.
    for (slots, slot) in [(&slots[..1], 1), (slots, slots.len())] {
        let sent = outgoing.send_page(slots, Some((slot, 0)), &ram, &mut Ahead::new());
        assert_eq!(sent, Err(RamError::NoPage { slot, page: 0 }.into()));
    }
    assert_eq!(outgoing.bytes(), before);
}

/// A full sink, and an end in the middle.
#[test]
fn a_source_whose_link_is_cut_keeps_its_pages() {
    let [mut here, mut there] = places();
    let from = boot(&mut here);
    let clock = Virtual::new(&from, 10, &[0, 0]);
    let all = Move::new(Tracker::Manual);
    let mut switched = switch(&all, Postcopy::AtOnce, &clock, &mut there, 1).unwrap().unwrap();
    drop(switched.link.incoming);
    let ram = from.ram(Tracker::Manual);
    let error = switched.link.outgoing.send(&mut switched.sends, &ram, &mut Ahead::new()).unwrap_err();
    assert!(error.to_string().contains(&format!("{:?}", ErrorKind::ConnectionReset)), "{error}");
    assert_eq!(switched.fetches.absent().count(), 395);
}
