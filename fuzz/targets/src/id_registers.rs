// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ID registers of any CPU (Arm ARM DDI 0487K.a, D23.2).

use arbitrary::{Result, Unstructured};
use twofold_stage2::{Features, IdRegisters};

/// The features are within the engine's limits. Written into registers, they are read back as the same.
pub fn id_registers(data: &[u8]) {
    let _ = read(&mut Unstructured::new(data));
}

fn read(u: &mut Unstructured<'_>) -> Result<()> {
    let features = Features::from_registers(&IdRegisters {
        id_aa64mmfr0: u.arbitrary()?,
        id_aa64mmfr1: u.arbitrary()?,
        id_aa64mmfr2: u.arbitrary()?,
        id_aa64isar0: u.arbitrary()?,
        ctr: u.arbitrary()?,
        dczid: u.arbitrary()?,
    });
    assert!((32..=52).contains(&features.pa_bits) && [8, 16].contains(&features.vmid_bits));
    assert!(features.hardware_access_flag || !features.hardware_dirty_state, "dirty state requires the access flag");
    assert!(features.granule_4k || !features.lpa2_4k, "FEAT_LPA2 is for a granule that is there");
    assert!(features.granule_16k || !features.lpa2_16k, "FEAT_LPA2 is for a granule that is there");
    assert!(features.data_line.is_power_of_two() && features.instruction_line.is_power_of_two());
    assert!(features.zero_block == 0 || (4..=2048).contains(&features.zero_block));
    assert!(features.zero_block == 0 || features.zero_block.is_power_of_two());
    assert_eq!(Features::from_registers(&write(&features)), features);
    Ok(())
}

/// Returns the registers with the fields that the engine reads, at the manual's positions.
fn write(features: &Features) -> IdRegisters {
    let field = |value: bool, shift: u32| u64::from(value) << shift;
    let pa_range = [32, 36, 40, 42, 44, 48, 52].iter().position(|bits| *bits == features.pa_bits);
    // The fields of stage 2: 1 without the granule, 2 with it, 3 with FEAT_LPA2 too.
    let granule = |has: bool, lpa2: bool, shift: u32| (1 + u64::from(has) + u64::from(lpa2)) << shift;
    let log2_words = |bytes: u64| u64::from(bytes.ilog2()) - 2;
    IdRegisters {
        id_aa64mmfr0: pa_range.expect("one of the architecture's sizes") as u64
            + granule(features.granule_4k, features.lpa2_4k, 40)
            + granule(features.granule_16k, features.lpa2_16k, 32)
            + granule(features.granule_64k, false, 36),
        id_aa64mmfr1: u64::from(features.hardware_access_flag)
            + u64::from(features.hardware_dirty_state)
            + field(features.vmid_bits == 16, 5)
            + field(features.execute_per_el, 28),
        id_aa64mmfr2: field(features.common_not_private, 0)
            + field(features.forced_write_back, 40)
            + field(features.tlbi_level_hint, 48)
            + (u64::from(features.bbm) << 52),
        id_aa64isar0: field(features.tlbi_range, 57),
        ctr: log2_words(features.instruction_line)
            + (if features.instruction_cache_pipt { 3 << 14 } else { 2 << 14 })
            + (log2_words(features.data_line) << 16)
            + field(features.instruction_cache_coherent, 29),
        dczid: if features.zero_block == 0 { 1 << 4 } else { log2_words(features.zero_block) },
    }
}
