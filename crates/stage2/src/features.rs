// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CPU's features, as data: read from its ID registers, or set by a test.

use crate::granule::Format;
use crate::{Error, Granule};

/// The features of the architecture that the engine's choices depend on.
///
/// On a CPU they are read from its ID registers ([`from_registers`](Self::from_registers)); tables that several CPUs use take
/// what all of them [have in common](Self::common). A test begins with [`NONE`](Self::NONE):
///
/// ```
/// # use twofold_stage2::Features;
/// const CPU: Features = Features::NONE.with_forced_write_back(true).with_tlbi_range(true);
/// ```
///
/// It gets new fields with new features, so only this crate can write out all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Features {
    /// The number of bits of a physical address, at most 52. More than 48 are used with FEAT_LPA (the 64 KiB granule) or
    /// FEAT_LPA2 (the others).
    pub pa_bits: u32,
    /// Stage 2 has the 4 KiB granule.
    pub granule_4k: bool,
    /// Stage 2 has the 16 KiB granule.
    pub granule_16k: bool,
    /// Stage 2 has the 64 KiB granule.
    pub granule_64k: bool,
    /// FEAT_LPA2 for the 4 KiB granule at stage 2.
    pub lpa2_4k: bool,
    /// FEAT_LPA2 for the 16 KiB granule at stage 2.
    pub lpa2_16k: bool,
    /// The number of bits of a VMID: 8, or 16 with FEAT_VMID16.
    pub vmid_bits: u32,
    /// FEAT_HAFDBS, first half: hardware sets the access flag.
    pub hardware_access_flag: bool,
    /// FEAT_HAFDBS, second half: hardware sets the dirty state of an entry with DBM.
    pub hardware_dirty_state: bool,
    /// FEAT_S2FWB: stage 2 can force write-back, so that no guest access bypasses the data cache.
    pub forced_write_back: bool,
    /// FEAT_XNX: stage 2 controls execution at EL0 and at EL1 separately.
    pub execute_per_el: bool,
    /// FEAT_TLBIRANGE: TLB invalidation by range.
    pub tlbi_range: bool,
    /// FEAT_TTL: level hints in TLB invalidations.
    pub tlbi_level_hint: bool,
    /// FEAT_TTCNP: tables may be shared between CPUs.
    pub common_not_private: bool,
    /// FEAT_BBM: the level of support for changes of a mapping's size, 0 to 2 (`ID_AA64MMFR2_EL1.BBM`).
    pub bbm: u32,
    /// The CPU raises no TLB conflict abort when a mapping's size is changed without a break (FEAT_BBM level 2). No ID
    /// register says so: set this by the model of the CPU (`MIDR_EL1`), and only if its manual states it.
    pub no_conflict_abort: bool,
    /// CTR_EL0.DIC: instruction fetches need no invalidation to see new data.
    pub instruction_cache_coherent: bool,
    /// The instruction cache is physically indexed and tagged, so that invalidation by address is exact.
    pub instruction_cache_pipt: bool,
    /// The size of the smallest data cache line in bytes.
    pub data_line: u64,
    /// The size of the smallest instruction cache line in bytes.
    pub instruction_line: u64,
    /// The number of bytes that `DC ZVA` zeroes; 0 if `DC ZVA` is prohibited.
    pub zero_block: u64,
}

/// The values of the registers that [`Features::from_registers`] decodes. A register that the caller does not know is 0,
/// which claims no optional feature: so write `..Default::default()` at the end.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "each field is the register of that name")]
pub struct IdRegisters {
    pub id_aa64mmfr0: u64,
    pub id_aa64mmfr1: u64,
    pub id_aa64mmfr2: u64,
    pub id_aa64isar0: u64,
    pub ctr: u64,
    pub dczid: u64,
}

impl Features {
    /// Each feature by its name. A flag is 1 if the CPU has the feature.
    pub fn named(&self) -> [(&'static str, u64); 21] {
        /// Does not compile if a field is missing.
        macro_rules! named {
            ($($name:ident),*) => {{
                let Self { $($name),* } = *self;
                [$((stringify!($name), $name.into())),*]
            }};
        }
        named!(
            pa_bits,
            granule_4k,
            granule_16k,
            granule_64k,
            lpa2_4k,
            lpa2_16k,
            vmid_bits,
            hardware_access_flag,
            hardware_dirty_state,
            forced_write_back,
            execute_per_el,
            tlbi_range,
            tlbi_level_hint,
            common_not_private,
            bbm,
            no_conflict_abort,
            instruction_cache_coherent,
            instruction_cache_pipt,
            data_line,
            instruction_line,
            zero_block
        )
    }

    /// Armv8.0 and nothing more, with 48-bit physical addresses and 64-byte lines. A CPU must have the granule of 4 KiB or
    /// that of 64 KiB; this one has both.
    pub const NONE: Self = Self {
        pa_bits: 48,
        granule_4k: true,
        granule_16k: false,
        granule_64k: true,
        lpa2_4k: false,
        lpa2_16k: false,
        vmid_bits: 8,
        hardware_access_flag: false,
        hardware_dirty_state: false,
        forced_write_back: false,
        execute_per_el: false,
        tlbi_range: false,
        tlbi_level_hint: false,
        common_not_private: false,
        bbm: 0,
        no_conflict_abort: false,
        instruction_cache_coherent: false,
        instruction_cache_pipt: false,
        data_line: 64,
        instruction_line: 64,
        zero_block: 0,
    };

    /// The features that two CPUs have in common: tables and maintenance by these features are right on both. A line
    /// size is the smaller of the two, so that maintenance by lines misses none. So is the block of `DC ZVA`, which
    /// then zeroes a whole page on both.
    #[must_use]
    pub const fn common(&self, other: &Self) -> Self {
        Self {
            pa_bits: least(self.pa_bits as u64, other.pa_bits as u64) as u32,
            granule_4k: self.granule_4k & other.granule_4k,
            granule_16k: self.granule_16k & other.granule_16k,
            granule_64k: self.granule_64k & other.granule_64k,
            lpa2_4k: self.lpa2_4k & other.lpa2_4k,
            lpa2_16k: self.lpa2_16k & other.lpa2_16k,
            vmid_bits: least(self.vmid_bits as u64, other.vmid_bits as u64) as u32,
            hardware_access_flag: self.hardware_access_flag & other.hardware_access_flag,
            hardware_dirty_state: self.hardware_dirty_state & other.hardware_dirty_state,
            forced_write_back: self.forced_write_back & other.forced_write_back,
            execute_per_el: self.execute_per_el & other.execute_per_el,
            tlbi_range: self.tlbi_range & other.tlbi_range,
            tlbi_level_hint: self.tlbi_level_hint & other.tlbi_level_hint,
            common_not_private: self.common_not_private & other.common_not_private,
            bbm: least(self.bbm as u64, other.bbm as u64) as u32,
            no_conflict_abort: self.no_conflict_abort & other.no_conflict_abort,
            instruction_cache_coherent: self.instruction_cache_coherent & other.instruction_cache_coherent,
            instruction_cache_pipt: self.instruction_cache_pipt & other.instruction_cache_pipt,
            data_line: least(self.data_line, other.data_line),
            instruction_line: least(self.instruction_line, other.instruction_line),
            // 0 is the least: if `DC ZVA` is prohibited on one CPU, it is used on neither.
            zero_block: least(self.zero_block, other.zero_block),
        }
    }

    /// The names of the features in `self` that a CPU with the features `cpu` does not have. That CPU must not run a
    /// guest that uses `self`.
    pub fn not_kept_by(&self, cpu: &Self) -> impl Iterator<Item = &'static str> {
        let common = self.common(cpu).named();
        self.named().into_iter().zip(common).filter(|(used, common)| used != common).map(|((name, _), _)| name)
    }

    /// Decodes the ID registers (Arm ARM DDI 0487K.a, D23.2).
    pub const fn from_registers(id: &IdRegisters) -> Self {
        const PA_BITS: [u32; 7] = [32, 36, 40, 42, 44, 48, 52];
        // TGran4, TGran16 and TGran64 are stage 1's. Those of stage 2 either refer to them (0) or have a value of their own.
        let (at_4k, at_16k, at_64k) =
            (field(id.id_aa64mmfr0, 40), field(id.id_aa64mmfr0, 32), field(id.id_aa64mmfr0, 36));
        let (of_4k, of_16k, of_64k) =
            (field(id.id_aa64mmfr0, 28), field(id.id_aa64mmfr0, 20), field(id.id_aa64mmfr0, 24));
        // 0b1111 means that stage 1 has no such granule, for 4 KiB and 64 KiB; any value from 0b1000 on is negative.
        let (own_4k, own_16k, own_64k) = (of_4k < 8, of_16k >= 1, of_64k < 8);
        let hafdbs = field(id.id_aa64mmfr1, 0);
        Self {
            pa_bits: PA_BITS[least(field(id.id_aa64mmfr0, 0), 6) as usize],
            granule_4k: at_4k >= 2 || at_4k == 0 && own_4k,
            granule_16k: at_16k >= 2 || at_16k == 0 && own_16k,
            granule_64k: at_64k >= 2 || at_64k == 0 && own_64k,
            lpa2_4k: at_4k >= 3 || at_4k == 0 && own_4k && of_4k >= 1,
            lpa2_16k: at_16k >= 3 || at_16k == 0 && of_16k >= 2,
            vmid_bits: if field(id.id_aa64mmfr1, 4) == 2 { 16 } else { 8 },
            hardware_access_flag: hafdbs >= 1,
            hardware_dirty_state: hafdbs >= 2,
            forced_write_back: field(id.id_aa64mmfr2, 40) >= 1,
            execute_per_el: field(id.id_aa64mmfr1, 28) >= 1,
            tlbi_range: field(id.id_aa64isar0, 56) >= 2,
            tlbi_level_hint: field(id.id_aa64mmfr2, 48) >= 1,
            common_not_private: field(id.id_aa64mmfr2, 0) >= 1,
            bbm: least(field(id.id_aa64mmfr2, 52), 2) as u32,
            no_conflict_abort: false,
            instruction_cache_coherent: id.ctr >> 29 & 1 == 1,
            instruction_cache_pipt: id.ctr >> 14 & 3 == 3,
            data_line: 4 << field(id.ctr, 16),
            instruction_line: 4 << field(id.ctr, 0),
            zero_block: match field(id.dczid, 0) {
                words @ 0..=9 if id.dczid >> 4 & 1 == 0 => 4 << words,
                // Prohibited (DZP), or reserved: no block is larger than 2 KiB (Arm ARM DDI 0487K.a, D23.2, DCZID_EL0).
                // So a page holds whole blocks.
                _ => 0,
            },
        }
    }
}

impl Features {
    /// Whether stage 2 has this granule, in its format.
    pub const fn has_granule<G: Granule>(&self) -> bool {
        match (G::SHIFT, G::FORMAT) {
            (12, Format::Lpa2) => self.lpa2_4k,
            (12, _) => self.granule_4k,
            (14, Format::Lpa2) => self.lpa2_16k,
            (14, _) => self.granule_16k,
            _ => self.granule_64k,
        }
    }
}

impl Features {
    /// Checks the values that sizes of maintenance depend on (Arm ARM DDI 0487K.a, D23.2, `CTR_EL0` and `DCZID_EL0`).
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (data, instructions, zeroed) = (self.data_line, self.instruction_line, self.zero_block);
        let (feature, value) = if !data.is_power_of_two() {
            ("data_line", data)
        } else if !instructions.is_power_of_two() {
            ("instruction_line", instructions)
        } else if zeroed != 0 && !(zeroed.is_power_of_two() && (4..=2048).contains(&zeroed)) {
            ("zero_block", zeroed)
        } else if self.vmid_bits > 16 {
            ("vmid_bits", self.vmid_bits.into())
        } else if self.bbm > 2 {
            ("bbm", self.bbm.into())
        } else {
            return Ok(());
        };
        Err(Error::Feature { feature, value })
    }
}

/// The ID field of four bits that starts at `shift`.
const fn field(register: u64, shift: u32) -> u64 {
    register >> shift & 0xf
}

/// The smaller of the two.
const fn least(a: u64, b: u64) -> u64 {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn any_features() -> impl Strategy<Value = Features> {
        any::<([u64; 6], bool)>().prop_map(|(registers, no_conflict_abort)| {
            let [id_aa64mmfr0, id_aa64mmfr1, id_aa64mmfr2, id_aa64isar0, ctr, dczid] = registers;
            let id = IdRegisters { id_aa64mmfr0, id_aa64mmfr1, id_aa64mmfr2, id_aa64isar0, ctr, dczid };
            Features { no_conflict_abort, ..Features::from_registers(&id) }
        })
    }

    proptest! {
        /// The common features depend neither on the order of the CPUs nor on repetition, and each CPU has all of them.
        #[test]
        fn each_cpu_keeps_what_is_common(a in any_features(), b in any_features(), c in any_features()) {
            prop_assert_eq!(a.common(&b), b.common(&a));
            prop_assert_eq!(a.common(&b).common(&c), a.common(&b.common(&c)));
            prop_assert_eq!(a.common(&a), a);
            let common = a.common(&b);
            for cpu in [&a, &b] {
                prop_assert_eq!(common.not_kept_by(cpu).next(), None);
            }
            // A feature that both have is not lost, and a feature that one lacks is not claimed.
            for ((name, all), (a, b)) in common.named().into_iter().zip(a.named().into_iter().map(|one| one.1).zip(b.named().map(|one| one.1))) {
                prop_assert_eq!(all, a.min(b), "{}", name);
            }
        }
    }

    /// Without the check, nothing would be cleaned by lines of 0 bytes, and not all of a page zeroed by blocks of 48.
    #[test]
    fn sizes_that_no_cpu_has_are_refused() {
        type Change = fn(&mut Features, u64);
        let changes: [(&str, Change); 5] = [
            ("data_line", |features, value| features.data_line = value),
            ("instruction_line", |features, value| features.instruction_line = value),
            ("zero_block", |features, value| features.zero_block = value),
            ("vmid_bits", |features, value| features.vmid_bits = value as u32),
            ("bbm", |features, value| features.bbm = value as u32),
        ];
        for (name, change) in changes {
            for value in [0, 1, 2, 3, 4, 8, 16, 17, 48, 64, 2048, 4096, 8192] {
                let mut features = Features::NONE;
                change(&mut features, value);
                let fits = match name {
                    // A machine of a test has 2, so that it runs out of them.
                    "vmid_bits" => value <= 16,
                    "bbm" => value <= 2,
                    "zero_block" => [0, 4, 8, 16, 64, 2048].contains(&value),
                    _ => value.is_power_of_two(),
                };
                let refused = matches!(features.check(), Err(Error::Feature { feature, .. }) if feature == name);
                assert_eq!((features.check().is_ok(), refused), (fits, !fits), "{name} of {value}");
            }
        }
    }

    #[test]
    fn a_cpu_that_cannot_keep_a_feature_names_it() {
        let used = Features { forced_write_back: true, zero_block: 64, ..Features::NONE };
        let names = |cpu: &Features| used.not_kept_by(cpu).collect::<Vec<_>>();
        assert!(names(&used).is_empty());
        assert!(names(&Features { tlbi_range: true, data_line: 128, ..used }).is_empty(), "more is no harm");
        assert_eq!(names(&Features { forced_write_back: false, ..used }), ["forced_write_back"]);
        assert_eq!(names(&Features { data_line: 32, zero_block: 0, ..used }), ["data_line", "zero_block"]);
    }

    /// The registers of QEMU 7.2's `-cpu max`, as read there.
    #[test]
    fn qemu_max() {
        let features = Features::from_registers(&IdRegisters {
            id_aa64mmfr0: 0x0000_0323_1020_1126,
            id_aa64mmfr1: 0x0000_0110_1021_1122,
            id_aa64mmfr2: 0x1021_0110_1001_1011,
            id_aa64isar0: 0x1221_1111_1021_2120,
            ctr: 0x8444_c004,
            dczid: 7,
        });
        assert_eq!(
            features,
            Features {
                pa_bits: 52,
                granule_4k: true,
                granule_16k: true,
                granule_64k: true,
                lpa2_4k: true,
                lpa2_16k: true,
                vmid_bits: 16,
                hardware_access_flag: true,
                hardware_dirty_state: true,
                forced_write_back: true,
                execute_per_el: true,
                tlbi_range: true,
                tlbi_level_hint: true,
                common_not_private: true,
                bbm: 2,
                no_conflict_abort: false,
                instruction_cache_coherent: false,
                instruction_cache_pipt: true,
                data_line: 64,
                instruction_line: 64,
                zero_block: 512,
            }
        );
    }

    /// Each feature depends on its own field alone. It begins at the least value that means it: neither the value below
    /// nor all other bits of the register give the feature.
    #[test]
    fn each_feature_has_its_own_field() {
        type Register = fn(&mut IdRegisters) -> &mut u64;
        type Feature = fn(&Features) -> bool;
        let fields: [(Register, u32, u64, u64, Feature); 12] = [
            (|id| &mut id.id_aa64mmfr1, 0, 0xf, 1, |features| features.hardware_access_flag),
            (|id| &mut id.id_aa64mmfr1, 0, 0xf, 2, |features| features.hardware_dirty_state),
            (|id| &mut id.id_aa64mmfr1, 4, 0xf, 2, |features| features.vmid_bits == 16),
            (|id| &mut id.id_aa64mmfr1, 28, 0xf, 1, |features| features.execute_per_el),
            (|id| &mut id.id_aa64mmfr2, 0, 0xf, 1, |features| features.common_not_private),
            (|id| &mut id.id_aa64mmfr2, 40, 0xf, 1, |features| features.forced_write_back),
            (|id| &mut id.id_aa64mmfr2, 48, 0xf, 1, |features| features.tlbi_level_hint),
            (|id| &mut id.id_aa64isar0, 56, 0xf, 2, |features| features.tlbi_range),
            (|id| &mut id.ctr, 14, 3, 3, |features| features.instruction_cache_pipt),
            (|id| &mut id.ctr, 29, 1, 1, |features| features.instruction_cache_coherent),
            (|id| &mut id.id_aa64mmfr0, 0, 0xf, 5, |features| features.pa_bits >= 48),
            (|id| &mut id.id_aa64mmfr0, 0, 0xf, 6, |features| features.pa_bits == 52),
        ];
        for (number, (register, shift, mask, least, has)) in fields.into_iter().enumerate() {
            let with = |value| {
                let mut id = IdRegisters { dczid: 0x10, ..Default::default() };
                *register(&mut id) = value;
                has(&Features::from_registers(&id))
            };
            assert!(with(least << shift), "field {number}");
            assert!(!with((least - 1) << shift), "field {number}, one less");
            assert!(!with(!(mask << shift)), "field {number}, its neighbours");
        }
    }

    /// Arm ARM DDI 0487K.a, D23.2, ID_AA64MMFR0_EL1.PARange. More than 52 bits are not used.
    #[test]
    fn physical_sizes_are_decoded() {
        let bits = (0..16)
            .map(|range| Features::from_registers(&IdRegisters { id_aa64mmfr0: range, ..Default::default() }).pa_bits);
        assert!(bits.eq([32, 36, 40, 42, 44, 48, 52, 52, 52, 52, 52, 52, 52, 52, 52, 52]));
    }

    /// Arm ARM DDI 0487K.a, D23.2, ID_AA64MMFR2_EL1.BBM. A level that the manual does not have yet includes level 2.
    #[test]
    fn levels_of_bbm_are_decoded() {
        let levels = (0..16).map(|level| {
            let id_aa64mmfr2 = level << 52 | !(0xf << 52);
            Features::from_registers(&IdRegisters { id_aa64mmfr2, ..Default::default() }).bbm
        });
        assert!(levels.eq([0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]));
    }

    /// Arm ARM DDI 0487K.a, D23.2, ID_AA64MMFR0_EL1: the fields of stage 2 (TGran4_2, TGran16_2, TGran64_2) are 0 if they
    /// refer to those of stage 1, 1 without the granule, 2 with it, and 3 with FEAT_LPA2 too. Those of stage 1 are 0 with
    /// the granule of 4 or 64 KiB, and 0b1111 without; 0 without that of 16 KiB, and 1 with it. FEAT_LPA2 is one more.
    #[test]
    fn granules_are_decoded() {
        let decode = |id_aa64mmfr0| {
            let features = Features::from_registers(&IdRegisters { id_aa64mmfr0, ..Default::default() });
            let [k4, k16, k64] = [features.granule_4k, features.granule_16k, features.granule_64k];
            ([k4, k16, k64], [features.lpa2_4k, features.lpa2_16k])
        };
        // (stage 2's value, stage 1's, has it, has FEAT_LPA2), for 4 KiB, 16 KiB and 64 KiB
        for (at, of, has, lpa2) in [
            (0, 0, [true, false, true], [false, false]),
            (0, 1, [true, true, true], [true, false]),
            (0, 2, [true, true, true], [true, true]),
            (0, 0xf, [false, true, false], [false, true]),
            (0, 8, [false, true, false], [false, true]),
            (1, 0, [false; 3], [false; 2]),
            (1, 2, [false; 3], [false; 2]),
            (2, 0, [true; 3], [false; 2]),
            (2, 0xf, [true; 3], [false; 2]),
            (3, 0xf, [true; 3], [true; 2]),
        ] {
            let all = |shift: [u32; 3], value: u64| shift.iter().fold(0, |all, shift| all | value << shift);
            let seen = decode(all([40, 32, 36], at) | all([28, 20, 24], of));
            assert_eq!(seen, (has, lpa2), "{at} of stage 2, {of} of stage 1");
            // Each granule has its own fields.
            for (number, (stage2, stage1)) in [(40, 28), (32, 20), (36, 24)].into_iter().enumerate() {
                let one = decode(at << stage2 | of << stage1).0[number];
                assert_eq!(one, has[number], "granule {number}: {at} of stage 2, {of} of stage 1");
            }
        }
    }

    /// CTR_EL0.DminLine and IminLine are log2 of a number of 4-byte words.
    #[test]
    fn lines_are_decoded() {
        let features = Features::from_registers(&IdRegisters { ctr: 0xfff5_fff3, ..Default::default() });
        assert_eq!((features.data_line, features.instruction_line), (4 << 5, 4 << 3));
    }

    #[test]
    fn a_cpu_that_says_nothing_has_nothing() {
        let features = Features::from_registers(&IdRegisters { dczid: 0x10, ..Default::default() });
        let none = Features { pa_bits: 32, data_line: 4, instruction_line: 4, ..Features::NONE };
        assert_eq!(features, none);
    }

    #[test]
    fn blocks_that_no_cpu_zeroes_are_not_used() {
        let blocks =
            (0..16).map(|dczid| Features::from_registers(&IdRegisters { dczid, ..Default::default() }).zero_block);
        let expected = [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 0, 0, 0, 0, 0, 0];
        assert!(blocks.eq(expected));
    }
}
