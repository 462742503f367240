// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The atomic of [`claim`](crate::claim). Its tests replace it with one that lets another CPU act in between.

#[cfg(not(test))]
pub use core::sync::atomic::{AtomicBool, Ordering};
#[cfg(test)]
pub use watched::{AtomicBool, Ordering, meanwhile};

#[cfg(test)]
mod watched {
    use std::boxed::Box;
    use std::cell::RefCell;
    pub use std::sync::atomic::Ordering;
    use std::thread_local;

    /// An atomic that runs another CPU's planned actions after each operation.
    pub struct AtomicBool(std::sync::atomic::AtomicBool);

    type Meanwhile = Box<dyn FnOnce()>;

    thread_local! {
        static MEANWHILE: RefCell<Option<(u32, Meanwhile)>> = const { RefCell::new(None) };
    }

    /// Plans `what`, an action of another CPU, after `after` further operations on any [`AtomicBool`] of this thread.
    pub fn meanwhile(after: u32, what: impl FnOnce() + 'static) {
        MEANWHILE.set(Some((after, Box::new(what))));
    }

    impl AtomicBool {
        /// Creates an atomic with this value.
        pub fn new(value: bool) -> Self {
            Self(value.into())
        }

        /// Loads, as `std`'s atomic does.
        pub fn load(&self, order: Ordering) -> bool {
            others_after(self.0.load(order))
        }

        /// Stores, as `std`'s atomic does.
        pub fn store(&self, value: bool, order: Ordering) {
            self.0.store(value, order);
            others_after(());
        }

        /// Swaps, as `std`'s atomic does.
        pub fn swap(&self, value: bool, order: Ordering) -> bool {
            others_after(self.0.swap(value, order))
        }
    }

    fn others_after<T>(value: T) -> T {
        let due = MEANWHILE.with_borrow_mut(|planned| match planned {
            Some((after @ 1.., _)) => {
                *after -= 1;
                (*after == 0).then(|| planned.take()).flatten()
            }
            _ => None,
        });
        if let Some((_, what)) = due {
            what();
        }
        value
    }
}
