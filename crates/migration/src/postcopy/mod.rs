// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Post-copy: the guest runs at the target before all of its pages are there. The others are *absent*, and come when
//! they are wanted, and meanwhile one after another.
//!
//! This is the protocol, and the state of both sides. At the target, the peer is a page store: an absent page of the guest
//! is one of `memory`'s, at the place that has the page's number in it, so each of its modes of asynchronous faults works
//! here, too ([`Peer`]). An embedder with another memory uses [`Target`] alone.
//!
//! # The protocol
//!
//! | step | source | target |
//! |---|---|---|
//! | P1 | stops the guest; sends the state, which pages are absent, and the end: C1 and C2 of [`commit`](crate::commit) | stores it |
//! | P2 | | checks that each page came or is absent; C3 and C4 |
//! | P3 | releases the vCPUs and devices (C5), and keeps all pages | runs the guest. It asks once for an absent page that a vCPU needs, and the vCPU waits ([`Target::need`]) |
//! | P4 | sends pages that were asked for first, and otherwise the next of those that were not sent ([`Source::next`]) | |
//! | P5 | | stores a page only if it lacks it ([`Target::wants`]); then the page is not absent any more |
//! | P6 | | has all pages, and says so ([`Message::Complete`](crate::stream::Message::Complete)) |
//! | P7 | learns it, and releases the pages | |
//!
//! If the link is cut:
//!
//! | step | source | target |
//! |---|---|---|
//! | L1 | keeps all pages: it cannot know which have arrived | A vCPU that needs an absent page waits on. The guest stands still there, with a reason ([`TargetState::Stopped`]); vCPUs that need none run |
//! | L2 | sends hello, memslots, and under which ownership the guest runs ([`resume_source`]) | compares them with its own ([`resume_target`]) |
//! | L3 | | says which pages it lacks, accepts, and asks again for those that vCPUs wait for |
//! | L4 | goes on at P4 with the pages that the target lacks | goes on at P5 |
//!
//! # Why no page is lost, and none is old
//!
//! * The guest is stopped at the source from P1 on, so a page has one content there, whenever and however often it is sent.
//! * The target stores a page only while it lacks it (P5), so no page that the guest has written since is overwritten. A
//!   page that came in a round and was written after that is absent again from P1 on, so its old content is not used.
//! * The source releases a page only after the target has all (P6, P7). A page that was lost with the link is one that
//!   the target lacks, so it comes again (L3, L4).
//!
//! A crash of either side between C3 and P7 loses the guest: both have pages that the other lacks. A guest for which that
//! is too much is moved by pre-copy.

mod incoming;
mod outgoing;
mod peer;
mod source;
mod target;

pub use incoming::{Came, FetchError, Incoming, resume_target};
pub use outgoing::{Outgoing, ServeError, Served, resume_source};
pub use peer::{Peer, is_at_peer, place_of};
pub use source::{NoSuchPages, Source};
pub use target::{Need, Target, TargetState};
