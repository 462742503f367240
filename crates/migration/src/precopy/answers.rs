// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the target says.

use alloc::vec::Vec;

use embedded_io::Read;

use super::error::AnswerError;
use crate::commit::Ownership;
use crate::stream::{Capabilities, Message, Name, Reader, Record};

/// The stream from target to source.
pub struct Answers<R>(Reader<R>);

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
        match self.message()? {
            Message::Accepted => Ok(()),
            other => Err(unexpected(other, "that it accepts the guest")),
        }
    }

    /// Waits until the target has taken the guest; returns what the owner record holds then.
    ///
    /// # Errors
    ///
    /// It refuses, or there is no answer. The arbiter knows which side owns the guest.
    pub fn taken(&mut self) -> Result<Ownership, AnswerError> {
        match self.message()? {
            Message::Taken(now) => Ok(now),
            other => Err(unexpected(other, "that it has taken the guest")),
        }
    }

    fn message(&mut self) -> Result<Message, AnswerError> {
        match self.0.next()? {
            None => Err(AnswerError::Ended),
            Some(Record::Message(message)) => Ok(message),
            Some(_) => Err(AnswerError::Other("a message")),
        }
    }
}

fn unexpected(message: Message, wanted: &'static str) -> AnswerError {
    match message {
        Message::Refused(why) => AnswerError::Refused(why),
        _ => AnswerError::Other(wanted),
    }
}
