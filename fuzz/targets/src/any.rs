// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes arguments of the engine, and a guest's faults, from bytes.

use arbitrary::{Result, Unstructured};
use twofold_devices::Width;
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::{Access, Attributes, Execute, Features, Memory, Shareability};

/// Makes an access from one byte.
pub fn access(u: &mut Unstructured<'_>) -> Result<Access> {
    let [read, write, el0, el1, ..] = flags(u)?;
    Ok(Access { read, write, execute: Execute { el0, el1 } })
}

pub fn attributes(u: &mut Unstructured<'_>) -> Result<Attributes> {
    let memory = [Memory::Normal, Memory::NonCacheable, Memory::Device];
    let shareability = [Shareability::NonShareable, Shareability::OuterShareable, Shareability::InnerShareable];
    let [accessed, dirty_by_hardware, ..] = flags(u)?;
    Ok(Attributes {
        memory: *u.choose(&memory)?,
        shareability: *u.choose(&shareability)?,
        access: access(u)?,
        accessed,
        dirty_by_hardware,
        software: u.int_in_range(0..=15)?,
    })
}

pub fn fault_kind(u: &mut Unstructured<'_>) -> Result<FaultKind> {
    Ok(*u.choose(&[FaultKind::Translation, FaultKind::Permission, FaultKind::AccessFlag])?)
}

pub fn access_kind(u: &mut Unstructured<'_>) -> Result<AccessKind> {
    Ok(*u.choose(&[AccessKind::Read, AccessKind::Write, AccessKind::Execute, AccessKind::Maintenance])?)
}

/// Makes a CPU with `base`'s sizes, and any of the features that affect operands and descriptors.
pub fn features(u: &mut Unstructured<'_>, base: Features) -> Result<Features> {
    let [tlbi_range, tlbi_level_hint, forced_write_back, execute_per_el, zero, coherent, pipt, common] = flags(u)?;
    Ok(base
        .with_tlbi_range(tlbi_range)
        .with_tlbi_level_hint(tlbi_level_hint)
        .with_forced_write_back(forced_write_back)
        .with_execute_per_el(execute_per_el)
        .with_instruction_cache_coherent(coherent)
        .with_instruction_cache_pipt(pipt)
        .with_common_not_private(common)
        .with_zero_block(if zero { 64 } else { 0 }))
}

/// Returns the bits of a byte, lowest first.
pub fn flags(u: &mut Unstructured<'_>) -> Result<[bool; 8]> {
    let byte: u8 = u.arbitrary()?;
    Ok(std::array::from_fn(|bit| byte >> bit & 1 == 1))
}

/// Makes the offset of an access: most often one of a device's first registers.
pub fn register(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match u.arbitrary::<u8>()? {
        index @ 0..0xe0 => u64::from(index % 0x20) * 4,
        0xe0..0xf8 => u.int_in_range(0..=0xfff)?,
        _ => u.arbitrary()?,
    })
}

/// Makes the width of an access: most often a word.
pub fn width(u: &mut Unstructured<'_>) -> Result<Width> {
    let widths = [Width::Word, Width::Byte, Width::Half, Width::Double];
    Ok(widths[usize::from(u.arbitrary::<u8>()? % 16) % 7 % 4])
}
