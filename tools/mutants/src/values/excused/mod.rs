// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of values that are equivalent to the original for every test, each with the reason. One file a crate.

mod hypervisor;
mod machine;
mod memory;
mod migration;
mod stage2;
mod vmm;

use crate::mutation::Excuses;

/// The excused mutants of values.
pub const EXCUSES: Excuses = Excuses {
    listed_in: "tools/mutants/src/values/excused",
    lists: &[stage2::EXCUSED, memory::EXCUSED, migration::EXCUSED, vmm::EXCUSED, machine::EXCUSED, hypervisor::EXCUSED],
};

const SAME_VALUE: &str = "the word is overwritten with the value that it already has";
const PAUSE: &str = "the length of a wait affects only the time";
const LOOK: &str = "the check before the lock or the atomic access only saves time";
const CAPACITY: &str = "a vector grows by itself";
const NAME: &str = "the numbers have to differ and to rise, and no more";
