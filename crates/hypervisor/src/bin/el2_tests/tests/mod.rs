// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tests. Each module lists its tests in `TESTS`; a test's name states what it proves.

use crate::test::Test;

mod abort;
mod bundle;
mod control;
mod dirty;
mod dirty_log;
mod first_touch;
mod granules;
mod guest_tables;
mod mapping;
mod permissions;
mod report;
mod shared_vmids;
mod splitting;
mod stage1_walk;
mod staleness;
mod vcpus;
mod world_switch;

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
        granules::TESTS,
        staleness::TESTS,
        vcpus::TESTS,
        shared_vmids::TESTS,
        world_switch::TESTS,
        abort::TESTS,
        stage1_walk::TESTS,
        bundle::TESTS,
        report::TESTS,
        control::TESTS,
    ]
    .into_iter()
    .flatten()
}
