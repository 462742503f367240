// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Giving access: the answers to permission and access flag faults.
//!
//! More access needs no invalidation on other CPUs: an old entry there causes at most one more fault, which ends here
//! again. On this CPU the leaf is invalidated in any case, even where it allowed the access already, or the guest
//! would fault for ever on what its TLB holds. An entry without access flag is in no TLB, so that setting the flag
//! needs no invalidation at all (Arm ARM D8.5.1).

use crate::platform::Platform;
use crate::{Access, Descriptor, Error, Ipa, Level, Memory, Stage2, cache};

/// What [`Stage2::relax`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Relaxed {
    /// The leaf allows more than before.
    Widened,
    /// The leaf allowed it already: this CPU's TLB was stale.
    Already,
}

impl<P: Platform> Stage2<P> {
    /// Lets the guest do `access` too, and sets the access flag, at the leaf that maps `ipa`: the answer to a
    /// permission fault.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`]; the guest will fault for translation next. [`Error::ExecuteNeedsXnx`].
    pub fn relax(&self, ipa: Ipa, access: Access) -> Result<Relaxed, Error> {
        access.check(self.features())?;
        let widen = |old: Descriptor| old.with_more(access, self.features()).with_accessed();
        let (changed, at, level) = self.change_leaf(ipa, access, widen)?;
        self.tlb().invalidate_local(at, level);
        Ok(if changed { Relaxed::Widened } else { Relaxed::Already })
    }

    /// Sets the access flag of the leaf that maps `ipa`: the answer to an access flag fault. Tells whether it was clear.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`]; the guest will fault for translation next.
    pub fn make_young(&self, ipa: Ipa) -> Result<bool, Error> {
        self.change_leaf(ipa, Access::NONE, Descriptor::with_accessed).map(|(changed, ..)| changed)
    }

    /// Changes the leaf that maps `ipa`; whether that changed anything, and where it is.
    #[inline(always)]
    fn change_leaf(
        &self,
        ipa: Ipa,
        access: Access,
        change: impl Fn(Descriptor) -> Descriptor,
    ) -> Result<(bool, Ipa, Level), Error> {
        loop {
            let (place, leaf) = self.find(ipa).ok_or(Error::NotMapped { ipa })?;
            if change(leaf.descriptor) == leaf.descriptor {
                return Ok((false, leaf.ipa, leaf.level));
            }
            // Before the lock: it takes its time. What was seen is looked at again below.
            let execute = access.execute.any() && !leaf.descriptor.access().execute.any();
            if execute {
                self.before_execute(leaf.descriptor, leaf.level);
            }
            let Ok(mut locked) = self.lock(&place) else { continue };
            let now = locked.load(place.index);
            let same = now.is_leaf(leaf.level) && now.address() == leaf.descriptor.address();
            if !same || (execute && now.memory_bits() != leaf.descriptor.memory_bits()) {
                continue;
            }
            let (old, new) = locked.change(place.index, &change);
            return Ok((old != new, leaf.ipa, leaf.level));
        }
    }

    /// Cache maintenance before a leaf may be executed.
    fn before_execute(&self, leaf: Descriptor, level: Level) {
        if leaf.attributes(self.features()).memory != Memory::Device {
            let size = self.geometry().granule().span(level);
            cache::before_execute(self.platform(), self.features(), (leaf.address(), size));
        }
    }
}
