// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faked system registers for tests on the host. Each thread has its own registers, by the names in the code, all 0 at
//! first.

use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    static REGISTERS: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
    static VECTORS: RefCell<[u128; 32]> = const { RefCell::new([0; 32]) };
    static WRITTEN: RefCell<Vec<(&'static str, u64)>> = const { RefCell::new(Vec::new()) };
}

/// Returns the register's value.
pub fn read(name: &'static str) -> u64 {
    REGISTERS.with_borrow(|registers| registers.get(name).copied().unwrap_or(0))
}

/// Writes the register, as the code under test does.
///
/// # Safety
/// The fake has no requirement. It is unsafe because the instruction that it replaces is.
pub unsafe fn write(name: &'static str, value: u64) {
    set(name, value);
    WRITTEN.with_borrow_mut(|written| written.push((name, value)));
}

/// Sets the register's value, as hardware or firmware would.
pub fn set(name: &'static str, value: u64) {
    REGISTERS.with_borrow_mut(|registers| registers.insert(name, value));
}

/// Returns a vector register's value.
pub fn vector(n: usize) -> u128 {
    VECTORS.with_borrow(|vectors| vectors[n])
}

/// Sets a vector register.
pub fn set_vector(n: usize, value: u128) {
    VECTORS.with_borrow_mut(|vectors| vectors[n] = value);
}

/// Records an ISB among the writes, as [`ISB`].
pub fn isb() {
    WRITTEN.with_borrow_mut(|written| written.push((ISB, 0)));
}

/// The name of an ISB among the writes.
pub const ISB: &str = "ISB";

/// Sets all registers to 0.
pub fn reset() {
    REGISTERS.take();
    VECTORS.take();
    WRITTEN.take();
}

/// Returns the writes since the last call, in order.
pub fn take_written() -> Vec<(&'static str, u64)> {
    WRITTEN.take()
}
