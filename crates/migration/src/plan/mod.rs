// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Planning of pre-copy: whether to send another round, to slow which vCPUs down by how much, or to stop the guest.
//!
//! All of it is data: what was measured, what is wanted, and what follows. So the same code answers beforehand (with
//! rates that were measured without a migration, or assumed) and at each round's end.
//!
//! [`forecast`] follows the rounds of a guest whose rates stay as they are. A round sends the pages that are left. While it
//! lasts, the guest writes `rate * time` pages, but never more different ones than its working set, and those are left
//! for the next round. When what is left takes no longer than the downtime allows, the guest is stopped.
//!
//! [`plan`] returns the step to take now. If the forecast does not converge, it looks for the least throttle with which it
//! does ([`throttle`]).

mod forecast;
mod measured;
mod step;
mod throttle;

pub use forecast::{Forecast, Outcome, forecast};
pub use measured::{Measured, Wanted};
pub use step::{Plan, plan};
pub use throttle::{FULL_SPEED, Throttle, throttle};
