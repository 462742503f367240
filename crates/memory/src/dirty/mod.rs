// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which pages a guest has written: one interface over several ways to find out ([`Tracker`]).
//!
//! # What holds
//!
//! * **P1: a page that was written is in the log, or about to be.** The CPU that answers the write fault, or that
//!   writes past the guest's tables, puts it there before its call returns. Hardware's records are put there by the
//!   next [`get`](DirtyLog::get).
//! * **P2: a page that is not in the log is as it was last read**, from the return of a [`clear`](DirtyLog::clear) (or
//!   of the `get` of [`Tracker::WriteProtect`]) until the page is in the log again.
//!
//! So a copy of memory is made by get, clear and read, in this order. If every vCPU is out of the guest, a page that a
//! last `get` does not report is as it was last read.
//!
//! # The protocol
//!
//! **Data.** Each slot has one word that says which log runs: its tracker and the number of its start, or 0. Its log
//! has a bit for each page (*the page's bit*: dirty), and a bit for each section of pages (*the section's bit*: the
//! next `get` reads these pages' descriptors). All are atomic. A log's lock is held to start, stop, get, clear,
//! coalesce and unmap. Faults do not take it.
//!
//! **Invariants**, while a log runs:
//!
//! * I1: a page that may be written without a record of hardware's (S2AP\[1\] set, DBM clear) has its bit set, or a CPU
//!   is about to set it (D4, D17).
//! * I2: no block is hardware-tracked.
//! * I3: a hardware-tracked page has its bit set, or the next `get` looks at it, or a CPU is about to set its section's
//!   bit (D5) or to clear its DBM (D6, D15).
//!
//! **A write fault** (`fault.rs`), without a lock:
//!
//! * D1: read which log runs. This decides what to map: a page or a block, with DBM or without.
//! * D2: make the page or block writable. [`Tracker::Hardware`] maps a page with DBM, and goes on at D6: its `get`
//!   looks at all pages.
//! * D3: execute a full fence.
//! * D4: read again which log runs. If one runs, set the bit of each page that D2 may have made writable.
//!
//! With [`Tracker::Combined`] and [`Tracker::Adaptive`], the fault goes on:
//!
//! * D5: set DBM on the pages around, then set their sections' bits.
//! * D6: execute a full fence, and read again which log runs. If it is not the log of D1, clear DBM, set the bits of
//!   the pages that hardware recorded, and flush.
//!
//! Many pages take D5 and D6 a part at a time, and a fault that an interrupt stops leaves the other parts without DBM.
//!
//! **A start**, with the log's lock:
//!
//! * D7: clear all sections' bits. Clear all pages' bits; with [`all_dirty`](LogOptions::all_dirty), set them.
//! * D8: publish the log as running, with release.
//! * D9: execute a full fence.
//! * D10: unless `all_dirty`, remove the write access of the whole slot ([`Tracker::Hardware`]: set DBM and make the
//!   pages clean), and flush.
//!
//! **A clear**, with the log's lock, as KVM orders it:
//!
//! * D11: take the bits of the pages, with acquire.
//! * D12: remove the write access of these pages. If hardware tracks them from here on, make them clean instead.
//! * D13: flush. The clear returns when the flush is complete.
//!
//! **A `get` that ends hardware's records** (`get.rs`; Kolothum 2023), with the log's lock:
//!
//! * D14: take the section's bit.
//! * D15: clear DBM in the section. A written page stays writable, a clean one becomes read-only.
//! * D16: flush.
//! * D17: set the bits of the section's pages that are writable.
//!
//! Any other `get` of hardware's records reads the descriptors and sets the pages' bits. A page's record stays until
//! D12 makes the page clean.
//!
//! # Why no write is lost
//!
//! * *Fault and start.* D3 lies between the store of D2 and the load of D4, D9 between the store of D8 and the loads of
//!   D10. So at least one side sees the other: D4 sets the bit, or D10 removes the access that D2 gave. A D4 that sees
//!   D8 also comes after D7 (release, acquire), so D7 does not clear its bit. With `all_dirty`, D7 has set all bits,
//!   and the page's first D12 takes the place of D10. A fault that races with a complete start may set bits of pages
//!   that were not written.
//! * *Fault and clear.* If D11 takes the bit that D4 set, D12 comes after D2 and removes that access. If D4 comes after
//!   D11, the bit is set again, and the next `get` reports the page. So D2 comes before D4, and D11 before D12.
//! * *A fault that sets DBM, and a `get` that ends records.* If D14 takes the bit that D5 set, D15 sees the DBM of D5.
//!   If D5 sets the bit after D14, the next `get` looks there. So D5 sets DBM before the bit, and D14 comes before D15.
//! * *Recorded late.* Until D16 is complete, a CPU may set S2AP\[1\] by a cached entry. So D17 comes after D16.
//! * *Stop and start during a fault.* The second log may not look at what the fault sets DBM on. D6 finds the other
//!   number, and takes DBM back. A start with the same tracker has another number too.
//! * *Writes past the guest's tables*, by devices and the hypervisor, go through
//!   [`GuestMemory::write`](crate::GuestMemory::write), or are reported by [`mark`](DirtyLog::mark). D3 and D4 follow
//!   the write: a clear between the bit and the write would miss it.
//! * *Unmapping*, by [`GuestMemory::unmap`](crate::GuestMemory::unmap), holds the log's lock until its flush is
//!   complete. Otherwise a clear would find the page gone, flush nothing, and return while a TLB still allows writes.
//! * *A block takes the place of a table* after a log has stopped: by [`coalesce_range`](DirtyLog::coalesce_range), with the log's
//!   lock, or by a fault that finds the table in its way, without it, so that no fault waits for a `get`. To a log that
//!   is started meanwhile, such a fault is a D2 that maps a block, and its D4 sets the bit of each page. If D4 sees the
//!   log, all pages are marked. That includes what hardware had recorded in the table, which no `get` could find any
//!   more. If D4 does not see it, D10 finds the block: a pass waits for a busy entry, and sees the entry that follows.
//!
//! # Locking
//!
//! A log's lock is taken before a slot's backing and before the frames, and is held while the engine works on the
//! tables.
//!
//! # Room for more
//!
//! Any other source of writes (a ring for each vCPU, or buffers that hardware fills: FEAT_HDBSS) sets pages' bits as a
//! fault does, and does so at the latest when a `get` asks for it.

mod adaptive;
mod bits;
mod blocks;
mod clear;
pub(crate) mod fault;
mod get;
pub(crate) mod log;
mod options;
mod pages;
mod start;

pub use blocks::CoalescedRange;
pub use options::{LogError, LogOptions, Tracker};
pub use pages::{DirtyPages, DirtyWord};
pub use start::DirtyLog;
