// SPDX-License-Identifier: Apache-2.0 OR MIT
//! More guests than VMIDs, on this CPU: each sees its own memory, whichever VMID it has at the moment.

use alloc::vec::Vec;

use twofold_hypervisor::sysreg::isb;
use twofold_hypervisor::write_sysreg;
use twofold_stage2::arm64::{IdentityMap, SharedVmids};
use twofold_stage2::{
    Access, Attributes, Error, Execute, Geometry, Ipa, Kib4, Level, Stage2, Unwatched, VmidInUse, VmidSlot, Vmids,
    Window,
};

use super::staleness::{Seen, both_ways, seen_by_content, seen_if_gone};
use crate::agent::{self, Agent};
use crate::check::{Failure, Outcome};
use crate::hand_mapped_guest::{AGENT, HERE, IPA_BITS, load_tables, page_at};
use crate::machine::{Frame, Machine, PAGE};
use crate::omit::{LeftOut, Omit};

tests!(
    shared_vmids::guests_that_take_turns_see_their_own_memory,
    shared_vmids::a_guest_that_lost_its_vmid_needs_no_flush,
    shared_vmids::a_roll_over_needs_an_invalidation,
);

fn guests_that_take_turns_see_their_own_memory(mut machine: Machine) -> Outcome {
    const GUESTS: u64 = 5;
    const ROUNDS: u64 = 3;
    let slots = [const { VmidSlot::new() }; 2];
    let vmids = Vmids::new(&slots, &machine.features)?;
    let mut guests = Vec::new();
    for value in 0..GUESTS {
        guests.push(Guest::new(&mut machine, &vmids, value)?);
    }
    for round in 0..ROUNDS {
        for (value, guest) in (0..).zip(&mut guests) {
            let expected = if round == 0 { value } else { value + 100 * round };
            let in_use = guest.enter()?;
            let vmid = in_use.vttbr() >> VMID_SHIFT;
            check!((1..=slots.len() as u64).contains(&vmid), "guest {value} has VMID {vmid}");
            check_eq!(guest.agent.load(HERE.raw())?, expected, "round {round}: guest {value}");
            guest.agent.store(HERE.raw(), value + 100 * (round + 1))?;
            guest.leave(in_use);
        }
    }
    check!(vmids.generations() >= GUESTS * ROUNDS / 2, "{} roll-overs", vmids.generations());

    // With all VMIDs in use, one more guest is refused, until one is released.
    let [first, second, third, ..] = &mut guests[..] else { return Err(Failure::new("too few guests")) };
    let in_use = [first.stage2.use_vmid()?, second.stage2.use_vmid()?];
    let refused = third.stage2.use_vmid().map(drop);
    check_eq!(refused, Err(Error::NoVmid { slots: slots.len() }), "the third VMID of two");
    let [one, other] = in_use;
    first.leave(one);
    let in_use = third.enter()?;
    check_eq!(third.agent.load(HERE.raw())?, 2 + 100 * ROUNDS, "after one was released");
    third.leave(in_use);
    second.leave(other);
    Ok(())
}

/// Its page goes while another guest has its VMID. No TLB has an entry of it, and none comes back with its next VMID.
fn a_guest_that_lost_its_vmid_needs_no_flush(mut machine: Machine) -> Outcome {
    let slots = [const { VmidSlot::new() }; 1];
    let vmids = Vmids::new(&slots, &machine.features)?;
    let mut old = Guest::new(&mut machine, &vmids, 1)?;
    let mut new = Guest::new(&mut machine, &vmids, 2)?;
    for guest in [&mut old, &mut new] {
        let in_use = guest.enter()?;
        guest.agent.load(HERE.raw())?;
        guest.leave(in_use);
    }
    for (guest, has_vmid) in [(&mut old, false), (&mut new, true)] {
        guest.stage2.platform().take_executed();
        guest.stage2.unmap(page_at(HERE), &mut machine.frames, Unwatched)?.complete().free(&mut machine.frames);
        let executed = guest.stage2.platform().take_executed();
        check_eq!(!executed.is_empty(), has_vmid, "{executed:x?}: whether it was flushed");
    }
    for guest in [&mut new, &mut old] {
        let in_use = guest.enter()?;
        check_eq!(seen_if_gone(guest.agent.load(HERE.raw()))?, Seen::New, "its page");
        guest.leave(in_use);
    }
    Ok(())
}

fn a_roll_over_needs_an_invalidation(machine: Machine) -> Outcome {
    both_ways(machine, LeftOut::EveryTlbi, roll_over)
}

/// The only VMID goes from one guest to another. QEMU empties its TLB when the VMID changes, so between the two the CPU
/// has tables of that VMID that map nothing, and not VMID 0.
fn roll_over(machine: &mut Machine, left_out: LeftOut) -> Outcome<Seen> {
    let slots = [const { VmidSlot::new() }; 1];
    let vmids = Vmids::new(&slots, &machine.features)?;
    let mut old = Guest::new(machine, &vmids, 1)?;
    let mut new = Guest::new(machine, &vmids, 2)?;
    let empty = tables(machine, &vmids)?;
    let in_use = old.enter()?;
    check_eq!(old.agent.load(HERE.raw())?, 1, "before");
    load_tables(empty.vtcr(), empty.vttbr() | in_use.vttbr() >> VMID_SHIFT << VMID_SHIFT);
    old.stage2.release_vmid(in_use);
    new.stage2.platform().leave_out(left_out);
    let in_use = new.enter();
    new.stage2.platform().leave_out(LeftOut::Nothing);
    let seen = seen_by_content(new.agent.load(HERE.raw())?, 1, 2);
    new.leave(in_use?);
    seen
}

/// Where `VTTBR_EL2` has the VMID.
const VMID_SHIFT: u32 = 48;

type Tables<'a> = Stage2<Omit<SharedVmids<'a, IdentityMap>>>;

/// A guest with its own page at [`HERE`].
struct Guest<'a> {
    stage2: Tables<'a>,
    agent: Agent,
}

impl<'a> Guest<'a> {
    /// Its page has `value` in its first word.
    fn new(machine: &mut Machine, vmids: &'a Vmids<'a>, value: u64) -> Outcome<Self> {
        let stage2 = tables(machine, vmids)?;
        let (program, page) = (machine.page()?, machine.page()?);
        program.fill(agent::program());
        page.write(0, value);
        let mut map = |ipa: Ipa, frame: Frame, access: Access| -> Outcome {
            // SAFETY: the memory belongs to the test, and EL2 accesses it only by volatile accesses.
            let window = unsafe { Window::new(frame.pa, PAGE) };
            let _ = stage2.open(window, ipa).map(Level::L3, &Attributes::ram(access), &mut machine.frames)?;
            Ok(())
        };
        map(AGENT, program, Access { execute: Execute::ALWAYS, ..Access::READ })?;
        map(HERE, page, Access::READ_WRITE)?;
        Ok(Self { stage2, agent: Agent::new(AGENT.raw()) })
    }

    /// This CPU has the guest's tables.
    fn enter(&self) -> Outcome<VmidInUse> {
        let in_use = self.stage2.use_vmid()?;
        load_tables(self.stage2.vtcr(), in_use.vttbr());
        Ok(in_use)
    }

    /// This CPU has no guest's tables.
    fn leave(&self, in_use: VmidInUse) {
        // SAFETY: affects only guests, and none runs.
        unsafe { write_sysreg!(VTTBR_EL2, 0u64) };
        isb();
        self.stage2.release_vmid(in_use);
    }
}

/// Tables that map nothing.
fn tables<'a>(machine: &mut Machine, vmids: &'a Vmids<'a>) -> Outcome<Tables<'a>> {
    let geometry = Geometry::new(Kib4, IPA_BITS, &machine.features)?;
    let root = machine.frames.take_root(&geometry).ok_or_else(|| Failure::new("no memory for a root"))??;
    // SAFETY: EL2 maps all RAM one to one; the frames come from `memory::take_over`, and are only ever reused for guests.
    // All guests are of the test, and stale entries lead to its own frames.
    let platform = unsafe { Omit::over(SharedVmids { frames: IdentityMap::new(machine.metadata), vmids }) };
    Ok(Stage2::sharing_vmids(platform, machine.features, geometry, root)?)
}
