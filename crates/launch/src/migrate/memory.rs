// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory in a hypervisor, by commands of the control channel (`docs/control.md`: track, written, clear, read, write).
//!
//! Invariants: at most [`UNDER_WAY`] commands are without an answer, so others have room beside them. A page is read in answer
//! to a command that was sent after the page was cleared. Writes are done in the order in which they were given.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use twofold_abi::channel::wire::{COMMANDS_MAX, WrittenWord};
use twofold_abi::channel::{Command, GuestState, PAGE_SIZE, Reason, Track};
use twofold_abi::virt::memslot;
use twofold_memory::dirty::Tracker;
use twofold_memory::swap::Peeked;
use twofold_migration::PageSet;
use twofold_migration::ram::{Away, PageRead, PageWrite, Queued, RamError, SourceRam, TargetRam};
use twofold_migration::stream::Slot;
use zerocopy::{FromBytes, IntoBytes};

use super::source::{ChangeLog, Options};
use crate::session::{Answer, Session, SessionError};

/// Commands that a migration sends before it waits for the first one's answer.
pub(super) const UNDER_WAY: usize = COMMANDS_MAX - 4;

/// The memory of a guest that is sent.
pub(super) struct Source<'a> {
    session: &'a Session,
    guest: u16,
    slots: Vec<Slot>,
    tracker: Tracker,
    log: Option<ChangeLog>,
    ahead: Mutex<Ahead>,
}

/// Pages that are read next.
#[derive(Default)]
struct Ahead {
    /// Pages that were not asked for yet.
    expected: VecDeque<u32>,
    /// Pages that were asked for, and the commands.
    asked: VecDeque<(u32, u32)>,
}

impl<'a> Source<'a> {
    pub(super) fn new(session: &'a Session, guest: u16, slots: Vec<Slot>, options: &Options) -> Self {
        Self { session, guest, slots, tracker: options.tracker, log: options.log, ahead: Mutex::default() }
    }

    /// The number of a page in commands.
    fn number(&self, slot: usize, page: u64) -> Result<u32, RamError> {
        number(&self.slots, slot, page)
    }

    /// The memslot's number in commands.
    fn memslot(&self, slot: usize) -> Result<u8, RamError> {
        let found = self.slots.get(slot).and_then(|slot| u8::try_from(slot.number).ok());
        found.ok_or(RamError::NoPage { slot, page: 0 })
    }

    fn ask(&self, command: Command) -> Result<Answer, RamError> {
        accepted(patiently(|| self.session.ask(Some(self.guest), command)))
    }

    /// Reads the page of this number. Pages that are expected after it are asked for, too.
    fn fetch(&self, number: u32) -> Result<Vec<u8>, RamError> {
        let mut ahead = lock(&self.ahead);
        let Ahead { expected, asked } = &mut *ahead;
        if asked.front().or(expected.front().map(|page| (*page, 0)).as_ref()).is_none_or(|(page, _)| *page != number) {
            drop(ahead);
            return Ok(self.ask(Command::Read(number))?.content);
        }
        while asked.len() < UNDER_WAY
            && let Some(page) = expected.pop_front()
        {
            let request = self.session.send(Some(self.guest), Command::Read(page)).map_err(failed)?;
            asked.push_back((page, request));
        }
        let request = asked.pop_front().map_or(0, |(_, request)| request);
        let mut first = Some(request);
        // Another guest's move or snapshot may take all places for commands.
        let answer = patiently(|| match first.take() {
            Some(request) => self.session.answer(request),
            None => self.session.ask(Some(self.guest), Command::Read(number)),
        });
        Ok(accepted(answer)?.content)
    }

    /// Whether the hypervisor has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.session.has_ended()
    }

    /// Has the hypervisor read a page, which is the next to be read but for those before it.
    pub(super) fn read_ahead(&self, slot: usize, page: u64) -> Result<(), RamError> {
        let number = self.number(slot, page)?;
        let request = self.session.send(Some(self.guest), Command::Read(number)).map_err(failed)?;
        lock(&self.ahead).asked.push_back((number, request));
        Ok(())
    }

    /// Takes the answers of pages that are not wanted any more.
    pub(super) fn forget(&self) {
        let mut ahead = lock(&self.ahead);
        ahead.expected.clear();
        for (_, request) in ahead.asked.drain(..) {
            // A session that has ended has no answers.
            let _ = self.session.answer(request);
        }
    }
}

impl SourceRam for Source<'_> {
    type Away = Never;

    fn slots(&self) -> &[Slot] {
        &self.slots
    }

    fn page_shift(&self) -> u8 {
        SHIFT
    }

    fn start(&self, all: bool) -> Result<(), RamError> {
        let tracker = Tracker::ALL.iter().position(|tracker| *tracker == self.tracker).unwrap_or_default() as u8;
        self.ask(Command::Track(Track { tracker, all })).map(drop)
    }

    fn get(&self, slot: usize, dirty: &mut [u64]) -> Result<(), RamError> {
        let content = self.ask(Command::Written(self.memslot(slot)?))?.content;
        let strange = || RamError::Embedder(format!("the hypervisor sends {} bytes as a list of pages", content.len()));
        for row in <[WrittenWord]>::ref_from_bytes(&content).map_err(|_| strange())? {
            let (first, mask) = (row.first_page.get(), row.mask.get());
            let word = dirty.get_mut((first / 64) as usize).ok_or_else(strange)?;
            *word |= self.log.map_or(mask, |change| change(first, mask));
        }
        Ok(())
    }

    fn clear(&self, slot: usize, first: usize, pages: &[u64]) -> Result<(), RamError> {
        self.forget();
        let rows = (first as u64..).zip(pages).filter(|(_, mask)| **mask != 0);
        let rows: Vec<_> =
            rows.map(|(word, mask)| WrittenWord { first_page: (word * 64).into(), mask: (*mask).into() }).collect();
        let command = Command::Clear(self.memslot(slot)?);
        let clear = || {
            let request = self.session.send_with(self.guest, command, rows.as_bytes())?;
            self.session.answer(request)
        };
        accepted(patiently(clear)).map(drop)
    }

    fn stop(&self) {
        self.forget();
        // Refused if no log runs, or the guest has ended. One that starts anew keeps its logs, and is asked again.
        while self.ask(Command::DirtyStop).is_err() && self.session.state(self.guest) == Some(GuestState::Reset) {
            thread::sleep(BUSY);
        }
    }

    fn expect(&self, slot: usize, first: usize, pages: &[u64]) {
        self.forget();
        let mut ahead = lock(&self.ahead);
        for (word, mask) in (first as u64..).zip(pages) {
            let pages = (0..64).filter(|bit| mask >> bit & 1 == 1).map(|bit| word * 64 + bit);
            ahead.expected.extend(pages.filter_map(|page| self.number(slot, page).ok()));
        }
    }

    /// Flash and stolen time are few pages, and the target's hypervisor writes to some of them by itself.
    fn precedes(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|slot| slot.number != u16::from(memslot::RAM))
    }

    fn read(&self, slot: usize, page: u64, bytes: &mut [u8]) -> Result<PageRead<Never>, RamError> {
        let content = self.fetch(self.number(slot, page)?)?;
        match content.len() {
            0 => bytes.fill(0),
            length if length == bytes.len() => bytes.copy_from_slice(&content),
            length => return Err(RamError::Embedder(format!("the hypervisor sends {length} bytes as a page"))),
        }
        Ok(PageRead::Done)
    }

    fn patience(&self) -> Duration {
        Duration::MAX
    }
}

/// The memory of a guest that comes.
pub(super) struct Target {
    session: Arc<Session>,
    slots: Vec<Slot>,
    sent: Mutex<Sent>,
}

struct Sent {
    /// Commands that were not answered yet.
    under_way: VecDeque<(u32, u32)>,
    /// Pages that may be other than zero.
    filled: PageSet,
}

impl Target {
    /// The memory of the only guest of this session, which has not begun.
    pub(super) fn new(session: Arc<Session>, slots: Vec<Slot>) -> Self {
        let sent = Mutex::new(Sent { under_way: VecDeque::new(), filled: PageSet::none(&slots) });
        Self { session, slots, sent }
    }

    /// Waits until all pages are written.
    pub(super) fn finish(&self) -> Result<(), RamError> {
        self.settle(&mut lock(&self.sent), 0)
    }

    /// Waits until at most `left` commands are without an answer.
    fn settle(&self, sent: &mut Sent, left: usize) -> Result<(), RamError> {
        while sent.under_way.len() > left {
            let Some((page, request)) = sent.under_way.pop_front() else { break };
            accepted(self.session.answer(request))
                .map_err(|why| RamError::Embedder(format!("the page at {:#x}: {why}", u64::from(page) << SHIFT)))?;
        }
        Ok(())
    }
}

/// The memory of a guest that comes, once its machine is there.
pub(super) struct Place<'a>(pub Option<&'a Target>);

impl TargetRam for Place<'_> {
    type Queued = Never;

    fn write(&self, slot: usize, page: u64, content: Option<&[u8]>) -> Result<PageWrite<Never>, RamError> {
        let target = self.0.ok_or_else(|| RamError::Embedder("no images came before the pages".to_owned()))?;
        target.write(slot, page, content)
    }

    fn patience(&self) -> Duration {
        Duration::MAX
    }
}

impl Target {
    fn write(&self, slot: usize, page: u64, content: Option<&[u8]>) -> Result<PageWrite<Never>, RamError> {
        let number = number(&self.slots, slot, page)?;
        let mut sent = lock(&self.sent);
        let is_zero = match content {
            Some(_) => {
                sent.filled.insert(slot, page);
                false
            }
            // The guest began with zeroes.
            None => !sent.filled.remove(slot, page),
        };
        if !is_zero {
            // A write that waits for room at the hypervisor must not come after a later one of the same page.
            while sent.under_way.iter().any(|(page, _)| *page == number) {
                let left = sent.under_way.len() - 1;
                self.settle(&mut sent, left)?;
            }
            self.settle(&mut sent, UNDER_WAY - 1)?;
            let content = content.unwrap_or(&[]);
            let request = self.session.send_with(GUEST, Command::Write(number), content).map_err(failed)?;
            sent.under_way.push_back((number, request));
        }
        Ok(PageWrite::Done)
    }
}

/// No page is on its way: the hypervisor answers when it has the page.
#[derive(Debug)]
pub(super) enum Never {}

impl Away for Never {
    fn look(&mut self, _: &mut [u8]) -> Peeked {
        match *self {}
    }
}

impl Queued for Never {
    fn look(&mut self, _: Option<&[u8]>) -> Result<bool, RamError> {
        match *self {}
    }

    fn silent(&self, _: Duration) -> RamError {
        match *self {}
    }
}

/// The most bytes of a guest's memory: a command names a page by 24 bits.
pub(super) const MEMORY_MAX: u64 = 63 << 30;
/// The time after which a hypervisor is asked again that was busy.
pub(super) const BUSY: Duration = Duration::from_millis(10);
/// A machine that takes a guest has no other.
pub(super) const GUEST: u16 = 0;
/// The size of a page as a power of two.
pub(super) const SHIFT: u8 = PAGE_SIZE.trailing_zeros() as u8;

pub(super) fn number(slots: &[Slot], slot: usize, page: u64) -> Result<u32, RamError> {
    let found = slots.get(slot).filter(|found| page < found.pages);
    let number = found.and_then(|found| u32::try_from(found.first + page).ok()).filter(|number| *number < 1 << 24);
    number.ok_or(RamError::NoPage { slot, page })
}

/// Asks again while the hypervisor has no place for another command.
pub(super) fn patiently(mut ask: impl FnMut() -> Result<Answer, SessionError>) -> Result<Answer, SessionError> {
    loop {
        let answer = ask()?;
        if answer.refusal.as_ref().is_none_or(|refusal| refusal.reason != Reason::Busy) {
            return Ok(answer);
        }
        thread::sleep(BUSY);
    }
}

fn accepted(answer: Result<Answer, SessionError>) -> Result<Answer, RamError> {
    let answer = answer.map_err(failed)?;
    match answer.refusal {
        None => Ok(answer),
        Some(refusal) => Err(RamError::Embedder(refusal.text)),
    }
}

pub(super) fn failed(why: SessionError) -> RamError {
    RamError::Embedder(why.to_string())
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
