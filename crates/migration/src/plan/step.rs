// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The step to take now.

use super::forecast::{Forecast, Outcome, follow, forecast};
use super::measured::{Measured, Wanted};
use super::throttle::{Throttle, throttle};

/// A step, and the forecast from here if it is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Stop the guest, and send the rest. It fits the downtime, or that was forced ([`Forecast::outcome`]).
    Stop(Forecast),
    /// Send another round, with all vCPUs at full speed.
    Round(Forecast),
    /// Slow vCPUs down, and send another round.
    Throttle(Throttle, Forecast),
    /// Pre-copy does not converge, not even with the most throttle: [`Forecast::outcome`] says why, at full speed.
    Never(Forecast),
}

/// Returns the step to take now.
///
/// Invariant: without [`Wanted::forced`] it is [`Plan::Stop`] only if what is left fits the downtime.
pub fn plan(measured: &Measured<'_>, wanted: &Wanted) -> Plan {
    let now = forecast(measured, wanted);
    if now.outcome == Outcome::Converges {
        return if now.rounds == 0 { Plan::Stop(now) } else { Plan::Round(now) };
    }
    if let Some(throttle) = throttle(measured, wanted) {
        let throttled = follow(measured, wanted, throttle.rate);
        return Plan::Throttle(throttle, throttled);
    }
    match now.outcome {
        Outcome::Forced { .. } if now.rounds == 0 => Plan::Stop(now),
        Outcome::Forced { .. } => Plan::Round(now),
        _ => Plan::Never(now),
    }
}
