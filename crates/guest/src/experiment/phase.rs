// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The phases of an experiment, and a pass's accesses.

use twofold_workload::pass::Pass;

use crate::vendor::{self, Refused};

/// Makes the accesses of `passes` in the phase of this name.
pub fn access(name: &'static str, passes: &mut [Pass]) -> Result<(), Refused> {
    phase(name, || {
        passes.iter_mut().for_each(go);
        Ok(())
    })
}

/// Makes the accesses of `pass`, and stores the generator's state in it.
fn go(pass: &mut Pass) {
    let mut accesses = pass.accesses();
    for access in &mut accesses {
        let place = core::ptr::with_exposed_provenance_mut::<u64>(access.va as usize);
        // SAFETY: a word of the test memory, which is mapped and holds no Rust object.
        unsafe {
            if access.write {
                place.write_volatile(pass.value);
            } else {
                place.read_volatile();
            }
        }
    }
    pass.random = accesses.random();
}

/// Runs `what` in the phase of this name.
pub fn phase<T>(name: &'static str, what: impl FnOnce() -> Result<T, Refused>) -> Result<T, Refused> {
    vendor::phase(Some(name))?;
    let done = what();
    vendor::phase(None)?;
    done
}
