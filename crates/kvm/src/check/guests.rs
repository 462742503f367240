// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guests of the checks, and what their passes write.

use twofold_workload::mode::{MODES, Mode};
use twofold_workload::pass::Pass;

use crate::bitmap::Bitmap;
use crate::guest::KvmGuest;
use crate::options::{KvmOptions, Region};

/// The mode of most checks: arm64's with 4K granules, x86-64's only one.
pub(super) const MODE: Mode = KvmOptions::native_mode();
/// Guest pages of a vCPU's region in most checks. Not a multiple of 64, so that a log ends within a word.
pub(super) const PAGES: u64 = 700;

/// A guest with `PAGES` pages for each vCPU.
pub(super) fn options(vcpus: u32) -> KvmOptions {
    KvmOptions { vcpus, ..in_mode(MODE) }
}

/// A guest with one vCPU, in another mode.
pub(super) fn in_mode(mode: Mode) -> KvmOptions {
    KvmOptions::new(mode, PAGES * mode.granule.size())
}

/// A guest with one region of `PAGES` pages for all vCPUs.
pub(super) fn shared(vcpus: u32) -> KvmOptions {
    KvmOptions { region: Region::Shared(PAGES * MODE.granule.size()), ..options(vcpus) }
}

/// A pass that writes the first word of each page of a vCPU's region.
pub(super) fn writes(guest: &KvmGuest, vcpu: usize, value: u64) -> Pass {
    let region = guest.region(vcpu);
    let step = guest.mode().granule.size();
    Pass { value, ..Pass::writes(region.start, (region.end - region.start) / step, step) }
}

/// Returns the pages of each slot that these passes write, by `Pass::accesses`.
pub(super) fn written(guest: &KvmGuest, passes: &[Vec<Pass>]) -> Vec<Bitmap> {
    let mut logs = vec![Bitmap::new(guest.slot_pages()); guest.slots()];
    let writes = passes.iter().flatten().flat_map(Pass::accesses).filter(|access| access.write);
    for place in writes.filter_map(|access| guest.place(access.va)) {
        logs[place.slot].set(place.page);
    }
    logs
}

/// Returns the architecture's modes. The host may lack some of them.
pub(super) fn modes() -> impl Iterator<Item = Mode> {
    let arm64 = |mode: &Mode| mode.va_bits <= 48 && mode.pa_bits != Some(52);
    MODES.into_iter().filter(move |mode| if cfg!(target_arch = "x86_64") { *mode == MODE } else { arm64(mode) })
}
