// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exit of the image.

use spin::Once;

use crate::experiment::{ExitObserver, Observer};
use crate::{control, power, semihosting};

static BEFORE_END: Once<fn()> = Once::new();

/// What is to be done when the last guest has ended. It is not done after a failure of EL2.
pub(crate) fn before_end(act: fn()) {
    BEFORE_END.call_once(|| act);
}

/// The last guest has ended.
pub(crate) fn guests_have_ended() {
    if let Some(act) = BEFORE_END.get() {
        act();
    }
}

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
