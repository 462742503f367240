// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory as a whole: its slots, its tables, and the frames it draws on.

use twofold_stage2::{Geometry, Ipa, Platform, Stage2, Vmid};

use crate::frames::{FRAME, Frames};
use crate::slots::{Content, Kept, Slot, SlotError, Slots};

/// How large the mappings of a guest's RAM may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// As large as slot and backing allow.
    Largest,
    /// 4 KiB pages only.
    Small,
}

/// One guest's memory.
pub struct GuestMemory<P: Platform> {
    pub(crate) stage2: Stage2<P>,
    pub(crate) slots: Slots,
    pub(crate) frames: Frames,
    pub(crate) pages: Pages,
    pub(crate) counts: Counts,
}

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Leaves that were mapped, by level: index 3 counts pages, 2 and 1 blocks.
    pub mapped: [u64; 4],
    /// Translation faults that zeroed frames and mapped them, by level as above. What a loader wrote before, or what an
    /// attempt zeroed that then lacked a table page, is not counted.
    pub first_touches: [u64; 4],
    /// Frames that were zeroed.
    pub frames_zeroed: u64,
    /// Table pages taken, the root's included.
    pub tables_allocated: u64,
    /// Table pages given back.
    pub tables_freed: u64,
}

/// Why guest memory could not do what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No frames are left.
    #[error("no memory is left to back the guest at {ipa}")]
    NoFrames {
        /// The guest's address.
        ipa: Ipa,
    },
    /// No memory is left for the root table.
    #[error("no memory is left for the root of the guest's tables ({size} bytes)")]
    NoRoot {
        /// Its size in bytes.
        size: u64,
    },
    /// There is no RAM at that address.
    #[error("the guest has no RAM at {ipa}")]
    NoRam {
        /// The guest's address.
        ipa: Ipa,
    },
    /// The tables could not be changed.
    #[error("the guest's tables: {0}")]
    Stage2(#[from] twofold_stage2::Error),
    /// A slot was refused.
    #[error(transparent)]
    Slot(#[from] SlotError),
}

impl<P: Platform> GuestMemory<P> {
    /// A guest without memory. The VMID is the caller's to keep apart.
    pub fn new(platform: P, geometry: Geometry, vmid: Vmid, mut frames: Frames, pages: Pages) -> Result<Self, Error> {
        let features = frames.features();
        let root = frames.take_root(&geometry).ok_or(Error::NoRoot { size: geometry.root_size() })??;
        let stage2 = Stage2::new(platform, features, geometry, vmid, root)?;
        Ok(Self { stage2, slots: Slots::default(), frames, pages, counts: Counts::default() })
    }

    /// Gives the addresses of `slot` their meaning. Nothing is mapped yet.
    pub fn add_slot(&mut self, slot: Slot) -> Result<(), Error> {
        Ok(self.slots.add(slot, self.stage2.geometry().end())?)
    }

    /// Writes into the guest's RAM, as a loader does before the guest runs; pages that were never touched are
    /// zero around it. The bytes are clean to the point of coherency when the page is mapped, so this is not for
    /// pages that are.
    pub fn write(&mut self, ipa: Ipa, bytes: &[u8]) -> Result<(), Error> {
        let mut at = ipa;
        let mut left = bytes;
        while !left.is_empty() {
            let page = at.align_down(FRAME);
            let (now, later) = left.split_at(left.len().min((FRAME - (at - page)) as usize));
            let Some(Kept { content: Content::Ram(ram), .. }) = self.slots.find(at) else {
                return Err(Error::NoRam { ipa: at });
            };
            let mut backed = ram.back(page, &mut self.frames).ok_or(Error::NoFrames { ipa: page })?;
            self.counts.frames_zeroed += backed.make_ready(self.stage2.platform(), self.stage2.features());
            backed.write(self.stage2.platform(), at - page, now);
            at = at + now.len() as u64;
            left = later;
        }
        Ok(())
    }

    /// The guest's tables.
    pub fn stage2(&self) -> &Stage2<P> {
        &self.stage2
    }

    /// The frames that the guest draws on.
    pub fn frames(&self) -> &Frames {
        &self.frames
    }

    /// The frames that the guest draws on, to add to them.
    pub fn frames_mut(&mut self) -> &mut Frames {
        &mut self.frames
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        let (tables_allocated, tables_freed) = self.frames.table_counts();
        Counts { tables_allocated, tables_freed, ..self.counts }
    }
}
