// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A spin lock for a guest's data beside its tables: its frames, and what backs its RAM.
//!
//! **Invariant.** Only the CPU that has the guard reaches the value. It sees everything that was done under each
//! earlier guard.
//!
//! The lock uses the same primitives as a table's lock ([`primitive`](crate::primitive)), so the checkers of the
//! engine's locks check this one too. A CPU that waits calls [`Platform::pause`], so a hosted machine can let the
//! lock's owner run. The lock is neither fair nor recursive.

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use crate::platform::Platform;
use crate::primitive::{Guarded, LOCKED, Ordering, Word};

/// A value for one CPU at a time.
pub struct Lock<T> {
    word: Word,
    value: Guarded<T>,
}

// SAFETY: only the CPU that has the lock reaches the value, one CPU at a time; the value moves between CPUs, so `T:
// Send`.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// An unlocked lock with this value.
    pub fn new(value: T) -> Self {
        Self { word: Word::default(), value: Guarded::new(value) }
    }

    /// The value. Taking the lock by value proves that it is unlocked.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// The value, without locking: the exclusive borrow proves that no CPU has the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Waits until the lock is free, and takes it.
    #[inline]
    #[cfg_attr(feature = "checked", track_caller)]
    pub fn lock<P: Platform>(&self, platform: &P) -> LockGuard<'_, T> {
        platform.on_atomic();
        if self.word.try_lock().is_none() {
            self.lock_slowly(platform);
        }
        LockGuard { lock: self, value: PhantomData }
    }

    /// As [`lock`](Self::lock), for a lock that another CPU may hold during long work. Returns `None` if an interrupt is
    /// [pending](Platform::interrupt_is_pending) while this CPU waits. A free lock is taken whether or not one is.
    #[inline]
    #[cfg_attr(feature = "checked", track_caller)]
    pub fn lock_unless_interrupted<P: Platform>(&self, platform: &P) -> Option<LockGuard<'_, T>> {
        platform.on_atomic();
        if self.word.try_lock().is_none() && !self.lock_slowly_unless(platform, || platform.interrupt_is_pending()) {
            return None;
        }
        Some(LockGuard { lock: self, value: PhantomData })
    }

    #[cold]
    #[cfg_attr(feature = "checked", track_caller)]
    fn lock_slowly<P: Platform>(&self, platform: &P) {
        self.lock_slowly_unless(platform, || false);
    }

    /// Returns whether this CPU has the lock now.
    #[cold]
    #[cfg_attr(feature = "checked", track_caller)]
    fn lock_slowly_unless<P: Platform>(&self, platform: &P, gives_up: impl Fn() -> bool) -> bool {
        while !gives_up() {
            platform.pause(1);
            if self.word.load(Ordering::Relaxed) & LOCKED == 0 {
                platform.on_atomic();
                if self.word.try_lock().is_some() {
                    return true;
                }
            }
        }
        false
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").finish_non_exhaustive()
    }
}

/// The value of a [`Lock`]. Dropping this unlocks it.
#[must_use = "dropped at once, it protects nothing"]
pub struct LockGuard<'a, T> {
    lock: &'a Lock<T>,
    /// Makes the guard `Send` and `Sync` as `&mut T` is, not as `&Lock<T>` is.
    value: PhantomData<&'a mut T>,
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held while the guard lives, and only the guard reaches the value.
        unsafe { &*self.lock.value.to_read() }
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`; this borrows the one guard mutably.
        unsafe { &mut *self.lock.value.to_change() }
    }
}

impl<T> Drop for LockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.word.unlock(0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;

    use std::cell::RefCell;
    use std::thread;

    use super::*;
    use crate::platform::{Dc, Domain, Ic, Tlbi};
    use crate::{Pa, TableMetadata};

    /// A platform with two hooks only: before an atomic access, and while the CPU waits.
    struct Cpu<A: Fn(), W: Fn()> {
        on_atomic: A,
        waits: W,
        interrupted: bool,
    }

    // SAFETY: nothing is mapped.
    unsafe impl<A: Fn(), W: Fn()> Platform for Cpu<A, W> {
        fn tlbi(&self, _: Tlbi, _: u64) {}
        fn dsb(&self, _: Domain) {}
        fn isb(&self) {}
        unsafe fn dc(&self, _: Dc, _: usize) {}
        fn ic(&self, _: Ic, _: usize) {}
        fn vttbr(&self) -> u64 {
            0
        }
        fn load_vttbr(&self, _: u64) {}
        fn pointer(&self, _: Pa) -> core::ptr::NonNull<u8> {
            unreachable!()
        }
        fn metadata(&self, _: Pa) -> &TableMetadata {
            unreachable!()
        }
        fn on_atomic(&self) {
            (self.on_atomic)();
        }
        fn pause(&self, _: u32) {
            (self.waits)();
        }
        fn interrupt_is_pending(&self) -> bool {
            self.interrupted
        }
    }

    /// What another CPU does, as seen by the CPU that wants the lock.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Step {
        /// The other CPU has the lock, or takes it, and this CPU is about to make an atomic access.
        AtomicWhileLocked,
        /// The lock is free, and this CPU is about to make an atomic access.
        Atomic,
        /// The other CPU keeps the lock while this CPU waits.
        WaitWhileLocked,
        /// The other CPU unlocks while this CPU waits.
        WaitUntilFree,
    }

    /// Takes the lock while another CPU does exactly these steps.
    fn locks_by(steps: &[Step]) {
        let lock = Lock::new(0);
        let alone = Cpu { on_atomic: || (), waits: || panic!("waits for a free lock"), interrupted: false };
        let held = RefCell::new(None);
        let steps = RefCell::new(steps.iter().copied());
        let take = || {
            held.borrow_mut().get_or_insert_with(|| lock.lock(&alone));
        };
        let on_atomic = || match steps.borrow_mut().next() {
            Some(Step::AtomicWhileLocked) => take(),
            Some(Step::Atomic) => assert!(held.borrow().is_none()),
            other => panic!("an atomic access instead of {other:?}"),
        };
        let waits = || match steps.borrow_mut().next() {
            Some(Step::WaitWhileLocked) => assert!(held.borrow().is_some()),
            Some(Step::WaitUntilFree) => drop(held.take()),
            other => panic!("a wait instead of {other:?}"),
        };
        let guard = lock.lock(&Cpu { on_atomic, waits, interrupted: true });
        assert_eq!(steps.borrow_mut().next(), None);
        assert!(lock.word.try_lock().is_none(), "the guard does not hold the lock");
        drop(guard);
        let _ = lock.lock(&alone);
    }

    #[test]
    fn a_free_lock_is_taken_at_once() {
        locks_by(&[Step::Atomic]);
    }

    /// While another CPU has the lock, this CPU only reads the word.
    #[test]
    fn what_another_has_is_waited_for() {
        use Step::{Atomic, AtomicWhileLocked, WaitUntilFree, WaitWhileLocked};
        locks_by(&[AtomicWhileLocked, WaitUntilFree, Atomic]);
        locks_by(&[AtomicWhileLocked, WaitWhileLocked, WaitWhileLocked, WaitUntilFree, Atomic]);
    }

    /// The other CPU takes the lock between this CPU's read and its atomic access.
    #[test]
    fn what_another_takes_first_is_waited_for_again() {
        use Step::{Atomic, AtomicWhileLocked, WaitUntilFree};
        locks_by(&[AtomicWhileLocked, WaitUntilFree, AtomicWhileLocked, WaitUntilFree, Atomic]);
    }

    #[test]
    fn a_cpu_that_is_interrupted_does_not_wait() {
        let lock = Lock::new(0);
        let waits = || panic!("waits though an interrupt is pending");
        let interrupted = Cpu { on_atomic: || (), waits, interrupted: true };
        let guard = lock.lock_unless_interrupted(&interrupted).expect("a free lock is taken");
        assert!(lock.lock_unless_interrupted(&interrupted).is_none());
        drop(guard);
        assert!(lock.lock_unless_interrupted(&interrupted).is_some());
    }

    #[test]
    fn a_cpu_that_is_not_interrupted_waits() {
        let lock = Lock::new(0);
        let held = RefCell::new(Some(lock.lock(&Cpu { on_atomic: || (), waits: || (), interrupted: false })));
        let waiting = Cpu { on_atomic: || (), waits: || drop(held.take()), interrupted: false };
        let guard = lock.lock_unless_interrupted(&waiting).expect("no interrupt is pending");
        assert!(lock.word.try_lock().is_none(), "the guard does not hold the lock");
        drop(guard);
    }

    #[test]
    fn one_at_a_time_and_nothing_is_lost() {
        const ROUNDS: u64 = if cfg!(miri) { 50 } else { 10_000 };
        let lock = Lock::new((0u64, 0u64));
        let cpu = Cpu { on_atomic: || (), waits: thread::yield_now, interrupted: false };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let mut guard = lock.lock(&cpu);
                        guard.0 += 1;
                        assert_eq!(guard.0, guard.1 + 1, "another thread is inside");
                        guard.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(&cpu), (4 * ROUNDS, 4 * ROUNDS));
        assert_eq!(lock.into_inner(), (4 * ROUNDS, 4 * ROUNDS));
    }
}
