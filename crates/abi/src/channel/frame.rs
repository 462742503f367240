// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frames: bytes into frames, frames into bytes.
//!
//! A frame is a header and a payload. On the wire it is byte-stuffed so that no byte of it is 0, and a 0 follows
//! (consistent overhead byte stuffing, Cheshire and Baker 1999). So a 0 is the end of a frame wherever a reader begins,
//! and no payload can look like one.
//!
//! # Invariants
//!
//! * A frame that a reader returns was written as one, if the stream does not change bytes. The reader skips what comes
//!   before the first delimiter: it may be the tail of a frame, and a tail may decode to anything. A frame that was cut
//!   lacks its end, so it is shorter than its header says.
//! * The reader looks at each byte twice at most, has a fixed size, and is in step again after each delimiter.
//!
//! Words of eight bytes are handled at once where they are inside of what is written or read: a byte has the same place in a frame
//! and in the stuffed one, but for what blocks of the greatest length add.

use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

use super::wire::{DELIMITER, ENCODED_MAX, FRAME_MAX, HEADER_SIZE, Header, NO_GUEST, PAYLOAD_MAX};

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// One of [`kind`](super::wire::kind), or unknown.
    pub kind: u8,
    /// The guest that it concerns.
    pub guest: Option<u16>,
    /// Its payload.
    pub payload: &'a [u8],
}

/// Why bytes between two delimiters are no frame. The reader goes on after the second one.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameError {
    /// The stuffing is incomplete.
    #[error("a frame is cut")]
    Cut,
    /// Longer than any frame.
    #[error("a frame of more than {FRAME_MAX} bytes")]
    TooLong,
    /// Shorter than a header.
    #[error("a frame of {0} bytes, shorter than its header")]
    NoHeader(usize),
    /// The payload is not as long as the header says.
    #[error("a payload of {found} bytes, and the header says {wanted}")]
    Length {
        /// The bytes there are.
        found: usize,
        /// The header's.
        wanted: usize,
    },
    /// A reserved field is not 0.
    #[error("a reserved field of the header is {0:#x}")]
    Reserved(u8),
}

/// A payload is too long to be sent.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a payload of {0} bytes; {PAYLOAD_MAX} are the most")]
pub struct TooLong(pub usize);

/// Reads frames.
#[derive(Clone, Debug)]
pub struct FrameReader {
    frame: [u8; FRAME_MAX],
    used: usize,
    /// The code of the block that is being read; 0: none yet.
    code: u8,
    /// Bytes of the block that are still to come.
    left: u8,
    /// Whether everything up to the next delimiter is ignored.
    skips: bool,
}

impl Default for FrameReader {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameReader {
    /// A reader that begins anywhere in a stream.
    #[must_use]
    pub const fn new() -> Self {
        Self { frame: [0; FRAME_MAX], used: 0, code: 0, left: 0, skips: true }
    }

    /// Reads up to the end of the next frame and removes what it read from `bytes`. `None`: all was read, and the frame
    /// goes on.
    pub fn read<'a>(&'a mut self, bytes: &mut &[u8]) -> Option<Result<Frame<'a>, FrameError>> {
        loop {
            if self.skips {
                let end = bytes.iter().position(|&byte| byte == DELIMITER).unwrap_or(bytes.len());
                *bytes = &bytes[end..];
            } else if !self.take(bytes) {
                self.skips = true;
                return Some(Err(FrameError::TooLong));
            }
            // The delimiter.
            (_, *bytes) = bytes.split_first()?;
            let (used, code, left, skips) = (self.used, self.code, self.left, self.skips);
            (self.used, self.code, self.left, self.skips) = (0, 0, 0, false);
            match (skips || code == 0, left) {
                // What was skipped is reported already. Nothing at all is no frame and no error.
                (true, _) => {}
                (_, 0) => return Some(parse(&self.frame[..used])),
                _ => return Some(Err(FrameError::Cut)),
            }
        }
    }

    /// Takes bytes of the stuffed frame, up to the delimiter. False: it is too long, by the last byte that was taken.
    fn take(&mut self, bytes: &mut &[u8]) -> bool {
        while let Some((word, rest)) = bytes.split_first_chunk::<WORD>() {
            if zeros(word) == 0 && self.take_word(word) {
                *bytes = rest;
                continue;
            }
            for &byte in word {
                if byte == DELIMITER {
                    return true;
                }
                *bytes = &bytes[1..];
                if !self.take_byte(byte) {
                    return false;
                }
            }
        }
        while let Some((&byte, rest)) = bytes.split_first().filter(|(byte, _)| **byte != DELIMITER) {
            *bytes = rest;
            if !self.take_byte(byte) {
                return false;
            }
        }
        true
    }

    /// Takes a word without a delimiter. False: it has to be taken by bytes.
    ///
    /// A byte of a frame is where it is in the stuffed one, but for the first code and for those after blocks of the greatest
    /// length, and each other code stands for a zero.
    fn take_word(&mut self, word: &[u8; WORD]) -> bool {
        let mut code_at = usize::from(self.left);
        if code_at < WORD && matches!(self.code, 0 | FULL) {
            return false;
        }
        let Some(to) = self.frame.get_mut(self.used..).and_then(|to| to.first_chunk_mut::<WORD>()) else {
            return false;
        };
        *to = *word;
        while let (Some(place), Some(&code)) = (to.get_mut(code_at), word.get(code_at)) {
            *place = 0;
            self.code = code;
            code_at += usize::from(code);
        }
        (self.used, self.left) = (self.used + WORD, (code_at - WORD) as u8);
        true
    }

    /// Takes one byte that is no delimiter. False: the frame is too long.
    fn take_byte(&mut self, byte: u8) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return self.push(byte);
        }
        // Between two blocks is a 0, except after one of the greatest length.
        let fits = matches!(self.code, 0 | FULL) || self.push(0);
        (self.code, self.left) = (byte, byte - 1);
        fits
    }

    fn push(&mut self, byte: u8) -> bool {
        let Some(place) = self.frame.get_mut(self.used) else { return false };
        *place = byte;
        self.used += 1;
        true
    }
}

fn parse(frame: &[u8]) -> Result<Frame<'_>, FrameError> {
    let Ok((header, payload)) = Header::read_from_prefix(frame) else { return Err(FrameError::NoHeader(frame.len())) };
    let wanted = usize::from(header.length.get());
    if payload.len() != wanted {
        return Err(FrameError::Length { found: payload.len(), wanted });
    }
    if header.reserved != 0 {
        return Err(FrameError::Reserved(header.reserved));
    }
    let guest = Some(header.guest.get()).filter(|&guest| guest != NO_GUEST);
    Ok(Frame { kind: header.kind, guest, payload })
}

/// Writes frames. Each session begins with a [`DELIMITER`] of its own.
#[derive(Clone, Debug)]
pub struct FrameWriter {
    bytes: [u8; ENCODED_MAX],
    used: usize,
    /// Where the code of the block that is being written goes.
    code_at: usize,
}

impl Default for FrameWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameWriter {
    /// A writer.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; ENCODED_MAX], used: 0, code_at: 0 }
    }

    /// Returns a frame's bytes on the wire. Its payload is `head`, then `tail`.
    pub fn write(&mut self, kind: u8, guest: Option<u16>, head: &[u8], tail: &[u8]) -> Result<&[u8], TooLong> {
        let length = head.len() + tail.len();
        if length > PAYLOAD_MAX {
            return Err(TooLong(length));
        }
        let guest = guest.unwrap_or(NO_GUEST).into();
        let header = Header { kind, reserved: 0, guest, length: (length as u16).into() };
        (self.code_at, self.used) = (0, 1);
        [header.as_bytes(), head, tail].into_iter().for_each(|bytes| self.put(bytes));
        self.end_block();
        self.bytes[self.code_at] = DELIMITER;
        Ok(&self.bytes[..self.used])
    }

    fn put(&mut self, mut bytes: &[u8]) {
        while let Some((word, rest)) = bytes.split_first_chunk::<WORD>() {
            bytes = rest;
            let used = self.used;
            if used - self.code_at + WORD >= FULL.into() {
                word.iter().for_each(|byte| self.push(*byte));
                continue;
            }
            // Each byte stays where it is, and a 0 becomes the code of the next block.
            self.bytes[used..][..WORD].copy_from_slice(word);
            let mut zeros = zeros(word);
            while zeros != 0 {
                let at = used + zeros.trailing_zeros() as usize / 8;
                self.bytes[self.code_at] = (at - self.code_at) as u8;
                self.code_at = at;
                zeros &= zeros - 1;
            }
            self.used = used + WORD;
        }
        bytes.iter().for_each(|byte| self.push(*byte));
    }

    fn push(&mut self, byte: u8) {
        if byte != 0 {
            self.bytes[self.used] = byte;
            self.used += 1;
        }
        if byte == 0 || self.used - self.code_at == FULL.into() {
            self.end_block();
        }
    }

    /// Ends a block and leaves a place for the next one's code.
    fn end_block(&mut self) {
        self.bytes[self.code_at] = (self.used - self.code_at) as u8;
        self.code_at = self.used;
        self.used += 1;
    }
}

/// Bytes that are handled at once where they can be.
const WORD: usize = 8;
/// The code of a block of the greatest length, and the bytes from there to its end.
const FULL: u8 = 0xff;

/// The highest bit of each byte that is 0.
fn zeros(word: &[u8; WORD]) -> u64 {
    const OTHERS: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let word = u64::from_le_bytes(*word);
    // No sum of seven bits and 0x7f carries into the next byte, and it has the highest bit unless all seven are 0.
    !(((word & OTHERS) + OTHERS) | word | OTHERS)
}

const _: () = assert!(HEADER_SIZE == 6 && PAYLOAD_MAX <= u16::MAX as usize);
