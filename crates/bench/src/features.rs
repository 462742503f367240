// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CPU that is measured.

use twofold_stage2::Features;

/// A CPU of today: it has every feature that saves TLB or cache maintenance.
pub const TODAY: Features = Features::NONE
    .with_vmid_bits(16)
    .with_hardware_access_flag(true)
    .with_hardware_dirty_state(true)
    .with_forced_write_back(true)
    .with_tlbi_range(true)
    .with_tlbi_level_hint(true)
    .with_common_not_private(true)
    .with_instruction_cache_pipt(true);
