// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests with a page store that move. Their absent pages are read where they are.

use std::time::Duration;

use anyhow::ensure;
use twofold_launch::GuestSettings;
use twofold_launch::saved::SavedGuest;
use twofold_launch::swap::{Mode, Store, Swap};
use twofold_workspace::linux_bm::load;
use twofold_workspace::output;

use super::super::machines::{Clock, Machines};
use super::{Event, moved, passed};

/// The bare-metal guest's tasks write to an array of `size` MiB, three times its resident memory, find all that they wrote, and are woken.
pub fn tasks(machines: &Machines, mode: Mode, size: u64, moves: u64) -> anyhow::Result<()> {
    let program = format!("bm=2500 faulters=3 workers=1 size={size}M");
    let guest = GuestSettings { swap: Some(swap((size << 20) / 3, mode)), ..machines.bare("guest", 2, &program) };
    let mut out = 0;
    let outcome = moved(machines, &guest, ("", 500), moves, Clock::Real, |event| {
        out += u64::from(matches!(event, Event::Saved(saved) if tokens_are_out(saved)));
        Ok(())
    })?;
    output::remark(&format!("tokens were out at {out} moves"));
    ensure!(moves < 5 || (out > 0) == (mode == Mode::Pv), "tokens were out at {out} moves of {moves}");
    passed(&outcome, "guest check: ok")
}

/// Debian's Linux with the module of asynchronous page faults: tasks that sleep on pages wake up elsewhere.
pub fn linux(machines: &Machines, moves: u64) -> anyhow::Result<()> {
    let commands = [load(), "for n in 1 2 3 4; do bm -f 2 -w 2 -m 134217728 -t 2 --check || exit 1; done".to_owned()];
    let guest = machines.commanded("moved-swap", 2, &commands)?;
    let guest = GuestSettings { swap: Some(swap(64 << 20, Mode::Pv)), ..guest };
    let outcome = moved(machines, &guest, ("twofold: begin 1", 1000), moves, Clock::Real, super::stays)?;
    passed(&outcome, "twofold: end 1 0")
}

fn swap(resident: u64, mode: Mode) -> Swap {
    Swap { resident, store: Store::Memory(Duration::from_micros(200)), mode }
}

/// Whether a vCPU has tasks that wait for pages: its section `async-fault` ends with wake-all.
fn tokens_are_out(saved: &SavedGuest) -> bool {
    const NAME: &[u8] = b"async-fault\0";
    let places = saved.sections.windows(NAME.len()).enumerate().filter(|(_, bytes)| *bytes == NAME);
    places.into_iter().any(|(at, _)| saved.sections.get(at + 40 + 40) == Some(&1))
}
