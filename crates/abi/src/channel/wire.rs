// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The channel's numbers and layouts. All numbers are little-endian.
//!
//! Invariant: nothing here changes once a version is released. A change is a new [`VERSION`].

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version that this code speaks.
pub const VERSION: u16 = 1;
/// In [`Hello`] and [`Welcome`].
pub const MAGIC: [u8; 8] = *b"TWOFCTRL";
/// Ends a frame. An encoded frame has no such byte in it.
pub const DELIMITER: u8 = 0;
/// The most bytes of a frame's payload.
pub const PAYLOAD_MAX: usize = 1024;
/// Bytes of a [`Header`].
pub const HEADER_SIZE: usize = size_of::<Header>();
/// The most bytes of a frame, header included.
pub const FRAME_MAX: usize = HEADER_SIZE + PAYLOAD_MAX;
/// The most bytes of a frame on the wire: one more for each 254, the first block's, and the delimiter.
pub const ENCODED_MAX: usize = FRAME_MAX + FRAME_MAX / 254 + 2;
/// The most bytes of a statistic's key.
pub const KEY_MAX: usize = 64;
/// The most bytes of a text.
pub const TEXT_MAX: usize = 512;
/// The most bytes of one guest's console that may be on their way in one direction.
pub const WINDOW_MAX: u32 = 1 << 16;
/// The most commands without an answer.
pub const COMMANDS_MAX: usize = 16;
/// The most bytes of [`kind::CONTENT`] that wait for the command that takes them.
pub const CONTENT_MAX: usize = 1 << 16;
/// In [`Header::guest`]: the frame concerns no guest, or all.
pub const NO_GUEST: u16 = u16::MAX;
/// In [`Refusal::request`]: what is refused was no command.
pub const NO_REQUEST: u32 = 0;

/// Values of [`Header::kind`]. Below 0x80: to the hypervisor.
pub mod kind {
    /// The launcher begins a session: a [`Hello`](super::Hello).
    pub const HELLO: u8 = 0x01;
    /// A [`Command`](super::Command).
    pub const COMMAND: u8 = 0x02;
    /// Bytes for a guest's console.
    pub const INPUT: u8 = 0x03;
    /// The launcher has room for more of a guest's output: a [`Credit`](super::Credit).
    pub const OUTPUT_CREDIT: u8 = 0x04;
    /// The launcher has taken a guest's output: a [`Taken`](super::Taken).
    pub const TAKEN: u8 = 0x05;
    /// The next bytes of what the next command takes, if it takes any.
    pub const CONTENT: u8 = 0x06;
    /// The hypervisor accepts a session: a [`Welcome`](super::Welcome).
    pub const WELCOME: u8 = 0x81;
    /// A command is done: its number (u32).
    pub const DONE: u8 = 0x82;
    /// A frame is refused: a [`Refusal`](super::Refusal), and a text.
    pub const REFUSED: u8 = 0x83;
    /// Bytes from a guest's console.
    pub const OUTPUT: u8 = 0x84;
    /// A guest has room for more input: a [`Credit`](super::Credit).
    pub const INPUT_CREDIT: u8 = 0x85;
    /// One figure: a [`Statistic`](super::Statistic), and its key.
    pub const STATISTIC: u8 = 0x86;
    /// What a guest does now: a [`State`](super::State), and a text that says why.
    pub const STATE: u8 = 0x87;
    /// A note for people: a text.
    pub const LOG: u8 = 0x88;
    /// One line of [`control`](crate::control), without its end: UTF-8.
    pub const LINE: u8 = 0x89;
    /// Bytes of the trace ([`trace`](crate::trace)), behind those before.
    pub const TRACE: u8 = 0x8a;
    /// Where a session begins in a guest's console: a [`Position`](super::Position).
    pub const POSITION: u8 = 0x8b;
    /// The next bytes of a command's answer: a [`Part`](super::Part), and the bytes.
    pub const PART: u8 = 0x8c;
}

/// Values of [`Command::command`].
pub mod command {
    /// Send statistics.
    pub const STATISTICS: u8 = 0;
    /// Stop the guest.
    pub const STOP: u8 = 1;
    /// Let a stopped guest go on.
    pub const CONTINUE: u8 = 2;
    /// Start the guest anew.
    pub const RESET: u8 = 3;
    /// End the guest; without a guest: end the hypervisor.
    pub const QUIT: u8 = 4;
    /// Start the guest's dirty log.
    pub const DIRTY_START: u8 = 5;
    /// Stop the guest's dirty log.
    pub const DIRTY_STOP: u8 = 6;
    /// Collect the guest's dirty log.
    pub const DIRTY: u8 = 7;
    /// Split the guest's blocks.
    pub const SPLIT: u8 = 8;
    /// Make blocks of the guest's pages.
    pub const COALESCE: u8 = 9;
    /// Ask the guest to keep this much of its memory. The argument is in MiB.
    pub const BALLOON: u8 = 10;
    /// Send the sections of a stopped guest.
    pub const SAVE: u8 = 11;
    /// Take a section into a guest that is stopped before its first instruction.
    pub const RESTORE: u8 = 12;
    /// Send a page of a guest. The argument is its address, divided by 4096.
    pub const READ: u8 = 13;
    /// Take a page into a guest that is stopped before its first instruction. The argument as above.
    pub const WRITE: u8 = 14;
    /// Start dirty logs of all memslots. The argument is the tracker's number, and 256 if all pages are in the log at first.
    pub const TRACK: u8 = 15;
    /// Send the pages in the dirty log of the memslot that is the argument.
    pub const WRITTEN: u8 = 16;
    /// Take pages out of the dirty log of the memslot that is the argument.
    pub const CLEAR: u8 = 17;
    /// Send where a page of a stopped guest is in the machine's memory, and the pages behind it. The argument as for [`READ`].
    pub const FRAMES: u8 = 18;
    /// Pages of the memslot that is the argument come after the guest has begun.
    pub const ABSENT: u8 = 19;
    /// Send which absent pages are needed, as soon as there are any.
    pub const WANTED: u8 = 20;
    /// An absent page has come. The argument is its address, divided by 4096.
    pub const FILL: u8 = 21;
    /// Absent pages of the memslot that is the argument are zero.
    pub const ZERO: u8 = 22;
}

/// Pages in an answer to [`command::FRAMES`].
pub const FRAMES_MAX: usize = 512;

/// Words of the answer to [`command::FRAMES`] that are no address.
pub mod frame {
    /// No frame holds the page: it is all zero.
    pub const ZERO: u64 = 0;
    /// The page is not in memory: it is in the guest's store, or has yet to come.
    pub const ABSENT: u64 = 1;
}

/// Values of [`Refusal::reason`].
pub mod reason {
    /// The versions have nothing in common.
    pub const VERSION: u16 = 1;
    /// The frame's bytes are none, or its payload is not what its kind needs.
    pub const MALFORMED: u16 = 2;
    /// There is no such kind, or no session yet.
    pub const KIND: u16 = 3;
    /// There is no such guest.
    pub const GUEST: u16 = 4;
    /// Not in this state of the guest.
    pub const STATE: u16 = 5;
    /// Too many commands are under way.
    pub const BUSY: u16 = 6;
    /// More input than was granted, or more credit than a window.
    pub const CREDIT: u16 = 7;
    /// It was tried and failed.
    pub const FAILED: u16 = 8;
}

/// Values of [`State::state`].
pub mod state {
    /// It runs.
    pub const RUNNING: u8 = 0;
    /// It is stopped, and can go on.
    pub const STOPPED: u8 = 1;
    /// It has turned itself off, or was ended.
    pub const OFF: u8 = 2;
    /// It starts anew.
    pub const RESET: u8 = 3;
    /// The hypervisor has ended it: the text says why.
    pub const FAILED: u8 = 4;
}

/// The head of each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// One of [`kind`].
    pub kind: u8,
    /// 0.
    pub reserved: u8,
    /// The guest's number, or [`NO_GUEST`].
    pub guest: U16,
    /// Bytes of the payload.
    pub length: U16,
}

/// The payload of [`kind::HELLO`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// The lowest version that the launcher speaks.
    pub lowest: U16,
    /// The highest.
    pub highest: U16,
    /// 0.
    pub reserved: U32,
    /// A random number that names the session.
    pub session: U64,
}

/// The payload of [`kind::WELCOME`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Welcome {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// The version of this session.
    pub version: U16,
    /// How many guests there are. They have the numbers from 0 on.
    pub guests: U16,
    /// 0.
    pub reserved: U32,
    /// The session of the [`Hello`] that this answers.
    pub session: U64,
}

/// The payload of [`kind::COMMAND`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Command {
    /// Names the command in its answer. Not [`NO_REQUEST`].
    pub request: U32,
    /// One of [`command`].
    pub command: u8,
    /// A number (little-endian), if the command has one; otherwise 0.
    pub argument: [u8; 3],
}

/// The payload of [`kind::OUTPUT_CREDIT`] and [`kind::INPUT_CREDIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Credit {
    /// This number of bytes more: 1 to [`WINDOW_MAX`].
    pub bytes: U32,
}

/// The payload of [`kind::TAKEN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Taken {
    /// The number of the first byte of the guest's output that was not taken. The hypervisor forgets those before.
    pub output: U64,
}

/// The payload of [`kind::POSITION`]. The bytes of each direction are numbered from 0 on, from the guest's first start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Position {
    /// The number of the next byte of the guest's output.
    pub output: U64,
    /// The number of the next byte of its input.
    pub input: U64,
}

/// The start of the payload of [`kind::REFUSED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Refusal {
    /// The command, or [`NO_REQUEST`].
    pub request: U32,
    /// One of [`reason`].
    pub reason: U16,
}

/// The start of the payload of [`kind::STATISTIC`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Statistic {
    /// The command that asked for it.
    pub request: U32,
    /// The figure.
    pub value: U64,
}

/// The start of the payload of [`kind::PART`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Part {
    /// The command.
    pub request: U32,
}

/// Pages among 64 that are in a dirty log: the answer to [`command::WRITTEN`], and the content for [`command::CLEAR`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WrittenWord {
    /// The first of the 64, counted from the memslot's first: a multiple of 64.
    pub first_page: U64,
    /// Bit `n` is page `first_page + n`.
    pub mask: U64,
}

/// The start of the payload of [`kind::STATE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct State {
    /// One of [`state`].
    pub state: u8,
}
