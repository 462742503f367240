// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables of each granule, and with FEAT_LPA2, on this CPU: at both ends of IPA size, a guest reaches the last page, a block
//! is split, coalesced, protected and unmapped; a contiguous group loses its hint, and is joined. A granule that the CPU does not
//! have is refused.

use core::ops::ControlFlow;

use twofold_hypervisor::sysreg::isb;
use twofold_hypervisor::write_sysreg;
use twofold_memory::Frames;
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::{
    Access, Attributes, Coalesced, Contiguous, Error, Execute, Features, Geometry, Granule, Grouped, Ipa, Kib4,
    Kib4Lpa2, Kib16, Kib16Lpa2, Kib64, Level, Mapped, Pa, Stage2, TablePage, TableSource, Unwatched, Window,
    group_length,
};

use super::permissions::stopped_by;
use crate::agent::{self, Agent};
use crate::check::{Failure, Outcome};
use crate::hand_mapped_guest::{AGENT, HERE, VMID, load_tables};
use crate::machine::{Frame, Machine, PAGE};
use crate::omit::Omit;

tests!(
    granules::tables_of_16_kib,
    granules::tables_of_64_kib,
    granules::tables_of_4_kib_with_lpa2,
    granules::tables_of_16_kib_with_lpa2,
    granules::contiguous_groups,
);

fn tables_of_16_kib(machine: Machine) -> Outcome {
    at_both_ends(machine, Kib16, 48)
}

fn tables_of_64_kib(machine: Machine) -> Outcome {
    at_both_ends(machine, Kib64, 52)
}

fn tables_of_4_kib_with_lpa2(machine: Machine) -> Outcome {
    at_both_ends(machine, Kib4Lpa2, 52)
}

/// 49 bits start at level 1, with 4 tables. More start at level 0, which QEMU 7.2 refuses with 16 KiB, although FEAT_LPA2 has
/// it.
fn tables_of_16_kib_with_lpa2(machine: Machine) -> Outcome {
    at_both_ends(machine, Kib16Lpa2, 49)
}

/// IPA spaces of 32 bits, of 40, and of as many as the granule's descriptors and the CPU have.
fn at_both_ends<G: Granule>(mut machine: Machine, granule: G, held: u32) -> Outcome {
    if !machine.features.has_granule::<G>() {
        let refused = Geometry::new(granule, 40, &machine.features);
        check!(matches!(refused, Err(Error::Granule { .. })), "{granule:?}: {refused:?}");
        return Ok(());
    }
    for bits in [32, 40, machine.features.pa_bits.min(held)] {
        on(&mut machine, granule, bits, pages_and_a_block)?;
    }
    Ok(())
}

/// Groups of pages of each granule that the CPU has.
fn contiguous_groups(mut machine: Machine) -> Outcome {
    fn of<G: Granule>(machine: &mut Machine, granule: G) -> Outcome {
        if machine.features.has_granule::<G>() { on(machine, granule, 40, groups) } else { Ok(()) }
    }
    of(&mut machine, Contiguous(Kib4))?;
    of(&mut machine, Contiguous(Kib16))?;
    of(&mut machine, Contiguous(Kib64))
}

/// Table pages of a granule.
struct Pages<'a>(&'a mut Frames, Features);

impl<G: Granule> TableSource<G> for Pages<'_> {
    fn take(&mut self) -> Option<TablePage<G>> {
        self.0.take(G::SIZE / PAGE)?.into_table(&self.1).ok()
    }

    fn give(&mut self, page: TablePage<G>) {
        // The frames are of this source, so it takes them back.
        let _ = self.0.give_run(page.into_run());
    }
}

/// The memory of a leaf.
fn window(pa: Pa, size: u64) -> Window {
    // SAFETY: the memory belongs to the test, or surrounds that memory. The agent accesses only the memory that the test
    // selects, and EL2 accesses it only by volatile accesses.
    unsafe { Window::new(pa, size) }
}

/// What a test has: the tables, pages for more, and the agent, whose program is mapped; and two frames.
struct Setup<'a, 'm, G: Granule> {
    stage2: &'a Stage2<Omit, G>,
    pages: Pages<'m>,
    agent: Agent,
    frame: Frame,
    far: Frame,
    granule: G,
    bits: u32,
}

/// Runs `body` on tables of this granule and IPA size.
fn on<G: Granule>(
    machine: &mut Machine,
    granule: G,
    bits: u32,
    body: impl FnOnce(&mut Setup<'_, '_, G>) -> Outcome,
) -> Outcome {
    let features = machine.features;
    let (program, frame, far) = (machine.frame(G::SIZE)?, machine.frame(G::SIZE)?, machine.frame(G::SIZE)?);
    let geometry = Geometry::new(granule, bits, &features)?;
    let root = machine.frames.take(geometry.root_size() / PAGE).ok_or_else(|| Failure::new("no memory for a root"))?;
    let root = root.into_root(&geometry).map_err(|run| Failure::new(alloc::format!("{run:?} is no root")))?;
    // SAFETY: EL2 maps all RAM one to one; the frames come from `memory::take_over`, and are only ever reused for guests.
    let platform = unsafe { Omit::new(machine.metadata) };
    let stage2 = Stage2::new(platform, features, geometry, VMID, root)?;
    let mut pages = Pages(&mut machine.frames, features);
    let code = Attributes::ram(Access { execute: Execute::ALWAYS, ..Access::READ });
    program.fill(agent::program());
    let mapped = stage2.open(window(program.pa, G::SIZE), AGENT).map(Level::L3, &code, &mut pages)?;
    check_eq!(mapped, Mapped::New, "the agent");
    load_tables(stage2.vtcr(), stage2.vttbr());
    stage2.invalidate_all();
    let agent = Agent::new(AGENT.raw());
    let mut setup = Setup { stage2: &stage2, pages, agent, frame, far, granule, bits };
    body(&mut setup)?;
    let Setup { mut pages, .. } = setup;

    // The next tables have the same VMID.
    // SAFETY: affects only guests, and none runs.
    unsafe { write_sysreg!(VTTBR_EL2, 0u64) };
    isb();
    let (root, _) = stage2.destroy(&mut pages, Unwatched);
    check!(pages.0.give_run(root.into_run()).is_ok(), "the root is given back");
    Ok(())
}

/// A group loses its hint to a page that becomes writable, is joined again, and loses a page.
fn groups<G: Granule>(setup: &mut Setup<'_, '_, G>) -> Outcome {
    let Setup { stage2, pages, agent, frame, granule, .. } = setup;
    let (ram, size) = (Attributes::ram(Access::READ_WRITE), group_length::<G>(Level::L3) as u64 * G::SIZE);
    // A group around the frame. QEMU may have less RAM than that, so the agent touches only the frame.
    let (at, pa) = (HERE.align_down(size), frame.pa.align_down(size));
    let here = at + (frame.pa - pa);
    let beside = if here == at { here + G::SIZE } else { here - G::SIZE };
    let grouped = |at: Ipa| stage2.look_up(at).map(|leaf| leaf.descriptor.is_contiguous());
    let map = |pages: &mut Pages<'_>| stage2.open(window(pa, size), at).map_group(Level::L3, &ram, pages, &mut |_| ());
    check_eq!((map(pages)?, grouped(here)), (Grouped::New, Some(true)), "{granule:?}: mapping");
    frame.write(0, 5);
    check_eq!(agent.load(here.raw())?, 5, "{granule:?}: a group");
    let range = at..at + size;
    let _ = stage2.write_protect(range.clone())?.complete();
    check_eq!(grouped(here), Some(true), "{granule:?}: write protection");
    stopped_by(agent.store(here.raw(), 6).map(|()| 0), FaultKind::Permission, AccessKind::Write, Level::L3, here)?;
    let _ = stage2.relax_page(here, Access::READ_WRITE)?;
    agent.store(here.raw(), 6)?;
    check_eq!((frame.read(0), grouped(here), grouped(beside)), (6, Some(false), Some(false)), "{granule:?}: a page");
    stopped_by(agent.store(beside.raw(), 7).map(|()| 0), FaultKind::Permission, AccessKind::Write, Level::L3, beside)?;
    check_eq!((map(pages)?, grouped(beside)), (Grouped::Joined, Some(true)), "{granule:?}: joining");
    agent.store(here.raw(), 8)?;
    check_eq!(agent.load(here.raw())?, 8, "{granule:?}: the group again");
    let page = here.align_down(G::SIZE)..here.align_down(G::SIZE) + G::SIZE;
    stage2.unmap(page, pages, Unwatched)?.complete().free(pages);
    stopped_by(agent.load(here.raw()), FaultKind::Translation, AccessKind::Read, Level::L3, here)?;
    check_eq!(grouped(beside), Some(false), "{granule:?}: what is left");
    Ok(())
}

fn pages_and_a_block<G: Granule>(setup: &mut Setup<'_, '_, G>) -> Outcome {
    let Setup { stage2, pages, agent, frame, far, granule, bits } = setup;
    let (ram, block) = (Attributes::ram(Access::READ_WRITE), granule.span(Level::L2));
    let bits = *bits;

    // The last page of the IPA space, which checks T0SZ, SL0 and concatenated roots.
    let last = Ipa::new((1 << bits) - G::SIZE);
    let _ = stage2.open(window(far.pa, G::SIZE), last).map(Level::L3, &ram, pages)?;
    far.write(G::SIZE - 8, u64::from(bits));
    check_eq!(agent.load((last + (G::SIZE - 8)).raw())?, u64::from(bits), "{granule:?}, {bits} bits: the last word");

    // A block around the frame. QEMU may have less RAM than that, so the agent touches only the frame.
    let (at, pa) = (HERE, frame.pa.align_down(block));
    let here = at + (frame.pa - pa);
    let grant = || stage2.open(window(pa, block), at);
    let _ = grant().map(Level::L2, &ram, pages)?;
    frame.write(0, 5);
    check_eq!(agent.load(here.raw())?, 5, "{granule:?}, {bits} bits: a block");
    let range = at..at + block;
    let split = stage2.split(range.clone(), 1 << 30, pages, |_, _| ControlFlow::Continue(()))?;
    check_eq!((split.blocks, stage2.count_leaves(range.clone())?[3]), (1, G::ENTRIES as u64), "splitting");
    agent.store((here + 8).raw(), 6)?;
    check_eq!((agent.load(here.raw())?, frame.read(8)), (5, 6), "{granule:?}, {bits} bits: pages");
    let _ = stage2.write_protect(range.clone())?.complete();
    stopped_by(agent.store(here.raw(), 7).map(|()| 0), FaultKind::Permission, AccessKind::Write, Level::L3, here)?;
    let coalesced = grant().coalesce(Level::L2, &ram, pages, &mut |_| ())?;
    check_eq!(coalesced, Coalesced::Done { tables: 1 }, "coalescing");
    agent.store(here.raw(), 7)?;
    check_eq!(frame.read(0), 7, "{granule:?}, {bits} bits: the block again");
    let page = here.align_down(G::SIZE)..here.align_down(G::SIZE) + G::SIZE;
    stage2.unmap(page, pages, Unwatched)?.complete().free(pages);
    stopped_by(agent.load(here.raw()), FaultKind::Translation, AccessKind::Read, Level::L3, here)?;
    Ok(())
}
