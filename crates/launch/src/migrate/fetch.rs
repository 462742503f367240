// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target of a post-copy, after the guest has changed hands: it asks the source for the pages that the guest needs, and gives
//! the hypervisor all that come (P3 to P6 of `twofold_migration::postcopy`).
//!
//! | thread | does |
//! |---|---|
//! | asks | gets from the hypervisor which absent pages are needed (`wanted`), and asks the source for them |
//! | takes | takes pages from the link, and gives them to the hypervisor (`fill`, `zero`); says when all are here; makes a link that was cut anew |
//!
//! The hypervisor does not know of the link. While that is cut, the guest stands still where it needs an absent page.
//!
//! Invariants: a page is noted as stored when the hypervisor has answered that it has it. Zero pages of one word of 64 go to the
//! hypervisor together, and before anything is waited for but the next page.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use twofold_abi::channel::wire::WrittenWord;
use twofold_abi::channel::{Command, GuestState, PAGE_SIZE};
use twofold_migration::commit::Ownership;
use twofold_migration::postcopy::{Came, FetchError, Incoming, Need, Target, resume_target};
use twofold_migration::stream::{Capabilities, Compression, Hello, Message, Writer};
use zerocopy::{FromBytes, IntoBytes};

use super::door::{Door, PAUSE};
use super::link;
use super::memory::{BUSY, GUEST, number, patiently};
use crate::interactive;
use crate::session::{Session, SessionError};

/// The pages of a guest that runs here and that have yet to come. Dropped, they come all the same.
#[derive(Debug)]
pub struct Fetching(JoinHandle<Result<Fetched, SessionError>>);

/// What has come after the guest had begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Pages with content.
    pub pages: u64,
    /// Pages of zeroes.
    pub zeroes: u64,
    /// Those that the guest waited for.
    pub asked: u64,
    /// Pages that had not come when the guest ended.
    pub left: u64,
    /// How often the link was made anew.
    pub links: u64,
    /// From the guest's first instruction here to the last page.
    pub time: Duration,
}

/// What a fetch begins with.
pub(super) struct Begin {
    pub session: Arc<Session>,
    pub target: Target,
    pub incoming: Incoming<link::Reader>,
    pub answers: Writer<link::Writer>,
    /// For a link that is made anew.
    pub again: Again,
}

/// How a link is made anew.
pub(super) struct Again {
    pub door: Arc<Door>,
    pub here: Capabilities,
    pub hello: Hello,
    pub owned: Ownership,
}

impl Fetching {
    /// Fetches all pages, in threads of its own.
    pub(super) fn begin(begin: Begin) -> Self {
        let Begin { session, target, incoming, answers, again } = begin;
        let shared = Arc::new(Shared { session, state: Mutex::new(State { target, answers, asked: 0 }) });
        let asking = Arc::clone(&shared);
        // It ends when the hypervisor has all pages, or has ended.
        thread::spawn(move || asking.ask());
        Self(thread::spawn(move || Taker { shared: &shared, again, found: Fetched::default() }.all(incoming)))
    }

    /// Waits until all pages have come, or the guest has ended.
    ///
    /// # Errors
    ///
    /// The hypervisor refuses a page.
    pub fn wait(self) -> Result<Fetched, SessionError> {
        self.0.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// What both threads have.
struct Shared {
    session: Arc<Session>,
    state: Mutex<State>,
}

struct State {
    target: Target,
    answers: Writer<link::Writer>,
    asked: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets what the guest needs, and asks for it.
    fn ask(&self) {
        loop {
            let Ok(answer) = patiently(|| self.session.ask(Some(GUEST), Command::Wanted)) else { return };
            if answer.refusal.is_some() {
                if self.guest_has_ended() {
                    return;
                }
                // It begins anew.
                thread::sleep(BUSY);
                continue;
            }
            let numbers: Vec<_> =
                answer.content.chunks_exact(4).filter_map(|bytes| u32::read_from_bytes(bytes).ok()).collect();
            if numbers.is_empty() {
                return;
            }
            let mut state = self.lock();
            let State { target, answers, asked } = &mut *state;
            for page in numbers.into_iter().map(u64::from) {
                let slots = target.slots();
                let holds = |first: u64, pages: u64| (first..first + pages).contains(&page);
                let Some(index) = slots.iter().position(|slot| holds(slot.first, slot.pages)) else { continue };
                let (slot, page) = (slots[index], page - slots[index].first);
                if target.need(index, page) == Need::Ask {
                    *asked += 1;
                    // The taker finds that the link is cut, and asks again over the next one.
                    let _ = answers.request(true, slot.number, page, 1);
                }
            }
        }
    }

    fn guest_has_ended(&self) -> bool {
        self.session.has_ended() || matches!(self.session.state(GUEST), Some(GuestState::Off | GuestState::Failed))
    }
}

/// What takes pages from the link.
struct Taker<'a> {
    shared: &'a Shared,
    again: Again,
    found: Fetched,
}

/// Why pages are not taken any more.
enum Stopped {
    /// The link is cut.
    Link(FetchError),
    /// The guest has ended.
    Ended,
    /// The hypervisor refuses a page.
    Machine(SessionError),
}

impl Taker<'_> {
    fn all(mut self, mut incoming: Incoming<link::Reader>) -> Result<Fetched, SessionError> {
        let begin = Instant::now();
        loop {
            let mut filler = Filler { shared: self.shared, under_way: VecDeque::new(), zeroes: None };
            let taken = filler.take(&mut incoming, &mut self.found);
            // What has come is stored, whatever follows.
            let taken = match (taken, filler.settle(0)) {
                (Err(Stopped::Link(_)) | Ok(()), Err(why)) => Err(why),
                (taken, _) => taken,
            };
            match taken {
                Ok(()) | Err(Stopped::Ended) => break,
                Err(Stopped::Machine(why)) => return Err(why),
                Err(Stopped::Link(why)) => {
                    let mut state = self.shared.lock();
                    state.target.cut(&why.to_string());
                    interactive::note(&format!(
                        "{}. The guest stands still where it needs one; the source is waited for at this port",
                        state.target.state()
                    ));
                }
            }
            match self.resume() {
                Some(anew) => incoming = anew,
                None => break,
            }
            self.found.links += 1;
        }
        let mut state = self.shared.lock();
        // The source ends its guest by itself if this is lost, as soon as it finds that this side has gone.
        let _ = state.answers.message(&Message::Complete);
        Ok(Fetched { asked: state.asked, left: state.target.left(), time: begin.elapsed(), ..self.found })
    }

    /// Waits for the source, and goes on over a new link (L2, L3). `None`: the guest has ended.
    fn resume(&self) -> Option<Incoming<link::Reader>> {
        let Again { door, here, hello, owned } = &self.again;
        loop {
            if self.shared.guest_has_ended() {
                return None;
            }
            let Some(linked) = door.look() else {
                thread::sleep(PAUSE);
                continue;
            };
            let (reader, writer) = match linked {
                Ok(linked) => linked,
                Err(why) => {
                    interactive::note(&format!("no link to the source: {why}"));
                    continue;
                }
            };
            let mut answers = Writer::with_absent(writer, Compression::Off);
            let mut state = self.shared.lock();
            match resume_target(reader, here.clone(), hello, *owned, &mut answers, &mut state.target) {
                Ok(incoming) => {
                    state.answers = answers;
                    drop(state);
                    interactive::note("there is a link to the source again");
                    return Some(incoming);
                }
                Err(why) => interactive::note(&format!("no link to the source: {why}")),
            }
        }
    }
}

/// Gives pages to the hypervisor.
struct Filler<'a> {
    shared: &'a Shared,
    /// What was not answered yet.
    under_way: VecDeque<(Given, u32)>,
    /// Zero pages that were not given yet: the memslot, the word of its pages, and which of these.
    zeroes: Option<(usize, u64, u64)>,
}

/// Pages that were given to the hypervisor: the memslot, the first one, and which of the 64 from there on.
struct Given {
    slot: usize,
    first: u64,
    mask: u64,
    command: Command,
    content: Vec<u8>,
}

/// Commands that are given before the first one's answer is waited for.
const UNDER_WAY: usize = 8;
/// The source takes a link for cut on which nothing comes for much longer.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);
/// How often the hypervisor is asked again that does not take a page, while its guest changes its state.
const TRIES: u32 = 500;

impl Filler<'_> {
    /// Takes pages until all have come.
    fn take(&mut self, incoming: &mut Incoming<link::Reader>, found: &mut Fetched) -> Result<(), Stopped> {
        let mut said = Instant::now();
        loop {
            // Those that were not given, or not answered, are still absent.
            let left = self.shared.lock().target.left();
            let given = self.under_way.iter().map(|(given, _)| u64::from(given.mask.count_ones())).sum::<u64>();
            let kept = self.zeroes.map_or(0, |(.., mask)| u64::from(mask.count_ones()));
            if left == given + kept {
                return Ok(());
            }
            let Came { slot, page, count, bytes } = incoming.next().map_err(Stopped::Link)?;
            let wanted: Vec<_> = {
                let state = self.shared.lock();
                (page..page.saturating_add(count.into())).filter(|page| state.target.wants(slot, *page)).collect()
            };
            match bytes {
                Some(bytes) if !wanted.is_empty() => {
                    let content = bytes.to_vec();
                    found.pages += 1;
                    self.page(slot, page, content)?;
                }
                Some(_) => {}
                None => {
                    found.zeroes += wanted.len() as u64;
                    wanted.into_iter().try_for_each(|page| self.zero(slot, page))?;
                }
            }
            if said.elapsed() >= SIGN_OF_LIFE {
                said = Instant::now();
                let mut state = self.shared.lock();
                let State { target, answers, .. } = &mut *state;
                if let Some(slot) = target.slots().get(slot) {
                    // What comes next anyway. A link that is cut is found by the next page.
                    let _ = answers.request(false, slot.number, page, 1);
                }
            }
        }
    }

    fn page(&mut self, slot: usize, page: u64, content: Vec<u8>) -> Result<(), Stopped> {
        let wrong = |why: twofold_migration::ram::RamError| Stopped::Link(why.into());
        let number = number(self.shared.lock().target.slots(), slot, page).map_err(wrong)?;
        if content.len() != PAGE_SIZE {
            return Err(Stopped::Link(FetchError::Misplaced("a page of another size")));
        }
        self.give(Given { slot, first: page, mask: 1, command: Command::Fill(number), content })
    }

    fn zero(&mut self, slot: usize, page: u64) -> Result<(), Stopped> {
        let (word, bit) = (page / 64, 1 << (page % 64));
        let is_waited_for = self.shared.lock().target.waits().contains(slot, page);
        match &mut self.zeroes {
            Some((at, of, mask)) if (*at, *of) == (slot, word) => *mask |= bit,
            _ => {
                self.give_zeroes()?;
                self.zeroes = Some((slot, word, bit));
            }
        }
        if is_waited_for { self.give_zeroes() } else { Ok(()) }
    }

    fn give_zeroes(&mut self) -> Result<(), Stopped> {
        let Some((slot, word, mask)) = self.zeroes.take() else { return Ok(()) };
        let memslot = self.shared.lock().target.slots().get(slot).map_or(0, |slot| slot.number as u8);
        let first = word * 64;
        let content = WrittenWord { first_page: first.into(), mask: mask.into() }.as_bytes().to_vec();
        self.give(Given { slot, first, mask, command: Command::Zero(memslot), content })
    }

    fn give(&mut self, given: Given) -> Result<(), Stopped> {
        self.answered(UNDER_WAY - 1)?;
        let sent = self.shared.session.send_with(GUEST, given.command, &given.content);
        let request = sent.map_err(|_| Stopped::Ended)?;
        self.under_way.push_back((given, request));
        Ok(())
    }

    /// Gives what was kept, and waits until at most `left` commands are without an answer.
    fn settle(&mut self, left: usize) -> Result<(), Stopped> {
        self.give_zeroes()?;
        self.answered(left)
    }

    fn answered(&mut self, left: usize) -> Result<(), Stopped> {
        while self.under_way.len() > left {
            let Some((given, request)) = self.under_way.pop_front() else { break };
            let Given { slot, first, mask, command, content } = &given;
            let session = &self.shared.session;
            let mut answer = session.answer(request).map_err(|_| Stopped::Ended)?;
            let mut tries = 0;
            while let Some(refusal) = answer.refusal.take() {
                if self.shared.guest_has_ended() {
                    return Err(Stopped::Ended);
                }
                // A guest that begins anew takes none, however long that takes.
                if session.state(GUEST) != Some(GuestState::Reset) {
                    tries += 1;
                }
                if tries > TRIES {
                    return Err(Stopped::Machine(SessionError::Protocol(refusal)));
                }
                thread::sleep(BUSY);
                let again = session.send_with(GUEST, *command, content).and_then(|request| session.answer(request));
                answer = again.map_err(|_| Stopped::Ended)?;
            }
            let mut state = self.shared.lock();
            for page in (0..64).filter(|bit| mask >> bit & 1 == 1).map(|bit| first + bit) {
                state.target.stored(*slot, page);
            }
        }
        Ok(())
    }
}
