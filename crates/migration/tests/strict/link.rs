// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One direction of a link between CPUs of the strict machine: an end that waits lets other CPUs run.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use embedded_io::{ErrorKind, ErrorType, Read, Write};
use twofold_machine::strict::Hosted;
use twofold_stage2::Platform as _;

/// One end of a link: dropped, it cuts the link. What is on its way is still read then, and nothing is written.
pub struct End {
    shared: Arc<Mutex<Shared>>,
    platform: Hosted,
}

#[derive(Default)]
struct Shared {
    bytes: VecDeque<u8>,
    /// The most bytes on their way.
    room: usize,
    is_cut: bool,
}

/// A link on which at most this many bytes are on their way: the end that is written to, and the end that is read.
pub fn link(platform: &Hosted, room: usize) -> (End, End) {
    let shared = Arc::new(Mutex::new(Shared { room, ..Shared::default() }));
    let end = |shared| End { shared, platform: platform.clone() };
    (end(Arc::clone(&shared)), end(shared))
}

impl End {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.lock().is_cut = true;
    }
}

impl ErrorType for End {
    type Error = ErrorKind;
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        loop {
            {
                let mut shared = self.lock();
                let count = bytes.len().min(shared.room - shared.bytes.len());
                if shared.is_cut {
                    return Err(ErrorKind::BrokenPipe);
                }
                if count > 0 {
                    shared.bytes.extend(&bytes[..count]);
                    return Ok(count);
                }
            }
            self.platform.pause(0);
        }
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

impl Read for End {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, ErrorKind> {
        loop {
            {
                let mut shared = self.lock();
                let count = bytes.len().min(shared.bytes.len());
                if count > 0 || shared.is_cut {
                    shared.bytes.drain(..count).zip(bytes).for_each(|(byte, to)| *to = byte);
                    return Ok(count);
                }
            }
            self.platform.pause(0);
        }
    }
}
