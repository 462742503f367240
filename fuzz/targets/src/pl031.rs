// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clock under any accesses of a guest, and any wall time.

use arbitrary::{Result, Unstructured};
use twofold_devices::{Pl031, Width};

use crate::any;

const DR: u64 = 0x00;
const IMSC: u64 = 0x10;
const RIS: u64 = 0x14;
const MIS: u64 = 0x18;

/// Bytes are refused as a state, or are the state of the clock that they make. No access panics. The line follows RIS
/// and IMSC, and the interrupt comes when it is due and not before. Saved and restored, the clock goes on.
pub fn pl031(data: &[u8]) {
    if let Ok(clock) = Pl031::from_state(data) {
        assert_eq!(clock.state(), data);
    }
    let _ = run(&mut Unstructured::new(data));
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let mut now = u.arbitrary()?;
    let (mut clock, mut line) = (Pl031::new(now), false);
    while !u.is_empty() {
        match u.int_in_range(0..=4)? {
            0 => _ = clock.read(any::register(u)?, any::width(u)?, now, &mut line),
            1 => clock.write(any::register(u)?, any::width(u)?, u.arbitrary()?, now, &mut line),
            2 => {
                let due = clock.due();
                let to = match (u.arbitrary::<u8>()?, due) {
                    (0..0x40, Some(due)) => due,
                    (0x40..0x60, Some(due)) => due.saturating_sub(1).max(now),
                    (0xf0.., _) => now.saturating_add(u.arbitrary()?),
                    (seconds, _) => now.saturating_add(seconds.into()),
                };
                let comes = due.is_some_and(|due| due <= to);
                let was = line;
                clock.advance(to, &mut line);
                assert_eq!(line, was || comes);
                now = to;
            }
            3 => {
                now = u.arbitrary()?;
                clock.advance(now, &mut line);
            }
            _ => {
                let near =
                    (clock.read(DR, Width::Word, now, &mut line) as u32).wrapping_add(u.arbitrary::<i8>()? as u32);
                clock.write(*u.choose(&[4, 8])?, Width::Word, near.into(), now, &mut line);
            }
        }
        let mut read = |offset| clock.read(offset, Width::Word, now, &mut line);
        let (raw, mask, masked) = (read(RIS), read(IMSC), read(MIS));
        assert_eq!((raw & mask, masked != 0), (masked, line));
        assert_eq!((clock.interrupt(), line && clock.due().is_some()), (line, false));
        clock = Pl031::from_state(&clock.state()).expect("a clock's state is one");
    }
    Ok(())
}
