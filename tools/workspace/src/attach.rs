// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The terminal as the console of one guest of several.
//!
//! Output goes to the terminal as it comes. Input goes to the guest line by line, as the terminal hands it out: it is not put
//! into raw mode, so Ctrl-C ends the run, and the guest does not see single keys.
//!
//! Invariant: the threads never hold up the machine: what the terminal does not take stays in the guest.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use twofold_launch::consoles::Consoles;

/// Connects the terminal with a guest's console, until the machine ends or the terminal closes. Returns the thread that shows
/// the output.
pub fn spawn(consoles: &Arc<Consoles>, guest: u16) -> JoinHandle<()> {
    let output = Arc::clone(consoles);
    let shown = thread::spawn(move || {
        let mut terminal = io::stdout();
        loop {
            let bytes = output.read(guest, 4096);
            if bytes.is_empty() || terminal.write_all(&bytes).and_then(|()| terminal.flush()).is_err() {
                return;
            }
        }
    });
    let input = Arc::clone(consoles);
    // It may wait for a line when the process ends.
    thread::spawn(move || {
        let mut bytes = [0; 1024];
        while let Ok(count @ 1..) = io::stdin().read(&mut bytes) {
            if !input.write(guest, &bytes[..count]) {
                return;
            }
        }
    });
    shown
}
