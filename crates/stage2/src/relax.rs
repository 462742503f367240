// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Giving access: the answers to permission and access flag faults.
//!
//! More access needs no invalidation on other CPUs: an old entry there causes at most one more fault, which ends here
//! again. On this CPU the leaf is invalidated in any case, even where it allowed the access already, or the guest
//! would fault for ever on what its TLB holds. An entry without access flag is in no TLB, so that setting the flag
//! needs no invalidation at all (Arm ARM D8.5.1).

use crate::descent::{Locked, Moved, Place};
use crate::platform::Platform;
use crate::primitive::{self, Claim};
use crate::{Access, Descriptor, Error, Ipa, Leaf, Level, Memory, Stage2, cache};

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
    #[inline(always)]
    pub fn relax(&self, ipa: Ipa, access: Access) -> Result<Relaxed, Error> {
        self.allow::<false>(ipa, access)
    }

    /// The same for a page alone: the answer where the pages that are written are told apart, so that no block may become
    /// writable.
    ///
    /// # Errors
    ///
    /// As [`relax`](Self::relax); [`Error::BlockInTheWay`], which is left as it is: [`split`](Self::split) it.
    #[inline(always)]
    pub fn relax_page(&self, ipa: Ipa, access: Access) -> Result<Relaxed, Error> {
        self.allow::<true>(ipa, access)
    }

    #[inline(always)]
    fn allow<const PAGES_ONLY: bool>(&self, ipa: Ipa, access: Access) -> Result<Relaxed, Error> {
        access.check(self.features())?;
        let widen = |old: Descriptor| old.with_more(access, self.features()).with_accessed();
        let changed =
            self.change_leaf::<PAGES_ONLY>(ipa, access, widen).inspect_err(|error| self.forget_gone(error))?;
        let (changed, at, level) = changed;
        self.flush_here(at, Some(level));
        Ok(if changed { Relaxed::Widened } else { Relaxed::Already })
    }

    /// What the guest ran into is gone, by a change whose flush is still to come: until then this CPU may go on with what it
    /// holds, a table's entry even, and the guest would fault for ever if it waited for whoever is to flush.
    #[cold]
    fn forget_gone(&self, error: &Error) {
        if let Error::NotMapped { ipa } = *error
            && ipa < self.geometry().end()
        {
            self.flush_here(ipa, None);
        }
    }

    /// Invalidates the leaf at `ipa` on this CPU, and relies on that.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn flush_here(&self, ipa: Ipa, level: Option<Level>) {
        self.tlb().invalidate_local(ipa, level);
        primitive::claim(Claim::FlushedHere { ipa, level, vttbr: self.vttbr() });
    }

    /// Sets the access flag of the leaf that maps `ipa`: the answer to an access flag fault. Tells whether it was clear.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`]; the guest will fault for translation next.
    #[inline(always)]
    pub fn make_young(&self, ipa: Ipa) -> Result<bool, Error> {
        self.change_leaf::<false>(ipa, Access::NONE, Descriptor::with_accessed).map(|(changed, ..)| changed)
    }

    /// Changes the leaf that maps `ipa`; whether that changed anything, and where it is.
    #[inline(always)]
    fn change_leaf<const PAGES_ONLY: bool>(
        &self,
        ipa: Ipa,
        access: Access,
        change: impl Fn(Descriptor) -> Descriptor,
    ) -> Result<(bool, Ipa, Level), Error> {
        let changed = self.change_leaf_once::<PAGES_ONLY>(ipa, access, &change);
        changed.unwrap_or_else(|Moved| self.change_leaf_again::<PAGES_ONLY>(ipa, access, change))
    }

    /// Apart, so that the way that everybody takes is no loop.
    #[cold]
    #[inline(never)]
    fn change_leaf_again<const PAGES_ONLY: bool>(
        &self,
        ipa: Ipa,
        access: Access,
        change: impl Fn(Descriptor) -> Descriptor,
    ) -> Result<(bool, Ipa, Level), Error> {
        loop {
            if let Ok(changed) = self.change_leaf_once::<PAGES_ONLY>(ipa, access, &change) {
                return changed;
            }
        }
    }

    #[inline(always)]
    fn change_leaf_once<const PAGES_ONLY: bool>(
        &self,
        ipa: Ipa,
        access: Access,
        change: impl Fn(Descriptor) -> Descriptor,
    ) -> Result<Result<(bool, Ipa, Level), Error>, Moved> {
        let Some((place, Leaf { ipa, level, descriptor: old })) = self.find(ipa) else {
            return Ok(Err(Error::NotMapped { ipa }));
        };
        if PAGES_ONLY && level < Level::L3 {
            return Ok(Err(Error::BlockInTheWay { ipa, level }));
        }
        let new = change(old);
        if new == old {
            return Ok(Ok((false, ipa, level)));
        }
        let mut locked = self.lock(&place)?;
        if access.execute.any() && !old.access().execute.any() {
            return self.make_executable(locked, &place, (ipa, level), change);
        }
        locked.replace_in(place.cell, old, new)?;
        Ok(Ok((true, ipa, level)))
    }

    /// The same where caches have to be maintained before. The leaf is nobody else's meanwhile: were it unmapped and mapped
    /// again in between, alike, with new content in its frame, that content would be executed as it was before.
    #[cold]
    fn make_executable(
        &self,
        mut locked: Locked<'_, P>,
        place: &Place<'_>,
        (ipa, level): (Ipa, Level),
        change: impl Fn(Descriptor) -> Descriptor,
    ) -> Result<Result<(bool, Ipa, Level), Error>, Moved> {
        let old = locked.entry(place.index);
        if !old.differs_by_records_only(place.entry) {
            return Err(Moved);
        }
        // As in `map`: a page's lines are few.
        if level == Level::L3 {
            self.before_execute(old, level);
            locked.replace_in(place.cell, old, change(old))?;
        } else {
            // Broken and made the same, but for what it allows: that takes no invalidation in between (Arm ARM D8.16.1).
            let busy = locked.make_busy(place.index)?;
            self.before_execute(busy.old, level);
            let new = change(busy.old);
            busy.make(new);
            self.publish();
        }
        Ok(Ok((true, ipa, level)))
    }

    /// Cache maintenance before a leaf may be executed.
    fn before_execute(&self, leaf: Descriptor, level: Level) {
        if leaf.attributes(self.features()).memory != Memory::Device {
            let size = self.geometry().granule().span(level);
            cache::before_execute(self.platform(), self.features(), (leaf.address(), size));
        }
    }
}
