// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shared words and fences, as `primitive::word` has them, each access reported, modelled, weakened or left out.

#[cfg(any(mutants, all(feature = "checked", not(loom))))]
use core::panic::Location;
use core::sync::atomic::Ordering;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, fence};

#[cfg(loom)]
use loom::sync::atomic::fence;

#[cfg(loom)]
use super::loom_atomic::AtomicU64;
#[cfg(mutants)]
use super::mutants;
#[cfg(all(feature = "checked", not(loom)))]
use super::observer::Access;

/// 64 bits that CPUs share: an entry, a word of a table's metadata, a count, bits of a log.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Word(AtomicU64);

/// The bit of a word that is a lock.
pub(crate) const LOCKED: u64 = 1;

/// Calls the observer, if there is one, instead of doing the access.
macro_rules! observed {
    ($observer:ident => $instead:expr, $access:expr) => {{
        #[cfg(all(feature = "checked", not(loom)))]
        if let Some($observer) = $crate::instrumented::observer::observer() {
            return $instead;
        }
        $access
    }};
}

/// With mutants, returns from the enclosing function if its call site is the one that is left out.
macro_rules! step {
    ($otherwise:expr) => {
        #[cfg(mutants)]
        if $crate::instrumented::mutants::is_left_out(core::panic::Location::caller()) {
            return $otherwise;
        }
    };
}
pub(super) use observed;
pub(crate) use step;

impl Word {
    /// A word with this value.
    #[cfg(not(loom))]
    pub const fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// The value.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub fn load(&self, order: Ordering) -> u64 {
        #[cfg(mutants)]
        let order = mutants::ordering(order, Location::caller());
        observed!(observer => observer.load(&self.0, Access { order, site: Location::caller() }), self.0.load(order))
    }

    /// Writes the value.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub fn store(&self, value: u64, order: Ordering) {
        step!(());
        #[cfg(mutants)]
        let order = mutants::ordering(order, Location::caller());
        observed!(
            observer => observer.store(&self.0, value, Access { order, site: Location::caller() }),
            self.0.store(value, order)
        );
    }

    /// States for a trace: this CPU's next store to this entry may overwrite what hardware records in it. The caller
    /// has that record, or does not need it.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn unrecorded(&self) {
        observed!(observer => observer.unrecorded(&self.0, Location::caller()), ());
    }

    /// Writes `value`, and returns the value before.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.modify(order, |_| value, |word, order| word.swap(value, order))
    }

    /// Clears the bits that are not in `mask`, and returns the value before.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub fn fetch_and(&self, mask: u64, order: Ordering) -> u64 {
        self.modify(order, |old| old & mask, |word, order| word.fetch_and(mask, order))
    }

    /// Sets the bits in `mask`, and returns the value before.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub fn fetch_or(&self, mask: u64, order: Ordering) -> u64 {
        self.modify(order, |old| old | mask, |word, order| word.fetch_or(mask, order))
    }

    /// Adds `value`, and returns the value before.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.modify(order, |old| old.wrapping_add(value), |word, order| word.fetch_add(value, order))
    }

    /// Subtracts `value`, and returns the value before.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.modify(order, |old| old.wrapping_sub(value), |word, order| word.fetch_sub(value, order))
    }

    /// A read-modify-write that cannot fail. `access` does it; `change` describes it to an observer.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    #[cfg_attr(
        any(not(feature = "checked"), loom),
        allow(unused_variables, reason = "only an observer calls `change`")
    )]
    fn modify(
        &self,
        order: Ordering,
        change: impl Fn(u64) -> u64,
        access: impl Fn(&AtomicU64, Ordering) -> u64,
    ) -> u64 {
        step!(self.0.load(Ordering::Relaxed));
        #[cfg(mutants)]
        if mutants::is_apart(Location::caller()) {
            let old = self.load(Ordering::Relaxed);
            mutants::later();
            self.store(change(old), order);
            return old;
        }
        #[cfg(mutants)]
        let order = mutants::ordering(order, Location::caller());
        observed!(
            observer => {
                let access = Access { order, site: Location::caller() };
                observer.update(&self.0, &mut |old| Some(change(old)), access).unwrap_or_else(|now| now)
            },
            access(&self.0, order)
        )
    }

    /// Writes `new` if the value is `old`, and returns `old`. Otherwise returns the current value as an error. `order`
    /// is the ordering on success. A failure orders nothing.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub fn compare_exchange(&self, old: u64, new: u64, order: Ordering) -> Result<u64, u64> {
        #[cfg(mutants)]
        if mutants::is_apart(Location::caller()) {
            let now = self.load(Ordering::Relaxed);
            mutants::later();
            if now == old {
                self.store(new, order);
            }
            return if now == old { Ok(old) } else { Err(now) };
        }
        #[cfg(mutants)]
        if mutants::is_forced(Location::caller()) {
            self.store(new, order);
            return Ok(old);
        }
        #[cfg(mutants)]
        let order = mutants::ordering(order, Location::caller());
        observed!(
            observer => {
                let access = Access { order, site: Location::caller() };
                observer.update(&self.0, &mut |now| (now == old).then_some(new), access)
            },
            self.0.compare_exchange(old, new, order, Ordering::Relaxed)
        )
    }

    /// Takes the lock in bit 0, and returns the other bits. `None` if the lock is taken.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn try_lock(&self) -> Option<u64> {
        #[cfg(mutants)]
        if mutants::leaves_lock_out(&self.0, Location::caller()) {
            return Some(self.0.load(Ordering::Relaxed) & !LOCKED);
        }
        let order = Ordering::Acquire;
        #[cfg(mutants)]
        let order = mutants::ordering(order, Location::caller());
        observed!(observer => observer.try_lock(&self.0, Access { order, site: Location::caller() }), {
            #[cfg(not(loom))]
            let state = self.0.fetch_or(LOCKED, order);
            #[cfg(loom)]
            let state = self.0.lock(LOCKED, order);
            (state & LOCKED == 0).then_some(state)
        })
    }

    /// Unlocks, and writes the other bits.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn unlock(&self, value: u64) {
        #[cfg(mutants)]
        if mutants::left_lock_out(&self.0) {
            let locked = self.0.load(Ordering::Relaxed) & LOCKED;
            return self.0.store(value | locked, Ordering::Relaxed);
        }
        let order = Ordering::Release;
        #[cfg(mutants)]
        let order = mutants::ordering(order, Location::caller());
        observed!(
            observer => observer.unlock(&self.0, value, Access { order, site: Location::caller() }),
            self.0.store(value, order)
        );
    }
}

/// Orders all earlier accesses before all later stores.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn release_fence() {
    step!(());
    observed!(observer => observer.release_fence(Location::caller()), fence(Ordering::Release));
}

/// Orders all earlier accesses before all later ones. If two CPUs each write a word, call this, and then read the
/// other's word, at least one of them sees the other's write.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub fn full_fence() {
    step!(());
    observed!(observer => observer.full_fence(Location::caller()), fence(Ordering::SeqCst));
}

/// The result of a check that validates earlier reads, for example step W3. With mutants, `true` if the check is left
/// out.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn check(result: bool) -> bool {
    step!(true);
    result
}
