// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random operations: few addresses and sizes, so that the operations meet.

use super::*;

pub fn any_features() -> impl Strategy<Value = Features> {
    let bits = any::<(bool, bool, bool, bool, bool, bool)>();
    bits.prop_map(|(tlbi_range, tlbi_level_hint, forced_write_back, execute_per_el, zero, plain)| {
        PLAIN
            .with_hardware_dirty_state(!plain)
            .with_tlbi_range(tlbi_range)
            .with_tlbi_level_hint(tlbi_level_hint)
            .with_forced_write_back(forced_write_back)
            .with_execute_per_el(execute_per_el)
            .with_zero_block(if zero { 64 } else { 0 })
            // These tests do not check caches, so a 1 GiB block need not take millions of cache operations.
            .with_data_line(MIB_2)
            .with_instruction_line(MIB_2)
    })
}

pub fn any_operation() -> impl Strategy<Value = Operation> {
    let action = prop_oneof![
        12 => (1u8..=3, any::<bool>(), any_attributes()).prop_map(|(level, elsewhere, attributes)| {
            Action::Map { level, elsewhere, attributes }
        }),
        4 => (1u8..=3, any::<(bool, bool)>(), any_attributes()).prop_map(|(largest, (large, elsewhere), attributes)| {
            Action::MapRange { largest, large, elsewhere, attributes }
        }),
        4 => Just(Action::Unmap),
        4 => any_access().prop_map(Action::Protect),
        2 => Just(Action::WriteProtect),
        2 => any_mask().prop_map(Action::WriteProtectMask),
        4 => any_access().prop_map(Action::Relax),
        2 => Just(Action::MakeYoung),
        2 => Just(Action::Age),
        2 => Just(Action::Clean),
        2 => Just(Action::SetDbm),
        2 => Just(Action::SetDbmClean),
        2 => any_mask().prop_map(Action::SetDbmCleanMask),
        2 => Just(Action::ClearDbm),
        2 => Just(Action::Look),
        2 => any_access().prop_map(Action::RelaxPage),
        4 => prop::sample::select(vec![KIB_4, MIB_2, GIB]).prop_map(Action::Split),
        6 => (1u8..=2, any_attributes()).prop_map(|(level, attributes)| Action::Coalesce { level, attributes }),
        4 => Just(Action::HardwareWrites),
        2 => Just(Action::HardwareAccesses),
    ];
    let size = prop::sample::select(vec![
        KIB_4,
        2 * KIB_4,
        511 * KIB_4,
        MIB_2,
        MIB_2 + KIB_4,
        3 * MIB_2,
        GIB,
        GIB + KIB_4,
        2 * GIB,
        u64::MAX,
    ]);
    let offset = (0..2u64, prop::sample::select(vec![0, 1, 2, 511u64]), prop::sample::select(vec![0, 1, 2, 511u64]));
    let place = (0..3usize, offset.prop_map(|(gib, mib_2, page)| gib * GIB + mib_2 * MIB_2 + page * KIB_4));
    let pages = prop_oneof![3 => Just(usize::MAX), 2 => 0..4usize];
    (action, place, size, pages, any::<bool>()).prop_map(|(action, place, size, pages, loaded)| Operation {
        action,
        place,
        size,
        pages,
        loaded,
    })
}

/// Masks: runs of bits, and both ends.
fn any_mask() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(u64::MAX),
        (0..64u32, 0..64u32).prop_map(|(one, other)| 1 << one | 1 << other),
        (any::<u64>(), any::<u64>()).prop_map(|(one, other)| one & other),
    ]
}

fn any_access() -> impl Strategy<Value = Access> {
    any::<(bool, bool, bool, bool)>().prop_map(|(read, write, el0, el1)| Access {
        read,
        write,
        execute: Execute { el0, el1 },
    })
}

fn any_attributes() -> impl Strategy<Value = Attributes> {
    let memory = prop_oneof![3 => Just(Memory::Normal), 1 => Just(Memory::NonCacheable)];
    let shareability = prop_oneof![3 => Just(Shareability::InnerShareable), 1 => Just(Shareability::OuterShareable)];
    (memory, shareability, any_access(), any::<(bool, bool)>(), 0u8..16).prop_map(
        |(memory, shareability, access, (accessed, dirty_by_hardware), software)| Attributes {
            memory,
            shareability,
            access,
            accessed,
            dirty_by_hardware,
            software,
        },
    )
}
