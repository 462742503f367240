// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Withdrawing: lent memory leaves the tree while vCPUs run.
//!
//! A [`Grant`](crate::Grant) of lent memory outlives the borrow of its [`Lent`]. So another CPU may be about to map
//! memory that leaves. A withdrawal makes all such grants stale, by KVM's idea of an invalidation sequence: the mapper
//! samples a count before it finds the memory, and checks the count under the lock under which it writes the entry.
//!
//! # Steps
//!
//! The mapper:
//!
//! * **M1**: sample the count of withdrawals while the memory is lent ([`Stage2::grant`]). This is also W1 of the fast
//!   path.
//! * **M2**: lock the table of the entry. A coalesce also locks the tables that the block replaces (C2).
//! * **M3**: check that the count is still the sample. Otherwise unlock, and return [`Error::Withdrawn`].
//! * **M4**: write the leaf, or make the entry busy. **M5**: unlock.
//!
//! Withdrawals and unlinked tables are counted in one word (module `sequence`), so W4 does M3: it compares the word, under
//! the lock, with the snapshot of W1. On the fast path that snapshot is the sample itself. On the other paths
//! `Stage2::check_sample` compares the withdrawals in it with the sample.
//!
//! The withdrawing CPU takes the memory:
//!
//! * **T1**: take the [`Lent`] by value. No grant of it can be made any more.
//! * **T2**: count the withdrawal.
//! * **T3**: for each part of the range, lock the deepest table that exists there (W4), even if the entry that was read
//!   without the lock is empty. If an entry is busy, unlock and retry.
//! * **T4**: break what is there: a leaf, or a whole table as in module `unmap`. **T5**: unlock.
//! * **T6**: flush. **T7**: return the run.
//!
//! # Why nothing of the run is mapped after T7
//!
//! M1 comes before T1, so the sample is older than T2. Consider the table in which the mapper writes (M4), and its entry.
//! The leaf may reach beyond the memory that leaves: a run can be [cut](Lent::split_at) while grants of all of it are out.
//!
//! * **M5 before T3, in this table**: T4 reads the leaf under the lock, and breaks it. A block that reaches beyond the run
//!   is split first. Without the lock, T could read an empty entry although the mapper has passed M3. That is why T3 locks
//!   for empty entries too.
//! * **T5 before M2, in this table**: the lock hands T2 over, so M3 sees the count.
//! * **T does not lock this table, since it was linked later.** T3 locked the table above, and found an empty entry there.
//!   A third CPU, or the mapper itself, links the table under the same lock after T5, so it has seen T2. The link is
//!   published with release, and the mapper reads it with acquire (W2), so M3 sees the count.
//! * **T locks a table below this one, since the entry led to a table.** M4 writes no leaf over a table, so another CPU has
//!   unlinked that table before M2. W4 holds in T3, so the unlink counted (U3) after T3. It took the lock that T3 takes
//!   (U1 or U4) after T5, and then unlocked this table (U5). So M2 hands T2 over, and M3 sees the count.
//! * **The mapper unlinks that table itself, by a coalesce.** It holds the lock of the table that T3 locks from C2 until
//!   it has counted the unlink (C3), and does M3 between the two. If T5 comes before C2, M3 sees the count. If C4 comes
//!   before T3, then W4 fails in T3, and T finds the busy entry, or the block, in this table.
//! * **T unlinks this table, or one above it.** Module `lockless_walk` shows that W4 then fails, or that the leaf was
//!   written before the flush. After W4 has failed, the mapper walks again, and one of the other cases holds.
//! * **A busy entry** (a slow map, a split, a coalesce): T3 waits until it is made, and T4 breaks what was made.
//! * **A leaf that another CPU removed**, and whose flush is still pending: its entry is stale, and T6 includes it.
//!
//! A window is never withdrawn: its grant has no sample, and M3 is left out.
//!
//! The model checker runs these cases in `loom::withdrawn`.

use core::fmt;

use crate::lockless_walk::EntryLocation;
use crate::platform::Platform;
use crate::removal::RemovalWatcher;
use crate::sequence::Snapshot;
use crate::{Error, Freed, Granule, Ipa, Kib4, Lent, Pending, Run, Stage2, TableSource, Unwatched, primitive};

/// M1: the sample of a grant of lent memory. A window has none, since it is never withdrawn.
///
/// One word, as the option of a snapshot would not be: it is passed along with each leaf that is mapped.
#[derive(Clone, Copy)]
pub(crate) struct Sample(Snapshot);

/// A run that is withdrawn, and may still be in a TLB. No CPU can map it any more.
///
/// If this is dropped, the flush is done, but the run is lost.
///
/// ```
/// # use twofold_stage2::*;
/// fn page_out<P: Platform>(
///     stage2: &Stage2<P>, lent: Lent, tables: &mut impl TableSource, mut write: impl FnMut(&Run),
/// ) -> Result<Run, (Error, Lent)> {
///     let withdrawal = stage2.withdraw(lent, tables, Unwatched)?;
///     let (run, _) = withdrawal.reclaim(tables); // flushes
///     write(&run);
///     Ok(run)
/// }
/// ```
///
/// No grant can be made of the run from then on:
///
/// ```compile_fail,E0382
/// # use twofold_stage2::*;
/// fn late<P: Platform>(stage2: &Stage2<P>, lent: Lent, ipa: Ipa, tables: &mut impl TableSource) {
///     let _ = stage2.withdraw(lent, tables, Unwatched).map(|withdrawal| withdrawal.reclaim(tables));
///     let _ = stage2.grant(&lent, ipa, 4096);
/// }
/// ```
///
/// The run comes only with the flush:
///
/// ```compile_fail,E0616
/// # use twofold_stage2::*;
/// fn early<P: Platform>(withdrawal: Withdrawal<'_, P>) -> Lent {
///     withdrawal.lent
/// }
/// ```
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use twofold_stage2::*;
/// fn forgets<P: Platform>(stage2: &Stage2<P>, lent: Lent, tables: &mut impl TableSource) -> Result<(), (Error, Lent)> {
///     stage2.withdraw(lent, tables, Unwatched)?;
///     Ok(())
/// }
/// ```
#[must_use = "reclaim() the run: it is lost if this is dropped"]
pub struct Withdrawal<'a, P: Platform, R: RemovalWatcher<G> = Unwatched, G: Granule = Kib4> {
    pending: Pending<'a, P, R, G>,
    lent: Lent,
}

impl Sample {
    /// No sample, for a window: M3 is left out.
    pub(crate) const NONE: Self = Self(Snapshot::NEVER);

    /// The snapshot from which a walk may start.
    #[inline(always)]
    pub(crate) fn snapshot(self) -> Option<Snapshot> {
        (self.0 != Snapshot::NEVER).then_some(self.0)
    }

    #[inline(always)]
    fn holds(self, now: Snapshot) -> bool {
        self.0.withdrawals() == now.withdrawals() || self.0 == Snapshot::NEVER
    }
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Takes a lent run away from these tables while vCPUs run: unmaps it, and reports each removed leaf to `removed`, as
    /// [`unmap`](Self::unmap) does. [`Withdrawal::reclaim`] flushes, and returns the run.
    ///
    /// A grant that was made before, of any lent memory of these tables, maps nothing any more
    /// ([`Error::Withdrawn`]), unless it was used before: its owner gets the grant again.
    ///
    /// If another CPU unmaps some of the range at the same time, that leaf is reported there. The caller reads what the
    /// guest wrote only after that unmap is complete too.
    ///
    /// # Errors
    ///
    /// As `unmap`, and [`Error::NotGranted`] if the run was lent to other tables. The run stays lent, and the call may
    /// be repeated.
    pub fn withdraw<R: RemovalWatcher<G>>(
        &self,
        lent: Lent,
        tables: &mut impl TableSource<G>,
        removed: R,
    ) -> Result<Withdrawal<'_, P, R, G>, (Error, Lent)> {
        let range = lent.range();
        if lent.root != self.root_pa() {
            return Err((Error::NotGranted { ipa: range.start, size: range.end - range.start }, lent));
        }
        if range.is_empty() {
            return Ok(Withdrawal { pending: Pending::nothing(self, removed), lent });
        }
        self.sequence.count_withdrawal(self.platform()); // T2
        match self.unmap_and::<R, true>(range, tables, removed) {
            Ok(pending) => Ok(Withdrawal { pending, lent }),
            Err(error) => Err((error, lent)),
        }
    }

    /// M1.
    #[inline(always)]
    pub(crate) fn sample(&self) -> Sample {
        Sample(self.sequence.now())
    }

    /// M3 for a walk with a snapshot of its own: nothing was withdrawn between the sample and the snapshot. W4 shows that
    /// nothing was withdrawn since the snapshot.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn check_sample(&self, sample: Sample, location: &EntryLocation<'_, G>, ipa: Ipa) -> Result<(), Error> {
        if primitive::check(sample.holds(location.then)) { Ok(()) } else { Err(Error::Withdrawn { ipa }) }
    }
}

impl<P: Platform, G: Granule, R: RemovalWatcher<G>> Withdrawal<'_, P, R, G> {
    /// Completes the flush, frees the unlinked tables, and returns the run, for any use. The [`Freed`] opens the leaves
    /// that were reported.
    #[inline]
    pub fn reclaim(self, tables: &mut impl TableSource<G>) -> (Run, Freed) {
        let freed = self.pending.complete().free(tables);
        (self.lent.run, freed)
    }
}

impl<P: Platform, G: Granule, R: RemovalWatcher<G>> fmt::Debug for Withdrawal<'_, P, R, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Withdrawal").field("lent", &self.lent).finish_non_exhaustive()
    }
}
