// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the target says.

use alloc::string::String;
use alloc::vec::Vec;

use embedded_io::Read;

use crate::commit::Ownership;
use crate::stream::{Capabilities, Message, Name, ReadError, Reader, Record};

/// The stream from target to source.
pub struct Answers<R>(Reader<R>);

/// What a target says that fetches absent pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It wants pages: a vCPU waits for them, or will soon.
    Pages {
        /// Whether a vCPU waits.
        waits: bool,
        /// The memslot's number.
        slot: u16,
        /// The first page.
        page: u64,
        /// How many.
        count: u32,
    },
    /// It lacks these pages: bit `n` of word `m` is set for page `page + 64 * m + n`.
    Absent {
        /// The memslot's number.
        slot: u16,
        /// The page of the first bit.
        page: u64,
        /// The bits.
        words: Vec<u64>,
    },
    /// It has said which pages it lacks, and goes on over this link.
    Accepted,
    /// It has taken the guest.
    Taken(Ownership),
    /// It has all pages. The source may release them.
    Complete,
}

/// Why there is no good answer of the target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// The answers cannot be read.
    #[error("the target's answers: {0}")]
    Read(#[from] ReadError),
    /// The answers end.
    #[error("the target's answers end")]
    Ended,
    /// The target refuses the guest.
    #[error("the target refuses: {0}")]
    Refused(String),
    /// It is another answer than the one that was to come.
    #[error("the target answers something else than {0}")]
    Other(&'static str),
}

impl<R: Read> Answers<R> {
    /// The answers that come from `source`.
    pub fn new(source: R) -> Self {
        // A reader compares a hello with these, and here none comes.
        let model = Name::new("answers").unwrap_or_else(|| unreachable!("it is a name"));
        let here = Capabilities { model, page_shift: 12, ipa_bits: 0, vcpus: 0, memory: 0, features: Vec::new() };
        Self(Reader::new(source, here))
    }

    /// Waits until the target has accepted the hello.
    ///
    /// # Errors
    ///
    /// It refuses, or there is no answer.
    pub fn accepted(&mut self) -> Result<(), AnswerError> {
        match self.asked()? {
            Asked::Accepted => Ok(()),
            _ => Err(AnswerError::Other("that it accepts the guest")),
        }
    }

    /// Waits until the target has taken the guest; returns what the owner record holds then.
    ///
    /// # Errors
    ///
    /// It refuses, or there is no answer. The arbiter knows which side owns the guest.
    pub fn taken(&mut self) -> Result<Ownership, AnswerError> {
        match self.asked()? {
            Asked::Taken(now) => Ok(now),
            _ => Err(AnswerError::Other("that it has taken the guest")),
        }
    }

    /// Waits for what the target says next.
    ///
    /// # Errors
    ///
    /// It refuses, or there is no answer.
    pub fn asked(&mut self) -> Result<Asked, AnswerError> {
        Ok(match self.0.next()?.ok_or(AnswerError::Ended)? {
            Record::Message(Message::Accepted) => Asked::Accepted,
            Record::Message(Message::Taken(now)) => Asked::Taken(now),
            Record::Message(Message::Complete) => Asked::Complete,
            Record::Message(Message::Refused(why)) => return Err(AnswerError::Refused(why)),
            Record::Request { waits, slot, page, count } => Asked::Pages { waits, slot, page, count },
            Record::Absent { slot, page, words } => {
                Asked::Absent { slot, page, words: words.iter().map(|word| word.get()).collect() }
            }
            _ => return Err(AnswerError::Other("a message of a target")),
        })
    }
}
