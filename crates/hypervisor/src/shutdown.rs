// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exit of the image.

use crate::experiment::{ExitObserver, Observer};
use crate::{power, semihosting};

/// Ends the image: by semihosting with `status`; without semihosting by switching the machine off; without PSCI the CPU
/// sleeps.
pub fn exit(status: i32) -> ! {
    Observer::image_ends();
    semihosting::exit(status);
    let _ = power::system_off();
    power::park()
}
