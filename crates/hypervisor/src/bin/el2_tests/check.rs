// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a test reports a failure: as a value, with the place.
//!
//! Invariant: a failed check never panics. A panic is the report of a defect of the image, and some tests expect
//! exactly that.

use alloc::string::{String, ToString};
use core::error::Error;
use core::fmt;
use core::panic::Location;

/// The result of a test or of a part of one.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Why a test failed, and where.
pub struct Failure {
    why: String,
    place: &'static Location<'static>,
}

impl Failure {
    #[track_caller]
    pub fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), place: Location::caller() }
    }
}

impl<E: Error> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        Self::new(error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, line) = (self.place.file(), self.place.line());
        // One line of the control channel.
        write!(f, "{} ({file}:{line})", self.why.replace('\n', " "))
    }
}

/// Fails unless the condition holds; the message describes the failure.
macro_rules! check {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::check::Failure::new(alloc::format!($($message)+)));
        }
    };
}

/// Fails unless both are equal; the message names the compared values.
macro_rules! check_eq {
    ($found:expr, $expected:expr, $($message:tt)+) => {
        match (&$found, &$expected) {
            (found, expected) => check!(
                *found == *expected,
                "{}: found {found:x?}, expected {expected:x?}",
                format_args!($($message)+)
            ),
        }
    };
}
