// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where vCPUs wait for absent pages.
//!
//! A vCPU that needs an absent page: W1: marks that it waits; W2: has the memory bring the page; W3: sleeps until the page
//! has come, or the vCPU is to leave its guest. The memory reports an arrival under the same lock as W1 and W3, so none is
//! missed. A vCPU that leaves before the page has come asks for it again when it faults again.

use std::sync::{Condvar, Mutex, PoisonError};

use twofold_machine::fast::FastPlatform;
use twofold_memory::GuestMemory;
use twofold_memory::async_fault::Arrival;
use twofold_memory::swap::{Failure, NotAttached, Notify, Waiter};
use twofold_stage2::Ipa;

/// What each vCPU waits for.
#[derive(Debug)]
pub struct Arrivals {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Debug)]
struct State {
    waits: Vec<bool>,
    /// Whether all vCPUs are to leave their guest.
    leave: bool,
    /// How often a vCPU has waited.
    waited: u64,
}

impl Arrivals {
    /// No vCPU waits.
    pub fn new(vcpus: u32) -> Self {
        let state = State { waits: vec![false; vcpus as usize], leave: false, waited: 0 };
        Self { state: Mutex::new(state), bell: Condvar::new() }
    }

    /// Waits until the page has come, or the vCPU is to leave its guest.
    ///
    /// # Errors
    ///
    /// The guest has no store.
    pub fn wait(&self, memory: &GuestMemory<FastPlatform>, vcpu: usize, page: Ipa) -> Result<(), NotAttached> {
        {
            let mut state = self.lock();
            state.waits[vcpu] = true;
            state.waited += 1;
        }
        memory.bring(page, Waiter::Other(vcpu as u64))?;
        let mut state = self.lock();
        while state.waits[vcpu] && !state.leave {
            state = self.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if std::mem::take(&mut state.waits[vcpu]) {
            drop(state);
            memory.forget(Waiter::Other(vcpu as u64));
        }
        Ok(())
    }

    /// Makes vCPUs that wait leave their guest, or lets them wait again.
    pub fn leave(&self, leave: bool) {
        self.lock().leave = leave;
        self.bell.notify_all();
    }

    /// How often a vCPU has waited for a page.
    pub fn waited(&self) -> u64 {
        self.lock().waited
    }

    /// The state is valid at any time, so a poisoned lock is harmless.
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notify for Arrivals {
    fn arrived(&self, waiter: Waiter, _: Arrival) {
        if let Waiter::Other(number) = waiter
            && let Some(waits) = self.lock().waits.get_mut(number as usize)
        {
            // A vCPU whose page could not be brought faults again, and asks again.
            *waits = false;
            self.bell.notify_all();
        }
    }

    fn failed(&self, _: &Failure) {}

    fn frames_wanted(&self) {}
}
