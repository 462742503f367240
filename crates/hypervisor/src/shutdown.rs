// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exit of the image.

use crate::experiment::{ExitObserver, Observer};
use crate::{control, power, semihosting};

/// Ends the image with `status`: it is the control channel's last line, and the machine is switched off. Without a framed
/// channel the emulator ends by semihosting; without PSCI the CPU sleeps.
pub fn exit(status: i32) -> ! {
    Observer::image_ends();
    if !control::exit(status) {
        semihosting::exit(status);
    }
    let _ = power::system_off();
    power::park()
}
