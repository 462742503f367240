// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine's accesses to tables, locks and pages as lines of the trace.

use core::panic::Location;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use alloc::vec::Vec;
use core::ops::Range;

use spin::Once;
use twofold_abi::trace::{Event, How, Order};
use twofold_stage2::primitive::{Access, Claim, Observer, observe};
use twofold_stage2::{Donated, MetadataRange, Pa, TableMetadata};

use super::lines::{about_to, line};

/// Traces the engine's accesses from now on. Only `free` holds entries of tables, and only `metadata` holds their locks.
pub(super) fn begin(free: &[Donated], metadata: impl Iterator<Item = MetadataRange>) {
    static OBSERVER: &dyn Observer = &Watch;
    let frames = free.iter().map(|frames| frames.start().raw()..frames.start().raw() + frames.size()).collect();
    TABLES.call_once(|| Tables { frames, metadata: metadata.collect() });
    observe(Some(&OBSERVER));
}

static TABLES: Once<Tables> = Once::new();

/// The memory that the engine accesses.
struct Tables {
    /// The memory for tables.
    frames: Vec<Range<u64>>,
    metadata: Vec<MetadataRange>,
}

/// Makes the accesses, and traces them.
struct Watch;

/// The kind of a word.
enum Word {
    /// In memory for tables. The address is physical, because EL2 maps RAM one to one.
    Entry(u64),
    /// The lock of the table at this address.
    Lock(u64),
    Other,
}

impl Word {
    fn of(word: &AtomicU64) -> Self {
        let Some(tables) = TABLES.get() else { return Self::Other };
        let address = core::ptr::from_ref(word).addr();
        for range in &tables.metadata {
            let metadata = range.metadata.as_ptr_range();
            if (metadata.start.addr()..metadata.end.addr()).contains(&address) {
                let offset = address - metadata.start.addr();
                let table = range.first + (offset / size_of::<TableMetadata>() * 4096) as u64;
                // The lock is the first word of the metadata.
                return if offset.is_multiple_of(size_of::<TableMetadata>()) {
                    Self::Lock(table.raw())
                } else {
                    Self::Other
                };
            }
        }
        let address = address as u64;
        if tables.frames.iter().any(|frames| frames.contains(&address)) { Self::Entry(address) } else { Self::Other }
    }
}

// SAFETY: each access is made as requested.
unsafe impl Observer for Watch {
    fn load(&self, word: &AtomicU64, access: Access) -> u64 {
        word.load(access.order)
    }

    fn store(&self, word: &AtomicU64, value: u64, access: Access) {
        let old = word.load(Ordering::Relaxed);
        word.store(value, access.order);
        written(word, (old, value), How::Store, access);
    }

    fn update(&self, word: &AtomicU64, change: &mut dyn FnMut(u64) -> Option<u64>, access: Access) -> Result<u64, u64> {
        let mut new = 0;
        let updated = word.fetch_update(access.order, Ordering::Acquire, |old| {
            let changed = change(old);
            new = changed.unwrap_or_default();
            changed
        });
        if let Ok(old) = updated {
            written(word, (old, new), How::Rmw, access);
        }
        updated
    }

    fn try_lock(&self, word: &AtomicU64, access: Access) -> Option<u64> {
        const LOCKED: u64 = 1;
        let state = word.fetch_or(LOCKED, access.order);
        let taken = (state & LOCKED == 0).then_some(state);
        if let (Some(_), Word::Lock(pa)) = (taken, Word::of(word)) {
            line(Event::LockTaken { pa }, Some(access.site));
        }
        taken
    }

    fn unlock(&self, word: &AtomicU64, value: u64, access: Access) {
        if let Word::Lock(pa) = Word::of(word) {
            line(Event::LockReleased { pa }, Some(access.site));
        }
        word.store(value, access.order);
    }

    fn release_fence(&self, site: &'static Location<'static>) {
        fence(Ordering::Release);
        line(Event::Fence { order: Order::Release }, Some(site));
    }

    fn full_fence(&self, site: &'static Location<'static>) {
        fence(Ordering::SeqCst);
        line(Event::Fence { order: Order::SeqCst }, Some(site));
    }

    fn page_taken(&self, page: Pa, site: &'static Location<'static>) {
        line(Event::TableTaken { pa: page.raw() }, Some(site));
    }

    fn page_freed(&self, page: Pa, site: &'static Location<'static>) {
        line(Event::TableFreed { pa: page.raw() }, Some(site));
    }

    fn data_written(&self, start: Pa, size: u64, site: &'static Location<'static>) {
        line(Event::DataWritten { pa: start.raw(), size }, Some(site));
    }

    fn root(&self, start: Pa, entries: Option<usize>, vttbr: u64, vtcr: u64, site: &'static Location<'static>) {
        let pa = start.raw();
        let event = match entries {
            Some(entries) => Event::RootMade { pa, entries: entries as u32, vttbr, vtcr },
            None => Event::RootFreed { pa },
        };
        line(event, Some(site));
    }

    fn claims(&self, claim: Claim, site: &'static Location<'static>) {
        let event = match claim {
            Claim::Visible => Event::Visible,
            Claim::Flushed { range, vttbr } => {
                Event::Flushed { ipa: range.start.raw(), size: range.end - range.start, vttbr }
            }
            Claim::FlushedHere { ipa, level, vttbr } => {
                Event::FlushedHere { ipa: ipa.raw(), level: level.map_or(0, |level| level.raw().into()), vttbr }
            }
        };
        line(event, Some(site));
    }

    fn unrecorded(&self, word: &AtomicU64, site: &'static Location<'static>) {
        if let Word::Entry(pa) = Word::of(word) {
            line(Event::Unrecorded { pa }, Some(site));
        }
    }

    fn about_to(&self, site: &'static Location<'static>) {
        about_to(site);
    }
}

/// Traces a write to an entry. If the CPU cannot zero by block (`DCZID_EL0.DZP`), the zeroing of guests' frames is also
/// traced, word by word.
fn written(word: &AtomicU64, (old, new): (u64, u64), how: How, access: Access) {
    if let Word::Entry(pa) = Word::of(word) {
        line(Event::Write { pa, old, new, how, order: access.order.into() }, Some(access.site));
    }
}
