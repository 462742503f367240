// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writing for people: lines on standard output, errors on standard error.
//!
//! Invariant: no write panics. A closed standard output is an error that `main` recognises by
//! [`is_closed`] and ends quietly with, after everything was cleaned up on the way.

use std::io::{self, IsTerminal, Write};

/// Writes `text` and a line end to standard output.
pub fn line(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()?;
    Ok(())
}

/// Writes an error to standard error, where that is possible.
pub fn error(text: &str) {
    let _ = writeln!(io::stderr().lock(), "error: {text}");
}

/// Writes a line that is neither result nor error to standard error, where that is possible.
pub fn remark(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Whether a person looks at standard output.
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether the error is that standard output is closed.
pub fn is_closed(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_closed_pipe_is_recognised_below_context() {
        let closed = Err::<(), _>(io::Error::from(io::ErrorKind::BrokenPipe)).context("printing").unwrap_err();
        assert!(is_closed(&closed));
        assert!(!is_closed(&anyhow::anyhow!("other")));
    }
}
