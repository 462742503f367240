// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The source, as the page store of the target's memory.
//!
//! A fault on an absent page is `memory`'s: it asks its store, which is this. The question goes to the source, and the
//! answer completes the request. For a page that comes unasked, a request is taken first. So each page gets into the memory
//! by a request that is completed, and what stands between memory and peer sees each page before a CPU can reach it.
//!
//! Invariants:
//!
//! * R1: a request of `memory` is here until its page comes, or until the link is cut. It is completed once.
//! * R2: the state says that a page is absent until its place is discarded, which `memory` does when the page is there.
//! * R3: nothing of `memory` is called with the lock.
//!
//! # The protocol
//!
//! A page that `memory` asks for:
//!
//! * A1: `memory` makes the page *arriving*, and calls [`PageStore::read`].
//! * A2: with the lock: if the page's content is here (D4), take it. If the link is cut, fail. Otherwise keep the request,
//!   and if the source was not asked, queue the question.
//! * A3: without the lock: complete, fail, or have the question sent.
//!
//! A page that comes:
//!
//! * D1: with the lock: if there is a request, take it.
//! * D2: without the lock: complete the request. That is all.
//! * D3: without a request: begin one ([`Completions::begin_read`]), or for zeroes, [`Completions::make_zero`]. If the page
//!   was absent, go on at D2. If `memory` has the page, drop what came.
//! * D4: if `memory` has made it *arriving* meanwhile (A1): with the lock, take the request and go on at D2; if it is not
//!   here yet, keep the content for A2.
//!
//! **Why each request ends.** A request comes to A2 before D1, between D1 and D4, or after D4. D1 and D4 take it, or A2
//! finds the content. If the page never comes, the link is cut in the end, and that fails the request. A2 after that fails
//! it at once, until there is a new link.
//!
//! **A cut link** fails what is waited for ([`StoreError::Ended`]): the vCPUs stop with the page as the reason, and
//! [`state`](Peer::state) has the link's. After [`resume`](Peer::resume) the embedder has them ask again
//! ([`retry_failed`](twofold_memory::async_fault::VcpuFaults::retry_failed)); the source was asked already. A vCPU that
//! finds that it stopped while the state is not [`TargetState::Stopped`] any more asks again at once: its request failed
//! just before the new link.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use embedded_io::{Read, Write};
use twofold_memory::GuestMemory;
use twofold_memory::swap::{Completions, NotBegun, PageStore, Place, ReadRequest, StoreError, Unasked, WriteRequest};
use twofold_stage2::{Ipa, Lock, LockGuard, Platform};

use super::incoming::{Came, FetchError, Incoming, resume_target};
use super::target::{Need, Target, TargetState};
use crate::commit::Ownership;
use crate::pages::PageSet;
use crate::ram::RamError;
use crate::stream::{Capabilities, Hello, Slot, WriteError, Writer};

/// The source of a post-copy migration, as a page store: read-only, and each page comes once. The target's memory has
/// frames for all pages that are not zero, since none can leave until another store is attached.
///
/// It fills the memory by [`Completions`] alone. An embedder that has to see each page before the guest can reach it, such
/// as a judge, passes a [`Completions`] of its own here and, by a store around this one, to
/// [`read`](PageStore::read): it passes each call on, and looks at the frame before
/// [`complete_read`](Completions::complete_read).
pub struct Peer<P: Platform> {
    platform: P,
    slots: Vec<Slot>,
    inner: Lock<Inner>,
    /// Called when there is a question to send.
    asks: Box<dyn Fn() + Send + Sync>,
}

struct Inner {
    target: Target,
    requests: BTreeMap<Place, ReadRequest>,
    /// Content that came just before its request; `None` for zeroes.
    came: BTreeMap<Place, Option<Box<Bytes>>>,
    questions: VecDeque<(usize, u64)>,
}

type Bytes = [u8; 1 << SHIFT];

/// A page's place at its peer: its number in guest physical memory, and a bit that no place of another store has.
pub const fn place_of(ipa: Ipa) -> Place {
    Place::new(AT_PEER | ipa.raw() >> SHIFT)
}

/// Whether a place is at a peer: for an embedder whose store is a peer and another store, each for its own places.
pub const fn is_at_peer(place: Place) -> bool {
    place.raw() & AT_PEER != 0
}

impl<P: Platform> Peer<P> {
    /// A peer that has nothing yet, for a guest with these memslots. Attach it to the memory that is built
    /// ([`receive::Host::build`](crate::receive::Host::build)). `asks` is called, by any CPU, when there are questions:
    /// have [`ask`](Self::ask) called then. It does not wait.
    pub fn new(platform: P, slots: &[Slot], asks: Box<dyn Fn() + Send + Sync>) -> Self {
        let target = Target::new(slots, PageSet::none(slots));
        let (requests, came, questions) = Default::default();
        let inner = Lock::new(Inner { target, requests, came, questions });
        Self { platform, slots: slots.to_vec(), inner, asks }
    }

    /// Makes pages of the memory absent, for [`receive::Host::absent`](crate::receive::Host::absent): before the guest's
    /// first entry here. What they hold is old.
    ///
    /// # Errors
    ///
    /// A page cannot be absent, such as one of preallocated memory. Some pages are then: the memory is of no use.
    pub fn absent(&self, memory: &GuestMemory<P>, absent: &PageSet) -> Result<(), RamError> {
        let mut at = (0, 0);
        while let Some((slot, page)) = absent.next(at) {
            let ipa = self.ipa(slot, page).ok_or(RamError::NoPage { slot, page })?;
            memory.make_absent(ipa, place_of(ipa))?;
            at = (slot, page + 1);
        }
        self.lock().target = Target::new(&self.slots, absent.clone());
        Ok(())
    }

    /// Makes one page absent, as [`absent`](Self::absent) does, for an embedder that makes a few at a time, or whose memory
    /// has another platform. `make` is [`GuestMemory::make_absent`].
    ///
    /// # Errors
    ///
    /// As [`absent`](Self::absent), but nothing has changed.
    pub fn absent_page(
        &self,
        (slot, page): (usize, u64),
        make: impl FnOnce(Ipa, Place) -> Result<(), twofold_memory::Error>,
    ) -> Result<(), RamError> {
        let ipa = self.ipa(slot, page).ok_or(RamError::NoPage { slot, page })?;
        make(ipa, place_of(ipa))?;
        self.lock().target.lacks(slot, page);
        Ok(())
    }

    /// Takes the next question to the source: the page of a memslot that something waits for.
    pub fn next_question(&self) -> Option<(usize, u64)> {
        self.lock().questions.pop_front()
    }

    /// Whether there is a question to the source, and how many pages are absent.
    pub fn asks(&self) -> (bool, u64) {
        let inner = self.lock();
        (!inner.questions.is_empty(), inner.target.left())
    }

    /// Whether each absent page has come, and only waits to be stored by the CPU that asked for it at the same time (A2). The
    /// source sends no more, so an embedder that waits for the link until the last page is stored would wait for ever.
    pub fn has_all(&self) -> bool {
        let inner = self.lock();
        let wanted = |place: &&Place| self.page_at(**place).is_some_and(|(slot, page)| inner.target.wants(slot, page));
        inner.came.keys().filter(wanted).count() as u64 == inner.target.left()
    }

    /// Sends the questions that there are. Returns how many.
    ///
    /// # Errors
    ///
    /// The link is cut: call [`cut`](Self::cut) then. The questions are asked again over the next link.
    pub fn ask<W: Write>(&self, answers: &mut Writer<W>) -> Result<usize, WriteError> {
        let mut sent = 0;
        while let Some((slot, page)) = self.next_question() {
            answers.request(true, self.slots[slot].number, page, 1)?;
            sent += 1;
        }
        Ok(sent)
    }

    /// Waits for the next page, and stores it (D1 to D4). Only one CPU does this.
    ///
    /// # Errors
    ///
    /// The link is cut, or a page cannot be stored. The state says so, and each vCPU that waits is notified.
    pub fn receive<S: Read>(&self, memory: &dyn Completions, incoming: &mut Incoming<S>) -> Result<(), FetchError> {
        let stored = incoming.next().and_then(|came| Ok(self.came(memory, &came)?));
        stored.inspect_err(|error| self.cut(memory, &alloc::format!("{error}")))
    }

    /// Stores a page that has come, or several that are zero (D1 to D4).
    ///
    /// # Errors
    ///
    /// [`RamError::NoFrame`]; [`RamError::NoPage`].
    pub fn came(&self, memory: &dyn Completions, came: &Came<'_>) -> Result<(), RamError> {
        let &Came { slot, page, count, bytes } = came;
        let wrong = RamError::NoPage { slot, page };
        let bytes = bytes.map(|bytes| <&Bytes>::try_from(bytes).map_err(|_| wrong)).transpose()?;
        for page in page..page.saturating_add(count.into()) {
            let ipa = self.ipa(slot, page).ok_or(RamError::NoPage { slot, page })?;
            let request = self.lock().requests.remove(&place_of(ipa));
            if let Some(request) = request {
                complete(memory, request, bytes);
                continue;
            }
            let begun = match bytes {
                Some(_) => memory.begin_read(ipa, place_of(ipa), Unasked::Here).map(Some),
                None => memory.make_zero(ipa, place_of(ipa)).map(|()| None),
            };
            match begun {
                Ok(request) => request.into_iter().for_each(|request| complete(memory, request, bytes)),
                // The page came before, or was never absent: the guest may have written to it.
                Err(NotBegun::Elsewhere) => {}
                Err(NotBegun::NoFrame) => return Err(RamError::NoFrame { slot, page }),
                Err(NotBegun::Asked) => {
                    let request = {
                        let mut inner = self.lock();
                        match inner.requests.remove(&place_of(ipa)) {
                            Some(request) => Some(request),
                            None => {
                                inner.came.insert(place_of(ipa), bytes.map(|bytes| Box::new(*bytes)));
                                None
                            }
                        }
                    };
                    request.into_iter().for_each(|request| complete(memory, request, bytes));
                }
            }
        }
        Ok(())
    }

    /// The link is cut. Everything that waits for a page is notified that it does not come now.
    pub fn cut(&self, memory: &dyn Completions, reason: &str) {
        let requests = {
            let mut inner = self.lock();
            inner.target.cut(reason);
            inner.questions.clear();
            core::mem::take(&mut inner.requests)
        };
        for request in requests.into_values() {
            memory.complete_read(request, Err(StoreError::Ended));
        }
    }

    /// Goes on over a new link, as [`resume_target`] does. The vCPUs that stopped may ask again then.
    ///
    /// # Errors
    ///
    /// As [`resume_target`]: the link stays cut.
    pub fn resume<S: Read, A: Write>(
        &self,
        source: S,
        here: Capabilities,
        hello: &Hello,
        owned: Ownership,
        answers: &mut Writer<A>,
    ) -> Result<Incoming<S>, FetchError> {
        // While the link is cut, no page comes and the source is not asked. So of this copy, only the pages that are
        // waited for can be out of date in the end.
        let mut target = self.lock().target.clone();
        let incoming = resume_target(source, here, hello, owned, answers, &mut target)?;
        {
            let mut inner = self.lock();
            let mut at = (0, 0);
            while let Some((slot, page)) = inner.target.waits().next(at) {
                if !target.waits().contains(slot, page) {
                    inner.questions.push_back((slot, page));
                }
                at = (slot, page + 1);
            }
            inner.target.resume();
        }
        (self.asks)();
        Ok(incoming)
    }

    /// Whether the guest can go on.
    pub fn state(&self) -> TargetState {
        self.lock().target.state()
    }

    /// The pages that are absent.
    pub fn absent_pages(&self) -> PageSet {
        self.lock().target.absent().clone()
    }

    fn lock(&self) -> LockGuard<'_, Inner> {
        self.inner.lock(&self.platform)
    }

    fn ipa(&self, slot: usize, page: u64) -> Option<Ipa> {
        let slot = self.slots.get(slot).filter(|slot| page < slot.pages)?;
        Some(Ipa::new((slot.first + page) << SHIFT))
    }

    /// The memslot's index and the page at a place.
    fn page_at(&self, place: Place) -> Option<(usize, u64)> {
        let number = place.raw() & !AT_PEER;
        let index = self.slots.iter().position(|slot| (slot.first..slot.first + slot.pages).contains(&number))?;
        Some((index, number - self.slots[index].first))
    }
}

/// What a question to the source comes to (A2).
enum Answered {
    Kept { asks: bool },
    Here(ReadRequest, Option<Box<Bytes>>),
    Failed(ReadRequest, StoreError),
}

impl<P: Platform + Send + Sync> PageStore for Peer<P> {
    /// No page leaves to the source.
    fn place(&self, _: Ipa) -> Option<Place> {
        None
    }

    fn write(&self, memory: &dyn Completions, request: WriteRequest) {
        memory.complete_write(request, Err(StoreError::Ended));
    }

    fn read(&self, memory: &dyn Completions, request: ReadRequest) {
        let place = request.place();
        let answered = {
            let mut inner = self.lock();
            match (inner.came.remove(&place), self.page_at(place)) {
                (Some(bytes), _) => Answered::Here(request, bytes),
                (None, None) => Answered::Failed(request, StoreError::Damaged),
                (None, Some((slot, page))) => match inner.target.need(slot, page) {
                    // It is there, and still absent: the two do not agree.
                    Need::Here => Answered::Failed(request, StoreError::Damaged),
                    Need::Cut => Answered::Failed(request, StoreError::Ended),
                    need => {
                        let asks = need == Need::Ask;
                        if asks {
                            inner.questions.push_back((slot, page));
                        }
                        inner.requests.insert(place, request);
                        Answered::Kept { asks }
                    }
                },
            }
        };
        match answered {
            Answered::Kept { asks: true } => (self.asks)(),
            Answered::Kept { asks: false } => {}
            Answered::Here(request, bytes) => complete(memory, request, bytes.as_deref()),
            Answered::Failed(request, cause) => memory.complete_read(request, Err(cause)),
        }
    }

    /// R2: the page is there.
    fn discard(&self, place: Place) {
        let mut inner = self.lock();
        inner.came.remove(&place);
        if let Some((slot, page)) = self.page_at(place) {
            inner.target.stored(slot, page);
        }
    }

    fn keeps_what_is_read(&self, _: Place) -> bool {
        false
    }
}

/// Completes a request with the page's bytes, or with zeroes.
fn complete(memory: &dyn Completions, request: ReadRequest, bytes: Option<&Bytes>) {
    memory.copy_in(&request, bytes.unwrap_or(&[0; 1 << SHIFT]));
    memory.complete_read(request, Ok(()));
}

/// Pages that can be absent have 4 KiB.
const SHIFT: u32 = 12;
/// The bit of a place that says that it is at a peer.
const AT_PEER: u64 = 1 << 63;
