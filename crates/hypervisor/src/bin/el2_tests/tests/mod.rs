// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tests. Each module lists its tests in `TESTS`; a test's name states what it proves.

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
        pub const TESTS: &[super::Test] = &[$(super::Test {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: $name,
            panics: $panics,
        }),+];
    };
}

mod abort;
mod bundle;
mod dirty;
mod dirty_log;
mod first_touch;
mod guest_tables;
mod mapping;
mod permissions;
mod report;
mod splitting;
mod stage1_walk;
mod staleness;
mod vcpus;

/// All tests.
pub fn all() -> impl Iterator<Item = &'static Test> {
    [
        first_touch::TESTS,
        mapping::TESTS,
        splitting::TESTS,
        permissions::TESTS,
        dirty::TESTS,
        dirty_log::TESTS,
        guest_tables::TESTS,
        staleness::TESTS,
        vcpus::TESTS,
        abort::TESTS,
        stage1_walk::TESTS,
        bundle::TESTS,
        report::TESTS,
    ]
    .into_iter()
    .flatten()
}
