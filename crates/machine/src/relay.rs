// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A test's thread as one CPU after another (`strict::relay`), for tests that are also built without the strict mode.

/// From now on, whatever this thread does under locks, one CPU after another does, and a data race panics. Without the
/// feature `strict` nothing of that is seen, and this does nothing.
pub fn begin() {
    #[cfg(feature = "strict")]
    crate::strict::relay::begin();
}

/// Has another CPU of the relay do `action`, in the middle of what this thread does, also under locks.
pub fn meanwhile<R>(action: impl FnOnce() -> R) -> R {
    #[cfg(feature = "strict")]
    return crate::strict::relay::meanwhile(action);
    #[cfg(not(feature = "strict"))]
    action()
}
