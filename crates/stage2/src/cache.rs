// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cache maintenance, only where it is needed.
//!
//! The CPU that installs a mapping does its maintenance, after the break and before the make (Wang 2021: clean on map).
//! So no CPU can use a mapping before its memory is ready. A block's memory may be cleaned ahead, in pieces (module
//! `clean_ahead`).
//!
//! **Data caches.** The engine cleans and invalidates the lines to the point of coherency:
//!
//! * *A new mapping* of normal memory, unless FEAT_S2FWB forces it to be cached; never a device. A guest with its
//!   caches off reads memory past the cache, so dirty lines must be in memory first. A line written back later would
//!   overwrite what the guest wrote.
//! * *A mapping that goes*: the same memory, after the flush that ends the guest's access. EL2 maps all memory
//!   cacheable, so the cache may have filled lines at any time, and they hide what the guest wrote past them. The owner
//!   does not write through that mapping meanwhile (the crate's documentation, *Caches*), so these lines are clean:
//!   none of them is written back over what the guest wrote. Without FEAT_S2FWB the guest's own cached writes may have
//!   left dirty lines too. Cleaning writes those to memory.
//! * *A change of memory type* at an address: the same memory, between break and make. No old line is written back over
//!   what a guest writes past the caches from now on, and no old line hides what it wrote past them before.
//!
//! **Instruction caches** are invalidated when execution is granted, unless `CTR_EL0.DIC` is set.

use crate::lines::{each_line, lines_in};
use crate::platform::{Dc, Domain, Ic, Platform};
use crate::primitive::{self, Ordering, Word};
use crate::{Attributes, Features, Memory, Pa};

/// Above this many lines, invalidating the whole instruction cache costs less than line by line.
const MOST_INSTRUCTION_LINES: u64 = 1024;

/// The cache maintenance that a new mapping needs on this CPU.
#[derive(Clone, Copy)]
pub(crate) struct CacheMaintenance {
    clean: bool,
    fetch: bool,
}

impl CacheMaintenance {
    /// None.
    #[cfg(feature = "baselines")]
    pub(crate) const NONE: Self = Self { clean: false, fetch: false };

    #[inline(always)]
    pub(crate) fn new(features: &Features, attributes: &Attributes) -> Self {
        Self {
            clean: match attributes.memory {
                Memory::Normal => !features.forced_write_back,
                Memory::NonCacheable => true,
                Memory::Device => false,
            },
            fetch: attributes.access.execute.any()
                && attributes.memory != Memory::Device
                && !features.instruction_cache_coherent,
        }
    }

    /// Whether it cleans data caches.
    pub(crate) fn cleans(self) -> bool {
        self.clean
    }

    /// The same maintenance, with cleaning of data caches.
    pub(crate) fn with_cleaning(self) -> Self {
        Self { clean: true, ..self }
    }

    /// The maintenance that is left after data caches were cleaned.
    pub(crate) fn cleaned(self) -> Self {
        Self { clean: false, ..self }
    }

    /// Whether anything is to be done.
    #[inline(always)]
    pub(crate) fn is_needed(self) -> bool {
        self.clean || self.fetch
    }
}

/// Whether a tree ever mapped memory as non-cacheable. Few trees do. In all others, removed tables need not be searched
/// for leaves to clean (with FEAT_S2FWB).
#[derive(Debug, Default)]
pub(crate) struct NonCacheable(Word);

impl NonCacheable {
    /// Notes that a leaf of this memory type is about to be made. Relaxed: the leaf is made, or linked, under a lock,
    /// so a CPU that finds the leaf sees the note.
    pub(crate) fn note(&self, memory: Memory) {
        if memory == Memory::NonCacheable {
            self.0.store(1, Ordering::Relaxed);
        }
    }

    /// Whether such a leaf was ever noted.
    pub(crate) fn is_noted(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// Makes the frame at `pa` ready for a new mapping of `size` bytes.
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn before_map<P: Platform>(
    platform: &P,
    features: &Features,
    frame: (Pa, u64),
    maintenance: CacheMaintenance,
) {
    primitive::step!(());
    if maintenance.clean {
        clean(platform, features, frame);
    }
    before_fetch(platform, features, frame, maintenance);
}

/// The part of [`before_map`] that is left when the data caches were cleaned.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn before_fetch<P: Platform>(
    platform: &P,
    features: &Features,
    frame: (Pa, u64),
    maintenance: CacheMaintenance,
) {
    primitive::step!(());
    if maintenance.fetch {
        before_execute(platform, features, frame);
    }
}

/// Makes the frame at `pa` ready to be executed.
#[inline(never)]
pub(crate) fn before_execute<P: Platform>(platform: &P, features: &Features, (pa, size): (Pa, u64)) {
    if features.instruction_cache_coherent {
        return;
    }
    // Earlier writes have to be visible to the fetches that follow the invalidation. No clean to the point of
    // unification is needed: with FEAT_S2FWB data caches are coherent with it (CTR_EL0.IDC), and without it `clean`
    // ran.
    primitive::dsb(platform, Domain::Ish);
    let lines = lines_in(size, features.instruction_line);
    if features.instruction_cache_pipt && lines <= MOST_INSTRUCTION_LINES {
        let start = platform.pointer(pa).addr().get();
        each_line(start, size, features.instruction_line, |line| primitive::ic(platform, Ic::Ivau, line));
    } else {
        primitive::ic(platform, Ic::IallUis, 0);
    }
    primitive::dsb(platform, Domain::Ish);
}

/// Cleans and invalidates memory to the point of coherency.
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn clean<P: Platform>(platform: &P, features: &Features, (pa, size): (Pa, u64)) {
    clean_lines(platform, features, pa, size);
    primitive::dsb(platform, Domain::Ish);
}

/// Cleans and invalidates memory to the point of coherency; complete after the next `DSB ISH`.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn clean_lines<P: Platform>(platform: &P, features: &Features, pa: Pa, size: u64) {
    let start = platform.pointer(pa).addr().get();
    // SAFETY: a guest maps the frame by a grant, or is about to. So the frame was donated and is lent, or the embedder
    // vouched for it (`Window::new`). The platform maps it, and it is not reused before it is unmapped and the flush is
    // complete. The memory of removed leaves is cleaned before the caller gets the result of the flush. Cleaning
    // changes no data.
    unsafe { primitive::dc_lines(platform, Dc::Civac, start, size, features.data_line) };
}
