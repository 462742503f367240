// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a guest was not moved. It goes on at the source.

use alloc::string::String;

use crate::commit::State;
use crate::plan::Forecast;
use crate::ram::RamError;
use crate::stream::{ReadError, WriteError};

/// Why a guest was not moved. It goes on at the source, at full speed and without a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the guest stays: {cause}")]
pub struct Failed {
    /// Why.
    pub cause: Cause,
    /// The stream in which it was found, if it was in one.
    pub stream: Option<usize>,
}

/// The causes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// It was cancelled.
    #[error("the migration was cancelled")]
    Cancelled,
    /// The guest is not run by this side.
    #[error("this side does not run the guest: it is {0:?}")]
    NotRunning(State),
    /// There are no streams, or more than 64.
    #[error("{0} streams; 1 to 64 carry a migration")]
    Streams(usize),
    /// The hello has another page size than the memory.
    #[error("pages of {hello} bytes in the hello, and of {ram} in the guest's memory")]
    PageSize {
        /// In the hello.
        hello: u64,
        /// The memory's.
        ram: u64,
    },
    /// A stream cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The guest's memory cannot be read.
    #[error(transparent)]
    Ram(#[from] RamError),
    /// The target does not take the guest.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// Pre-copy does not converge, whatever is done.
    #[error("pre-copy never ends: {}", .0.outcome)]
    Never(Forecast),
    /// The state of a device or a vCPU cannot be saved.
    #[error("{0}")]
    State(String),
}

/// Why there is no good answer of the target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
