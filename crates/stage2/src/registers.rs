// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two registers that select and configure the tables: `VTCR_EL2` and `VTTBR_EL2` (Arm ARM DDI 0487K.a, D23.2).

use crate::{Features, Geometry, Pa, Vmid};

/// `VTCR_EL2` for tables of this shape: walks are write-back and inner shareable. Hardware access flag and dirty state
/// are on if the CPU has them.
pub const fn vtcr(geometry: &Geometry, features: &Features) -> u64 {
    const RES1: u64 = 1 << 31;
    const WALKS_WRITE_BACK: u64 = 1 << 10 | 1 << 8;
    const WALKS_INNER_SHAREABLE: u64 = 3 << 12;
    let t0sz = 64 - geometry.ipa_bits() as u64;
    // SL0 counts down from level 2. This encoding is the 4 KiB granule's.
    let sl0 = 2 - geometry.root_level().raw() as u64;
    let vs = (features.vmid_bits == 16) as u64;
    RES1 | vs << 19
        | (features.hardware_dirty_state as u64) << 22
        | (features.hardware_access_flag as u64) << 21
        | physical_size(features.pa_bits) << 16
        | WALKS_INNER_SHAREABLE
        | WALKS_WRITE_BACK
        | sl0 << 6
        | t0sz
}

/// `VTTBR_EL2` for the tables at `root` under `vmid`. CnP is set if the CPU has it: all CPUs that run the guest use the
/// same tables under the same VMID.
pub const fn vttbr(root: Pa, vmid: Vmid, features: &Features) -> u64 {
    (vmid.raw() as u64) << 48 | root.raw() | features.common_not_private as u64
}

/// The PS field for `bits` bits of physical address.
const fn physical_size(bits: u32) -> u64 {
    match bits {
        0..=32 => 0,
        33..=36 => 1,
        37..=40 => 2,
        41..=42 => 3,
        43..=44 => 4,
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Granule;

    /// 0x80023559 is a value that has run: T0SZ 25, SL0 1, 4 KiB, write-back, inner shareable, 40-bit PS.
    #[test]
    fn a_value_that_ran() {
        let features = Features { pa_bits: 40, ..Features::NONE };
        let geometry = Geometry::new(Granule::KIB_4, 39, &features).unwrap();
        assert_eq!(vtcr(&geometry, &features), 0x8002_3559);
    }

    #[test]
    fn start_levels_and_hardware_updates() {
        let features =
            Features { hardware_access_flag: true, hardware_dirty_state: true, vmid_bits: 16, ..Features::NONE };
        for (bits, sl0) in [(32, 0), (40, 1), (48, 2)] {
            let geometry = Geometry::new(Granule::KIB_4, bits, &features).unwrap();
            let value = vtcr(&geometry, &features);
            assert_eq!(value & 0x3f, 64 - u64::from(bits));
            assert_eq!(value >> 6 & 3, sl0);
            assert_eq!(value >> 16 & 7, 5);
            assert_eq!(value >> 19 & 1, 1, "16-bit VMID");
            assert_eq!(value >> 21 & 3, 3, "HA and HD");
        }
    }

    /// Arm ARM DDI 0487K.a, D23.2, VTCR_EL2.PS: 32, 36, 40, 42, 44 and 48 bits. A size between two of them takes the
    /// larger.
    #[test]
    fn physical_sizes_are_encoded() {
        let sizes = [(32, 0), (33, 1), (36, 1), (37, 2), (40, 2), (41, 3), (42, 3), (43, 4), (44, 4), (45, 5), (48, 5)];
        for (pa_bits, encoded) in sizes {
            let features = Features { pa_bits, ..Features::NONE };
            let geometry = Geometry::new(Granule::KIB_4, 32, &features).unwrap();
            assert_eq!(vtcr(&geometry, &features) >> 16 & 7, encoded, "{pa_bits} bits");
        }
    }

    #[test]
    fn the_vmid_is_in_the_top_bits() {
        let cnp = Features { common_not_private: true, ..Features::NONE };
        assert_eq!(vttbr(Pa::new(0x4123_4000), Vmid::new(0xabcd), &Features::NONE), 0xabcd_0000_4123_4000);
        assert_eq!(vttbr(Pa::new(0x4123_4000), Vmid::new(1), &cnp), 0x0001_0000_4123_4001);
    }
}
