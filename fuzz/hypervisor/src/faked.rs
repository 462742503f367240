// SPDX-License-Identifier: Apache-2.0 OR MIT
//! System registers for a host: each thread has its own, all 0 at first, by the name that the code gives them.

use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    static REGISTERS: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
    static WRITTEN: RefCell<Vec<(&'static str, u64)>> = const { RefCell::new(Vec::new()) };
}

/// The value of the register.
pub fn read(name: &'static str) -> u64 {
    REGISTERS.with_borrow(|registers| registers.get(name).copied().unwrap_or(0))
}

/// Writes the register, as the code under test does.
///
/// # Safety
/// None is needed here; the instruction that this stands for is unsafe.
pub unsafe fn write(name: &'static str, value: u64) {
    set(name, value);
    WRITTEN.with_borrow_mut(|written| written.push((name, value)));
}

/// Gives the register a value, as hardware or firmware has.
pub fn set(name: &'static str, value: u64) {
    REGISTERS.with_borrow_mut(|registers| registers.insert(name, value));
}

/// Sets all registers to 0.
pub fn reset() {
    REGISTERS.take();
    WRITTEN.take();
}

/// What was written since the last call, in order.
pub fn take_written() -> Vec<(&'static str, u64)> {
    WRITTEN.take()
}
