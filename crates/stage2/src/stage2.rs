// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One guest's translation tables.
//!
//! The tree belongs to one [`Stage2`]; changes take `&mut self`, so there is one writer at a time, beside the
//! walks of hardware, which may read any entry and set access flag and dirty state in it.

use core::sync::atomic::AtomicU64;

use crate::platform::{Domain, Platform};
use crate::table::{Cell, Table};
use crate::tlb::Tlb;
use crate::{Descriptor, Error, Features, Geometry, Ipa, Level, Root, TablePage, Vmid, registers};

/// The stage-2 tables of one guest, and the TLB maintenance that goes with each change.
#[derive(Debug)]
pub struct Stage2<P> {
    platform: P,
    features: Features,
    geometry: Geometry,
    root: Root,
    vttbr: u64,
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
    /// be invalidated ([`invalidate_all`](Self::invalidate_all)) before the guest runs.
    pub fn new(platform: P, features: Features, geometry: Geometry, vmid: Vmid, root: Root) -> Result<Self, Error> {
        if u32::from(vmid.raw()).checked_shr(features.vmid_bits).unwrap_or(0) != 0 {
            return Err(Error::Vmid { vmid: vmid.raw(), bits: features.vmid_bits });
        }
        if root.size() < geometry.root_size() {
            return Err(Error::Root { root: root.pa(), size: geometry.root_size() });
        }
        root.zero(&platform, &features);
        // The guest may be entered before anything is mapped.
        platform.dsb(Domain::IshSt);
        let vttbr = registers::vttbr(root.pa(), vmid, &features);
        Ok(Self { platform, features, geometry, root, vttbr })
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

    /// The leaf that maps `ipa`, if any.
    pub fn look_up(&self, ipa: Ipa) -> Option<Leaf> {
        self.find(ipa).map(|(_, leaf)| leaf)
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

    /// The leaf that maps `ipa`, and its entry in memory.
    pub(crate) fn find(&self, ipa: Ipa) -> Option<(Cell<'_>, Leaf)> {
        if ipa >= self.geometry.end() {
            return None;
        }
        let mut table = self.root();
        let mut level = self.geometry.root_level();
        loop {
            let cell = table.entry(self.geometry.index(ipa, level));
            let descriptor = cell.load();
            match level.below() {
                Some(below) if descriptor.is_table(level) => {
                    table = self.table(descriptor);
                    level = below;
                }
                _ if !descriptor.is_valid() => return None,
                _ => {
                    let ipa = ipa.align_down(self.geometry.granule().span(level));
                    return Some((cell, Leaf { ipa, level, descriptor }));
                }
            }
        }
    }

    pub(crate) fn tlb(&self) -> Tlb<'_, P> {
        Tlb { platform: &self.platform, features: &self.features, geometry: &self.geometry, vttbr: self.vttbr }
    }

    pub(crate) fn root(&self) -> Table<'_> {
        // SAFETY: the root is this tree's, with this many entries, for as long as it lives.
        unsafe { Table::at(&self.platform, self.root.pa(), self.geometry.root_entries()) }
    }

    /// The table that an entry of this tree points to.
    pub(crate) fn table(&self, entry: Descriptor) -> Table<'_> {
        // SAFETY: only `map` makes table entries, from pages it was given, and a page leaves the tree only by
        // `&mut self`.
        unsafe { Table::at(&self.platform, entry.address(), self.geometry.granule().entries()) }
    }

    /// A page's entries, before it is linked.
    pub(crate) fn unlinked(&self, page: &TablePage) -> Table<'_> {
        // SAFETY: the page is owned, so no other tree has it.
        unsafe { Table::at(&self.platform, page.pa(), TablePage::SIZE as usize / size_of::<AtomicU64>()) }
    }

    pub(crate) fn into_root(self) -> Root {
        self.root
    }
}
