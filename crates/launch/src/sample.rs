// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of all guests at one time, as JSON between programs.
//!
//! Invariant: a figure is one that the hypervisor sent. What it does not send is absent, not 0.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use twofold_abi::channel::{Command, GuestState};

use crate::guest::GuestSettings;
use crate::session::{Session, SessionError};

/// The figures of all guests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// When they were taken: milliseconds since 1970.
    pub time_ms: u64,
    /// The guests, in the order of their numbers.
    pub guests: Vec<GuestSample>,
    /// The figures of the hypervisor.
    pub hypervisor: BTreeMap<String, u64>,
}

/// The figures of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSample {
    /// Its name.
    pub name: String,
    /// What it does: a word.
    pub state: String,
    /// Its RAM in bytes.
    pub memory: u64,
    /// Its vCPUs.
    pub cpus: u32,
    /// The figures, by key (`docs/control.md`).
    pub figures: BTreeMap<String, u64>,
}

/// What is known of a guest without asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its name.
    pub name: String,
    /// Its RAM in bytes.
    pub memory: u64,
    /// Its vCPUs.
    pub cpus: u32,
}

impl Known {
    /// What is known of a guest with these settings.
    #[must_use]
    pub fn of(guest: &GuestSettings) -> Self {
        Self { name: guest.name.clone(), memory: guest.memory, cpus: guest.cpus }
    }
}

impl Sample {
    /// Asks the hypervisor for the figures of these guests.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub fn take(session: &Session, guests: &[Known]) -> Result<Self, SessionError> {
        let answer = session.ask(None, Command::Statistics)?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let of = |wanted: Option<u16>| {
            let figures = answer.figures.iter().filter(|(guest, ..)| *guest == wanted);
            figures.map(|(_, key, value)| (key.clone(), *value)).collect()
        };
        let guests = (0..).zip(guests).map(|(number, known)| GuestSample {
            name: known.name.clone(),
            state: word(session.state(number)).to_owned(),
            memory: known.memory,
            cpus: known.cpus,
            figures: of(Some(number)),
        });
        Ok(Self { time_ms: time.as_millis() as u64, guests: guests.collect(), hypervisor: of(None) })
    }
}

/// A state as one word.
#[must_use]
pub fn word(state: Option<GuestState>) -> &'static str {
    match state {
        Some(GuestState::Running) => "running",
        Some(GuestState::Stopped) => "stopped",
        Some(GuestState::Off) => "off",
        Some(GuestState::Reset) => "starting",
        Some(GuestState::Failed) => "failed",
        None => "unknown",
    }
}
