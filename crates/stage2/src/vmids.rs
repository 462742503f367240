// SPDX-License-Identifier: Apache-2.0 OR MIT
//! VMIDs that trees share, for more guests than the CPU has VMIDs.
//!
//! Each VMID has a slot, which names the tree that was given it last, and counts the CPUs that use it now. A tree keeps its
//! VMID for as long as no other tree is given it. VMIDs are given away in generations: when each was used since the last
//! *roll-over*, all TLB entries of all guests are invalidated, and those that no CPU uses may be given to other trees.
//!
//! **Invariant.** A VMID is given to another tree only after an invalidation of everything that began when no CPU used the
//! VMID, and no CPU has used it since then.
//!
//! The protocol:
//!
//! * **V1, use.** A CPU takes the VMID that its tree's word names: one compare-and-exchange of the slot checks that the slot
//!   still names the tree, adds a user, and sets [`TOUCHED`]. Then it executes a full fence. Only then it loads
//!   `VTTBR_EL2`.
//! * **V2, give.** If V1 fails, the CPU takes the lock, and tries V1 again, since another CPU may have given the tree a
//!   VMID. Otherwise it takes a slot without users that is not touched, by one compare-and-exchange, and names it in the
//!   tree's word.
//! * **V3, roll-over.** Under the lock: clears [`TOUCHED`] of each slot without users; `DSB ISHST`; `TLBI ALLE1IS`; `DSB
//!   ISH`. A CPU that uses a slot again after it was cleared sets the bit, so that slot is not given away.
//! * **V4, release.** After it has loaded another `VTTBR_EL2` and synchronized its context, a CPU removes itself from the
//!   users.
//! * **V5, flush.** A CPU that has changed the tree makes its change visible to walks (`DSB ISHST`), executes a full fence,
//!   and does V1. If that fails, no TLB holds an entry of the tree, and there is nothing to invalidate: the VMID that it had
//!   was given away, so V3 removed its entries. A CPU that gives the tree a VMID only now finds the change in its walks: its
//!   fence of V1 comes after the one of V5.
//!
//! The design is that of the VMID and ASID allocators of Linux (generations, and VMIDs in use that outlive them), with users
//! counted for each VMID in place of a table of CPUs. So a tree that comes back after a roll-over keeps its VMID if it is
//! still free, and a flush takes part without being a CPU of the guest.

use crate::lock::Lock;
use crate::platform::{Domain, Platform, Tlbi};
use crate::primitive::{self, Ordering, Word};
use crate::{Error, Features, Granule, Stage2, Vmid, registers};

/// The VMIDs that the trees of a platform share ([`Platform::vmids`]).
#[derive(Debug)]
pub struct Vmids<'a> {
    slots: &'a [VmidSlot],
    turn: Lock<Turn>,
    /// Written under the lock.
    generations: Word,
}

/// What is known of one VMID.
///
/// Bits 14 to 0: the number of users. Bit 15: whether a CPU has used it since the last roll-over. Bits 63 to 16: the serial
/// number of the gift, which its tree's word has too; 0 if it was never given.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct VmidSlot(Word);

/// The VMID of a tree, in use by this CPU. Dropping this leaves it in use for ever, which is safe, and takes the VMID from
/// all others.
#[must_use = "release it after another VTTBR_EL2 is loaded: Stage2::release_vmid"]
#[derive(Debug)]
pub struct VmidInUse {
    vttbr: u64,
    /// The slot's index. `None`: the tree has a VMID of its own.
    slot: Option<usize>,
}

/// What a tree was given last: the serial number of the gift, and the VMID in bits 15 to 0; 0 before the first. Written under
/// the lock.
#[derive(Debug, Default)]
pub(crate) struct TreeVmid(Word);

/// The state under the lock.
#[derive(Debug)]
struct Turn {
    /// The slot to try next.
    next: usize,
    /// The number of gifts so far.
    serial: u64,
}

/// Whether a CPU has used the VMID since the last roll-over: TLBs may hold entries of it.
const TOUCHED: u64 = 1 << 15;
/// The users.
const USERS: u64 = TOUCHED - 1;
/// The shift of the serial number, in a slot and in a tree's word. 48 bits do not return to a value within years.
const SERIAL: u32 = 16;
/// How often a CPU looks for a VMID that no CPU uses, before it gives up.
const LOOKS: u32 = 64;

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Takes the VMID of this tree for this CPU, to run the guest with [`VmidInUse::vttbr`]. Without shared VMIDs, that is the
    /// VMID from [`Stage2::new`].
    ///
    /// Call it with interrupts masked, or where the CPU stays the same until the VMID is released.
    ///
    /// # Errors
    ///
    /// [`Error::NoVmid`] if CPUs use all VMIDs.
    pub fn use_vmid(&self) -> Result<VmidInUse, Error> {
        let slot = match self.shared_vmids() {
            Some(vmids) => Some(vmids.use_or_give(&self.vmid, self.platform())?),
            None => None,
        };
        Ok(self.in_use(slot))
    }

    /// Gives back the VMID, after this CPU has loaded another `VTTBR_EL2` and synchronized its context. The tree keeps the
    /// VMID until another tree needs it. What another tree gave out stays in use.
    pub fn release_vmid(&self, in_use: VmidInUse) {
        if let (Some(vmids), Some(slot)) = (self.shared_vmids(), in_use.slot)
            && self.in_use(Some(slot)).vttbr == in_use.vttbr
        {
            vmids.release(slot, self.platform());
        }
    }

    /// V5, after a change to the tree: the VMID of this tree for this CPU. `None` if no TLB holds an entry of the tree.
    pub(crate) fn vmid_to_flush(&self) -> Option<VmidInUse> {
        let Some(vmids) = self.shared_vmids() else { return Some(self.in_use(None)) };
        primitive::dsb(self.platform(), Domain::IshSt);
        primitive::full_fence();
        vmids.try_use(&self.vmid, self.platform()).map(|slot| self.in_use(Some(slot)))
    }

    fn in_use(&self, slot: Option<usize>) -> VmidInUse {
        let vttbr = match slot {
            Some(index) => registers::vttbr(self.root_pa(), Vmid::new(index as u16 + 1), self.features()),
            None => self.vttbr(),
        };
        VmidInUse { vttbr, slot }
    }

    #[inline(always)]
    fn shared_vmids(&self) -> Option<&Vmids<'_>> {
        self.shares_vmids.then(|| self.platform().vmids()).flatten()
    }
}

impl VmidSlot {
    /// A VMID that was never given, for a `static` array of slots.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(Word::new(0))
    }
}

impl VmidInUse {
    /// The value of `VTTBR_EL2`.
    pub fn vttbr(&self) -> u64 {
        self.vttbr
    }
}

impl<'a> Vmids<'a> {
    /// The VMIDs 1, 2 and so on, one for each slot, up to the most that the CPU has. VMID 0 is left to the embedder.
    ///
    /// 65,535 slots of 8 bytes are all that a CPU with 16-bit VMIDs has; fewer take less memory, and a shorter roll-over. Have
    /// more than twice as many as there are CPUs: each CPU may use one for its guest and another one for a flush.
    ///
    /// # Errors
    ///
    /// [`Error::NoSharedVmids`] if there is no slot.
    pub fn new(slots: &'a [VmidSlot], features: &Features) -> Result<Self, Error> {
        let most = if features.vmid_bits == 16 { u16::MAX } else { u8::MAX.into() };
        let slots = slots.get(..most.into()).unwrap_or(slots);
        if slots.is_empty() {
            return Err(Error::NoSharedVmids);
        }
        // The first gift needs a roll-over, so nothing is asked of what TLBs hold before.
        Ok(Self { slots, turn: Lock::new(Turn { next: slots.len(), serial: 0 }), generations: Word::default() })
    }

    /// The number of generations so far: how often everything was invalidated. The first begins with the first gift.
    pub fn generations(&self) -> u64 {
        self.generations.load(Ordering::Relaxed)
    }

    /// V1: the VMID that this tree's word names, if it is still the tree's.
    pub(crate) fn try_use<P: Platform>(&self, tree: &TreeVmid, platform: &P) -> Option<usize> {
        // Acquire: a flush that this CPU's fence comes before finds what this CPU found (V5).
        let given = tree.0.load(Ordering::Acquire);
        let index = ((given & 0xffff) as usize).checked_sub(1)?;
        let slot = &self.slots.get(index)?.0;
        loop {
            // Acquire: if the slot names another tree, the invalidation of V3 comes before what this CPU does next.
            let now = slot.load(Ordering::Acquire);
            if !primitive::check(now >> SERIAL == given >> SERIAL) {
                return None;
            }
            platform.on_atomic();
            // Relaxed: all that V2 and V3 ask of this is in the slot itself, and the fence orders the rest.
            if slot.compare_exchange(now, (now | TOUCHED) + 1, Ordering::Relaxed).is_ok() {
                primitive::full_fence();
                return Some(index);
            }
        }
    }

    /// V1, and V2 if need be.
    pub(crate) fn use_or_give<P: Platform>(&self, tree: &TreeVmid, platform: &P) -> Result<usize, Error> {
        if let Some(index) = self.try_use(tree, platform) {
            return Ok(index);
        }
        let mut turn = self.turn.lock(platform);
        if let Some(index) = self.try_use(tree, platform) {
            return Ok(index);
        }
        let mut looks = 0;
        let index = loop {
            if let Some(index) = self.give(&mut turn, platform) {
                break index;
            }
            // Those that have become free may be used again before they are given, and a flush uses one for a moment.
            if !self.roll_over(&mut turn, platform) {
                looks += 1;
                if looks == LOOKS {
                    return Err(Error::NoVmid { slots: self.slots.len() });
                }
                platform.pause(1);
            }
        };
        // Release: a CPU that reads this finds the slot given.
        tree.0.store(turn.serial << SERIAL | (index + 1) as u64, Ordering::Release);
        // The word is visible before a walk with this VMID begins, and before this CPU reads on (V5).
        primitive::dsb(platform, Domain::IshSt);
        primitive::full_fence();
        Ok(index)
    }

    /// V2: gives away the next slot that is free in this generation.
    fn give<P: Platform>(&self, turn: &mut Turn, platform: &P) -> Option<usize> {
        for (index, VmidSlot(slot)) in self.slots.iter().enumerate().skip(turn.next) {
            turn.next = index + 1;
            let now = slot.load(Ordering::Relaxed);
            let gift = (turn.serial + 1) << SERIAL | TOUCHED | 1;
            if now & (TOUCHED | USERS) != 0 {
                continue;
            }
            platform.on_atomic();
            // Release: V3 was complete before.
            if slot.compare_exchange(now, gift, Ordering::Release).is_ok() {
                turn.serial += 1;
                return Some(index);
            }
        }
        None
    }

    /// V3: begins a generation. Returns false if there is none to begin, since CPUs use all VMIDs.
    fn roll_over<P: Platform>(&self, turn: &mut Turn, platform: &P) -> bool {
        let mut any = false;
        for VmidSlot(slot) in self.slots {
            let mut now = slot.load(Ordering::Relaxed);
            while now & USERS == 0 {
                any = true;
                platform.on_atomic();
                match slot.compare_exchange(now, now & !TOUCHED, Ordering::Relaxed) {
                    Ok(_) => break,
                    Err(changed) => now = changed,
                }
            }
        }
        if !any {
            return false;
        }
        primitive::dsb(platform, Domain::IshSt);
        primitive::tlbi(platform, Tlbi::Alle1Is, 0);
        primitive::dsb(platform, Domain::Ish);
        primitive::isb(platform);
        turn.next = 0;
        self.generations.store(self.generations() + 1, Ordering::Relaxed);
        true
    }

    /// V4. Relaxed: the context synchronization before it is what keeps walks from coming later.
    pub(crate) fn release<P: Platform>(&self, index: usize, platform: &P) {
        platform.on_atomic();
        if let Some(VmidSlot(slot)) = self.slots.get(index) {
            slot.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
