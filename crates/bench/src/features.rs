// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CPU that is measured.

use twofold_stage2::Features;

/// A CPU of today: it has every feature that saves TLB or cache maintenance.
pub const TODAY: Features = Features {
    vmid_bits: 16,
    hardware_access_flag: true,
    hardware_dirty_state: true,
    forced_write_back: true,
    tlbi_range: true,
    tlbi_level_hint: true,
    common_not_private: true,
    instruction_cache_pipt: true,
    ..Features::NONE
};
