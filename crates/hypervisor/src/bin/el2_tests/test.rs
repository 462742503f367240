// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A test, and the list of a module's tests.

use crate::check::Outcome;
use crate::machine::Machine;

/// A test.
pub struct Test {
    /// Its module and function.
    pub name: &'static str,
    /// Runs it.
    pub run: fn(Machine) -> Outcome,
    /// Whether the test passes by ending in the report of a panic.
    pub panics: bool,
}

/// Lists a module's tests.
macro_rules! tests {
    ($($module:ident::$name:ident),+ $(,)?) => { tests!(@false $($module::$name),+); };
    (panics: $($module:ident::$name:ident),+ $(,)?) => { tests!(@true $($module::$name),+); };
    (@$panics:literal $($module:ident::$name:ident),+) => {
        pub const TESTS: &[$crate::test::Test] = &[$($crate::test::Test {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: $name,
            panics: $panics,
        }),+];
    };
}
