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
//! * The reader looks at each byte once, has a fixed size, and is in step again after each delimiter.

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
        while let Some((&byte, rest)) = bytes.split_first() {
            *bytes = rest;
            if byte == DELIMITER {
                let (used, code, left, skips) = (self.used, self.code, self.left, self.skips);
                (self.used, self.code, self.left, self.skips) = (0, 0, 0, false);
                match (skips || code == 0, left) {
                    // What was skipped is reported already. Nothing at all is no frame and no error.
                    (true, _) => {}
                    (_, 0) => return Some(parse(&self.frame[..used])),
                    _ => return Some(Err(FrameError::Cut)),
                }
            } else if !self.skips && !self.take(byte) {
                self.skips = true;
                return Some(Err(FrameError::TooLong));
            }
        }
        None
    }

    /// Takes one byte of the stuffed frame. False: it is too long.
    fn take(&mut self, byte: u8) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return self.push(byte);
        }
        // Between two blocks is a 0, except after one of the greatest length.
        let fits = matches!(self.code, 0 | 0xff) || self.push(0);
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
        while !bytes.is_empty() {
            // Without a 0, or up to it, or as much as the block takes.
            let room = (0xff - (self.used - self.code_at)).min(bytes.len());
            let length = bytes[..room].iter().position(|&byte| byte == 0);
            let run = length.unwrap_or(room);
            self.bytes[self.used..self.used + run].copy_from_slice(&bytes[..run]);
            self.used += run;
            bytes = &bytes[run..];
            if length.is_some() {
                self.end_block();
                bytes = &bytes[1..];
            } else if self.used - self.code_at == 0xff {
                self.end_block();
            }
        }
    }

    /// Ends a block and leaves a place for the next one's code.
    fn end_block(&mut self) {
        self.bytes[self.code_at] = (self.used - self.code_at) as u8;
        self.code_at = self.used;
        self.used += 1;
    }
}

const _: () = assert!(HEADER_SIZE == 6 && PAYLOAD_MAX <= u16::MAX as usize);
