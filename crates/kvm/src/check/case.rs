// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One check and its result.

use crate::error::KvmError;

/// A check.
pub struct Check {
    /// The name.
    pub name: String,
    run: Box<dyn Fn() -> Result<(), Stopped> + Send>,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The check passed.
    Passed,
    /// This host cannot run the check, for this reason.
    Skipped(String),
    /// The check failed, in this way.
    Failed(String),
}

impl Check {
    pub(super) fn new(name: impl Into<String>, run: impl Fn() -> Result<(), Stopped> + Send + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }

    /// Runs the check.
    pub fn run(&self) -> Outcome {
        match (self.run)() {
            Ok(()) => Outcome::Passed,
            Err(Stopped::Skip(why)) => Outcome::Skipped(why),
            Err(Stopped::Wrong(how)) => Outcome::Failed(how),
        }
    }
}

/// Why a check ended early.
pub(super) enum Stopped {
    Skip(String),
    Wrong(String),
}

impl From<KvmError> for Stopped {
    /// A feature that the host lacks is a skip, not a failure.
    fn from(error: KvmError) -> Self {
        match error {
            KvmError::Unavailable(_)
            | KvmError::Missing { .. }
            | KvmError::NoHugePages { .. }
            | KvmError::NoTransparentHugePages
            | KvmError::NoMemory { .. }
            | KvmError::TooMany { .. }
            | KvmError::Mode { .. } => Self::Skip(error.to_string()),
            _ => Self::Wrong(error.to_string()),
        }
    }
}

pub(super) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Stopped> {
    if holds { Ok(()) } else { Err(Stopped::Wrong(otherwise())) }
}
