// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a call of the guest needs of the hypervisor (`twofold_vmm::calls`).

use twofold_stage2::Ipa;
use twofold_vmm::calls::{Host, Mitigation, Workaround};

use super::stolen::Stolen;
use crate::virtio::random;
use crate::vm::Vm;

/// The hypervisor, for a call of this guest by the vCPU with this stolen time.
pub(super) struct Here<'a>(pub(super) &'a Vm, pub(super) &'a mut Stolen);

impl Host for Here<'_> {
    fn is_ram(&self, address: u64) -> bool {
        // Only RAM can be read.
        self.0.memory().read(Ipa::new(address), &mut [0]).is_ok()
    }

    fn has_stolen_time(&self) -> bool {
        self.1.is_available()
    }

    fn stolen_time(&mut self, _vcpu: usize) -> Option<u64> {
        self.1.ask(self.0.memory(), self.0.counter_offset())
    }

    fn has_random(&self) -> bool {
        self.0.has_random()
    }

    fn random(&mut self) -> Option<u64> {
        if !self.has_random() {
            return None;
        }
        // SAFETY: all CPUs of this guest have the register.
        unsafe { random::number() }
    }

    fn vendor(&mut self, _vcpu: usize, _arguments: [u64; 4]) -> Option<i64> {
        // Only a bundle allows these calls, and they are answered before all others.
        None
    }

    fn mitigation(&self, workaround: Workaround) -> Mitigation {
        self.0.needs().for_guest(workaround)
    }
}
