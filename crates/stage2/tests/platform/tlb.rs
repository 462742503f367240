// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a TLB invalidation reaches, decoded from the manual (Arm ARM DDI 0487K.a, C5.5), and a TLB that forgets nothing
//! else.

use twofold_stage2::platform::{Domain, Tlbi};
use twofold_stage2::{Features, Ipa};

use super::Event;
use super::mmu::{Leaf, Link, Scan, span};

/// The addresses and levels that an operand names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The whole VMID.
    Vmid,
    /// The entries that translate this address, at this level only if there is one.
    At(Ipa, Option<u8>),
    /// The entries that translate addresses from the first up to, but not including, the second.
    Range(Ipa, Ipa, Option<u8>),
}

impl Reach {
    /// Decodes an operand as a CPU with these features does. Panics on values that the manual reserves or leaves
    /// unpredictable.
    pub fn decode(operation: Tlbi, operand: u64, features: &Features) -> Self {
        match operation {
            Tlbi::VmallE1 | Tlbi::VmallE1Is | Tlbi::VmallS12E1Is => {
                assert_eq!(operand, 0, "{operation:?} takes no operand");
                Self::Vmid
            }
            Tlbi::Ipas2E1 | Tlbi::Ipas2E1Is | Tlbi::Ipas2Le1Is => {
                // NS 63, RES0 62 to 48, TTL 47 to 44, RES0 43 to 40, IPA[51:12] 39 to 0.
                let (ttl, ipa) = (operand >> 44 & 0xf, Ipa::new((operand & 0xff_ffff_ffff) << 12));
                assert_eq!(operand >> 48, 0, "the secure IPA space, or reserved bits: {operand:#x}");
                assert_eq!(operand >> 40 & 0xf, 0, "reserved bits: {operand:#x}");
                assert!(ttl == 0 || features.tlbi_level_hint, "TTL without FEAT_TTL");
                let level = match ttl {
                    0b0000 => None,
                    0b0101..=0b0111 => Some((ttl & 3) as u8),
                    _ => panic!("TTL {ttl:#b} names no level of the 4 KiB granule"),
                };
                assert!(ipa.is_aligned(span(level.unwrap_or(3))), "{ipa} at level {level:?}");
                Self::At(ipa, level)
            }
            Tlbi::Ripas2E1Is | Tlbi::Ripas2Le1Is => {
                // NS 63, RES0 62 to 48, TG 47 to 46, SCALE 45 to 44, NUM 43 to 39, TTL 38 to 37, BaseADDR 36 to 0.
                assert!(features.tlbi_range, "{operation:?} without FEAT_TLBIRANGE");
                assert_eq!(operand >> 48, 0, "the secure IPA space, or reserved bits: {operand:#x}");
                assert_eq!(operand >> 46 & 3, 0b01, "TG is 4 KiB");
                let (scale, num, ttl) = (operand >> 44 & 3, operand >> 39 & 0x1f, operand >> 37 & 3);
                let start = Ipa::new((operand & 0x1f_ffff_ffff) << 12);
                let level = (ttl != 0).then_some(ttl as u8);
                assert!(start.is_aligned(span(level.unwrap_or(3))), "unpredictable: {start} at level {level:?}");
                Self::Range(start, start + ((num + 1) << (5 * scale + 1)) * 4096, level)
            }
        }
    }

    /// Whether an entry of `level` that covers `size` bytes from `ipa` is invalidated.
    fn hits(&self, ipa: Ipa, size: u64, level: u8) -> bool {
        let (start, end, hint) = match *self {
            Self::Vmid => return true,
            Self::At(at, hint) => (at, at + 1, hint),
            Self::Range(start, end, hint) => (start, end, hint),
        };
        start < ipa + size && ipa < end && hint.is_none_or(|hint| hint == level)
    }
}

/// The TLB of another CPU. It has cached everything that was in the tables, and forgets an entry only when an
/// invalidation that reaches it has completed. It makes combined entries again from stage-2 entries that it still has.
pub struct RemoteTlb {
    vmid: u16,
    stage2: Vec<Leaf>,
    combined: Vec<Leaf>,
    links: Vec<Link>,
    /// A DSB has made the change of the tables visible.
    visible: bool,
    under_way: Vec<(Tlbi, Reach)>,
    /// The combined entries that go when the pending invalidations complete.
    combined_going: bool,
}

impl RemoteTlb {
    pub fn new(vmid: u16, scan: Scan) -> Self {
        Self {
            vmid,
            combined: scan.leaves.clone(),
            stage2: scan.leaves,
            links: scan.links,
            visible: false,
            under_way: Vec::new(),
            combined_going: false,
        }
    }

    pub fn observe(&mut self, event: &Event, vttbr: u64) {
        match event {
            Event::Dsb(Domain::IshSt) => self.visible = true,
            Event::Dsb(Domain::Ish) => {
                self.visible = true;
                self.complete();
            }
            Event::Tlbi(operation, reach) if self.visible && (vttbr >> 48) as u16 == self.vmid => match operation {
                Tlbi::Ipas2E1 | Tlbi::VmallE1 => {}
                Tlbi::VmallE1Is => {
                    // The pending invalidation has not completed, so a combined entry may be made once more.
                    if self.under_way.is_empty() {
                        self.combined_going = true;
                    }
                }
                _ => self.under_way.push((*operation, *reach)),
            },
            _ => {}
        }
    }

    fn complete(&mut self) {
        if self.combined_going {
            let stage2 = &self.stage2;
            self.combined.retain(|leaf| stage2.binary_search_by_key(&leaf.ipa, |entry| entry.ipa).is_ok());
            self.combined_going = false;
        }
        for (operation, reach) in std::mem::take(&mut self.under_way) {
            self.stage2.retain(|leaf| !reach.hits(leaf.ipa, leaf.span(), leaf.level));
            if !matches!(operation, Tlbi::Ipas2Le1Is | Tlbi::Ripas2Le1Is) {
                self.links.retain(|link| !reach.hits(link.ipa, span(link.level), link.level));
            }
            if operation == Tlbi::VmallS12E1Is {
                self.combined.clear();
            }
        }
    }

    /// Panics if an entry that is left allows more than the tables do. An entry that allows less is no harm: it causes
    /// a fault.
    pub fn check(&self, now: &Scan) {
        for entries in [&self.stage2, &self.combined] {
            let mut leaves = now.leaves.iter();
            for cached in entries {
                let leaf = leaves.find(|leaf| leaf.ipa >= cached.ipa).filter(|leaf| leaf.ipa == cached.ipa);
                let leaf = leaf.unwrap_or_else(|| panic!("{cached:x?} is gone, but a TLB still holds it"));
                if leaf != cached {
                    Self::check_changed(cached, leaf);
                }
            }
        }
        for link in &self.links {
            assert!(now.links.contains(link), "{link:x?} is gone, but a TLB still walks through it");
        }
    }

    fn check_changed(cached: &Leaf, leaf: &Leaf) {
        let place = |leaf: &Leaf| (leaf.level, leaf.pa(), leaf.raw >> 2 & 0xf);
        assert_eq!(place(leaf), place(cached), "a TLB still holds {cached:x?}");
        assert!(leaf.access().covers(cached.access()), "{leaf:x?} was narrowed, a TLB still holds {cached:x?}");
        // A cached entry with DBM lets hardware grant writes.
        let grants = |leaf: &Leaf| leaf.access().write || leaf.dirty_by_hardware();
        assert!(grants(leaf) || !grants(cached), "{leaf:x?} grants no writes, a TLB still holds {cached:x?}");
    }
}
