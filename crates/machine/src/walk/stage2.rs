// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The walk of stage 2, as `VTTBR_EL2` and `VTCR_EL2` set it up (Arm ARM DDI 0487K.a, D8.2, D8.4 and D8.5).
//!
//! Invariant: only hardware's two updates change a descriptor. Each is a compare-and-exchange of the value that the
//! walk read. Any walk may set the access flag. A write that nothing else forbids sets S2AP\[1\] where DBM is set.

use twofold_stage2::Features;

use super::{
    ACCESSED, Access, DIRTY_BY_HARDWARE, El, FaultKind, Format, Shape, Tables, Unmodelled, output_bits, require,
};

/// The memory of the tables.
pub trait Entries {
    /// The descriptor at `pa`, as this walk sees it.
    fn stage2(&mut self, pa: u64) -> u64;

    /// Replaces the descriptor at `pa` if it is `old`.
    ///
    /// # Errors
    ///
    /// The current value, if it is not `old`: the walk continues with it.
    fn update_stage2(&mut self, pa: u64, old: u64, new: u64) -> Result<(), u64>;
}

/// The stage-2 translation regime of one guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regime {
    /// The tag of its entries in TLBs.
    pub vmid: u16,
    /// The format of its descriptors.
    pub format: Format,
    root: u64,
    root_level: u8,
    ipa_bits: u32,
    pa_bits: u32,
    /// HA.
    access_flag: bool,
    /// HD, which needs HA.
    dirty_state: bool,
}

/// A page or block that a walk found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf2 {
    /// The first address that it translates.
    pub ipa: u64,
    /// Its level: 0 to 3.
    pub level: u8,
    /// The descriptor, after hardware's update.
    pub raw: u64,
    /// The physical address of the descriptor.
    pub entry: u64,
    /// The table descriptors of the walk.
    pub tables: Tables<Table2>,
}

/// A table descriptor on a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Table2 {
    /// Its level.
    pub level: u8,
    /// The physical address of the descriptor.
    pub entry: u64,
    /// The descriptor.
    pub raw: u64,
}

/// The reason why a walk ended without a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage2Fault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The level of the descriptor that ended the walk.
    pub level: u8,
    /// The address to be translated, to the byte.
    pub ipa: u64,
}

impl Regime {
    /// The regime as the registers set it up on a CPU with these features.
    pub fn new(vttbr: u64, vtcr: u64, features: &Features) -> Result<Self, Unmodelled> {
        // NSA, NSW, HWU62 to HWU59, 24, 23, 20, and the bits above DS (32), SL2 among them.
        const RESERVED: u64 = !0 << 33 | 0x3f << 25 | 1 << 24 | 1 << 23 | 1 << 20;
        let control = |holds, why| require(holds, "VTCR_EL2", vtcr, why);
        control(vtcr & RESERVED == 0, "bits are set that are reserved or not modelled")?;
        control(vtcr >> 31 & 1 == 1, "bit 31 is RES1")?;
        let format = Format::of(vtcr, features)?;
        control(vtcr >> 8 & 0xf == 0b0101, "walks are not write-back")?;
        control(vtcr >> 12 & 3 == 0b11, "walks are not inner shareable")?;

        let t0sz = (vtcr & 0x3f) as u32;
        let least = if format.has_52_bits() { 12 } else { 16 };
        control((least..=39).contains(&t0sz), "T0SZ is out of bounds")?;
        let ipa_bits = 64 - t0sz;
        control(ipa_bits <= features.pa_bits, "the IPA space is larger than the CPU's physical one")?;
        let root_level = format.root_level(vtcr);
        control(root_level.is_some(), "SL0 is reserved")?;
        let root_level = root_level.unwrap_or_default();
        // `AArch64.S2InvalidSL` (Arm ARM DDI 0487K.a, J1.1).
        control(features.pa_bits >= format.least_pa_bits(root_level), "SL0 needs larger physical addresses")?;
        // A root table has 2 descriptors at least, and up to 16 tables are concatenated (Arm ARM DDI 0487K.a, D8.2.2).
        let most = format.index_bits() + 4;
        let root_bits = ipa_bits.checked_sub(format.span_shift(root_level)).filter(|bits| (1..=most).contains(bits));
        control(root_bits.is_some(), "SL0 does not fit to T0SZ")?;
        let root_size = 8u64 << root_bits.unwrap_or_default();
        let pa_bits = match vtcr >> 16 & 7 {
            0b110 if format.has_52_bits() => Some(52),
            field => output_bits(field),
        };
        control(pa_bits.is_some(), "PS is reserved, or more than 48 bits that descriptors do not hold")?;
        // A size beyond what the CPU implements is treated as the implemented size.
        let pa_bits = pa_bits.unwrap_or_default().min(features.pa_bits);

        let vmid_16 = vtcr >> 19 & 1 == 1;
        control(!vmid_16 || features.vmid_bits == 16, "VS without FEAT_VMID16")?;
        let (access_flag, dirty_state) = (vtcr >> 21 & 1 == 1, vtcr >> 22 & 1 == 1);
        control(!access_flag || features.hardware_access_flag, "HA without FEAT_HAFDBS")?;
        control(!dirty_state || features.hardware_dirty_state, "HD without FEAT_HAFDBS")?;

        let base = |holds, why| require(holds, "VTTBR_EL2", vttbr, why);
        base(vttbr & 1 == 0 || features.common_not_private, "CnP without FEAT_TTCNP")?;
        base(vmid_16 || vttbr >> 56 == 0, "VMID of 16 bits where VS is 0")?;
        let root = format.root(vttbr);
        base(root.is_multiple_of(root_size), "the root is not aligned to its size")?;
        base(root >> pa_bits == 0, "the root is beyond PS")?;
        Ok(Self {
            vmid: (vttbr >> 48) as u16,
            format,
            root,
            root_level,
            ipa_bits,
            pa_bits,
            access_flag,
            dirty_state: access_flag && dirty_state,
        })
    }

    /// Walks to the leaf that lets `access` reach `ipa`.
    pub fn walk(&self, ipa: u64, access: Access, entries: &mut impl Entries) -> Result<Leaf2, Stage2Fault> {
        self.descend(ipa, entries, |raw| self.grant(raw, access))
    }

    /// The leaf that a speculative walk puts into the TLB. The walk may set an access flag, and never sets S2AP\[1\].
    /// It returns `None` where a TLB may hold no entry: for a descriptor that leads to a fault other than a permission
    /// fault.
    pub fn speculate(&self, ipa: u64, entries: &mut impl Entries) -> Option<Leaf2> {
        self.descend(ipa, entries, |raw| self.accessed(raw)).ok()
    }

    /// The leaf at `ipa`, whatever it allows, as software reads it: nothing is updated.
    pub fn look_up(&self, ipa: u64, entries: &mut impl Entries) -> Result<Leaf2, Stage2Fault> {
        self.descend(ipa, entries, Ok)
    }

    /// Whether the physical address is one that `VTCR_EL2.PS` allows.
    pub(super) fn fits(&self, pa: u64) -> bool {
        pa >> self.pa_bits == 0
    }

    /// The root: its physical address, its level, and the number of its descriptors.
    pub(super) fn root_table(&self) -> (u64, u8, u64) {
        (self.root, self.root_level, 1 << (self.ipa_bits - self.format.span_shift(self.root_level)))
    }

    /// The descriptor that a leaf, from memory or a TLB, needs for `access`. If it is `raw`, the access is allowed as
    /// it is. If it differs, hardware's updates have to be made in memory first.
    pub fn grant(&self, raw: u64, access: Access) -> Result<u64, FaultKind> {
        let accessed = self.accessed(raw)?;
        let granted = if self.dirty_state && raw & DIRTY_BY_HARDWARE != 0 && access.writes() {
            accessed | WRITE
        } else {
            accessed
        };
        if allows(granted, access) { Ok(granted) } else { Err(FaultKind::Permission) }
    }

    fn accessed(&self, raw: u64) -> Result<u64, FaultKind> {
        if self.access_flag || raw & ACCESSED != 0 { Ok(raw | ACCESSED) } else { Err(FaultKind::AccessFlag) }
    }

    fn descend(
        &self,
        ipa: u64,
        entries: &mut impl Entries,
        update: impl Fn(u64) -> Result<u64, FaultKind>,
    ) -> Result<Leaf2, Stage2Fault> {
        let fault = |kind, level| Stage2Fault { kind, level, ipa };
        if ipa >> self.ipa_bits != 0 {
            return Err(fault(FaultKind::Translation, 0));
        }
        let mut tables = Tables::default();
        let mut level = self.root_level;
        // The index is into all concatenated tables.
        let mut entry = self.root + (ipa >> self.format.span_shift(level)) * 8;
        let mut raw = entries.stage2(entry);
        loop {
            let shape = self.format.shape(raw, level);
            if shape == Shape::Invalid {
                return Err(fault(FaultKind::Translation, level));
            }
            let target = self.format.address(raw, level);
            if !self.fits(target) {
                return Err(fault(FaultKind::AddressSize, level));
            }
            if shape == Shape::Table {
                tables.push(Table2 { level, entry, raw });
                level += 1;
                entry = target + self.format.offset(ipa, level);
                raw = entries.stage2(entry);
                continue;
            }
            let new = update(raw).map_err(|kind| fault(kind, level))?;
            if new != raw
                && let Err(now) = entries.update_stage2(entry, raw, new)
            {
                raw = now;
                continue;
            }
            return Ok(Leaf2 { ipa: ipa & !(self.format.span(level) - 1), level, raw: new, entry, tables });
        }
    }
}

/// S2AP\[0\].
const READ: u64 = 1 << 6;
/// S2AP\[1\].
const WRITE: u64 = 1 << 7;

/// Whether S2AP and XN of a leaf, as they are, allow `access`. XN is read as with FEAT_XNX; its two encodings without
/// that feature mean the same. Execution needs no permission to read.
pub fn allows(raw: u64, access: Access) -> bool {
    let executable = match raw >> 53 & 3 {
        0b00 => true,
        0b01 => access.el == El::El0,
        0b10 => false,
        _ => access.el == El::El1,
    };
    (!access.reads() || raw & READ != 0) && (!access.writes() || raw & WRITE != 0) && (!access.executes() || executable)
}

/// The output address of a leaf at `level` for `ipa`, with the 4 KiB granule.
pub const fn output(raw: u64, level: u8, ipa: u64) -> u64 {
    Format::KIB_4.output(raw, level, ipa)
}

/// Whether the guest's accesses through a leaf go through the data cache, where stage 1 has `stage1_cacheable` (Arm ARM
/// DDI 0487K.a, D8.6.5; with FEAT_S2FWB and `HCR_EL2.FWB` set, D8.6.6).
pub const fn is_cached(raw: u64, forced_write_back: bool, stage1_cacheable: bool) -> bool {
    let (high, low) = (raw >> 4 & 3, raw >> 2 & 3);
    if forced_write_back {
        // 0b0110 forces write-back, 0b0111 leaves it to stage 1; 0b0101 is non-cacheable, 0b00xx a device.
        high == 0b01 && (low == 0b10 || low == 0b11 && stage1_cacheable)
    } else {
        // Outer and inner: 0b10 is write-through, 0b11 write-back; an outer 0b00 is a device.
        high >= 0b10 && low >= 0b10 && stage1_cacheable
    }
}

#[cfg(test)]
mod tests;
