// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The streams of a post-copy after the guest has changed hands, from any peer.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use twofold_memory::swap::{Peeked, StoreError};
use twofold_migration::commit::{Owner, Ownership};
use twofold_migration::postcopy::{
    FetchError, Need, ServeError, Served, Source, Target, TargetState, resume_source, resume_target,
};
use twofold_migration::ram::{Ahead, Away, PageRead, PageWrite, Queued, RamError, SourceRam, TargetRam};
use twofold_migration::stream::wire::{Preamble, VERSION};
use twofold_migration::stream::{Capabilities, Compression, Hello, Name, Reader, Record, Slot, Writer, heap_bound};
use twofold_migration::{Answers, Asked, PageSet};
use zerocopy::IntoBytes;

use crate::heap;
use crate::migration::forge;

/// What a peer sends over a new link is refused, or has the effect that the protocol says: the source sends each page that
/// the target lacks once, with its content; the target stores a page only while it lacks it. A page is never lost: what
/// was not sent or stored is still to come. Neither side holds more heap than its guest and its stream take.
///
/// The first byte's lowest bit says which side is tried, the next whether the peer's bytes are the rest as it is, or
/// records whose checksums are made to fit. At the target, the third says whether a good start comes before them.
pub fn postcopy(data: &[u8]) {
    let Some((&mode, data)) = data.split_first() else { return };
    let stream = |start: Vec<u8>| {
        let records = [&start[..], data].concat();
        if mode & 2 == 0 { forge(&records, VERSION) } else { [preamble(), records].concat() }
    };
    match (mode & 1, mode & 4) {
        (0, _) => source(&stream(Vec::new())),
        (_, 0) => target(&stream(Vec::new())),
        _ => target(&stream(start())),
    }
}

/// What a target answers, at the source.
fn source(stream: &[u8]) {
    let (all, mut bytes) = (PageSet::all(&slots()), Vec::with_capacity(BYTES_MOST));
    let (mut source, lacks) = (Source::new(&slots(), all.clone()), lacks(stream));
    let mut sent = Vec::with_capacity(all.count() as usize);
    let (held, resumed) = heap::most(|| {
        let (mut answers, mut ahead) = (Answers::new(stream), Ahead::new());
        let resumed = resume_source(&mut bytes, (&hello(), Compression::Off), OWNED, &mut answers, &mut source);
        let mut outgoing = resumed.ok()?;
        let lacks = lacks.as_ref().expect("the source goes on with good answers only");
        assert_eq!(source.left(), lacks.count());
        // A request comes between any two pages. After the last answer the source sends what is left.
        let (mut ended, mut later) = (false, 0);
        loop {
            match answers.asked() {
                Ok(Asked::Pages { waits, slot, page, count }) => {
                    let fits = index(slot).is_some_and(|index| has(index, page, count.into()));
                    assert_eq!(source.request(waits, slot, page, count).is_ok(), fits);
                }
                Ok(_) => {}
                Err(_) => ended = true,
            }
            match outgoing.send(&mut source, &Ram::default(), &mut ahead) {
                Ok(Served::Page(slot, page)) => sent.push((slot, page)),
                Ok(Served::All) if ended => break,
                Ok(Served::All) => {}
                Ok(Served::Later) | Err(ServeError::Ram(RamError::Store { .. })) => later += 1,
                Err(error) => panic!("{error}"),
            }
            assert!(later <= 1000 * all.count(), "pages never come");
        }
        Some(())
    });
    assert!(held <= HEAP_MOST, "a source held {held} bytes of heap");
    let Some(()) = resumed else {
        assert_eq!((lacks, source.left()), (None, all.count()), "a refused link changes nothing");
        return;
    };
    let mut reader = Reader::new(&bytes[..], capabilities());
    assert!(matches!(reader.next(), Ok(Some(Record::Hello(_)))) && matches!(reader.next(), Ok(Some(Record::Slots(_)))));
    assert_eq!(reader.next(), Ok(Some(Record::Resume(OWNED))));
    let mut left = lacks.expect("there is a link");
    for (slot, page) in sent {
        assert!(left.remove(slot, page), "page {page} of memslot {slot} is not lacked, or comes twice");
        let number = slots()[slot].number;
        let wanted = match content(page) {
            0 => Record::ZeroPages { slot: number, page, count: 1 },
            byte => Record::Page { slot: number, page, bytes: &[byte; PAGE] },
        };
        assert_eq!(reader.next(), Ok(Some(wanted)));
    }
    assert!(left.is_empty() && reader.next() == Ok(None), "{} pages were not sent", left.count());
}

/// The pages that a target's answers say it lacks; `None` if the answers are no good ones.
fn lacks(stream: &[u8]) -> Option<PageSet> {
    let (mut answers, mut lacks) = (Answers::new(stream), PageSet::none(&slots()));
    loop {
        match answers.asked().ok()? {
            Asked::Accepted => return Some(lacks),
            Asked::Absent { slot, page, words } => {
                let index = index(slot)?;
                let end = (page / 64).checked_add(words.len() as u64)?;
                if end > slots()[index].pages.div_ceil(64) {
                    return None;
                }
                for (word, at) in words.iter().zip((page..).step_by(64)) {
                    for bit in (0..64).filter(|bit| word >> bit & 1 == 1) {
                        lacks.insert(index, at + bit);
                    }
                }
            }
            _ => return None,
        }
    }
}

/// What a source sends, at the target.
fn target(stream: &[u8]) {
    let mut absent = PageSet::all(&slots());
    for page in (0..PAGES).step_by(5) {
        absent.remove(1, page);
    }
    let (mut target, ram, mut said) = (Target::new(&slots(), absent.clone()), Ram::default(), Vec::new());
    assert_eq!((target.need(1, 7), target.need(1, 5)), (Need::Ask, Need::Here));
    let (held, resumed) = heap::most(|| {
        let mut answers = Writer::with_absent(&mut said, Compression::Off);
        let resumed = resume_target(stream, capabilities(), &hello(), OWNED, &mut answers, &mut target);
        let mut incoming = resumed.ok()?;
        loop {
            match incoming.store(&mut target, &ram) {
                Ok(_) | Err(FetchError::Ram(_)) => {}
                Err(_) => break Some(()),
            }
        }
    });
    let stored = ram.stored.into_inner().expect("no thread panicked");
    let limit = HEAP_MOST + stored.len() as u64 * 2 * PAGE as u64;
    assert!(held <= limit, "a target held {held} bytes of heap, {} pages included", stored.len());
    let wanted = sent(stream, &absent);
    assert_eq!(resumed.is_some(), wanted.is_some());
    assert!(stored == wanted.unwrap_or_default(), "{} pages were stored", stored.len());
    for (slot, page) in pages(&absent) {
        let there = stored.contains_key(&(slot, page));
        assert_eq!(target.absent().contains(slot, page), !there, "page {page} of memslot {slot}");
    }
    assert_eq!(target.absent().count() + stored.len() as u64, absent.count());
    if resumed.is_none() {
        return;
    }
    assert!(!matches!(target.state(), TargetState::Fetching { .. }), "a link that has ended is reported");
    assert_eq!(lacks(&said), Some(absent), "the target said what it lacked");
}

/// What a target stores of a source's stream; `None` if its start is not that of this guest.
fn sent(stream: &[u8], absent: &PageSet) -> Option<BTreeMap<(usize, u64), u8>> {
    let (mut reader, mut stored) = (Reader::new(stream, capabilities()), BTreeMap::new());
    for wanted in [Record::Hello(&hello()), Record::Slots(&slots()), Record::Resume(OWNED)] {
        if reader.next().ok()?? != wanted {
            return None;
        }
    }
    while let Ok(Some(record)) = reader.next() {
        let (slot, first, count, byte) = match record {
            Record::Page { slot, page, bytes } => (slot, page, 1, bytes[0]),
            Record::ZeroPages { slot, page, count } => (slot, page, count, 0),
            _ => break,
        };
        let index = index(slot).expect("the reader knows the memslots");
        for page in first..first + u64::from(count) {
            if fails(page) && absent.contains(index, page) {
                // Pages after one that cannot be stored are still absent.
                break;
            }
            if absent.contains(index, page) {
                stored.entry((index, page)).or_insert(byte);
            }
        }
    }
    Some(stored)
}

/// The guest's memory: at the source, each page has one content; at the target, a page is stored once.
#[derive(Default)]
struct Ram {
    /// The first byte of each page that was stored.
    stored: Mutex<BTreeMap<(usize, u64), u8>>,
}

impl TargetRam for Ram {
    type Queued = NoneWaits;

    fn write(&self, slot: usize, page: u64, content: Option<&[u8]>) -> Result<PageWrite<NoneWaits>, RamError> {
        if fails(page) {
            return Err(RamError::NoFrame { slot, page });
        }
        let before = self.stored.lock().unwrap().insert((slot, page), content.map_or(0, |bytes| bytes[0]));
        assert_eq!(before, None, "page {page} of memslot {slot} is stored twice");
        Ok(PageWrite::Done)
    }

    fn patience(&self) -> Duration {
        Duration::ZERO
    }
}

/// No page waits for a frame here.
enum NoneWaits {}

impl Queued for NoneWaits {
    fn look(&mut self, _: Option<&[u8]>) -> Result<bool, RamError> {
        match *self {}
    }

    fn silent(&self, _: Duration) -> RamError {
        match *self {}
    }
}

impl SourceRam for Ram {
    type Away = Late;

    fn slots(&self) -> &[Slot] {
        &[]
    }

    fn page_shift(&self) -> u8 {
        12
    }

    fn start(&self, _: bool) -> Result<(), RamError> {
        Ok(())
    }

    fn get(&self, _: usize, _: &mut [u64]) -> Result<(), RamError> {
        Ok(())
    }

    fn clear(&self, _: usize, _: usize, _: &[u64]) -> Result<(), RamError> {
        Ok(())
    }

    fn stop(&self) {}

    fn read(&self, slot: usize, page: u64, bytes: &mut [u8]) -> Result<PageRead<Late>, RamError> {
        assert!(has(slot, page, 1));
        if page % 3 == 1 {
            return Ok(PageRead::Later(Late { page, looks: 0 }));
        }
        bytes.fill(content(page));
        Ok(PageRead::Done)
    }

    fn patience(&self) -> Duration {
        Duration::MAX
    }
}

/// A page in the source's own store: it comes at the third look, and some fail once before.
struct Late {
    page: u64,
    looks: u64,
}

impl Away for Late {
    fn look(&mut self, bytes: &mut [u8]) -> Peeked {
        self.looks += 1;
        match self.looks {
            1 => Peeked::Later,
            2 if self.page.is_multiple_of(2) => Peeked::Failed(StoreError::Ended),
            2 => Peeked::Later,
            _ => {
                bytes.fill(content(self.page));
                Peeked::Read
            }
        }
    }
}

/// The byte of which a page consists at the source.
fn content(page: u64) -> u8 {
    (page % 7) as u8
}

/// Whether the target has no frame for a page.
fn fails(page: u64) -> bool {
    page % 11 == 10
}

fn has(index: usize, page: u64, count: u64) -> bool {
    page.checked_add(count).is_some_and(|end| slots().get(index).is_some_and(|slot| end <= slot.pages))
}

fn index(slot: u16) -> Option<usize> {
    slots().iter().position(|known| known.number == slot)
}

fn pages(set: &PageSet) -> impl Iterator<Item = (usize, u64)> {
    let mut at = (0, 0);
    std::iter::from_fn(move || {
        let (slot, page) = set.next(at)?;
        at = (slot, page + 1);
        Some((slot, page))
    })
}

fn slots() -> [Slot; 2] {
    let slot = |number, first, pages| Slot { number, read_only: false, first, pages };
    [slot(4, 0, 2), slot(0, 0x40000, PAGES)]
}

fn hello() -> Hello {
    let memory = (2 + PAGES) << 12;
    let (migration, model) = (*b"a migration's id", Name::new("virt-1").unwrap());
    Hello { migration, stream: 0, streams: 1, model, page_shift: 12, ipa_bits: 40, vcpus: 2, memory, features: vec![] }
}

fn capabilities() -> Capabilities {
    let model = Name::new("virt-1").unwrap();
    Capabilities { model, page_shift: 12, ipa_bits: 48, vcpus: 8, memory: 1 << 22, features: Vec::new() }
}

/// The records with which a link that is back starts.
fn start() -> Vec<u8> {
    let mut writer = Writer::with_absent(Vec::new(), Compression::Off);
    writer.hello(&hello()).unwrap();
    writer.slots(&slots()).unwrap();
    writer.resume(OWNED).unwrap();
    writer.into_sink().split_off(size_of::<Preamble>())
}

fn preamble() -> Vec<u8> {
    Preamble::of(VERSION).as_bytes().to_vec()
}

const OWNED: Ownership = Ownership { owner: Owner { host: 7, incarnation: 3 }, epoch: 41 };
const PAGE: usize = 4096;
/// The pages of the second memslot: two words and a part of one.
const PAGES: u64 = 130;
/// More than all pages as records.
const BYTES_MOST: usize = 1 << 20;
/// The most bytes of heap for a side: its reader's, a bitmap of one record, and pages on their way.
const HEAP_MOST: u64 = heap_bound(1 << 22) + (256 << 10);
