// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's console on the control channel: the bytes between its UART and the launcher (`docs/control.md`, S6 to S8, C1
//! and C2).
//!
//! Invariants:
//!
//! * Each direction's bytes have numbers, from 0 on. A byte of output is kept until the launcher has taken it, so a session
//!   that begins goes on where the last launcher stopped, and nothing is lost or doubled. If there is no room the UART is
//!   full ([`Full`]).
//! * Bytes go out only by credit. Credit for input is granted for room that there is, so input is never refused for want of
//!   room, and never waits in the channel.
//! * A console that has become due says so once ([`notice`](Console::notice)), until the sender has looked at it.
//!
//! The embedder calls everything under one lock, which is the UART's.

use alloc::vec::Vec;

use twofold_abi::channel::{CreditError, ReceiveCredit, SendCredit};

/// The most bytes of output in one frame. A frame is written without a pause, so this bounds for how long.
pub const CHUNK: usize = 1024;

/// One guest's console.
#[derive(Clone, Debug)]
pub struct Console {
    output: Vec<u8>,
    /// Numbers of bytes: `taken <= sent <= shown <= written <= full`, and `full - taken` is the size of `output`. What is
    /// before `shown` was sent, perhaps in an older session.
    written: u64,
    shown: u64,
    sent: u64,
    taken: u64,
    full: u64,
    credit: SendCredit,
    input: Vec<u8>,
    /// Numbers of bytes: `read <= received`, and at most the size of `input` are between.
    received: u64,
    read: u64,
    grants: ReceiveCredit,
    /// The sender was asked to grant more.
    asks_for_grant: bool,
    in_session: bool,
    /// The next notice is due when this many bytes are written.
    notice_at: u64,
    notice: Notice,
}

/// There is no room for output now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Whether the sender has to look at the console.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notice {
    /// It does not have to, or was asked to already.
    #[default]
    None,
    /// In a while: more bytes may come.
    Soon,
    /// Now.
    Now,
}

/// The launcher says that it has taken bytes that it cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("output is taken up to {position}; it was to {taken}, and was sent to {sent}")]
pub struct NotSent {
    position: u64,
    taken: u64,
    sent: u64,
}

impl Console {
    /// A console with room for this many bytes of output and of input, each a power of two.
    ///
    /// # Panics
    ///
    /// Other sizes.
    #[must_use]
    pub fn new(output: usize, input: usize) -> Self {
        assert!(output.is_power_of_two() && input.is_power_of_two(), "{output} and {input} bytes are no rings");
        Self {
            output: alloc::vec![0; output],
            written: 0,
            shown: 0,
            sent: 0,
            taken: 0,
            full: output as u64,
            credit: SendCredit::default(),
            input: alloc::vec![0; input],
            received: 0,
            read: 0,
            grants: ReceiveCredit::default(),
            asks_for_grant: false,
            in_session: false,
            notice_at: NEVER,
            notice: Notice::None,
        }
    }

    /// The guest writes a byte.
    #[inline(always)]
    pub fn write(&mut self, byte: u8) -> Result<(), Full> {
        let at = self.written as usize & (self.output.len() - 1);
        match self.output.get_mut(at) {
            Some(place) if self.written != self.full => *place = byte,
            _ => return Err(Full),
        }
        self.written += 1;
        if self.written >= self.notice_at {
            self.note();
        }
        Ok(())
    }

    /// Whether there is room for output.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.written != self.full
    }

    /// Whether there are bytes for the guest.
    #[inline]
    #[must_use]
    pub fn has_input(&self) -> bool {
        self.read != self.received
    }

    /// The next bytes for the guest: not all, if they are in two pieces.
    #[must_use]
    pub fn input(&self) -> &[u8] {
        piece(&self.input, self.read, (self.received - self.read) as usize)
    }

    /// The guest has got this many bytes of [`input`](Self::input).
    pub fn read(&mut self, count: usize) {
        self.read = self.received.min(self.read + count as u64);
        if self.in_session && !self.asks_for_grant && self.grants.due(self.input_room()).is_some() {
            self.asks_for_grant = true;
            self.notice = self.notice.max(Notice::Soon);
        }
    }

    /// Whether there is a notice.
    #[inline]
    #[must_use]
    pub fn has_notice(&self) -> bool {
        self.notice != Notice::None
    }

    /// Takes the notice.
    #[inline]
    pub fn notice(&mut self) -> Notice {
        core::mem::take(&mut self.notice)
    }

    /// S2: a session begins, without credit. Returns the numbers of the next byte of output and of input.
    pub fn begin(&mut self) -> (u64, u64) {
        self.end();
        self.in_session = true;
        (self.sent, self.received)
    }

    /// There is no session.
    pub fn end(&mut self) {
        (self.credit, self.grants) = Default::default();
        (self.notice_at, self.notice, self.in_session) = (NEVER, Notice::None, false);
        // What the launcher did not take is sent again.
        self.sent = self.taken;
    }

    /// The launcher grants credit for output.
    pub fn granted(&mut self, bytes: u32) -> Result<(), CreditError> {
        self.credit.granted(bytes)
    }

    /// The launcher has taken all output before this byte, in this session or an older one.
    pub fn taken(&mut self, position: u64) -> Result<(), NotSent> {
        if !(self.taken..=self.shown).contains(&position) {
            return Err(NotSent { position, taken: self.taken, sent: self.shown });
        }
        self.full += position - self.taken;
        self.taken = position;
        self.sent = self.sent.max(position);
        Ok(())
    }

    /// Input has come.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), CreditError> {
        self.grants.received(bytes.len())?;
        let mask = self.input.len() - 1;
        for &byte in bytes {
            // There is room for all that was granted.
            self.input[self.received as usize & mask] = byte;
            self.received += 1;
        }
        Ok(())
    }

    /// What is to be granted for input now.
    #[must_use = "it counts as granted"]
    pub fn grant(&mut self) -> Option<u32> {
        let room = self.input_room();
        self.asks_for_grant = false;
        if self.in_session { self.grants.grant(room) } else { None }
    }

    /// Copies the next bytes that may be sent, and returns how many. If they are sent, [`sent`](Self::sent) follows.
    pub fn chunk(&mut self, to: &mut [u8; CHUNK]) -> usize {
        let unsent = (self.written - self.sent).min(self.credit.unused().into()) as usize;
        let bytes = piece(&self.output, self.sent, unsent.min(CHUNK));
        to[..bytes.len()].copy_from_slice(bytes);
        let count = bytes.len();
        if count == 0 {
            // The sender leaves. Without credit only the launcher's next frame brings it back, and that it sees by itself.
            self.notice_at = if self.credit.unused() > 0 { self.written + 1 } else { NEVER };
        }
        count
    }

    /// This many bytes of the last [`chunk`](Self::chunk) are sent.
    pub fn sent(&mut self, count: usize) {
        self.sent = self.written.min(self.sent + self.credit.take(count) as u64);
        self.shown = self.shown.max(self.sent);
    }

    /// How many bytes of output the launcher has not taken.
    #[must_use]
    pub fn untaken(&self) -> u64 {
        self.written - self.taken
    }

    #[cold]
    fn note(&mut self) {
        let urgent = self.sent + self.output.len() as u64 / 2;
        (self.notice, self.notice_at) =
            if self.written >= urgent { (Notice::Now, NEVER) } else { (self.notice.max(Notice::Soon), urgent) };
    }

    fn input_room(&self) -> usize {
        self.input.len() - (self.received - self.read) as usize
    }
}

/// No number of a byte.
const NEVER: u64 = u64::MAX;

/// At most `count` bytes of a ring from a position on, in one piece.
fn piece(ring: &[u8], position: u64, count: usize) -> &[u8] {
    let at = position as usize & (ring.len() - 1);
    &ring[at..ring.len().min(at + count)]
}
