// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A platform for an embedder's tests on any host: frames in the process's memory, a record of the instructions, and vCPUs
//! that translate by the tables.
//!
//! ```
//! use twofold_stage2::hosted::{Hosted, Vcpu};
//! use twofold_stage2::{Access, Attributes, Geometry, Ipa, Kib4, Level, Pool, Stage2, Unwatched, Vmid};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (platform, memory) = Hosted::new(4 << 20);
//! let features = Hosted::features();
//! let geometry = Geometry::new(Kib4, 40, &features)?;
//! let (mut tables, root, ram) = platform.cut(memory, &geometry).expect("4 MiB");
//! let stage2 = Stage2::new(platform.clone(), features, geometry, Vmid::new(1), root)?;
//!
//! let ipa = Ipa::new(1 << 30);
//! let lent = stage2.lend(ram, ipa, ipa.range(2 << 20));
//! let mut vcpu = Vcpu::new(&stage2);
//! assert!(vcpu.store(ipa, 7).is_err(), "nothing is mapped");
//! let _ = stage2.grant(&lent, ipa, 4096).expect("lent").map(Level::L3, &Attributes::ram(Access::READ_WRITE), &mut tables)?;
//! vcpu.store(ipa, 7)?;
//! assert_eq!(vcpu.load(ipa)?, 7);
//!
//! let (root, _) = stage2.destroy(&mut tables, Unwatched);
//! let _ram = root.reclaim(lent).expect("nothing is mapped");
//! # Ok(())
//! # }
//! ```
//!
//! A [`Vcpu`] keeps what it translated until a TLB invalidation of any kind. So a test finds code that relies on a change
//! before its flush is complete. It is no proof of more: the platform does not judge sequences, holds no walk entries, and
//! does not model an access that is under way during a flush. The project's own machine does, in its strict mode.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::vec::Vec;

use crate::fault::{AccessKind, Fault, FaultKind};
use crate::platform::{Dc, Domain, Ic, Platform, Tlbi};
use crate::{
    Donated, Error, Features, Geometry, Granule, Ipa, Kib4, Leaf, Level, Pa, Root, Run, Stage2, TableMetadata,
    TablePage, TableSource, VmidSlot, Vmids,
};

/// A machine whose memory is in this process. Its clones are the same machine, and each thread is a CPU of it.
#[derive(Clone, Debug)]
pub struct Hosted(Arc<Machine>);

#[derive(Debug)]
struct Machine {
    memory: NonNull<u8>,
    layout: Layout,
    /// The physical address of the first byte.
    first: Pa,
    metadata: Vec<TableMetadata>,
    vmids: OnceLock<Vmids<'static>>,
    instructions: Mutex<Vec<Instruction>>,
    /// The number of TLB invalidations.
    invalidations: AtomicU64,
}

// SAFETY: the memory is reached by atomic and volatile accesses only, under the engine's own rules.
unsafe impl Send for Machine {}
// SAFETY: as above.
unsafe impl Sync for Machine {}

/// A test may catch a panic: no code under the lock of the VMIDs panics, and a mutex that is poisoned is used all the same.
impl std::panic::RefUnwindSafe for Machine {}

/// An instruction that the engine executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the instruction of that name, with its operands")]
#[non_exhaustive]
pub enum Instruction {
    Tlbi(Tlbi, u64),
    Dsb(Domain),
    Isb,
    /// `DC`, for the lines of `size` bytes.
    Dc {
        operation: Dc,
        pa: Pa,
        size: u64,
    },
    Ic(Ic),
    LoadVttbr(u64),
}

std::thread_local! {
    /// `VTTBR_EL2` of this thread.
    static VTTBR: Cell<u64> = const { Cell::new(0) };
}

/// Physical addresses are handed out once in a process, so that no machine takes a run of another one's for its own.
static NEXT: AtomicU64 = AtomicU64::new(ALIGNMENT);

/// Of the first address of each machine: a block of 1 GiB is aligned in it.
const ALIGNMENT: u64 = 1 << 30;

impl Hosted {
    /// A machine with `size` bytes of memory, rounded up to whole pages of 64 KiB, and all of that memory.
    ///
    /// # Panics
    ///
    /// If the host has no memory.
    pub fn new(size: u64) -> (Self, Run) {
        const FRAMES: u64 = 64 << 10;
        let size = size.max(1).next_multiple_of(FRAMES);
        let layout = Layout::from_size_align(size as usize, FRAMES as usize).expect("a size of memory");
        // SAFETY: the size is not 0.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory of the host");
        let first = Pa::new(NEXT.fetch_add(size.next_multiple_of(ALIGNMENT), Ordering::Relaxed));
        let metadata = (0..size / 4096).map(|_| TableMetadata::default()).collect();
        let (vmids, instructions, invalidations) = Default::default();
        let machine = Machine { memory, layout, first, metadata, vmids, instructions, invalidations };
        // SAFETY: the allocation lives as long as the platform, and no reference covers it. No other machine has these
        // addresses, and this is the only donation of them.
        (Self(Arc::new(machine)), unsafe { Donated::new(first, size) }.into_run())
    }

    /// The features of a CPU that these vCPUs are like: those of the architecture's first version, and coherent caches.
    /// With FEAT_HAFDBS hardware would write to the tables, which [`Vcpu`] does not.
    pub const fn features() -> Features {
        Features::NONE.with_forced_write_back(true).with_instruction_cache_coherent(true)
    }

    /// Cuts memory for one guest of the 4 KiB granule: table pages, the root, and the rest, which begins at a multiple of 2
    /// MiB. `None` if the memory is too small.
    pub fn cut(&self, memory: Run, geometry: &Geometry) -> Option<(Tables, Root, Run)> {
        const BLOCK: u64 = 2 << 20;
        // The memory is aligned to 2 MiB, so the root is aligned to its size, and so is what follows the first block.
        let (root, rest) = memory.split_at(geometry.root_size()).ok()?;
        let (pages, ram) = rest.split_at(BLOCK - root.size()).ok()?;
        let pages = pages.into_pages().filter_map(|page| page.into_table(&Self::features()).ok());
        Some((Tables(pages.collect()), root.into_root(geometry).ok()?, ram))
    }

    /// Gives this machine `count` VMIDs, at least 1, that its trees may share ([`Stage2::sharing_vmids`]). They live as long as
    /// the process. A machine keeps those of the first call.
    ///
    /// # Errors
    ///
    /// [`Error::NoSharedVmids`] if `count` is 0.
    pub fn share_vmids(&self, count: usize) -> Result<(), Error> {
        let slots = Vec::leak((0..count).map(|_| VmidSlot::new()).collect());
        let vmids = Vmids::new(slots, &Self::features())?;
        self.0.vmids.get_or_init(|| vmids);
        Ok(())
    }

    /// Takes the record of what the engine executed since the last call.
    pub fn take_instructions(&self) -> Vec<Instruction> {
        std::mem::take(&mut self.instructions())
    }

    /// Loads 8 bytes as the hypervisor does, through its own mapping.
    ///
    /// # Panics
    ///
    /// If `pa` is not in this machine, or no multiple of 8.
    pub fn load(&self, pa: Pa) -> u64 {
        self.word(pa).load(Ordering::Relaxed)
    }

    /// Stores 8 bytes as the hypervisor does. No guest may have them mapped without FEAT_S2FWB.
    ///
    /// # Panics
    ///
    /// As [`load`](Self::load).
    pub fn store(&self, pa: Pa, value: u64) {
        self.word(pa).store(value, Ordering::Relaxed);
    }

    fn word(&self, pa: Pa) -> &AtomicU64 {
        assert!(pa.is_aligned(8), "{pa} is no multiple of 8");
        // SAFETY: inside the allocation, which lives as long as `self`, and aligned.
        unsafe { self.pointer(pa).cast::<AtomicU64>().as_ref() }
    }

    fn instructions(&self) -> MutexGuard<'_, Vec<Instruction>> {
        self.0.instructions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, instruction: Instruction) {
        self.instructions().push(instruction);
    }

    fn offset(&self, pa: Pa) -> usize {
        let offset = pa.raw().checked_sub(self.0.first.raw()).map_or(usize::MAX, |offset| offset as usize);
        assert!(offset < self.0.layout.size(), "{pa} is no memory of this machine");
        offset
    }

    fn record_dc(&self, operation: Dc, address: usize, size: u64) {
        let pa = self.0.first + address.wrapping_sub(self.0.memory.addr().get()) as u64;
        if operation == Dc::Zva {
            (0..size / 8).for_each(|word| self.store(pa + word * 8, 0));
        }
        self.record(Instruction::Dc { operation, pa, size });
    }
}

// SAFETY: the allocation lives as long as the last clone, only atomic and volatile accesses reach it, and each frame has its
// own metadata. The vCPUs of these tables hold no translation that an invalidation has ended.
unsafe impl Platform for Hosted {
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        self.0.invalidations.fetch_add(1, Ordering::SeqCst);
        self.record(Instruction::Tlbi(operation, operand));
    }

    fn dsb(&self, domain: Domain) {
        std::sync::atomic::fence(Ordering::SeqCst);
        self.record(Instruction::Dsb(domain));
    }

    fn isb(&self) {
        self.record(Instruction::Isb);
    }

    unsafe fn dc(&self, operation: Dc, address: usize) {
        let features = Self::features();
        self.record_dc(operation, address, if operation == Dc::Zva { features.zero_block } else { features.data_line });
    }

    unsafe fn dc_lines(&self, operation: Dc, start: usize, size: u64, _: u64) {
        self.record_dc(operation, start, size);
    }

    fn ic(&self, operation: Ic, _: usize) {
        self.record(Instruction::Ic(operation));
    }

    fn vttbr(&self) -> u64 {
        VTTBR.get()
    }

    fn load_vttbr(&self, value: u64) {
        VTTBR.set(value);
        self.record(Instruction::LoadVttbr(value));
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        // SAFETY: the offset is inside the allocation.
        unsafe { self.0.memory.add(self.offset(pa)) }
    }

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        &self.0.metadata[self.offset(pa) / 4096]
    }

    fn vmids(&self) -> Option<&Vmids<'_>> {
        self.0.vmids.get()
    }

    fn pause(&self, _: u32) {
        std::thread::yield_now();
    }

    /// The memory goes with the machine. In a test that fails, a second panic would end all tests.
    fn abandoned(&self, root: Pa) {
        let is_failing = std::thread::panicking();
        debug_assert!(is_failing, "the tables at {root} are dropped and were not destroyed: their pages are lost");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout. No platform is left, so nothing reaches the memory.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// Free table pages.
#[derive(Debug)]
pub struct Tables<G: Granule = Kib4>(pub Vec<TablePage<G>>);

impl<G: Granule> TableSource<G> for Tables<G> {
    fn take(&mut self) -> Option<TablePage<G>> {
        self.0.pop()
    }

    fn give(&mut self, page: TablePage<G>) {
        self.0.push(page);
    }
}

/// A vCPU with stage 1 off and one TLB. It takes no part in locking: a guest runs beside everything.
#[derive(Debug)]
pub struct Vcpu<'a, G: Granule = Kib4> {
    stage2: &'a Stage2<Hosted, G>,
    /// What it has translated, by the first address of a page.
    tlb: BTreeMap<Ipa, Leaf<G>>,
    /// The number of invalidations that the TLB has seen.
    seen: u64,
}

impl<'a, G: Granule> Vcpu<'a, G> {
    /// A vCPU of the guest with these tables.
    pub fn new(stage2: &'a Stage2<Hosted, G>) -> Self {
        Self { stage2, tlb: BTreeMap::new(), seen: 0 }
    }

    /// Loads the 8 bytes at `ipa`, a multiple of 8.
    ///
    /// # Errors
    ///
    /// The fault that the hypervisor has to handle before the guest tries again.
    pub fn load(&mut self, ipa: Ipa) -> Result<u64, Taken> {
        Ok(self.stage2.platform().load(self.translate(ipa, AccessKind::Read)?))
    }

    /// Stores 8 bytes at `ipa`, a multiple of 8.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn store(&mut self, ipa: Ipa, value: u64) -> Result<(), Taken> {
        let pa = self.translate(ipa, AccessKind::Write)?;
        self.stage2.platform().store(pa, value);
        Ok(())
    }

    /// The physical address of an access.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn translate(&mut self, ipa: Ipa, access: AccessKind) -> Result<Pa, Taken> {
        let now = self.stage2.platform().0.invalidations.load(Ordering::SeqCst);
        if now != self.seen {
            self.tlb.clear();
            self.seen = now;
        }
        let page = ipa.align_down(G::SIZE);
        let cached = self.tlb.get(&page).copied();
        let taken = |kind, level| Taken { ipa, fault: Fault { kind, access, level, stage1_walk: false } };
        let leaf = cached.or_else(|| self.stage2.look_up(ipa)).ok_or(taken(FaultKind::Translation, Level::L3))?;
        let allowed = leaf.descriptor.access();
        let fits = match access {
            AccessKind::Write => allowed.write,
            AccessKind::Execute => allowed.execute.el1,
            AccessKind::Read | AccessKind::Maintenance => allowed.read,
        };
        if !leaf.descriptor.is_accessed() {
            return Err(taken(FaultKind::AccessFlag, leaf.level));
        }
        self.tlb.insert(page, leaf);
        if fits {
            leaf.translate(ipa).ok_or(taken(FaultKind::Translation, leaf.level))
        } else {
            Err(taken(FaultKind::Permission, leaf.level))
        }
    }
}

/// A stage-2 fault that a [`Vcpu`] took: what a hypervisor decodes from its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the guest's access to {ipa} took a fault: {fault:?}")]
pub struct Taken {
    /// The address of the access.
    pub ipa: Ipa,
    /// The fault.
    pub fault: Fault,
}
