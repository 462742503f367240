// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One guest's translation tables.
//!
//! Operations take `&self`: CPUs change the tree side by side, by the protocol in the crate's documentation, while
//! hardware walks it and sets access flag and dirty state.

use crate::cache::NonCacheable;
use crate::descent::{Place, Unlinked};
use crate::flush::PendingChanges;
use crate::kept::Kept;
use crate::platform::{Domain, Platform};
use crate::primitive::{self, Claim};
use crate::record::Counts;
use crate::removed::Removals;
use crate::table::Table;
use crate::tlb::{Thresholds, Tlb};
use crate::{Descriptor, Error, Features, Geometry, Ipa, Level, Pa, Root, TablePage, Vmid, registers};

/// The stage-2 tables of one guest, and the TLB maintenance that goes with each change.
///
/// [`destroy`](Self::destroy) them: tables that are dropped lose their pages ([`Platform::abandoned`]), since a CPU may
/// still walk them.
#[derive(Debug)]
pub struct Stage2<P: Platform> {
    platform: P,
    features: Features,
    geometry: Geometry,
    root: Root,
    vttbr: u64,
    root_entries: usize,
    thresholds: Thresholds,
    pub(crate) unlinked: Unlinked,
    pub(crate) pending: PendingChanges,
    pub(crate) kept: Kept,
    pub(crate) removals: Removals,
    pub(crate) non_cacheable: NonCacheable,
    /// Cleared by [`destroy`](Self::destroy).
    is_live: bool,
}

/// A leaf that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The first address it maps.
    pub ipa: Ipa,
    /// Its level: 3 for a page.
    pub level: Level,
    /// The entry.
    pub descriptor: Descriptor,
}

impl<P: Platform> Stage2<P> {
    /// Empty tables with this root, which is zeroed.
    ///
    /// The VMID is the caller's to keep apart from other guests'. If the VMID was in use before, its entries have to
    /// be invalidated ([`invalidate_all`](Self::invalidate_all), of these tables or of those before) when no CPU has those
    /// loaded any more, and before the guest runs.
    pub fn new(platform: P, features: Features, geometry: Geometry, vmid: Vmid, root: Root) -> Result<Self, Error> {
        let fits = u32::from(vmid.raw()).checked_shr(features.vmid_bits).unwrap_or(0) == 0;
        if !primitive::check(fits) {
            return Err(Error::Vmid { vmid: vmid.raw(), bits: features.vmid_bits });
        }
        if root.size() < geometry.root_size() {
            return Err(Error::Root { root: root.pa(), size: geometry.root_size() });
        }
        let vttbr = registers::vttbr(root.pa(), vmid, &features);
        let root_entries = geometry.root_entries();
        primitive::root(root.pa(), Some(root_entries), vttbr, registers::vtcr(&geometry, &features));
        root.zero(&platform, &features);
        platform.record(root.pa()).reset(Counts::EMPTY, &platform);
        platform.record(root.pa()).set_link(0);
        // The guest may be entered before anything is mapped.
        primitive::dsb(&platform, Domain::IshSt);
        primitive::claim(Claim::Visible);
        let (thresholds, unlinked) = (Thresholds::DEFAULT, Unlinked::default());
        Ok(Self {
            platform,
            features,
            geometry,
            root,
            vttbr,
            root_entries,
            thresholds,
            unlinked,
            pending: PendingChanges::default(),
            kept: Kept::default(),
            removals: Removals::default(),
            non_cacheable: NonCacheable::default(),
            is_live: true,
        })
    }

    /// The shape of the tables.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The CPU's features that the engine goes by.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// The platform.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// `VTTBR_EL2` for running the guest.
    pub fn vttbr(&self) -> u64 {
        self.vttbr
    }

    /// `VTCR_EL2` for running the guest.
    pub fn vtcr(&self) -> u64 {
        registers::vtcr(&self.geometry, &self.features)
    }

    /// Sets up to where invalidations go by address.
    #[must_use]
    pub fn with_thresholds(mut self, thresholds: Thresholds) -> Self {
        self.thresholds = thresholds;
        self
    }

    /// The leaf that maps `ipa`, if any.
    #[inline]
    pub fn look_up(&self, ipa: Ipa) -> Option<Leaf> {
        self.find(ipa).map(|(_, leaf)| leaf)
    }

    /// How many table pages mapping a leaf of `level` at `ipa` would take now: 0 where its table is there, which is what
    /// most faults find. For who keeps pages ready ([`Pool`](crate::Pool)).
    #[inline]
    pub fn tables_needed(&self, ipa: Ipa, level: Level) -> usize {
        if ipa >= self.geometry.end() {
            return 0;
        }
        let place = self.descend(ipa, level);
        usize::from(level.raw().saturating_sub(place.level.raw()))
    }

    /// Invalidates every TLB entry of this guest, of both stages, on all CPUs.
    pub fn invalidate_all(&self) {
        self.tlb().invalidate_vmid();
    }

    /// Invalidates this guest's stage-1 and combined TLB entries on this CPU. To be called before a vCPU enters
    /// where another vCPU of the same guest ran last: they share the VMID, but not what their stage 1 says.
    pub fn invalidate_for_other_vcpu(&self) {
        self.tlb().invalidate_stage1_local();
    }

    /// The leaf that maps `ipa`, and where its entry is. An entry that somebody is changing is waited for.
    #[inline(always)]
    pub(crate) fn find(&self, ipa: Ipa) -> Option<(Place<'_>, Leaf)> {
        if ipa >= self.geometry.end() {
            return None;
        }
        loop {
            let place = self.descend(ipa, Level::L3);
            if !self.is_still(&place) {
                continue;
            }
            if place.entry.is_valid() {
                let ipa = ipa.align_down(self.geometry.granule().span(place.level));
                return Some((place, Leaf { ipa, level: place.level, descriptor: place.entry }));
            }
            if place.entry.is_vacant() {
                return None;
            }
            self.platform.pause(1);
        }
    }

    pub(crate) fn tlb(&self) -> Tlb<'_, P> {
        Tlb {
            platform: &self.platform,
            features: &self.features,
            geometry: &self.geometry,
            thresholds: self.thresholds,
            vttbr: self.vttbr,
        }
    }

    #[inline(always)]
    pub(crate) fn root(&self) -> Table<'_> {
        // SAFETY: the root is this tree's, with this many entries, for as long as it lives.
        unsafe { Table::at(&self.platform, self.root.pa(), self.root_entries) }
    }

    #[inline(always)]
    pub(crate) fn root_pa(&self) -> Pa {
        self.root.pa
    }

    /// The root itself, which this tree owns.
    pub(crate) fn root_of(&self) -> &Root {
        &self.root
    }

    /// The table that an entry of this tree points to, or pointed to a moment ago.
    #[inline(always)]
    pub(crate) fn table(&self, entry: Descriptor) -> Table<'_> {
        // SAFETY: table entries are made from donated pages only.
        unsafe { Table::at(&self.platform, entry.address(), self.geometry.granule().entries()) }
    }

    /// A page's entries, before it is linked.
    #[inline(always)]
    pub(crate) fn table_in(&self, page: &TablePage) -> Table<'_> {
        self.table(Descriptor::table(page.pa()))
    }

    /// The root's memory, when nothing is mapped any more.
    pub(crate) fn into_root(mut self) -> Root {
        primitive::root(self.root.pa(), None, self.vttbr, self.vtcr());
        self.is_live = false;
        Root { pa: self.root.pa, size: self.root.size }
    }
}

impl<P: Platform> Drop for Stage2<P> {
    fn drop(&mut self) {
        if self.is_live {
            self.platform.abandoned(self.root.pa());
        }
    }
}
