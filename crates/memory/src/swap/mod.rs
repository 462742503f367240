// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages of a guest's RAM leave to a store and come back, while vCPUs run.
//!
//! The embedder implements a [`PageStore`] and [`Notify`], and attaches them
//! ([`attach_store`](crate::GuestMemory::attach_store)). A background task of its own calls
//! [`write_out`](crate::GuestMemory::write_out) for the pages that it chooses (by [`Generations`], or by a [`Clock`]). A fault on a
//! page that is not in memory is an [`Answer::Absent`](crate::Answer::Absent), and
//! [`bring`](crate::GuestMemory::bring) asks for it. Requests go to the store by value, with the frame, and come back by
//! value ([`Completions`]). Without a store nothing of this module runs.
//!
//! # A page's states
//!
//! Frames are taken by huge pages (2 MiB). A huge page is *whole* until its first page leaves. From then on each of its
//! pages has a state of its own (`Singles`), and its own frame:
//!
//! | state | frame | content |
//! |---|---|---|
//! | *zero* | none | zeroes |
//! | *unready* | has one, never zeroed and not mapped | zeroes |
//! | *present* | has one, may be mapped | the frame; perhaps a *copy* at a place too |
//! | *leaving* | in the hands of `write_out`, or of a [`WriteRequest`] | the frame |
//! | *absent* | none | at its place |
//! | *arriving* | in the hands of a [`ReadRequest`] | at its place |
//!
//! **Invariants:**
//!
//! * S1: a state is accessed under the lock of the slot's backing. Only *present* and whole pages have grants.
//! * S2: a frame has one owner, by value: the state, `write_out`, a request, or the free frames.
//! * S3: a page's content is in its frame or at its place, and its frame is freed only when the place has it.
//! * S4: a copy is equal to its page's content.
//! * S5: an entry that waits for a page is notified once: when the page is in memory, or when it cannot come.
//!
//! # A page leaves
//!
//! * L1: under the backing's lock, take the page's [`Lent`](twofold_stage2::Lent) frame by value, and make the state
//!   *leaving*. A huge page that is whole is broken up first; if an interrupt is pending then, the page leaves in a later call.
//! * L2: with the log's lock and without the backing's, withdraw the frame: break the leaf (a block is split first),
//!   flush, and put what hardware had recorded into the log, as `unmap` does. From here on the content is final.
//! * L3: read the content.
//! * L4: decide. A page of zeroes costs nothing. A page whose copy is good (E1, E2) is not written again. Any other
//!   gets a place from the store. If the store is full, the page goes back to *present*.
//! * L5: without I/O, under the backing's lock: free the frame, and make the state *zero* or *absent*. If an entry waits
//!   for the page, make it *present* instead, or *unready* as it was.
//! * L6: otherwise pass a [`WriteRequest`] with the frame to the store. A store that [writes at once](PageStore::write_at_once)
//!   gets no request: L7 follows in the same call.
//! * L7: when the write is complete, as L5. If it failed, the page goes back to *present*, and the failure is reported. If
//!   no frame became free and one is wanted, the write-out task is woken: it had counted on this one.
//!
//! A page is broken, flushed, harvested, written and freed in this order. A write that fails loses nothing (S3).
//!
//! # A fault
//!
//! * F1: under the backing's lock, look at the state. *Leaving*, *absent* and *arriving*: the answer is `Absent`.
//! * F2: *zero* takes a frame, unless another page has waited for one for longer: then the answer is `Absent`, too.
//!   So does *absent* if the store [reads at once](PageStore::reads_at_once): the frame is filled, and the state is *present*
//!   with a copy. Such a page has no entry, no request and no notice.
//! * F3: zero the frame if it is not ready, and make a grant. It samples the count of withdrawals (module `withdraw` of
//!   `twofold-stage2`). Unlock.
//! * F4: map the page. If memory was withdrawn since F3, go back to F1.
//!
//! A page that leaves between F3 and F4 is not mapped: its L2 makes the grant stale, or breaks what F4 has made.
//!
//! # A page is brought
//!
//! * B1: add an entry, which waits for a frame.
//! * B2: under the backing's lock, look at the state. *Present*: go on at B5. *Leaving*, *arriving*: L5, L7 or B5 of
//!   another CPU will find the entry. *Zero*: as F2.
//! * B3: *absent*: take a frame, if no other page has waited for one for longer. Make the state *arriving*.
//!   In the usual case nothing waits for a frame. Then B1 is a part of B3: the entry is added after the look at the state, and
//!   has its frame from the beginning.
//! * B4: unlock, and pass a [`ReadRequest`] with the frame to the store.
//! * B5: when the read is complete: under the backing's lock, make the state *present*, or if it failed, free the frame
//!   and make the state *absent* again. Unlock, and notify the entries for the page. If there is one, and nothing waits for a
//!   frame, that entry is taken in the same step, and B6 has nothing to do: what comes later does B2 itself.
//! * B6: after a frame was freed (L5, L7, B5), and after B1 to B5 of any page, serve the entries that wait for a frame,
//!   the oldest first, by B2.
//!
//! Content that comes unasked ([`begin_read`](crate::GuestMemory::begin_read)) does B3 without an entry: a store reads
//! neighbours ahead, and leaves free frames to others; the source of a post-copy migration sends all pages. The page then
//! arrives by B5.
//!
//! **Why no entry is forgotten (S5).** B1 comes before B2, or both are one step under the backing's lock. A CPU that ends
//! *leaving* or *arriving* looks at the entries under the backing's lock. If it does so before B1, B2 finds the new state;
//! otherwise it finds the entry. An entry that got no frame in B3 failed there before the frame that comes next was freed
//! (the frames' lock), so that CPU's B6 sees it. One CPU serves at a time; another sets a mark under the entries' lock, and
//! the first looks again before it ends. A
//! CPU that ends a state notifies only entries that were there then, so a failure reaches no entry that has asked since.
//!
//! **Why a waiting page makes progress.** A page on its way out ends in L5 or L7 as soon as the store has answered, and
//! then the frame is free or the page is present. Writing out takes no frame: the page's own frame goes to the store,
//! and where a block cannot be split for want of a table page, it is unmapped as a whole. So as long as the guest has
//! pages that are not pinned, and the store answers, the write-out task can free frames, and B6 gives them to the oldest
//! entry. Mapping a page needs table pages: a few free frames are never used for data, as many as the mapping of one page takes.
//! No step waits for another with a lock held. If the store is full or fails for every page, the task says so
//! ([`fail_waiting`](crate::GuestMemory::fail_waiting)), and vCPUs stop with the page as the reason.
//!
//! # A page is peeked
//!
//! A migration reads each page once, and the guest may not need it: so a [`Peek`] reads a page where it is.
//!
//! * K1: under the backing's lock, look at the state. A page that has a frame, or is *zero*, is read at once.
//! * K2: *leaving* and *arriving*: come back later.
//! * K3: *absent*: the peek waits for a frame in the queue of B1, and its page is read by B3 and B4.
//! * K4: in B5, if no entry waits for the page: copy the frame to the peeks, free it, and make the state *absent* again.
//!   The next look takes the copy. If an entry waits, the page becomes *present*, and K1 reads it.
//!
//! A peek returns what the page held at some moment after it began. What the guest writes later is in the dirty log, if
//! one runs: so a migration clears a page first, and then begins to peek. If K2 finds *absent*, and no copy and no read
//! in flight, the page has come and gone meanwhile; K3 starts again.
//!
//! # A page is poked
//!
//! The target of a migration writes each page as a whole, and the page may have left since an earlier round: so a [`Poke`]
//! writes a page where it is.
//!
//! * O1: under the backing's lock, look at the state. A page that has a frame is written as a device writes it. *Zero*: as
//!   F2.
//! * O2: *leaving* and *arriving*: come back later.
//! * O3: *absent*: what is at its place is not needed any more, so nothing is read. Take a frame, if no other page has
//!   waited for one for longer, fill it, make the state *present*, and discard the place. Zeroes take no frame: the state
//!   is *zero* then.
//! * O4: without a frame, the poke waits for one in the queue of B1. B6 leaves the next free frame to the oldest poke,
//!   whose owner takes it when it looks again.
//! * O5: when the poke is over, written or not, B6 goes on.
//!
//! A write-out task that cannot free frames ends the waiting of pokes, too ([`fail_waiting`](crate::GuestMemory::fail_waiting)).
//!
//! # A page is given up
//!
//! The guest has no use for the page's content: its balloon has the page, or it reports the page as free
//! ([`give_up`](crate::GuestMemory::give_up)).
//!
//! * X1: under the backing's lock, look at the state. *Leaving* and *arriving*: come back later. *Absent*: make the state
//!   *zero*, unlock, and discard the place. What waited for the page goes on at B5.
//! * X2: a page that has a frame leaves by L1 and L2: no CPU can reach it any more.
//! * X3: L5 with the state *zero*. The place of its copy is discarded. If an entry waits for the page, it stays *present*.
//! * X4: when all pages of a huge page are *zero*, the huge page was never touched: the next touch may make it whole
//!   again.
//!
//! Nothing is read or written, so no I/O is begun. The pages are in a running dirty log afterwards.
//!
//! # Copies
//!
//! A page that was read, or was needed again while it was written, keeps its place: a *copy*. It is mapped read-only for
//! a read, so that the first write faults.
//!
//! * E1: a CPU that is about to let the guest write to the page (map it writable, or relax it), or that writes itself,
//!   ends the copy first, under the backing's lock. If the page is *leaving*, it marks it as *written*.
//! * E2: a hardware-tracked log sets DBM on leaves, and then nothing faults. A copy has the number of such logs that the
//!   slot had seen; L4 compares it. While such a log runs, no copy is kept. A fault that was overtaken by a stop sets DBM
//!   for a moment (D5 and D6 of [`dirty`](crate::dirty)): D6 ends the copies before it clears DBM.
//! * L4 takes a copy as good if the page is not *written*, its number is the slot's, and the leaf that L2 removed had no
//!   DBM.
//!
//! **Why S4 holds.** The guest writes only by a writable leaf or by DBM. E1 comes before the leaf. If E1 comes before L1,
//! there is no copy any more. If it comes between L1 and L4, L4 sees the mark. If it comes after L4, the leaf is gone
//! (L2), a grant made before is stale, and the guest faults again. DBM set by a log: that log's start changed the number
//! before it changed the leaf (D8, D10), and L2 locked the leaf's table after that, so L4 sees it. DBM set by a fault that
//! was overtaken: L4 sees the mark of D6, or L2 broke the leaf before D6 cleared its DBM, and L4 sees that.
//!
//! # Locking
//!
//! In this order: the log's lock, the backing's lock, then one of: the frames, the waiting entries, the spare states.
//! The store and [`Notify`] are called with none of them, but for a read at once, which is part of F2. Two CPUs meet only
//! under these locks, so the model checker's tests of the engine's locks and withdrawals cover what is weakly ordered; the
//! orders of whole steps are driven by hand (`tests/swap`).

mod accessed;
mod ages;
mod area;
mod arrive;
mod attach;
mod clock;
mod fault;
mod generations;
mod give_up;
mod leave;
mod limit;
mod peek;
mod peeks;
mod pin;
pub(crate) mod pins;
mod poke;
mod pokes;
mod postcopy;
mod refaults;
pub(crate) mod single;
pub(crate) mod state;
pub(crate) mod store;
mod store_error;
mod streams;
mod unasked;
mod waiters;

pub use area::AreaPlace;
pub use arrive::NotAttached;
pub use attach::{AttachError, DetachError, Located};
pub use clock::{Clock, Relief};
pub use generations::Generations;
pub use leave::{WriteOutError, WrittenOut};
pub use limit::{FRAMES_PER_VCPU, FrameUse, LimitError};
pub use peek::{Peek, PeekError, Peeked};
pub use pin::{Pinned, PinnedFor};
pub use poke::{Poke, Poked};
pub use refaults::{Refaults, WorkingSet};
pub use state::SwapOptions;
pub use store::{Completions, Failure, Notify, Operation, PageStore, Place, ReadRequest, WriteRequest};
pub use store_error::StoreError;
pub use streams::Streams;
pub use unasked::{NotBegun, Unasked};
pub use waiters::Waiter;
