// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory of a guest: its own, its stage-1 tables, and its stage-2 tables; their sizes and places.
//!
//! Invariant: a plan is made, and compared with the system's free memory, before any memory is touched.

use std::sync::Arc;

use anyhow::{Context, ensure};
use twofold_machine::arena::{Arena, ArenaError, ArenaOptions, Backing as Made};
use twofold_machine::fast::CpusError;
use twofold_stage2::{Donated, Ipa};
use twofold_workload::stage1::{Layout, Leaves};

use crate::experiment::setup::{Backing, Setup};
use crate::experiment::target::REGION;
use crate::readable;

/// The sizes in bytes, and the places, of a guest's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The layout of stage 1.
    pub layout: Layout,
    /// The IPA of the first region.
    pub start: Ipa,
    /// Bytes of all regions.
    pub memory: u64,
    /// Bytes of the memslot with the stage-1 tables, which begins at IPA 0.
    pub stage1: u64,
    /// The offset in the machine's memory of the memory for stage-1 and stage-2 tables, and its size.
    tables: (u64, u64),
    arena: ArenaOptions,
}

/// The machine's memory. Guests use it one after the other.
pub struct Memory {
    options: ArenaOptions,
    arena: Arc<Arena>,
}

impl Plan {
    /// The plan for a guest.
    ///
    /// # Errors
    ///
    /// Sizes contradict each other, the mode is not modelled, or the memory does not fit into the mode's addresses.
    pub fn of(setup: &Setup) -> anyhow::Result<Self> {
        CpusError::check(setup.vcpus)?;
        let granule = setup.mode.granule.size();
        let (memory, slots) = (setup.memory(), setup.slots as u64);
        ensure!(
            setup.region > 0 && setup.region.is_multiple_of(granule),
            "a region of {} is not whole pages of {}: use a multiple of {}",
            readable::bytes(setup.region),
            setup.mode,
            readable::bytes(granule)
        );
        ensure!(
            slots > 0 && (memory / granule).is_multiple_of(slots),
            "{} cannot be divided among {slots} slots: each has to be a multiple of {}",
            readable::bytes(memory),
            readable::bytes(granule)
        );
        let layout = Layout::new(&setup.mode, WIDEST, Leaves::Pages)?;
        let page = setup.backing.page();
        let start = match setup.offset {
            Some(offset) => offset,
            None => {
                let end = 1_u64 << layout.pa_bits();
                let start = end.checked_sub(memory).with_context(|| {
                    let memory = readable::bytes(memory);
                    format!("{memory} do not fit in the {} bits of an address of {}", layout.pa_bits(), setup.mode)
                })?;
                start & !(page.max(granule) - 1)
            }
        };
        // Stage-1 tables are mapped by blocks, so that few of the guest's faults are for them.
        let stage1 = (layout.tables(REGION, start, memory)? * granule).next_multiple_of(HUGE_PAGE);
        let tables = stage1 + stage2_tables(memory + stage1, setup);
        let made = if setup.backing == Backing::Shmem { Made::Shmem } else { Made::AnonymousThp };
        // A block needs both addresses to be aligned alike. So the guest's memory comes first, unless it is sparse.
        let arena = if setup.sparse {
            let dense = tables.next_multiple_of(page.max(HUGE_PAGE));
            ArenaOptions { sparse: memory, ..ArenaOptions::new(dense, made) }
        } else {
            ArenaOptions::new(memory.next_multiple_of(HUGE_PAGE) + tables, made)
        };
        let at = if setup.sparse { 0 } else { memory.next_multiple_of(HUGE_PAGE) };
        Ok(Self { layout, start: Ipa::new(start), memory, stage1, tables: (at, tables), arena })
    }

    /// The parts of the machine's memory: the guest's own memory, and the memory for its tables.
    ///
    /// # Errors
    ///
    /// This is not the memory of the plan.
    pub fn parts(&self, arena: &Arena) -> anyhow::Result<(Donated, Donated)> {
        let (tables, size) = self.tables;
        let own = match self.arena.sparse {
            0 => arena.donate_part(0, self.memory),
            _ => arena.donate_sparse(),
        };
        own.zip(arena.donate_part(tables, size)).context(SMALLER)
    }
}

const SMALLER: &str = "the machine's memory is smaller than its plan";

impl Memory {
    /// Allocates memory for this plan, and touches it. It uses huge pages, as tables at EL2 do, or small pages if the
    /// system has no huge ones.
    ///
    /// # Errors
    ///
    /// The memory is larger than the free memory; nothing was touched.
    pub fn new(plan: &Plan) -> anyhow::Result<Self> {
        let options = plan.arena;
        let arena = match Arena::new(&options) {
            Err(ArenaError::NoTransparentHugePages { instead }) => {
                Arena::new(&ArenaOptions { backing: instead, ..options })
            }
            arena => arena,
        };
        let arena = arena.with_context(|| {
            let sparse = if options.sparse == 0 { "; --sparse maps a small piece repeatedly" } else { "" };
            format!("cannot allocate a guest with {} MiB of memory{sparse}", plan.memory >> 20)
        })?;
        // Sparse memory is a small file, and is not touched.
        let own = if options.sparse == 0 { 0..plan.memory } else { 0..0 };
        let (tables, size) = plan.tables;
        for offset in own.chain(tables..tables + size).step_by(PAGE as usize) {
            arena.store(arena.base() + offset, 0).context(SMALLER)?;
        }
        Ok(Self { options, arena: Arc::new(arena) })
    }

    /// Whether a guest of this plan can use this memory: it has the same shape, and at least the size. Guests that
    /// differ only in their mode take turns in one memory.
    pub fn is_for(&self, plan: &Plan) -> bool {
        let dense = self.options.dense;
        dense >= plan.arena.dense && self.options == ArenaOptions { dense, ..plan.arena }
    }

    /// Whether no guest uses this memory.
    pub fn is_free(&self) -> bool {
        Arc::strong_count(&self.arena) == 1
    }

    /// The memory, for a guest that then has it to itself.
    pub fn arena(&self) -> Arc<Arena> {
        Arc::clone(&self.arena)
    }
}

/// The most bytes of 4 KiB stage-2 tables that map `bytes`: those of level 3, of level 2, and others.
fn stage2_tables(bytes: u64, setup: &Setup) -> u64 {
    let (level3, level2) = (bytes.div_ceil(HUGE_PAGE), bytes.div_ceil(1 << 30));
    // A memslot may begin inside a table, and a vCPU may keep some table pages in its pool.
    let others = (setup.slots + setup.vcpus) as u64 * 8;
    ((level3 + level2 + others) * PAGE + SPARE).next_multiple_of(HUGE_PAGE)
}

/// The most bits of an IPA that stage 2 translates.
const WIDEST: u32 = 48;
/// Bytes in a page of stage 2.
pub const PAGE: u64 = 4 << 10;
/// Bytes in a huge page. Memory for a memslot is allocated in huge pages.
const HUGE_PAGE: u64 = 2 << 20;
/// For the root table, and what a buddy allocator cannot use.
const SPARE: u64 = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use twofold_workload::mode::Mode;

    fn setup(mode: &str) -> Setup {
        Setup { region: 64 << 20, ..Setup::new(Mode::find(mode).unwrap()) }
    }

    #[test]
    fn memory_is_at_the_end_of_the_modes_addresses() {
        let start = |setup: &Setup| Plan::of(setup).unwrap().start.raw();
        assert_eq!(start(&setup("p40v48-4k")), (1 << 40) - (64 << 20));
        assert_eq!(start(&setup("p36v47-16k")), (1 << 36) - (64 << 20));
        let large = Setup { backing: Backing::AnonymousHugetlb1G, ..setup("pxxv48-4k") };
        assert_eq!(start(&large), (1 << 48) - (1 << 30));
        assert_eq!(start(&Setup { offset: Some(5 << 30), ..setup("p40v48-4k") }), 5 << 30);
    }

    #[test]
    fn sizes_that_go_together_with_nothing() {
        let refused = |setup: Setup| format!("{:#}", Plan::of(&setup).unwrap_err());
        assert!(refused(Setup { region: 4096, ..setup("p40v48-64k") }).contains("a multiple of 64 KiB"));
        assert!(refused(Setup { slots: 3, ..setup("p40v48-4k") }).contains("3 slots"));
        assert!(refused(Setup { region: 1 << 37, ..setup("p36v48-4k") }).contains("36 bits"));
        assert!(refused(Setup { vcpus: 0, ..setup("p40v48-4k") }).contains("0 vCPUs"));
        assert!(refused(setup("p52v48-4k")).contains("48 bits"));
        assert!(refused(setup("p47v64-4k")).contains("p47v64-4k"));
    }

    /// Larger than any machine's memory: if it were touched, this process would be killed.
    #[test]
    fn what_does_not_fit_is_refused_before_it_is_touched() {
        let huge = Setup { region: 100 << 40, ..setup("p48v48-4k") };
        let error = format!("{:#}", Memory::new(&Plan::of(&huge).unwrap()).err().unwrap());
        assert!(error.contains("needs") && error.contains("free here") && error.contains("--sparse"), "{error}");
    }

    #[test]
    fn a_guest_has_its_memory_to_itself() {
        let memory = Memory::new(&Plan::of(&setup("p40v48-4k")).unwrap()).unwrap();
        assert!(memory.is_free());
        let arena = memory.arena();
        assert!(!memory.is_free());
        drop(arena);
        assert!(memory.is_free());
    }

    #[test]
    fn sparse_memory_is_behind_the_tables() {
        let plan =
            Plan::of(&Setup { sparse: true, backing: Backing::AnonymousHugetlb1G, ..setup("p40v48-4k") }).unwrap();
        assert_eq!((plan.arena.dense, plan.arena.sparse, plan.tables.0), (1 << 30, 64 << 20, 0));
        assert!(plan.tables.1 < 1 << 30);
    }
}
