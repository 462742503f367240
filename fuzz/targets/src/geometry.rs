// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shape of tables for any IPA size on any CPU.

use arbitrary::{Result, Unstructured};
use twofold_stage2::{Error, Features, Geometry, Granule, Ipa, Kib4, Kib4Lpa2, Kib16, Kib16Lpa2, Kib64, Level};

use crate::any;

/// A granule or a size is refused, or the tables cover it exactly, with at most 16 tables for a root (Arm ARM DDI 0487K.a, D8.2). A
/// bad range is refused with its exact error.
pub fn geometry(data: &[u8]) {
    let _ = read(&mut Unstructured::new(data));
}

fn read(u: &mut Unstructured<'_>) -> Result<()> {
    match u.int_in_range(0..=4)? {
        0 => read_of(Kib4Lpa2, (52, 16), u),
        1 => read_of(Kib16, (48, 4), u),
        2 => read_of(Kib16Lpa2, (52, 4), u),
        3 => read_of(Kib64, (52, 1), u),
        _ => read_of(Kib4, (48, 16), u),
    }
}

/// A granule, the most bits that its descriptors hold, and the most tables of a root.
fn read_of<G: Granule>(granule: G, (held, tables): (u32, usize), u: &mut Unstructured<'_>) -> Result<()> {
    let pa_bits = if u.arbitrary()? { 48 } else { u.arbitrary()? };
    let [granule_4k, granule_16k, granule_64k, lpa2_4k, lpa2_16k, ..] = any::flags(u)?;
    let base = Features::NONE
        .with_pa_bits(pa_bits)
        .with_granule_4k(granule_4k)
        .with_granule_16k(granule_16k)
        .with_granule_64k(granule_64k)
        .with_lpa2_4k(lpa2_4k)
        .with_lpa2_16k(lpa2_16k);
    let features = any::features(u, base)?;
    let ipa_bits = if u.arbitrary()? { u.int_in_range(28..=52)? } else { u.arbitrary()? };
    // With 16 KiB, walks start at level 1 only on CPUs with 42 bits of physical address.
    let most = if G::SIZE == 16 << 10 && pa_bits < 42 { pa_bits.min(38) } else { pa_bits.min(held) };
    let geometry = match Geometry::new(granule, ipa_bits, &features) {
        Ok(geometry) => geometry,
        Err(error) => {
            match error {
                Error::Granule { .. } => assert!(!features.has_granule::<G>()),
                Error::IpaBitsOfGranule { .. } => assert!(ipa_bits > held && ipa_bits <= pa_bits),
                _ => assert_eq!(error, Error::IpaBits { ipa_bits, most }),
            }
            assert!(ipa_bits < 32 || ipa_bits > most || !features.has_granule::<G>());
            return Ok(());
        }
    };
    assert!((32..=most).contains(&ipa_bits) && features.has_granule::<G>());
    shape(&geometry, ipa_bits, tables);
    let (start, end) = (address(u, &geometry)?, address(u, &geometry)?);
    index(&geometry, start);
    range(&geometry, start, end);
    Ok(())
}

fn shape<G: Granule>(geometry: &Geometry<G>, ipa_bits: u32, tables: usize) {
    let (granule, root) = (geometry.granule(), geometry.root_level());
    assert_eq!((geometry.ipa_bits(), geometry.end().raw()), (ipa_bits, 1 << ipa_bits));
    assert_eq!(geometry.root_entries() as u64 * granule.span(root), geometry.end().raw());
    assert_eq!(geometry.root_size(), (geometry.root_entries() as u64 * 8).next_multiple_of(G::SIZE));
    assert_eq!(geometry.root_tables() as u64 * G::SIZE, geometry.root_size());
    assert!(geometry.root_tables() <= tables && root <= Level::L2);
    // With one level less the root would have more tables, or no blocks.
    let fewer = |below| root == Level::L2 || geometry.end().raw() / granule.span(below) > (tables * G::ENTRIES) as u64;
    assert!(root.below().is_none_or(fewer));
}

fn index<G: Granule>(geometry: &Geometry<G>, ipa: Ipa) {
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

fn range<G: Granule>(geometry: &Geometry<G>, start: Ipa, end: Ipa) {
    let expected = match [start, end].into_iter().find(|ipa| ipa.raw() % G::SIZE != 0) {
        Some(odd) => Err(Error::Misaligned { address: odd.raw(), size: G::SIZE }),
        None if start >= end => Err(Error::EmptyRange { start, end }),
        None if end > geometry.end() => {
            Err(Error::OutsideIpa { ipa: start.max(geometry.end()), bits: geometry.ipa_bits() })
        }
        None => Ok(()),
    };
    assert_eq!(geometry.check(&(start..end)), expected);
}

/// Makes any address, mostly of a page near the edges of the space.
fn address<G: Granule>(u: &mut Unstructured<'_>, geometry: &Geometry<G>) -> Result<Ipa> {
    let any: u64 = u.arbitrary()?;
    Ok(Ipa::new(match u.int_in_range(0..=3)? {
        0 => any,
        1 => any & !0xfff,
        2 => any & !0xfff & (geometry.end().raw() - 1),
        _ => geometry.end().raw().wrapping_add_signed((any as i64 % 4) * 4096),
    }))
}
