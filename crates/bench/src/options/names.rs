// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Trackers and guest modes by the names that a user types.

use twofold_memory::dirty::Tracker;
use twofold_workload::mode::{MODES, Mode};

/// Parses a tracker's name.
pub fn tracker(name: &str) -> Result<Tracker, String> {
    let names = || Tracker::ALL.map(Tracker::name).join(", ");
    let tracker = Tracker::ALL.into_iter().find(|tracker| tracker.name() == name);
    tracker.ok_or_else(|| format!("there is no tracker `{name}`; there are {}", names()))
}

/// Parses a guest mode, by name or number.
pub fn mode(text: &str) -> Result<Mode, String> {
    let names = || MODES.map(|mode| format!("{} {}", mode.number, mode.name)).join(", ");
    Mode::find(text).ok_or_else(|| format!("there is no mode `{text}`; there are {}", names()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trackers_have_names() {
        assert_eq!(tracker("write-protect"), Ok(Tracker::WriteProtect));
        assert!(tracker("dirty-ring").is_err_and(|error| error.contains("adaptive")));
    }
}
