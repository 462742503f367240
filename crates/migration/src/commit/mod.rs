// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commit: exactly one side runs the guest, whichever messages are lost and whichever side stops.
//!
//! **The arbiter** keeps the owner record ([`Ownership`]): the guest's owner, and an epoch. Both sides can reach it, it
//! is durable, and it changes by compare-and-swap only ([`arbitrate`]). A disk image that both sides can open is one.
//! Source and target run the same code: [`step`] takes a side's state and an event, and returns its next state and what
//! it has to do. Nothing here waits, measures time or sends.
//!
//! # The protocol
//!
//! The source owns the guest at epoch `e`: the record holds (source, `e`).
//!
//! | step | source | target |
//! |---|---|---|
//! | C1 | stops the guest ([`Event::Stop`]), and sends the rest of it, but not the end of the stream | stores it |
//! | C2 | is *in doubt* from now on ([`Event::Offer`]), and sends the end of the stream, which names (source, `e`) | |
//! | C3 | | has all of the guest, could run it now, and read the end ([`Event::Received`]). It is *in doubt*, and asks the arbiter to swap (source, `e`) for (target, `e` + 1) |
//! | C4 | | learns that the record holds (target, `e` + 1), runs the guest, and says so |
//! | C5 | learns from the target or the arbiter that the record has passed `e`, and releases the guest | |
//!
//! C1 and C2 are the first step of the commit: prepare. C3 to C5 are the second. The swap is the one instant at which the
//! guest changes hands. Where something fails:
//!
//! | step | |
//! |---|---|
//! | R1 | A source that wants its guest back, or has waited long enough, asks for the swap of (source, `e`) for (source, `e` + 1). If it wins, it runs the guest. If not, C5. A source that is not in doubt yet just goes on. |
//! | R2 | A side in doubt asks again until it knows. An answer with epoch `e` or less is late, and changes nothing. |
//! | R3 | A side that starts again has a new incarnation, and no guest. It reads the record. If the record names an earlier incarnation on its host, it is in doubt: it asks to swap that for itself, and boots the guest anew if it wins. |
//! | R4 | A target in doubt that learns of another owner at `e` + 1 or later releases what it received. |
//! | R5 | A side that has no guest remembers the newest epoch that it has learned of. It refuses a stream whose end names an older one. |
//!
//! # In doubt
//!
//! [`State::InDoubt`] is entered at C2, C3 and R3, and left only when the side learns that the record has passed the epoch
//! from which it asked. Meanwhile a side may ask the arbiter as often as it likes, and may tell an operator: the guest
//! stands still, which record would settle it, and that the arbiter does not answer. It must not run the guest, release
//! its memory, or start another migration. While the arbiter cannot be reached, the doubt lasts. That is the price of
//! never running twice.
//!
//! # Why two sides never run
//!
//! * S1: each change of the record is a swap to the next epoch. So no content comes back, each epoch has one owner, and a
//!   request that is late or repeated finds another content and changes nothing.
//! * S2: a side starts to run only as it learns that the record holds (itself, `e` + 1) while it is in doubt about `e`; or
//!   when it resumes a guest that it owns and has not offered (R1). By R5 it is in doubt about each epoch at most once,
//!   so what it learns is not left over from an earlier time at which it owned the guest.
//! * S3: a request to swap (X, `e`) for another is made by X itself when it is in doubt about `e`, by a target that read
//!   the end of X's stream, or by X's host when X is gone. X sends the end of the stream only after it stopped the guest
//!   and is in doubt (C2), and leaves the doubt with another epoch. So while X runs at `e`, there is no such request.
//! * By S2 a side that runs at epoch `e` owned the record then. By S3 it still does. By S1 no other side does.
//!
//! # Why one side runs in the end
//!
//! The record names one incarnation of one side. If it runs the guest, it is the one; if it has stopped the guest and not
//! offered it, it may go on or offer. If it is in doubt, its next request wins, or another's has won, and the record names
//! that one. If it is gone, its host starts, and R3 applies. It is not idle: a side becomes idle only when the record has
//! passed its epoch.
//!
//! A crash of the side that owns the guest loses the guest's memory, as any crash of a host does. A crash of the other
//! side loses nothing. `tests/commit` searches all states that losses, repetitions, delays, cancellations and crashes can
//! reach. It also leaves out or weakens each step, and finds the state that breaks.

mod ownership;
mod party;
mod side;

pub use ownership::{Owner, Ownership, Request, arbitrate};
pub use party::{Action, Event, State, step};
pub use side::{Embedder, Side};
