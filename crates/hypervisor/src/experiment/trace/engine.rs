// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine's steps as lines of the trace: its accesses through an observer, its instructions through its platform.

use core::ops::Deref;
use core::panic::Location;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use twofold_abi::trace::{self, Event, How, Order};
use twofold_stage2::platform::{Dc, Domain, Ic, Platform, Tlbi};
use twofold_stage2::primitive::{Access, Claim, Observer};
use twofold_stage2::{Features, Pa, TableMetadata};

use super::{TRACE, about_to, instruction, line};

pub(super) static OBSERVER: &dyn Observer = &Watch;

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
        let Some(trace) = TRACE.get() else { return Self::Other };
        let address = core::ptr::from_ref(word).addr();
        for range in &trace.metadata {
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
        if trace.frames.iter().any(|frames| frames.contains(&address)) { Self::Entry(address) } else { Self::Other }
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

/// A platform that traces each instruction after its execution.
pub struct Traced<P> {
    platform: P,
    instruction_line: u64,
}

impl<P> Traced<P> {
    /// The same platform, traced.
    pub fn new(platform: P, features: &Features) -> Self {
        Self { platform, instruction_line: features.instruction_line }
    }
}

impl<P> Deref for Traced<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.platform
    }
}

// SAFETY: everything is forwarded to a platform.
unsafe impl<P: Platform> Platform for Traced<P> {
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        self.platform.tlbi(operation, operand);
        let vttbr = self.platform.vttbr();
        instruction(Event::Tlbi { operation: trace::Tlbi::ALL[operation as usize], operand, vttbr });
    }

    fn dsb(&self, domain: Domain) {
        self.platform.dsb(domain);
        instruction(Event::Dsb { domain: trace::Domain::ALL[domain as usize] });
    }

    fn isb(&self) {
        self.platform.isb();
        instruction(Event::Isb);
    }

    unsafe fn dc(&self, operation: Dc, address: usize) {
        // SAFETY: promised by the caller.
        unsafe { self.dc_lines(operation, address, 1, 1) };
    }

    unsafe fn dc_lines(&self, operation: Dc, start: usize, size: u64, line: u64) {
        // SAFETY: promised by the caller.
        unsafe { self.platform.dc_lines(operation, start, size, line) };
        instruction(Event::Dc { operation: trace::Dc::ALL[operation as usize], pa: start as u64, size });
    }

    fn ic(&self, operation: Ic, address: usize) {
        self.platform.ic(operation, address);
        let (pa, size) = if operation == Ic::IallUis { (0, 0) } else { (address as u64, self.instruction_line) };
        instruction(Event::Ic { operation: trace::Ic::ALL[operation as usize], pa, size });
    }

    fn vttbr(&self) -> u64 {
        self.platform.vttbr()
    }

    fn load_vttbr(&self, value: u64) {
        self.platform.load_vttbr(value);
        instruction(Event::Vttbr { vttbr: value });
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.platform.pointer(pa)
    }

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        self.platform.metadata(pa)
    }

    fn abandoned(&self, root: Pa) {
        self.platform.abandoned(root);
    }
}
