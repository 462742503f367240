// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The translation tables of one guest.
//!
//! Operations take `&self`. CPUs change the tree side by side, by the protocol in the
//! crate's documentation (page `locking`). Meanwhile hardware walks the tree, and sets access flags and dirty state.

use crate::cache::NonCacheable;
use crate::counts::Counts;
use crate::deferred_free::DeferredFree;
use crate::platform::{Domain, Platform};
use crate::primitive::{self, Claim};
use crate::removal::{PendingChanges, RemovalCount, RemovalId, RemovalWatcher};
use crate::resize::LiveSplits;
use crate::sequence::SequenceCount;
use crate::table::Table;
use crate::tlb::Tlb;
use crate::vmids::TreeVmid;
use crate::{
    Descriptor, Error, Features, Geometry, Granule, Kib4, Memory, Pa, Root, TablePage, TableSource, Vmid, registers,
};

/// The stage-2 tables of one guest, with the TLB maintenance that each change needs.
///
/// End their life with [`destroy`](Self::destroy). If they are dropped instead, their pages are lost and the embedder
/// is notified ([`Platform::abandoned`]): a CPU may still walk them.
#[derive(Debug)]
pub struct Stage2<P: Platform, G: Granule = Kib4> {
    platform: P,
    features: Features,
    geometry: Geometry<G>,
    root: Root,
    vttbr: u64,
    root_entries: usize,
    pub(crate) shares_vmids: bool,
    pub(crate) vmid: TreeVmid,
    pub(crate) sequence: SequenceCount,
    pub(crate) pending_downgrades: PendingChanges,
    pub(crate) pending_removals: PendingChanges,
    pub(crate) deferred_free: DeferredFree,
    pub(crate) removal_count: RemovalCount,
    pub(crate) non_cacheable: NonCacheable,
    pub(crate) live_splits: LiveSplits,
    /// Cleared by [`destroy`](Self::destroy), so that the drop after it abandons nothing.
    is_live: bool,
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Empty tables with this root, which is zeroed here, under a VMID of their own.
    ///
    /// *The caller* gives each guest its own VMID. If the VMID was used before, its TLB entries must be invalidated
    /// before the guest runs, and after the last CPU has stopped using the old tables.
    /// [`invalidate_all`](Self::invalidate_all) does it, of the new tables or of the old.
    ///
    /// # Errors
    ///
    /// * [`Error::Feature`] if a feature has a value that no CPU has.
    /// * [`Error::Vmid`] if the VMID has more bits than the CPU supports.
    /// * [`Error::Root`] if the root is smaller than the geometry needs.
    /// * [`Error::OutsidePa`] if the root was made for another geometry, and is beyond this one's physical addresses.
    /// * [`Error::Granule`] and [`Error::GeometryOfOtherCpu`] if the geometry was made for other features, and does not fit
    ///   these.
    ///
    /// With an error the root is lost. None comes if geometry and root were made from the same features, and the VMID fits
    /// [`Features::vmid_bits`].
    pub fn new(platform: P, features: Features, geometry: Geometry<G>, vmid: Vmid, root: Root) -> Result<Self, Error> {
        Self::under(platform, features, geometry, vmid, root, false)
    }

    /// As [`new`](Self::new), under a VMID that is given when a CPU needs one ([`use_vmid`](Self::use_vmid)), and that may be
    /// given to other tables later. So there may be more guests than VMIDs.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`Error::NoSharedVmids`] if the platform has none ([`Platform::vmids`]).
    pub fn sharing_vmids(platform: P, features: Features, geometry: Geometry<G>, root: Root) -> Result<Self, Error> {
        if platform.vmids().is_none() {
            return Err(Error::NoSharedVmids);
        }
        Self::under(platform, features, geometry, Vmid::new(0), root, true)
    }

    fn under(
        platform: P,
        features: Features,
        geometry: Geometry<G>,
        vmid: Vmid,
        root: Root,
        shares_vmids: bool,
    ) -> Result<Self, Error> {
        features.check()?;
        let fits = u32::from(vmid.raw()) >> features.vmid_bits == 0;
        if !primitive::check(fits) {
            return Err(Error::Vmid { vmid: vmid.raw(), bits: features.vmid_bits });
        }
        geometry.check_features(&features)?;
        if root.size() < geometry.root_size() {
            return Err(Error::Root { root: root.pa(), size: geometry.root_size() });
        }
        if root.pa().raw() >> geometry.pa_bits() != 0 {
            return Err(Error::OutsidePa { pa: root.pa(), bits: geometry.pa_bits() });
        }
        let vttbr = registers::vttbr(root.pa(), vmid, &features);
        let root_entries = geometry.root_entries();
        primitive::root(root.pa(), Some(root_entries), vttbr, registers::vtcr(&geometry, &features));
        root.zero(&platform, &features);
        platform.metadata(root.pa()).reset(Counts::EMPTY, &platform);
        platform.metadata(root.pa()).set_link(0);
        // A CPU may enter the guest before anything is mapped.
        primitive::dsb(&platform, Domain::IshSt);
        primitive::claim(Claim::Visible);
        Ok(Self {
            platform,
            features,
            geometry,
            root,
            vttbr,
            root_entries,
            shares_vmids,
            vmid: TreeVmid::default(),
            sequence: SequenceCount::default(),
            pending_downgrades: PendingChanges::default(),
            pending_removals: PendingChanges::default(),
            deferred_free: DeferredFree::default(),
            removal_count: RemovalCount::default(),
            non_cacheable: NonCacheable::default(),
            live_splits: LiveSplits::default(),
            is_live: true,
        })
    }

    /// The geometry of the tables.
    pub fn geometry(&self) -> &Geometry<G> {
        &self.geometry
    }

    /// The CPU features that these tables use.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// The platform.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// The value of `VTTBR_EL2` for running the guest. If its VMIDs are shared, VMID 0 is in it, and the guest runs with
    /// [`use_vmid`](Self::use_vmid) instead.
    pub fn vttbr(&self) -> u64 {
        self.vttbr
    }

    /// The value of `VTCR_EL2` for running the guest.
    pub fn vtcr(&self) -> u64 {
        registers::vtcr(&self.geometry, &self.features)
    }

    /// Invalidates every TLB entry of this guest, of both stages, on all CPUs.
    pub fn invalidate_all(&self) {
        self.tlb().invalidate_vmid();
    }

    /// Invalidates this guest's stage-1 and combined TLB entries on this CPU.
    ///
    /// Call it before a vCPU enters on a CPU where another vCPU of the same guest ran last. The two share the VMID, but
    /// not their stage-1 tables.
    pub fn invalidate_for_other_vcpu(&self) {
        self.tlb().invalidate_stage1_local();
    }

    /// Notes that a leaf of this memory type is about to be made.
    pub(crate) fn note_memory(&self, memory: Memory) {
        self.non_cacheable.note(memory);
    }

    /// Whether this tree may hold leaves whose lines must be cleaned from the caches when the leaves are removed.
    pub(crate) fn leaves_lines(&self) -> bool {
        !self.features.forced_write_back || self.non_cacheable.is_noted()
    }

    /// Counts a permission downgrade that is about to begin. It ends when its [`Pending`](crate::Pending) is flushed.
    pub(crate) fn begin_downgrade(&self) {
        self.pending_downgrades.count(&self.platform);
    }

    /// Counts a removal that is about to begin, in the same way, if it has a watcher. Returns the mark for its entries.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn begin_removal<R: RemovalWatcher<G>>(&self) -> Descriptor<G> {
        if !R::WATCHES {
            return Descriptor::STALE;
        }
        self.pending_removals.count(&self.platform);
        Descriptor::STALE_COUNTED
    }

    /// A name for a removal that begins.
    #[inline(always)]
    pub(crate) fn removal_id<R: RemovalWatcher<G>>(&self) -> RemovalId {
        self.removal_count.next::<R, P, G>(self.root.pa, &self.platform)
    }

    /// Gives the pages of dropped flushes to `tables`.
    #[inline]
    pub(crate) fn give_deferred(&self, tables: &mut impl TableSource<G>) {
        self.deferred_free.give_to(tables, &self.platform, &self.features);
    }

    pub(crate) fn tlb(&self) -> Tlb<'_, P, G> {
        Tlb(self)
    }

    #[inline(always)]
    pub(crate) fn root(&self) -> Table<'_, G> {
        // SAFETY: this tree owns the root, with this many entries, for as long as the tree lives.
        unsafe { Table::at(&self.platform, self.root.pa(), self.root_entries) }
    }

    #[inline(always)]
    pub(crate) fn root_pa(&self) -> Pa {
        self.root.pa
    }

    /// The root, which this tree owns.
    pub(crate) fn root_of(&self) -> &Root {
        &self.root
    }

    /// The table that an entry of this tree leads to, or led to a moment ago.
    #[inline(always)]
    pub(crate) fn table(&self, entry: Descriptor<G>) -> Table<'_, G> {
        // SAFETY: table entries are made from donated pages only.
        unsafe { Table::at(&self.platform, entry.address(), G::ENTRIES) }
    }

    /// The entries of a page that is not linked yet.
    #[inline(always)]
    pub(crate) fn table_in(&self, page: &TablePage<G>) -> Table<'_, G> {
        self.table(Descriptor::table(page.pa()))
    }

    /// The root's memory, after everything was unmapped and flushed.
    pub(crate) fn into_root(mut self) -> Root {
        primitive::root(self.root.pa(), None, self.vttbr, self.vtcr());
        self.is_live = false;
        Root { pa: self.root.pa, size: self.root.size }
    }
}

impl<P: Platform, G: Granule> Drop for Stage2<P, G> {
    fn drop(&mut self) {
        if self.is_live {
            self.platform.abandoned(self.root.pa());
        }
    }
}
