// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any 64 bits that a walk may find in memory, read as a descriptor.

use arbitrary::{Result, Unstructured};
use twofold_stage2::{Access, Attributes, Descriptor, Execute, Features, Level, Pa};

use crate::any;

/// The parsed fields agree with the bits. Written attributes are read back as the same. A change of one field changes
/// no other.
pub fn descriptor(data: &[u8]) {
    let _ = read(&mut Unstructured::new(data));
}

/// The bits of the output address, and of S2AP and XN.
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
const PERMISSIONS: u64 = 3 << 6 | 3 << 53;

fn read(u: &mut Unstructured<'_>) -> Result<()> {
    let features = any::features(u, Features::NONE)?;
    let level = Level::new(u.int_in_range(0..=3)?).expect("four levels");
    let entry = <Descriptor>::from_raw(u.arbitrary()?);
    let access = any::access(u)?;
    kinds(entry, level);
    changes(entry, access, &features);
    // A value that the engine never writes is read as one that it does write: written back and read again, it is the
    // same.
    round_trip(entry.address(), &entry.attributes(&features), level, &features);
    round_trip(Pa::new(u.arbitrary::<u64>()? & ADDRESS), &any::attributes(u)?, level, &features);
    Ok(())
}

fn kinds(entry: Descriptor, level: Level) {
    let raw = entry.raw();
    assert_eq!(entry.is_valid(), raw & 1 == 1);
    assert_eq!(entry.is_table(level), raw & 3 == 3 && level < Level::L3);
    assert_eq!(entry.is_leaf(level), entry.is_valid() && !entry.is_table(level));
    assert_eq!(entry.address().raw(), raw & ADDRESS);
    assert_eq!((entry.is_writable(), entry.is_accessed()), (raw >> 7 & 1 == 1, raw >> 10 & 1 == 1));
    assert_eq!(entry.is_hardware_dirty(), raw >> 7 & 1 == 1 && raw >> 51 & 1 == 1);
    assert_eq!(entry.is_hardware_tracked(), raw & 1 == 1 && raw >> 51 & 1 == 1);
    // S2AP is bits 7:6. XN is bits 54:53: 0b00 allows execution at EL1 and EL0, 0b01 at EL0, 0b10 at neither, 0b11 at
    // EL1.
    let execute = [Execute::ALWAYS, Execute::EL0, Execute::NEVER, Execute::EL1][(raw >> 53 & 3) as usize];
    assert_eq!(entry.access(), Access { read: raw >> 6 & 1 == 1, write: raw >> 7 & 1 == 1, execute });
}

fn changes(entry: Descriptor, access: Access, features: &Features) {
    let (changed, more) = (entry.with_access(access, features), entry.with_more(access, features));
    assert_eq!((changed.raw() ^ entry.raw()) & !PERMISSIONS, 0);
    assert_eq!((more.raw() ^ entry.raw()) & !PERMISSIONS, 0);
    assert_eq!(changed.access(), sayable(access, features));
    if entry.access().check(features).is_ok() {
        assert_eq!(more.access(), sayable(entry.access().union(access), features));
    }
    assert_eq!(entry.with_accessed().raw(), entry.raw() | 1 << 10);
}

fn round_trip(pa: Pa, attributes: &Attributes, level: Level, features: &Features) {
    let leaf = <Descriptor>::leaf(pa, level, attributes, features);
    assert!(leaf.is_valid() && leaf.address() == pa);
    assert_eq!(leaf.is_leaf(level), !leaf.is_table(level));
    let access = sayable(attributes.access, features);
    assert_eq!(leaf.attributes(features), Attributes { access, ..*attributes });
    // Reserved or ignored bits are 0, and SH does not have its reserved value.
    assert_eq!(leaf.raw() & 0xf817_0000_0000_0800, 0);
    assert_ne!(leaf.raw() >> 8 & 3, 0b01);
    assert!(features.execute_per_el || leaf.raw() >> 53 & 1 == 0, "XN[0] without FEAT_XNX");
}

/// Returns the access that a descriptor expresses for `access` on a CPU with these features.
fn sayable(access: Access, features: &Features) -> Access {
    match access.check(features) {
        Ok(()) => access,
        Err(_) => Access { execute: Execute::NEVER, ..access },
    }
}
