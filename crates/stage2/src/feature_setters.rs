// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changing one feature of a [`Features`]. Other crates cannot write out all of its fields, since it gets new ones.

use crate::Features;

/// One setter for each field. Does not compile if a field has none.
macro_rules! setters {
    ($($setter:ident, $field:ident: $type:ty;)*) => {
        impl Features {
            $(
                #[doc = concat!("The same with another [`", stringify!($field), "`](Self::", stringify!($field), ").")]
                #[must_use]
                pub const fn $setter(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }

        const _: fn(Features) = |Features { $($field: _),* }| {};
    };
}

setters! {
    with_pa_bits, pa_bits: u32;
    with_granule_4k, granule_4k: bool;
    with_granule_16k, granule_16k: bool;
    with_granule_64k, granule_64k: bool;
    with_lpa2_4k, lpa2_4k: bool;
    with_lpa2_16k, lpa2_16k: bool;
    with_vmid_bits, vmid_bits: u32;
    with_hardware_access_flag, hardware_access_flag: bool;
    with_hardware_dirty_state, hardware_dirty_state: bool;
    with_forced_write_back, forced_write_back: bool;
    with_execute_per_el, execute_per_el: bool;
    with_tlbi_range, tlbi_range: bool;
    with_tlbi_level_hint, tlbi_level_hint: bool;
    with_common_not_private, common_not_private: bool;
    with_bbm, bbm: u32;
    with_no_conflict_abort, no_conflict_abort: bool;
    with_instruction_cache_coherent, instruction_cache_coherent: bool;
    with_instruction_cache_pipt, instruction_cache_pipt: bool;
    with_data_line, data_line: u64;
    with_instruction_line, instruction_line: u64;
    with_zero_block, zero_block: u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each setter changes its own field, and no other.
    #[test]
    fn a_setter_changes_one_feature() {
        let before = Features::NONE;
        let changed = [
            before.with_pa_bits(40),
            before.with_granule_4k(false),
            before.with_granule_16k(true),
            before.with_granule_64k(false),
            before.with_lpa2_4k(true),
            before.with_lpa2_16k(true),
            before.with_vmid_bits(16),
            before.with_hardware_access_flag(true),
            before.with_hardware_dirty_state(true),
            before.with_forced_write_back(true),
            before.with_execute_per_el(true),
            before.with_tlbi_range(true),
            before.with_tlbi_level_hint(true),
            before.with_common_not_private(true),
            before.with_bbm(1),
            before.with_no_conflict_abort(true),
            before.with_instruction_cache_coherent(true),
            before.with_instruction_cache_pipt(true),
            before.with_data_line(32),
            before.with_instruction_line(32),
            before.with_zero_block(64),
        ];
        assert_eq!(changed.len(), before.named().len());
        for (changed, (name, _)) in changed.iter().zip(before.named()) {
            let both = before.named().into_iter().zip(changed.named());
            let names: Vec<_> = both.filter(|(before, after)| before != after).map(|(before, _)| before.0).collect();
            assert_eq!(names, [name]);
        }
    }
}
