// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a call of the guest needs of the hypervisor (`twofold_vmm::calls`).

use twofold_memory::Error;
use twofold_stage2::Ipa;
use twofold_vmm::calls::{Host, Mitigation, Workaround};

use super::pages::{Around, Pages};
use super::stolen::Stolen;
use crate::virtio::random;
use crate::vm::Vm;

/// The hypervisor, for a call of this guest by the vCPU with this stolen time and these absent pages.
pub(super) struct Here<'a>(pub(super) &'a Vm, pub(super) &'a mut Stolen, pub(super) Option<&'a mut Pages>);

impl Host for Here<'_> {
    fn is_ram(&self, address: u64) -> bool {
        // Only RAM can be read, or is absent.
        matches!(self.0.memory().read(Ipa::new(address), &mut [0]), Ok(()) | Err(Error::Absent { .. }))
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

    fn vendor(&mut self, index: usize, [function, first, second, _]: [u64; 4]) -> Option<i64> {
        // The calls by which a guest measures itself are allowed by a bundle, and are answered before all others. What is
        // left are those of asynchronous page faults. They ask nothing of the vCPU's PSTATE.
        let (vm, pages, swap) = (self.0, self.2.as_mut()?, self.0.swap()?);
        pages.call(&mut Around::loaded(vm, swap, index, 0), [function, first, second])
    }

    fn mitigation(&self, workaround: Workaround) -> Mitigation {
        self.0.needs().for_guest(workaround)
    }
}
