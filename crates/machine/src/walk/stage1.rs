// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The walk of a guest's own stage 1: the EL1&0 regime as `SCTLR_EL1`, `TCR_EL1`, `TTBR0_EL1`, `TTBR1_EL1` and
//! `MAIR_EL1` set it up (Arm ARM DDI 0487K.a, D8.2, D8.4 and D8.5).
//!
//! Invariant: a guest's descriptor is at an IPA. The walk reads it only if stage 2 allows a stage-1 walk to read. Only
//! hardware's updates change it, and only if stage 2 allows the write.

use super::stage2::Stage2Fault;
use super::{
    ACCESSED, Access, DIRTY_BY_HARDWARE, El, FaultKind, Granule, Purpose, Shape, Tables, Unmodelled, output_bits,
    require,
};
use crate::program::Stage1Registers;

/// The guest's memory, which holds its tables.
pub trait GuestTables {
    /// Stage 2: the output address of `ipa` for `access`, which is of a walk or an update.
    ///
    /// # Errors
    ///
    /// The fault that ends the stage-2 walk.
    fn translate(&mut self, ipa: u64, access: Access) -> Result<u64, Stage2Fault>;

    /// The descriptor at `pa`, as this walk sees it.
    fn stage1(&mut self, pa: u64) -> u64;

    /// Replaces the descriptor at `pa` if it is `old`.
    ///
    /// # Errors
    ///
    /// The current value, if it is not `old`: the walk continues with it.
    fn update_stage1(&mut self, pa: u64, old: u64, new: u64) -> Result<(), u64>;
}

/// The stage-1 translation regime of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regime {
    /// `None` if the MMU is off.
    tables: Option<Control>,
    /// The number of bits of an address with the MMU off.
    pa_bits: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Control {
    /// The ranges of TTBR0 and TTBR1; `None` if EPD disables walks.
    halves: [Option<Half>; 2],
    asid: u16,
    /// IPS.
    ipa_bits: u32,
    /// HA.
    access_flag: bool,
    /// HD, which needs HA.
    dirty_state: bool,
    mair: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Half {
    root: u64,
    va_bits: u32,
    granule: Granule,
}

/// The page or block that translates an address; with the MMU off, the page itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf1 {
    /// The first address of its range.
    pub va: u64,
    /// The IPA that it translates this address to.
    pub ipa: u64,
    /// The number of bytes that it translates.
    pub size: u64,
    /// Its descriptor, after hardware's update; `None` with the MMU off.
    pub descriptor: Option<Descriptor1>,
    /// The table descriptors of the walk.
    pub tables: Tables<Descriptor1>,
    /// The address space of the leaf, unless it is global.
    pub asid: u16,
    /// Whether the leaf holds in all address spaces.
    pub global: bool,
    /// Whether stage 1 makes the memory write-back or write-through.
    pub cacheable: bool,
}

/// A descriptor that a walk used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor1 {
    /// The level of its table.
    pub level: u8,
    /// Its IPA.
    pub ipa: u64,
    /// Its physical address.
    pub pa: u64,
    /// Its value.
    pub raw: u64,
}

/// The reason why a walk ended without a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A fault of stage 1, at this level.
    Stage1(FaultKind, u8),
    /// A fault of stage 2 on a descriptor, in a walk or update (`Access::purpose`).
    Stage2(Stage2Fault, Access),
    /// The guest uses a setting that is not modelled.
    Unmodelled(Unmodelled),
}

impl Regime {
    /// The same regime on a CPU with physical addresses of this many bits, which matter while the MMU is off. Without a
    /// call they have 48.
    #[must_use]
    pub const fn with_pa_bits(self, pa_bits: u32) -> Self {
        Self { pa_bits, ..self }
    }

    /// The regime as the registers set it up.
    pub fn new(registers: &Stage1Registers) -> Result<Self, Unmodelled> {
        const MMU_ON: u64 = 1 << 0;
        const WRITE_IMPLIES_XN: u64 = 1 << 19;
        const BIG_ENDIAN: u64 = 1 << 25;
        let &Stage1Registers { sctlr, tcr, ttbr0, ttbr1, mair } = registers;
        require(sctlr & (WRITE_IMPLIES_XN | BIG_ENDIAN) == 0, "SCTLR_EL1", sctlr, "WXN and EE are not modelled")?;
        if sctlr & MMU_ON == 0 {
            return Ok(Self { tables: None, pa_bits: 48 });
        }
        // The bits from HWU059 (43) on, TBI1 and TBI0, 35, and 6.
        const RESERVED: u64 = !0 << 43 | 3 << 37 | 1 << 35 | 1 << 6;
        let control = |holds, why| require(holds, "TCR_EL1", tcr, why);
        control(tcr & RESERVED == 0, "bits are set that are reserved or not modelled")?;
        let ipa_bits = output_bits(tcr >> 32 & 7);
        control(ipa_bits.is_some(), "IPS is more than 48 bits")?;
        let (access_flag, dirty_state) = (tcr >> 39 & 1 == 1, tcr >> 40 & 1 == 1);
        // A1 chooses the register, AS the size.
        let asid = if tcr >> 22 & 1 == 1 { ttbr1 } else { ttbr0 } >> 48;
        let asid = if tcr >> 36 & 1 == 1 { asid } else { asid & 0xff };
        Ok(Self {
            pa_bits: 48,
            tables: Some(Control {
                halves: [
                    half(tcr, 0, Granule::of_tg0(tcr >> 14 & 3), ("TTBR0_EL1", ttbr0))?,
                    half(tcr, 16, Granule::of_tg1(tcr >> 30 & 3), ("TTBR1_EL1", ttbr1))?,
                ],
                asid: asid as u16,
                ipa_bits: ipa_bits.unwrap_or_default(),
                access_flag,
                dirty_state: access_flag && dirty_state,
                mair,
            }),
        })
    }

    /// Walks to the leaf that lets `access`, an instruction's own, reach `va` in stage 1.
    pub fn walk(&self, va: u64, access: Access, memory: &mut impl GuestTables) -> Result<Leaf1, Fault> {
        match &self.tables {
            Some(control) => control.walk(va, access, memory),
            None => untranslated(va, self.pa_bits),
        }
    }

    /// The descriptor that a leaf, from memory or a TLB, needs for `access`. If it is the leaf's own, the access is
    /// allowed as it is. If it differs, hardware's updates have to be made in memory first. `None` with the MMU off,
    /// where every access is allowed.
    pub fn grant(&self, leaf: &Leaf1, access: Access) -> Result<Option<u64>, FaultKind> {
        match (&self.tables, leaf.descriptor) {
            (Some(control), Some(descriptor)) => control.grant(descriptor.raw, access).map(Some),
            _ => Ok(None),
        }
    }
}

/// The half that TCR's fields from bit `at` on, with this granule, and its TTBR set up.
fn half(
    tcr: u64,
    at: u32,
    granule: Option<Granule>,
    (name, ttbr): (&'static str, u64),
) -> Result<Option<Half>, Unmodelled> {
    let field = tcr >> at;
    if field >> 7 & 1 == 1 {
        return Ok(None);
    }
    let control = |holds, why| require(holds, "TCR_EL1", tcr, why);
    let tsz = (field & 0x3f) as u32;
    // For every granule: sizes beyond need FEAT_LVA, FEAT_LPA2 or FEAT_TTST (Arm ARM DDI 0487K.a, D8.2).
    control((16..=39).contains(&tsz), "TxSZ is out of bounds")?;
    let reserved = Unmodelled { what: "TCR_EL1", value: tcr, why: "TGx is reserved" };
    let granule = granule.ok_or(reserved)?;
    control(field >> 8 & 0xf == 0b0101, "walks are not write-back")?;
    control(field >> 12 & 3 == 0b11, "walks are not inner shareable")?;
    let half = Half { root: ttbr & 0x0000_ffff_ffff_fffe, va_bits: 64 - tsz, granule };
    let root_size = 8u64 << (half.va_bits - granule.span_shift(half.root_level()));
    require(half.root.is_multiple_of(root_size), name, ttbr, "the root is not aligned to its size")?;
    Ok(Some(half))
}

impl Half {
    fn root_level(&self) -> u8 {
        self.granule.root_level(self.va_bits)
    }
}

/// With the MMU off, the output equals the address, which may have as many bits as the CPU's physical addresses.
fn untranslated(va: u64, pa_bits: u32) -> Result<Leaf1, Fault> {
    if va >> pa_bits != 0 {
        return Err(Fault::Stage1(FaultKind::AddressSize, 0));
    }
    // The smallest granule: what holds for a page holds for each part of it.
    let size = Granule::Kib4.span(3);
    let page = va & !(size - 1);
    let tables = Tables::default();
    Ok(Leaf1 { va: page, ipa: page, size, descriptor: None, tables, asid: 0, global: true, cacheable: false })
}

impl Control {
    fn walk(&self, va: u64, access: Access, memory: &mut impl GuestTables) -> Result<Leaf1, Fault> {
        let fault = |kind, level| Fault::Stage1(kind, level);
        // Bit 55 chooses the half, and all bits above the half's size have to equal it.
        let upper = va >> 55 & 1 == 1;
        let half = self.halves[usize::from(upper)].ok_or(fault(FaultKind::Translation, 0))?;
        if (if upper { !va } else { va }) >> half.va_bits != 0 {
            return Err(fault(FaultKind::Translation, 0));
        }
        let (granule, within) = (half.granule, va & (u64::MAX >> (64 - half.va_bits)));
        let mut level = half.root_level();
        if half.root >> self.ipa_bits != 0 {
            return Err(fault(FaultKind::AddressSize, 0));
        }
        let mut tables = Tables::default();
        let mut at = read(memory, level, half.root + (within >> granule.span_shift(level)) * 8, access)?;
        loop {
            let shape = granule.shape(at.raw, level);
            if shape == Shape::Invalid {
                return Err(fault(FaultKind::Translation, level));
            }
            let target = granule.address(at.raw, level);
            if target >> self.ipa_bits != 0 {
                return Err(fault(FaultKind::AddressSize, level));
            }
            if shape == Shape::Table {
                // NSTable has no meaning here; APTable, UXNTable and PXNTable would have one.
                let plain = at.raw >> 59 & 0xf == 0;
                require(plain, "a stage-1 table descriptor", at.raw, "hierarchical permissions are not modelled")
                    .map_err(Fault::Unmodelled)?;
                tables.push(at);
                level += 1;
                at = read(memory, level, target + granule.offset(within, level), access)?;
                continue;
            }
            let new = self.grant(at.raw, access).map_err(|kind| fault(kind, level))?;
            if new != at.raw && !update(memory, &mut at, new, access)? {
                continue;
            }
            return Ok(Leaf1 {
                va: va & !(granule.span(level) - 1),
                ipa: target,
                size: granule.span(level),
                descriptor: Some(at),
                tables,
                asid: self.asid,
                global: at.raw & NOT_GLOBAL == 0,
                cacheable: self.is_cacheable(at.raw),
            });
        }
    }

    /// `raw` with hardware's updates, if the result allows `access`.
    fn grant(&self, raw: u64, access: Access) -> Result<u64, FaultKind> {
        if raw & ACCESSED == 0 && !self.access_flag {
            return Err(FaultKind::AccessFlag);
        }
        // An entry with DBM counts as writable for every access; only a write makes it so in memory.
        let tracked = self.dirty_state && raw & DIRTY_BY_HARDWARE != 0;
        let effective = if tracked { raw & !READ_ONLY } else { raw };
        if !allows(effective, access) {
            return Err(FaultKind::Permission);
        }
        Ok(ACCESSED | if access.writes() { effective } else { raw })
    }

    /// Whether `MAIR_EL1`'s byte for AttrIndx makes inner and outer write-back or write-through (Arm ARM DDI 0487K.a,
    /// D23.2).
    fn is_cacheable(&self, raw: u64) -> bool {
        const DEVICE: u64 = 0b0000;
        const NON_CACHEABLE: u64 = 0b0100;
        let attributes = self.mair >> (8 * (raw >> 2 & 7)) & 0xff;
        [attributes >> 4, attributes & 0xf].iter().all(|&field| field != DEVICE && field != NON_CACHEABLE)
    }
}

/// Reads the descriptor at `ipa`.
fn read(memory: &mut impl GuestTables, level: u8, ipa: u64, access: Access) -> Result<Descriptor1, Fault> {
    let pa = translate(memory, ipa, access.with(Purpose::Stage1Walk))?;
    Ok(Descriptor1 { level, ipa, pa, raw: memory.stage1(pa) })
}

/// Replaces a descriptor by `new`, in memory and in `at`. Returns `false` if the descriptor has changed since it was
/// read; `at` is then its current value.
fn update(memory: &mut impl GuestTables, at: &mut Descriptor1, new: u64, access: Access) -> Result<bool, Fault> {
    // Stage 2 may have moved the page since the descriptor was read.
    at.pa = translate(memory, at.ipa, access.with(Purpose::Stage1Update))?;
    let updated = memory.update_stage1(at.pa, at.raw, new);
    at.raw = updated.err().unwrap_or(new);
    Ok(updated.is_ok())
}

fn translate(memory: &mut impl GuestTables, ipa: u64, access: Access) -> Result<u64, Fault> {
    memory.translate(ipa, access).map_err(|fault| Fault::Stage2(fault, access))
}

/// AP\[1\]: EL0 has access.
const EL0: u64 = 1 << 6;
/// AP\[2\].
const READ_ONLY: u64 = 1 << 7;
/// nG.
const NOT_GLOBAL: u64 = 1 << 11;
/// PXN, execute-never at EL1.
const EL1_EXECUTE_NEVER: u64 = 1 << 53;
/// UXN, execute-never at EL0.
const EL0_EXECUTE_NEVER: u64 = 1 << 54;

/// Whether AP, PXN and UXN of a leaf allow an instruction's own access (Arm ARM DDI 0487K.a, D8.4.1). EL1 does not
/// execute what EL0 may write. EL0 may execute what it may not read.
fn allows(raw: u64, access: Access) -> bool {
    let writable = raw & READ_ONLY == 0;
    let el0_data = raw & EL0 != 0;
    let (data, executable) = match access.el {
        El::El0 => (el0_data, raw & EL0_EXECUTE_NEVER == 0),
        El::El1 => (true, raw & EL1_EXECUTE_NEVER == 0 && !(el0_data && writable)),
    };
    if access.executes() { executable } else { data && (writable || !access.writes()) }
}

#[cfg(test)]
mod tests;
