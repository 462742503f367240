// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two registers that select and configure the tables: `VTCR_EL2` and `VTTBR_EL2` (Arm ARM DDI 0487K.a, D23.2).

use crate::granule::Format;
use crate::{Features, Geometry, Granule, Pa, Vmid};

/// `VTCR_EL2` for tables of this shape: walks are write-back and inner shareable. Hardware access flag and dirty state
/// are on if the CPU has them.
pub const fn vtcr<G: Granule>(geometry: &Geometry<G>, features: &Features) -> u64 {
    const RES1: u64 = 1 << 31;
    const WALKS_WRITE_BACK: u64 = 1 << 10 | 1 << 8;
    const WALKS_INNER_SHAREABLE: u64 = 3 << 12;
    let t0sz = 64 - geometry.ipa_bits() as u64;
    // SL0 counts down from level 2 with the 4 KiB granule, and from level 3 with the others.
    let deepest = if G::SHIFT == 12 { 2 } else { 3 };
    let sl0 = deepest - geometry.root_level().raw() as u64;
    let tg0: u64 = match G::SHIFT {
        12 => 0b00,
        14 => 0b10,
        _ => 0b01,
    };
    let ds = matches!(G::FORMAT, Format::Lpa2) as u64;
    let vs = (features.vmid_bits == 16) as u64;
    RES1 | vs << 19
        | ds << 32
        | tg0 << 14
        | (features.hardware_dirty_state as u64) << 22
        | (features.hardware_access_flag as u64) << 21
        | physical_size(geometry.pa_bits()) << 16
        | WALKS_INNER_SHAREABLE
        | WALKS_WRITE_BACK
        | sl0 << 6
        | t0sz
}

/// `VTTBR_EL2` for the tables at `root` under `vmid`. CnP is set if the CPU has it: all CPUs that run the guest use the
/// same tables under the same VMID.
pub const fn vttbr(root: Pa, vmid: Vmid, features: &Features) -> u64 {
    // Bits 51 to 48 of a root that is that high are in bits 5 to 2, which are zero in the address of any root.
    let base = root.raw() << 16 >> 16 | root.raw() >> 48 << 2;
    (vmid.raw() as u64) << 48 | base | features.common_not_private as u64
}

/// The PS field for `bits` bits of physical address.
const fn physical_size(bits: u32) -> u64 {
    match bits {
        0..=32 => 0,
        33..=36 => 1,
        37..=40 => 2,
        41..=42 => 3,
        43..=44 => 4,
        45..=48 => 5,
        _ => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kib4, Kib4Lpa2, Kib16, Kib16Lpa2, Kib64};

    /// 0x80023559 is a value that has run: T0SZ 25, SL0 1, 4 KiB, write-back, inner shareable, 40-bit PS.
    #[test]
    fn a_value_that_ran() {
        let features = Features { pa_bits: 40, ..Features::NONE };
        let geometry = Geometry::new(Kib4, 39, &features).unwrap();
        assert_eq!(vtcr(&geometry, &features), 0x8002_3559);
    }

    #[test]
    fn start_levels_and_hardware_updates() {
        let features =
            Features { hardware_access_flag: true, hardware_dirty_state: true, vmid_bits: 16, ..Features::NONE };
        for (bits, sl0) in [(32, 0), (40, 1), (48, 2)] {
            let geometry = Geometry::new(Kib4, bits, &features).unwrap();
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
            let geometry = Geometry::new(Kib4, 32, &features).unwrap();
            assert_eq!(vtcr(&geometry, &features) >> 16 & 7, encoded, "{pa_bits} bits");
        }
    }

    /// Arm ARM DDI 0487K.a, D23.2, VTCR_EL2: TG0 (bits 15 and 14), SL0 (7 and 6), PS (18 to 16) and DS (32).
    #[test]
    fn granules_and_formats() {
        let cpu = Features { pa_bits: 52, granule_16k: true, lpa2_4k: true, lpa2_16k: true, ..Features::NONE };
        fn fields<G: Granule>(granule: G, bits: u32, cpu: &Features) -> [u64; 5] {
            let value = vtcr(&Geometry::new(granule, bits, cpu).unwrap(), cpu);
            [value >> 14 & 3, value >> 6 & 3, value >> 16 & 7, value >> 32, value & 0x3f]
        }
        for (bits, start) in [(32, 0b00), (40, 0b01), (52, 0b10)] {
            assert_eq!(fields(Kib4Lpa2, bits, &cpu), [0b00, start, 6, 1, 64 - u64::from(bits)]);
        }
        for (bits, start) in [(32, 0b01), (40, 0b10), (48, 0b10)] {
            assert_eq!(fields(Kib16, bits, &cpu), [0b10, start, 5, 0, 64 - u64::from(bits)]);
        }
        for (bits, start) in [(32, 0b01), (48, 0b10), (52, 0b11)] {
            assert_eq!(fields(Kib16Lpa2, bits, &cpu), [0b10, start, 6, 1, 64 - u64::from(bits)]);
        }
        for (bits, start) in [(32, 0b01), (42, 0b01), (43, 0b10), (52, 0b10)] {
            assert_eq!(fields(Kib64, bits, &cpu), [0b01, start, 6, 0, 64 - u64::from(bits)]);
        }
        assert_eq!(fields(Kib64, 48, &Features::NONE)[2], 5);
    }

    /// VTTBR_EL2: bits 5 to 2 are bits 51 to 48 of the address.
    #[test]
    fn a_root_beyond_48_bits() {
        for (bits, field) in [(0x5, 0x14), (0xa, 0x28), (0xf, 0x3c)] {
            let root = Pa::new(bits << 48 | 0x8123_4567_0000);
            assert_eq!(vttbr(root, Vmid::new(2), &Features::NONE), 0x0002_8123_4567_0000 | field);
        }
    }

    #[test]
    fn the_vmid_is_in_the_top_bits() {
        let cnp = Features { common_not_private: true, ..Features::NONE };
        assert_eq!(vttbr(Pa::new(0x4123_4000), Vmid::new(0xabcd), &Features::NONE), 0xabcd_0000_4123_4000);
        assert_eq!(vttbr(Pa::new(0x4123_4000), Vmid::new(1), &cnp), 0x0001_0000_4123_4001);
    }
}
