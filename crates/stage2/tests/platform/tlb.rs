// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a TLB invalidation reaches, as the machine decodes it ([`twofold_machine::tlbi`]), and a TLB that forgets
//! nothing else.

use twofold_machine::tlbi::{self, Which};
use twofold_machine::walk::Format;
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
    /// What the machine decodes the operand to. Panics on values that the manual reserves or leaves unpredictable, and
    /// on an address that is not the first of its leaf.
    pub fn decode(operation: Tlbi, operand: u64, features: &Features) -> Self {
        let reach =
            tlbi::Reach::decode(operation, operand, features, Format::KIB_4).unwrap_or_else(|error| panic!("{error}"));
        let Some(Which::Range { start, end, level, .. }) = reach.stage2 else { return Self::Vmid };
        assert!(start.is_multiple_of(span(level.unwrap_or(3))), "{start:#x} at level {level:?}");
        let (start, end) = (Ipa::new(start), Ipa::new(end));
        match operation {
            Tlbi::Ripas2E1Is | Tlbi::Ripas2Le1Is => Self::Range(start, end, level),
            _ => Self::At(start, level),
        }
    }

    /// The stage-2 entries that the operation invalidates.
    fn which(&self, operation: Tlbi) -> Which {
        let (start, end, level) = match *self {
            Self::Vmid => return Which::All,
            Self::At(ipa, level) => (ipa, ipa + span(3), level),
            Self::Range(start, end, level) => (start, end, level),
        };
        let last_level_only = matches!(operation, Tlbi::Ipas2Le1Is | Tlbi::Ripas2Le1Is);
        Which::Range { start: start.raw(), end: end.raw(), level, last_level_only }
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
    under_way: Vec<(Tlbi, Which)>,
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
                _ => self.under_way.push((*operation, reach.which(*operation))),
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
        for (operation, which) in std::mem::take(&mut self.under_way) {
            self.stage2.retain(|leaf| !which.hits(leaf.ipa.raw(), leaf.span(), leaf.level, false));
            self.links.retain(|link| !which.hits(link.ipa.raw(), span(link.level), link.level, true));
            if matches!(operation, Tlbi::VmallS12E1Is | Tlbi::Alle1Is) {
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
