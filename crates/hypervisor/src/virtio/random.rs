// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random bytes from the CPU's own source (FEAT_RNG). A guest on CPUs without one gets no device for them.

use core::arch::asm;

use twofold_devices::InterruptLine;
use twofold_devices::virtio::rng::Entropy;
use twofold_devices::virtio::{Next, Rng};

use crate::guest_ram::Ram;
use crate::vm::Vm;

/// Fills the guest's buffers.
pub(super) fn work(random: &mut Rng, vm: &Vm, ram: &Ram<'_>, line: &mut impl InterruptLine) -> Next {
    let mut source = Source { has_failed: !vm.has_random() };
    let next = random.poll(ram, &mut source, line);
    // A source that has nothing now has something soon (Arm ARM DDI 0487K.a, K12.2).
    if source.has_failed && vm.has_random() && next == Next::Idle { Next::Again } else { next }
}

/// A random number. `None`: the source has none now.
///
/// # Safety
///
/// This CPU has FEAT_RNG.
pub(crate) unsafe fn number() -> Option<u64> {
    let (value, is_good): (u64, u64);
    // SAFETY: the register exists, as the caller promises. The read sets the flags, which is declared.
    unsafe {
        asm!(
            "mrs {value}, s3_3_c2_c4_0", // RNDR
            "cset {is_good}, ne",
            value = out(reg) value,
            is_good = out(reg) is_good,
            options(nomem, nostack),
        );
    }
    (is_good != 0).then_some(value)
}

struct Source {
    has_failed: bool,
}

impl Entropy for Source {
    fn fill(&mut self, bytes: &mut [u8]) -> usize {
        let mut filled = 0;
        for piece in bytes.chunks_mut(8) {
            if self.has_failed {
                break;
            }
            // SAFETY: `work` has asked whether the guest's CPUs have a source, and only these CPUs run its task.
            match unsafe { number() } {
                Some(number) => {
                    piece.copy_from_slice(&number.to_ne_bytes()[..piece.len()]);
                    filled += piece.len();
                }
                None => self.has_failed = true,
            }
        }
        filled
    }
}
