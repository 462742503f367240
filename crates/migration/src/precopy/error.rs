// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a guest was not moved. It goes on at the source.

use alloc::string::String;

use crate::answers::AnswerError;
use crate::commit::State;
use crate::plan::Forecast;
use crate::ram::RamError;
use crate::stream::WriteError;

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
#[non_exhaustive]
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
