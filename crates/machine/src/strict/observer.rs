// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The observer: each access of the engine is an event of the machine whose CPU the thread is.
//!
//! Invariant: a word changes in the same event as its model. A thread that is no CPU does the access itself, as a relay
//! if it is one.

use std::panic::Location;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use twofold_abi::trace::{self, Event, How};
use twofold_stage2::primitive::{Access, Claim, Observer, observe};
use twofold_stage2::{Pa, TableMetadata};

use super::breach::Rule;
use super::context::Context;
use super::model::{Broken, Model};
use super::relay::Relay;
use super::shape::ACCESSED;
use super::tables::{PAGE, Standing};

/// The bit of a lock's word that is set while the lock is held.
pub(super) const LOCKED: u64 = 1;

/// Installs the observer: from now on it receives the engine's accesses.
pub(super) fn install() {
    static ROUTER: &dyn Observer = &Router;
    static ONCE: Once = Once::new();
    ONCE.call_once(|| observe(Some(&ROUTER)));
}

/// Forwards an access to the machine whose CPU the thread is, or to the relay that it is.
struct Router;

// SAFETY: only the thread that holds the turn changes a word, by atomic accesses. A load returns a value that was
// stored to the word, by the rules of the memory model. A thread that is no CPU does the access itself.
unsafe impl Observer for Router {
    fn load(&self, word: &AtomicU64, access: Access) -> u64 {
        Context::current(|context| context.load(word, access))
            .or_else(|| Relay::current(|relay| relay.load(word, access)))
            .unwrap_or_else(|| word.load(access.order))
    }

    fn store(&self, word: &AtomicU64, value: u64, access: Access) {
        if Context::current(|context| context.store(word, value, access)).is_none()
            && Relay::current(|relay| relay.store(word, value, access)).is_none()
        {
            word.store(value, access.order);
        }
    }

    fn update(&self, word: &AtomicU64, change: &mut dyn FnMut(u64) -> Option<u64>, access: Access) -> Result<u64, u64> {
        Context::current(|context| context.update(word, change, access))
            .or_else(|| Relay::current(|relay| relay.update(word, change, access)))
            .unwrap_or_else(|| word.fetch_update(access.order, Ordering::Acquire, change))
    }

    fn try_lock(&self, word: &AtomicU64, access: Access) -> Option<u64> {
        Context::current(|context| context.try_lock(word, access))
            .or_else(|| Relay::current(|relay| relay.try_lock(word, access)))
            .unwrap_or_else(|| {
                let state = word.fetch_or(LOCKED, access.order);
                (state & LOCKED == 0).then_some(state)
            })
    }

    fn unlock(&self, word: &AtomicU64, value: u64, access: Access) {
        if Context::current(|context| context.unlock(word, value, access)).is_none()
            && Relay::current(|relay| relay.unlock(word, value, access)).is_none()
        {
            word.store(value, access.order);
        }
    }

    fn reached(&self, value: (u64, usize), changes: bool) {
        if Context::current(|context| context.reached(value, changes)).is_none()
            && let Some(Err(race)) = Relay::current(|relay| relay.reached(value, changes))
        {
            panic!("{race}");
        }
    }

    fn release_fence(&self, site: &'static Location<'static>) {
        let fenced = Context::current(|context| {
            context.site.set(Some(site));
            context.silently(|model, cpu| {
                model.trace.event(Event::Fence { order: trace::Order::Release });
                model.cells.fence(cpu);
                Ok(())
            });
        });
        if fenced.is_none() {
            Relay::current(Relay::release_fence);
            std::sync::atomic::fence(Ordering::Release);
        }
    }

    fn full_fence(&self, site: &'static Location<'static>) {
        let fenced = Context::current(|context| {
            context.site.set(Some(site));
            // A point, so that the fences of two CPUs occur in either order.
            context.event(|model, cpu| {
                model.trace.event(Event::Fence { order: trace::Order::SeqCst });
                model.cells.full_fence(cpu);
                Ok(())
            });
        });
        if fenced.is_none() {
            Relay::current(Relay::full_fence);
            std::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    fn page_taken(&self, page: Pa, site: &'static Location<'static>) {
        Context::current(|context| {
            context.site.set(Some(site));
            context.silently(|model, _| model.page_taken(page.raw()));
        });
    }

    fn page_freed(&self, page: Pa, site: &'static Location<'static>) {
        Context::current(|context| {
            context.site.set(Some(site));
            context.event(|model, _| model.page_freed(page.raw()));
        });
    }

    fn data_written(&self, start: Pa, size: u64, site: &'static Location<'static>) {
        Context::current(|context| {
            context.site.set(Some(site));
            context.silently(|model, cpu| {
                model.trace.event(Event::DataWritten { pa: start.raw(), size });
                let moment = model.cells.event(cpu);
                model.lines.write(start.raw(), size, moment);
                Ok(())
            });
        });
    }

    fn root(&self, start: Pa, entries: Option<usize>, vttbr: u64, vtcr: u64, site: &'static Location<'static>) {
        Context::current(|context| {
            context.site.set(Some(site));
            context.silently(|model, _| model.root(start.raw(), entries, vttbr, vtcr));
        });
    }

    fn claims(&self, claim: Claim, site: &'static Location<'static>) {
        notify(
            site,
            match claim {
                Claim::Visible => Event::Visible,
                Claim::Flushed { range, vttbr } => {
                    Event::Flushed { ipa: range.start.raw(), size: range.end - range.start, vttbr }
                }
                Claim::FlushedHere { ipa, level, vttbr } => {
                    Event::FlushedHere { ipa: ipa.raw(), level: level.map_or(0, |level| level.raw().into()), vttbr }
                }
            },
        );
    }

    fn unrecorded(&self, word: &AtomicU64, site: &'static Location<'static>) {
        if let Some(Word::Entry(pa)) = Context::current(|context| context.word(word)) {
            notify(site, Event::Unrecorded { pa });
        }
    }

    fn about_to(&self, site: &'static Location<'static>) {
        Context::current(|context| context.site.set(Some(site)));
    }
}

/// Records an event that only the trace uses.
fn notify(site: &'static Location<'static>, event: Event<'_>) {
    Context::current(|context| {
        context.site.set(Some(site));
        context.trace(event);
    });
}

impl Context {
    pub(super) fn store(&self, word: &AtomicU64, value: u64, access: Access) {
        self.site.set(Some(access.site));
        let what = self.word(word);
        let body = |model: &mut Model, cpu: usize| {
            if let Word::Entry(pa) = what
                && model.tables.of(pa).is_none()
                && (value, access.order) == (0, Ordering::Relaxed)
            {
                // The engine zeroes a frame, and reports it as a whole (`data_written`).
                word.store(0, Ordering::Relaxed);
                return Ok(());
            }
            let step = model.step;
            let (old, moment) = model.cells.store(cpu, word, value, access.order, step);
            match what {
                Word::Entry(pa) => {
                    self.progress();
                    model.trace.event(Event::Write {
                        pa,
                        old,
                        new: value,
                        how: How::Store,
                        order: access.order.into(),
                    });
                    // A walk may have set the access flag, and cached the entry, just before the store (Arm ARM DDI
                    // 0487K.a, D8.5.1).
                    let flagged = old & 1 == 1 && model.features.hardware_access_flag;
                    let old = if flagged { old | ACCESSED } else { old };
                    model.written(cpu, pa, (old, value), moment, Some(access.site))
                }
                _ => Ok(()),
            }
        };
        // Another CPU's walk may run before a store that it could see.
        let is_quiet = access.order == Ordering::Relaxed && !self.is_in_tree(&what);
        if is_quiet { self.silently(body) } else { self.event(body) }
    }

    pub(super) fn load(&self, word: &AtomicU64, access: Access) -> u64 {
        self.site.set(Some(access.site));
        let is_own = access.order == Ordering::Relaxed && matches!(self.word(word), Word::Entry(_));
        let body = |model: &mut Model, cpu: usize| {
            Ok(model.cells.load(cpu, word, access.order, &mut |values| self.choose(values)))
        };
        if is_own { self.silently(body) } else { self.event(body) }
    }

    pub(super) fn update(
        &self,
        word: &AtomicU64,
        change: &mut dyn FnMut(u64) -> Option<u64>,
        access: Access,
    ) -> Result<u64, u64> {
        self.site.set(Some(access.site));
        let what = self.word(word);
        self.event(|model, cpu| {
            let step = model.step;
            let mut new = 0;
            let mut change = |old| {
                let changed = change(old);
                new = changed.unwrap_or(0);
                changed
            };
            match model.cells.update(cpu, word, &mut change, access.order, step) {
                Ok((old, moment)) => {
                    if let Word::Entry(pa) = what {
                        model.trace.event(Event::Write { pa, old, new, how: How::Rmw, order: access.order.into() });
                        model.written(cpu, pa, (old, new), moment, Some(access.site))?;
                    }
                    Ok(Ok(old))
                }
                Err(now) => Ok(Err(now)),
            }
        })
    }

    pub(super) fn try_lock(&self, word: &AtomicU64, access: Access) -> Option<u64> {
        self.site.set(Some(access.site));
        let what = self.word(word);
        self.event(|model, cpu| {
            let step = model.step;
            let taken = model.cells.update(
                cpu,
                word,
                &mut |old| (old & LOCKED == 0).then_some(old | LOCKED),
                access.order,
                step,
            );
            match (taken, what) {
                (Ok((old, _)), Word::Lock(page)) => model.locked(cpu, page).map(|()| Some(old)),
                (Ok((old, _)), _) => Ok(Some(old)),
                (Err(_), _) => Ok(None),
            }
        })
    }

    pub(super) fn unlock(&self, word: &AtomicU64, value: u64, access: Access) {
        self.site.set(Some(access.site));
        let what = self.word(word);
        self.event(|model, cpu| {
            if let Word::Lock(page) = what {
                model.unlocked(cpu, page)?;
            }
            let step = model.step;
            model.cells.store(cpu, word, value, access.order, step);
            Ok(())
        });
    }

    /// This CPU reaches the value behind a lock: a part of the event before, and no step.
    pub(super) fn reached(&self, value: (u64, usize), changes: bool) {
        let mut model = self.shared.lock();
        let Model { guards, cells, .. } = &mut *model;
        let reached = guards.reach(self.cpu, cells.known_mut(self.cpu), value, changes);
        drop(model);
        if let Err(other) = reached {
            let what = format!("the value of a lock is reached, and CPU {other} did there what is not known yet");
            self.report(Broken::new(Rule::ValueRace, what));
        }
    }

    fn word(&self, word: &AtomicU64) -> Word {
        let address = std::ptr::from_ref(word).addr();
        if let Some(pa) = self.shared.arena.pa_of(address) {
            return Word::Entry(pa.raw());
        }
        match self.shared.arena.frame_of_metadata(address) {
            Some(page) if address.is_multiple_of(size_of::<TableMetadata>()) => Word::Lock(page.raw()),
            _ => Word::Other,
        }
    }

    fn is_in_tree(&self, word: &Word) -> bool {
        let Word::Entry(pa) = word else { return false };
        let page = self.shared.lock().tables.of(*pa);
        page.is_some_and(|page| page.standing != Standing::Loose)
    }
}

/// The kind of a word.
enum Word {
    /// An entry, or another word of the machine's memory, by its address.
    Entry(u64),
    /// The first word of the metadata of the page at this address.
    Lock(u64),
    Other,
}

const _: () = assert!(PAGE == twofold_stage2::TablePage::SIZE);
