// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cache maintenance, only where it is needed (source S4: by who installs the mapping, after the break and
//! before the make, so that nobody sees a mapping before its memory is ready).
//!
//! * D side: a new mapping of normal memory is cleaned and invalidated to the point of coherency, because a guest
//!   that runs with its caches off would read past the cache, and what is still dirty in it would later overwrite what
//!   the guest wrote. Not for a mapping that FEAT_S2FWB forces to be cached; never for devices.
//! * D side, when it goes: the same memory once more, after the flush that ends the guest's access. EL2's own mapping is
//!   cacheable, so lines may have been filled from it at any time, and hide what the guest wrote past them. They are clean:
//!   nothing writes through that mapping meanwhile (the crate's documentation, *Caches*), so no line that is written back
//!   overwrites what the guest wrote. Without FEAT_S2FWB lines may be dirty too, by the guest's own cached writes: those are
//!   what the guest wrote, and cleaning keeps them.
//! * D side, where the type of memory changes at an address: the same, between break and make. What was cached is not written
//!   back beneath a guest that goes past the caches now; what was written past them is not hidden from one that uses them.
//! * I side: invalidated where execution is granted, unless `CTR_EL0.DIC`.

use crate::lines::each_line;
use crate::platform::{Dc, Domain, Ic, Platform};
use crate::primitive::{self, Ordering, Word};
use crate::{Attributes, Features, Memory, Pa, Stage2};

/// Beyond this many lines by address, invalidating the whole instruction cache costs less.
const MOST_INSTRUCTION_LINES: u64 = 1024;

/// The maintenance that a new mapping takes on this CPU.
#[derive(Clone, Copy)]
pub(crate) struct Upkeep {
    clean: bool,
    fetch: bool,
}

impl Upkeep {
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

    /// Whether what is in data caches is part of it.
    pub(crate) fn cleans(self) -> bool {
        self.clean
    }

    /// The same, and what is in data caches too.
    pub(crate) fn with_cleaning(self) -> Self {
        Self { clean: true, ..self }
    }

    /// What is left of it where data caches are clean.
    pub(crate) fn cleaned(self) -> Self {
        Self { clean: false, ..self }
    }

    /// Whether there is any.
    #[inline(always)]
    pub(crate) fn is_needed(self) -> bool {
        self.clean || self.fetch
    }
}

/// Whether a tree ever mapped memory as non-cacheable. Few do; in all others nothing that goes has to be looked through.
#[derive(Debug, Default)]
pub(crate) struct NonCacheable(Word);

impl<P: Platform> Stage2<P> {
    /// Notes that a leaf of this type of memory is going to be made. The leaf is made under a lock, or linked under one: a CPU
    /// that finds it there has the note.
    pub(crate) fn note_memory(&self, memory: Memory) {
        if memory == Memory::NonCacheable {
            self.non_cacheable.0.store(1, Ordering::Relaxed);
        }
    }

    /// Whether there may be leaves in this tree whose lines must not stay in caches when they have gone.
    pub(crate) fn leaves_lines(&self) -> bool {
        !self.features().forced_write_back || self.non_cacheable.0.load(Ordering::Relaxed) != 0
    }
}

/// Makes the frame at `pa` ready for a new mapping of `size` bytes.
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn before_map<P: Platform>(platform: &P, features: &Features, frame: (Pa, u64), upkeep: Upkeep) {
    primitive::step!(());
    if upkeep.clean {
        clean(platform, features, frame);
    }
    if upkeep.fetch {
        before_execute(platform, features, frame);
    }
}

/// Makes the frame at `pa` ready to be executed.
#[inline(never)]
pub(crate) fn before_execute<P: Platform>(platform: &P, features: &Features, (pa, size): (Pa, u64)) {
    if features.instruction_cache_coherent {
        return;
    }
    // What was written there is to be seen by the fetches that follow the invalidation. It need not be cleaned to the
    // point of unification: with FEAT_S2FWB data caches are coherent with it (CTR_EL0.IDC), without it `clean` ran.
    primitive::dsb(platform, Domain::Ish);
    let lines = size / features.instruction_line;
    if features.instruction_cache_pipt && lines <= MOST_INSTRUCTION_LINES {
        let start = platform.pointer(pa).addr().get();
        each_line(start, size, features.instruction_line, |line| primitive::ic(platform, Ic::Ivau, line));
    } else {
        primitive::ic(platform, Ic::IallUis, 0);
    }
    primitive::dsb(platform, Domain::Ish);
}

fn clean<P: Platform>(platform: &P, features: &Features, (pa, size): (Pa, u64)) {
    clean_lines(platform, features, pa, size);
    primitive::dsb(platform, Domain::Ish);
}

/// Cleans and invalidates memory to the point of coherency; complete after the next `DSB ISH`.
#[inline(always)]
#[cfg_attr(feature = "checked", track_caller)]
pub(crate) fn clean_lines<P: Platform>(platform: &P, features: &Features, pa: Pa, size: u64) {
    let start = platform.pointer(pa).addr().get();
    // SAFETY: a guest has it mapped, or is about to, by a grant. So the frame was donated and is lent, or the embedder vouched for
    // it (`Window::new`): the platform maps it, and it stays what it is until it is unmapped and the flush is complete. All
    // that is cleaned later, what is behind removed leaves, is cleaned before the flush is said to be complete. Cleaning
    // changes no data.
    unsafe { primitive::dc_lines(platform, Dc::Civac, start, size, features.data_line) };
}
