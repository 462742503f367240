// SPDX-License-Identifier: Apache-2.0 OR MIT
//! S2's numbers: the split alone, as it was timed inside the kernel before a reviewer asked for what its user waits for. Theirs
//! are of a software model; ours are of the engine, on tables in real memory, with TLB invalidations for free.

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::{Context, ensure};
use twofold_machine::arena::{Arena, ArenaOptions, Backing as Made};
use twofold_machine::fast::{FastMachine, FastPlatform};
use twofold_memory::Frames;
use twofold_stage2::baselines::EveryLevel;
use twofold_stage2::{
    Access, Attributes, Geometry, Granule, Ipa, IpaRange, Level, Pa, Platform as _, Stage2, Unwatched, Vmid, Window,
};

use super::part::{Bench, Part, Round};
use super::published::{PUBLISHED, Published};
use super::row::{Ours, Pair};
use super::subject::Subject;
use crate::clock::Moment;
use crate::experiment::setup::Backing;
use crate::features::TODAY;
use crate::results::{HeadlineRow, Kind, Platform};

/// All three.
#[derive(Default)]
pub struct WalkPart {
    guest: Option<Guest>,
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
        "S2: the split alone".to_owned()
    }

    fn begin(&mut self, _: &mut Bench<'_>) -> anyhow::Result<()> {
        self.runs = Self::published().map(|_| Pair::default()).collect();
        self.guest = Some(Guest::new()?);
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
                note: "the engine alone, 1 GiB; every entry visited, and only tables that have blocks in them"
                    .to_owned(),
            }),
        };
        Self::published().enumerate().map(row).collect()
    }
}

/// Tables of a guest with nothing behind them.
struct Guest {
    stage2: Stage2<FastPlatform>,
    frames: Frames,
}

impl Guest {
    fn new() -> anyhow::Result<Self> {
        let arena = Arc::new(Arena::new(&ArenaOptions::new(TABLES, Made::Anonymous))?);
        let machine = FastMachine::new(Arc::clone(&arena), TODAY, 1)?;
        let geometry = Geometry::new(Granule::KIB_4, 40, &TODAY)?;
        let mut frames = Frames::new(TODAY);
        frames.add(arena.donate());
        let root = frames.take_root(&geometry).context("there is no memory for a root table")??;
        let stage2 = Stage2::new(FastPlatform(machine), TODAY, geometry, Vmid::new(1), root)?;
        stage2.platform().load_vttbr(stage2.vttbr());
        Ok(Self { stage2, frames })
    }

    /// Milliseconds of a split of all there is, which was mapped by the backing's pages before.
    fn split(&mut self, backing: Backing, is_after: bool) -> anyhow::Result<f64> {
        let level = match backing.page() {
            0x1000 => Level::L3,
            0x20_0000 => Level::L2,
            _ => Level::L1,
        };
        let (stage2, tables) = (&self.stage2, &mut self.frames);
        stage2.unmap(RANGE, tables, Unwatched)?.complete().free(tables);
        // SAFETY: no vCPU runs, and nothing is there to be cleaned: the CPU forces write-back.
        let window = unsafe { Window::new(NOWHERE, RANGE.end - RANGE.start) };
        stage2.open(window, RANGE.start).map_range(level, &RAM, tables)?;
        let start = Moment::now();
        if is_after {
            let _ = stage2.split(RANGE, CHUNK, tables, |_, _| ControlFlow::Continue(()))?;
        } else {
            stage2.split_by::<EveryLevel>(RANGE, tables)?;
        }
        let taken = start.elapsed();
        let leaf = stage2.look_up(RANGE.start).context("what was split is not mapped")?;
        ensure!(leaf.level == Level::L3, "what was split is a leaf of level {:?}", leaf.level);
        Ok(taken / 1e6)
    }
}

const RANGE: IpaRange = Ipa::new(1 << 30)..Ipa::new(2 << 30);
/// Where memory would be, if there were any.
const NOWHERE: Pa = Pa::new(0x10_0000_0000);
const RAM: Attributes = Attributes::ram(Access::READ_WRITE);
/// For 513, and the root.
const TABLES: u64 = 8 << 20;
const CHUNK: u64 = 2 << 20;
