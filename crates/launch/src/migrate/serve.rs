// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The source of a post-copy, after the guest has changed hands: it sends the pages that the target lacks, those that something
//! waits for there before others (P4 to P7 of `twofold_migration::postcopy`).
//!
//! One thread reads what the target says, and notes which pages it waits for. The other one chooses a page, has the hypervisor
//! read it, and sends it. A few pages are read ahead, so that neither the hypervisor nor the link waits for the other.
//!
//! Invariant: the guest stands still here all the time, so a page has one content.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use thiserror::Error;
use twofold_migration::commit::Request;
use twofold_migration::postcopy::{Outgoing, ServeError, Served, Source, resume_source};
use twofold_migration::ram::Ahead;
use twofold_migration::stream::{Compression, Hello};
use twofold_migration::{AnswerError, Answers, Asked, Cancel, Runtime};

use super::link::{self, LinkError};
use super::source::{MoveError, Moved, News, Options};
use super::{ASK_AGAIN, Clock, memory};

/// The pages that follow a guest that runs elsewhere.
pub(super) struct Follow<'a> {
    pub ram: &'a memory::Source<'a>,
    pub hello: &'a Hello,
    pub options: &'a Options,
    pub left: Source,
    pub outgoing: Outgoing<link::Writer>,
    pub answers: Answers<link::Reader>,
}

impl Follow<'_> {
    /// Sends them, over a new link if one is cut (L1 to L4 of `twofold_migration::postcopy`).
    ///
    /// # Errors
    ///
    /// The link is cut, and this side gives up: it was cancelled, or its hypervisor has ended.
    pub(super) fn all(
        &mut self,
        clock: &Clock,
        cancel: &Cancel,
        moved: &mut Moved,
        news: &mut dyn FnMut(News<'_>),
    ) -> Result<(), MoveError> {
        // One that came too late to keep the guest here is no order to give it up.
        let was_cancelled = cancel.is_cancelled();
        // Those of this link are counted with the ones before.
        let mut before = moved.sent.bytes;
        loop {
            let left = self.left.left();
            let [sent, waited] = &mut moved.after;
            let served = serve(self.ram, &mut self.left, &mut self.outgoing, &mut self.answers, waited);
            *sent += left - self.left.left();
            moved.sent.bytes += self.outgoing.bytes().saturating_sub(before);
            let Err(why) = served else { return Ok(()) };
            news(News::Cut(&why.to_string()));
            // The other side lacks what this one has. So this ends only on demand.
            while let Err(why) = self.again() {
                if cancel.is_cancelled() && !was_cancelled || self.ram.has_ended() {
                    return Err(MoveError::Lost(why.to_string()));
                }
                clock.wait(ASK_AGAIN);
            }
            before = 0;
        }
    }

    /// Makes the link again.
    fn again(&mut self) -> Result<(), FollowError> {
        let owned = self.options.record.ask(Request::Read, || false)?;
        let (reader, writer) = link::connect(&self.options.to, &self.options.key)?;
        let mut answers = Answers::new(reader);
        let settings = (self.hello, Compression::Lz4);
        self.outgoing = resume_source(writer, settings, owned, &mut answers, &mut self.left)?;
        self.answers = answers;
        Ok(())
    }
}

/// Why the link is not made again.
#[derive(Debug, Error)]
enum FollowError {
    #[error("the owner record: {0}")]
    Record(#[from] io::Error),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// Pages that the hypervisor reads ahead. A page that something waits for at the target is behind these.
const AHEAD: usize = 4;

/// Sends all pages that the target lacks, and waits until it has them. Counts those that it asked for.
///
/// # Errors
///
/// The link is cut. `source` has the pages that the target may lack.
fn serve(
    ram: &memory::Source<'_>,
    source: &mut Source,
    outgoing: &mut Outgoing<link::Writer>,
    answers: &mut Answers<link::Reader>,
    asked: &mut u64,
) -> Result<(), ServeError> {
    let slots = source.slots().to_vec();
    let source = Mutex::new(source);
    thread::scope(|scope| {
        let listener = scope.spawn(|| listen(&source, answers, asked));
        let mut chosen = VecDeque::new();
        // Pages come from the hypervisor in the order in which they were asked for, so none is on its way elsewhere.
        let mut none = Ahead::new();
        let mut send = || -> Result<(), ServeError> {
            loop {
                while chosen.len() < AHEAD
                    && let Some((slot, page)) = lock(&source).next()
                {
                    ram.read_ahead(slot, page)?;
                    chosen.push_back((slot, page));
                }
                let Some(page) = chosen.pop_front() else { return Ok(()) };
                let Served::Page(..) = outgoing.send_page(&slots, Some(page), ram, &mut none)? else { return Ok(()) };
            }
        };
        let sent = send();
        if sent.is_err() {
            // The target may still ask, and would wait.
            outgoing.sink().to().cut();
        }
        ram.forget();
        let heard = listener.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        sent.and(heard)
    })
}

/// Notes what the target asks for, until it has all pages.
fn listen(source: &Mutex<&mut Source>, answers: &mut Answers<link::Reader>, asked: &mut u64) -> Result<(), ServeError> {
    loop {
        match answers.asked()? {
            Asked::Pages { waits, slot, page, count } => {
                *asked += u64::from(waits) * u64::from(count);
                let noted = lock(source).request(waits, slot, page, count);
                noted.map_err(|_| ServeError::NoSuchPages { slot, page })?;
            }
            Asked::Complete => return Ok(()),
            _ => return Err(AnswerError::Other("which pages it needs").into()),
        }
    }
}

fn lock<'a, 'b>(of: &'a Mutex<&'b mut Source>) -> MutexGuard<'a, &'b mut Source> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
