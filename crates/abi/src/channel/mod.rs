// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The framed control channel: launcher and hypervisor over one byte stream, in both directions.
//!
//! `docs/control.md` is the specification. The stream carries the consoles of several guests, commands and their
//! answers, statistics and errors. It neither drops nor reorders bytes, and may be cut anywhere: either end can come
//! anew at any time.
//!
//! * [`wire`]: numbers and layouts.
//! * [`frame`]: bytes into frames and back; where a frame ends.
//! * [`message`]: frames into messages and back, in two enums, one for each direction.
//! * [`credit`]: how much of a console may be on its way.
//!
//! Like the rest of this crate, it reads and writes. What is sent when is the decision of both ends.

pub mod credit;
pub mod frame;
pub mod message;
pub mod wire;

pub use credit::{CreditError, ReceiveCredit, SendCredit};
pub use frame::{Frame, FrameError, FrameReader, FrameWriter, TooLong};
pub use message::{Command, GuestState, MessageError, PAGE_SIZE, Reason, ToHypervisor, ToLauncher, Track};
