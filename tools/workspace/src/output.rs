// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Output for the user: lines on standard output, errors on standard error.
//!
//! Invariant: no write panics. A closed standard output is an error, so every caller cleans up on the way. `main`
//! recognises the error by [`is_closed`] and ends without a message.

use std::io::{self, IsTerminal, Write};

/// Writes `text` and a line end to standard output.
pub fn line(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()?;
    Ok(())
}

/// Writes an error to standard error, if possible.
pub fn error(text: &str) {
    let _ = writeln!(io::stderr().lock(), "error: {text}");
}

/// Writes a line that is neither a result nor an error to standard error, if possible.
pub fn remark(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Returns whether standard output is a terminal.
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Returns whether the error's cause is a closed standard output.
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
