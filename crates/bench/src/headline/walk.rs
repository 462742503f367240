// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The numbers of Bras RFC 2026: the split only, as timed inside the kernel before a reviewer asked for the time that a
//! user waits. The published numbers are of a software model. Ours are of the engine, with tables in real memory and
//! free TLB invalidations.

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::{Context, ensure};
use twofold_machine::arena::{Arena, ArenaOptions, Backing as Made};
use twofold_machine::fast::{FastMachine, FastPlatform};
use twofold_memory::Frames;
use twofold_stage2::baselines::EveryLevel;
use twofold_stage2::{
    Access, Attributes, Geometry, Ipa, IpaRange, Kib4, Level, Pa, Platform as _, Stage2, Unwatched, Vmid, Window,
};

use super::part::{Bench, Part, Round};
use super::published::{BRAS_RFC, PUBLISHED, Published};
use super::row::{Ours, Pair};
use super::subject::Subject;
use crate::clock::Moment;
use crate::experiment::setup::Backing;
use crate::features::TODAY;
use crate::results::{HeadlineRow, Kind, Platform};

/// All three published numbers.
#[derive(Default)]
pub struct WalkPart {
    guest: Option<UnbackedGuest>,
    runs: Vec<Pair>,
}

impl WalkPart {
    fn published() -> impl Iterator<Item = (&'static Published, Backing)> {
        PUBLISHED.iter().filter_map(|published| match published.subject {
            Subject::SplitAlone { backing } => Some((published, backing)),
            _ => None,
        })
    }
}

impl Part for WalkPart {
    fn name(&self) -> String {
        format!("{BRAS_RFC}: the split alone")
    }

    fn begin(&mut self, _: &mut Bench<'_>) -> anyhow::Result<()> {
        self.runs = Self::published().map(|_| Pair::default()).collect();
        self.guest = Some(UnbackedGuest::new()?);
        Ok(())
    }

    fn round(&mut self, _: &mut Bench<'_>, round: Round) -> anyhow::Result<()> {
        let Some(guest) = &mut self.guest else { return Ok(()) };
        for ((_, backing), runs) in Self::published().zip(&mut self.runs) {
            let both = [false, true].map(|is_after| guest.split(backing, is_after));
            for (is_after, ms) in [false, true].into_iter().zip(both) {
                let ms = ms?;
                if round == Round::Timed {
                    runs.add(is_after, ms);
                }
            }
        }
        Ok(())
    }

    fn rows(&self, why: Option<&str>) -> Vec<HeadlineRow> {
        let row = |(at, (published, _)): (usize, (&Published, Backing))| match why {
            Some(why) => published.missing(why),
            None => published.row(&Ours {
                pair: self.runs[at].clone(),
                unit: "ms",
                platform: Platform::Machine,
                kind: Kind::Native,
                note: "the engine alone, 1 GiB; baseline: every entry visited; ours: only tables that contain blocks"
                    .to_owned(),
            }),
        };
        Self::published().enumerate().map(row).collect()
    }
}

/// A guest's tables, without memory behind them.
struct UnbackedGuest {
    stage2: Stage2<FastPlatform>,
    frames: Frames,
}

impl UnbackedGuest {
    fn new() -> anyhow::Result<Self> {
        let arena = Arc::new(Arena::new(&ArenaOptions::new(TABLES, Made::Anonymous))?);
        let machine = FastMachine::new(Arc::clone(&arena), TODAY, 1)?;
        let geometry = Geometry::new(Kib4, 40, &TODAY)?;
        let mut frames = Frames::new(TODAY);
        frames.add(arena.donate());
        let root = frames.take_root(&geometry).context("there is no memory for a root table")??;
        let stage2 = Stage2::new(FastPlatform(machine), TODAY, geometry, Vmid::new(1), root)?;
        stage2.platform().load_vttbr(stage2.vttbr());
        Ok(Self { stage2, frames })
    }

    /// Milliseconds of a split of the whole range, which the backing's pages map before.
    fn split(&mut self, backing: Backing, is_after: bool) -> anyhow::Result<f64> {
        let level = match backing.page() {
            0x1000 => Level::L3,
            0x20_0000 => Level::L2,
            _ => Level::L1,
        };
        let (stage2, tables) = (&self.stage2, &mut self.frames);
        stage2.unmap(RANGE, tables, Unwatched)?.complete().free(tables);
        // SAFETY: no vCPU runs, and there is no memory to clean, because the CPU forces write-back.
        let window = unsafe { Window::new(NOWHERE, RANGE.end - RANGE.start) };
        stage2.open(window, RANGE.start).map_range(level, &RAM, tables)?;
        let start = Moment::now();
        if is_after {
            let _ = stage2.split(RANGE, CHUNK, tables, |_, _| ControlFlow::Continue(()))?;
        } else {
            stage2.split_by::<EveryLevel>(RANGE, tables)?;
        }
        let taken = start.elapsed();
        let leaf = stage2.look_up(RANGE.start).context("the range is not mapped after the split")?;
        ensure!(leaf.level == Level::L3, "after the split, the leaf is of level {:?}", leaf.level);
        Ok(taken / 1e6)
    }
}

const RANGE: IpaRange = Ipa::new(1 << 30)..Ipa::new(2 << 30);
/// The output address of the range. There is no memory.
const NOWHERE: Pa = Pa::new(0x10_0000_0000);
const RAM: Attributes = Attributes::ram(Access::READ_WRITE);
/// For 513 tables, and the root.
const TABLES: u64 = 8 << 20;
const CHUNK: u64 = 2 << 20;
