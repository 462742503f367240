// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lock for what belongs to a guest beside its tables: frames, and what is behind its RAM.
//!
//! Invariant: whoever has the guard is the only one who reaches the value, and sees what was done under every guard
//! before. It is taken and given back as a table's is ([`primitive`](crate::primitive)), so what checks the engine's locks
//! checks this one; who waits for it waits as the platform has it ([`Platform::pause`]), so a hosted machine can let
//! whoever has it run. It is not fair, and not to be taken again by who has it.

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use crate::platform::Platform;
use crate::primitive::{LOCKED, Ordering, Word};

/// A value for one CPU at a time.
pub struct Lock<T> {
    word: Word,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by whoever has the lock, which is one CPU at a time; it goes from one to the other.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// The value, which nobody has locked.
    pub fn new(value: T) -> Self {
        Self { word: Word::default(), value: UnsafeCell::new(value) }
    }

    /// The value, of which nobody else knows any more.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// The value, which is borrowed from its only owner.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Waits until nobody has it, and takes it.
    #[inline]
    #[cfg_attr(feature = "checked", track_caller)]
    pub fn lock<P: Platform>(&self, platform: &P) -> LockGuard<'_, T> {
        platform.on_atomic();
        if self.word.try_lock().is_none() {
            self.lock_slowly(platform);
        }
        LockGuard { lock: self, value: PhantomData }
    }

    #[cold]
    #[cfg_attr(feature = "checked", track_caller)]
    fn lock_slowly<P: Platform>(&self, platform: &P) {
        loop {
            platform.pause(1);
            if self.word.load(Ordering::Relaxed) & LOCKED == 0 {
                platform.on_atomic();
                if self.word.try_lock().is_some() {
                    return;
                }
            }
        }
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").finish_non_exhaustive()
    }
}

/// The value of a [`Lock`], which is given back when this is dropped.
#[must_use = "dropped at once, it protects nothing"]
pub struct LockGuard<'a, T> {
    lock: &'a Lock<T>,
    /// It is shared between threads as a reference to the value is, not as the lock is.
    value: PhantomData<&'a mut T>,
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held while the guard lives, and a guard is all that reaches the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`; this borrows the one guard mutably.
        unsafe { &mut *self.lock.value.get() }
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
    use crate::{Pa, Record};

    /// A CPU that is asked for nothing here but what it does before an atomic access, and while it waits.
    struct Cpu<A: Fn(), W: Fn()> {
        on_atomic: A,
        waits: W,
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
        fn record(&self, _: Pa) -> &Record {
            unreachable!()
        }
        fn on_atomic(&self) {
            (self.on_atomic)();
        }
        fn pause(&self, _: u32) {
            (self.waits)();
        }
    }

    /// What another CPU does, seen from the one that wants the lock.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Step {
        /// The other one has the lock, or takes it, and this CPU is about to make an atomic access.
        AtomicWhileLocked,
        /// Nobody has the lock, and this CPU is about to make an atomic access.
        Atomic,
        /// The other one goes on while this CPU waits.
        WaitWhileLocked,
        /// The other one gives the lock back while this CPU waits.
        WaitUntilFree,
    }

    /// Locks what another CPU has locked, or takes and gives back by these steps, which are all that there are.
    fn locks_by(steps: &[Step]) {
        let lock = Lock::new(0);
        let alone = Cpu { on_atomic: || (), waits: || panic!("nobody has the lock") };
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
        let guard = lock.lock(&Cpu { on_atomic, waits });
        assert_eq!(steps.borrow_mut().next(), None);
        assert!(lock.word.try_lock().is_none(), "the guard has no lock");
        drop(guard);
        let _ = lock.lock(&alone);
    }

    #[test]
    fn what_nobody_has_is_locked_at_once() {
        locks_by(&[Step::Atomic]);
    }

    /// While another CPU has the lock, this one reads the word alone.
    #[test]
    fn what_another_has_is_waited_for() {
        use Step::{Atomic, AtomicWhileLocked, WaitUntilFree, WaitWhileLocked};
        locks_by(&[AtomicWhileLocked, WaitUntilFree, Atomic]);
        locks_by(&[AtomicWhileLocked, WaitWhileLocked, WaitWhileLocked, WaitUntilFree, Atomic]);
    }

    /// Between this CPU's look and its atomic access.
    #[test]
    fn what_another_takes_first_is_waited_for_again() {
        use Step::{Atomic, AtomicWhileLocked, WaitUntilFree};
        locks_by(&[AtomicWhileLocked, WaitUntilFree, AtomicWhileLocked, WaitUntilFree, Atomic]);
    }

    #[test]
    fn one_at_a_time_and_nothing_is_lost() {
        const ROUNDS: u64 = if cfg!(miri) { 50 } else { 10_000 };
        let lock = Lock::new((0u64, 0u64));
        let cpu = Cpu { on_atomic: || (), waits: thread::yield_now };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let mut guard = lock.lock(&cpu);
                        guard.0 += 1;
                        assert_eq!(guard.0, guard.1 + 1, "somebody else is inside");
                        guard.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(&cpu), (4 * ROUNDS, 4 * ROUNDS));
        assert_eq!(lock.into_inner(), (4 * ROUNDS, 4 * ROUNDS));
    }
}
