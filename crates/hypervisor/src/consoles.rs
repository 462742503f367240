// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guests' consoles on the control channel: what the channel's task sends, and what is left at the end.
//!
//! What happens between a guest's UART and its console is in [`emulation`](crate::emulation), what goes out when in
//! [`twofold_vmm::session`].

use core::hint;

use twofold_abi::channel::Reason;
use twofold_vmm::console::Console;
use twofold_vmm::session::{Guests, Sent, Session};

use crate::channel::{self, Deadline, PATIENCE, Polled, Sender};
use crate::schedule::cpu::Progress;
use crate::{read_sysreg, timer};

/// Sends a frame of a console: a piece of the task's work.
pub(crate) fn send(guests: &impl Guests) -> Progress {
    match channel::with_session(|session, launcher| session.send(guests, launcher)) {
        Some(Sent::Some) => Progress::More,
        // The port interrupts when there is room, and a console has a notice when there is something to send.
        Some(Sent::Nothing | Sent::NoRoom) | None => Progress::Finished,
    }
}

/// S6: the last guest has ended. What the guests have written goes out until the launcher has taken it. If there is no
/// session, or if it takes nothing for [`PATIENCE`] seconds, the rest is lost.
pub(crate) fn finish(guests: &impl Guests) {
    let (mut left, mut deadline) = (u64::MAX, Deadline::after(PATIENCE));
    loop {
        // A UART has bytes only if its console is full.
        let untaken = |guest| guests.console(guest, |console: &mut Console| console.untaken()).unwrap_or(0);
        let now = (0..guests.count()).map(untaken).sum();
        if now != left {
            (left, deadline) = (now, Deadline::after(PATIENCE));
        }
        if left == 0 || deadline.has_passed() {
            return;
        }
        if let Polled::Command(asked) = channel::poll(guests) {
            let _ = channel::with_session(|session, launcher| {
                asked.refused(Reason::State, format_args!("all guests have ended"), session, launcher);
            });
        }
        let send = |session: &mut Session, launcher: &mut Sender| {
            if session.is_open() { Some(session.send(guests, launcher)) } else { None }
        };
        match channel::with_session(send).flatten() {
            Some(Sent::Some) => {}
            Some(Sent::Nothing | Sent::NoRoom) => pause(),
            None => return,
        }
    }
}

/// Waits a little without an access to a register of the device: that takes the lock that an emulator needs in order to go
/// on with it.
fn pause() {
    let (start, length) = (timer::machine_time(), read_sysreg!(CNTFRQ_EL0) / 2000);
    while timer::machine_time() - start < length {
        hint::spin_loop();
    }
}
