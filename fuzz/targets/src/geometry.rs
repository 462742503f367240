// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shape of tables for any IPA size on any CPU.

use arbitrary::{Result, Unstructured};
use twofold_stage2::{Error, Features, Geometry, Granule, Ipa, Level};

use crate::any;

/// A size is refused, or the tables cover it exactly, with at most 16 tables for a root (Arm ARM DDI 0487K.a, D8.2). A
/// bad range is refused with its exact error.
pub fn geometry(data: &[u8]) {
    let _ = read(&mut Unstructured::new(data));
}

fn read(u: &mut Unstructured<'_>) -> Result<()> {
    let pa_bits = if u.arbitrary()? { 48 } else { u.arbitrary()? };
    let features = any::features(u, Features { pa_bits, ..Features::NONE })?;
    let ipa_bits = if u.arbitrary()? { u.int_in_range(28..=52)? } else { u.arbitrary()? };
    let most = pa_bits.min(48);
    let geometry = match Geometry::new(Granule::KIB_4, ipa_bits, &features) {
        Ok(geometry) => geometry,
        Err(error) => {
            assert_eq!(error, Error::IpaBits { ipa_bits, most });
            assert!(ipa_bits < 32 || ipa_bits > most);
            return Ok(());
        }
    };
    assert!((32..=most).contains(&ipa_bits));
    shape(&geometry, ipa_bits);
    let (start, end) = (address(u, &geometry)?, address(u, &geometry)?);
    index(&geometry, start);
    range(&geometry, start, end);
    Ok(())
}

fn shape(geometry: &Geometry, ipa_bits: u32) {
    let (granule, root) = (geometry.granule(), geometry.root_level());
    assert_eq!((geometry.ipa_bits(), geometry.end().raw()), (ipa_bits, 1 << ipa_bits));
    assert_eq!(geometry.root_entries() as u64 * granule.span(root), geometry.end().raw());
    assert_eq!(geometry.root_size(), (geometry.root_entries() as u64 * 8).next_multiple_of(4096));
    assert_eq!(geometry.root_tables() as u64 * 4096, geometry.root_size());
    assert!(geometry.root_tables() <= 16);
    // With one level less the root would have more than 16 tables.
    assert!(root.below().is_none_or(|below| geometry.end().raw() / granule.span(below) > 16 * 512));
}

fn index(geometry: &Geometry, ipa: Ipa) {
    if ipa >= geometry.end() {
        return;
    }
    let mut level = Some(geometry.root_level());
    let (mut entries, mut at) = (geometry.root_entries(), 0);
    while let Some(now) = level {
        let index = geometry.index(ipa, now);
        assert!(index < entries, "{ipa} at level {now}");
        at += index as u64 * geometry.granule().span(now);
        (entries, level) = (geometry.granule().entries(), now.below());
    }
    assert_eq!(Ipa::new(at), ipa.align_down(geometry.granule().span(Level::L3)));
}

fn range(geometry: &Geometry, start: Ipa, end: Ipa) {
    let expected = match [start, end].into_iter().find(|ipa| ipa.raw() % 4096 != 0) {
        Some(odd) => Err(Error::Misaligned { address: odd.raw(), size: 4096 }),
        None if start >= end => Err(Error::EmptyRange { start, end }),
        None if end > geometry.end() => {
            Err(Error::OutsideIpa { ipa: start.max(geometry.end()), bits: geometry.ipa_bits() })
        }
        None => Ok(()),
    };
    assert_eq!(geometry.check(&(start..end)), expected);
}

/// Makes any address, mostly of a page near the edges of the space.
fn address(u: &mut Unstructured<'_>, geometry: &Geometry) -> Result<Ipa> {
    let any: u64 = u.arbitrary()?;
    Ok(Ipa::new(match u.int_in_range(0..=3)? {
        0 => any,
        1 => any & !0xfff,
        2 => any & !0xfff & (geometry.end().raw() - 1),
        _ => geometry.end().raw().wrapping_add_signed((any as i64 % 4) * 4096),
    }))
}
