// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The monitor: a user's words as commands to the hypervisor, and its answer as words.
//!
//! Invariant: a line that is no command has no effect, and its answer says what would be one.

use std::fmt::Write;

use twofold_abi::channel::Command;

use crate::hub::Hub;
use crate::sample::word;

/// The commands that the monitor carries out.
pub const HELP: &str = "\
stat [GUEST]     what each guest does, and its figures
stop [GUEST]     stops the guest: no vCPU runs, and its counters stand still
cont [GUEST]     lets it go on
reset [GUEST]    starts it anew from its images
quit [GUEST]     ends the guest; without a name, all guests, and so the machine
help             this text
Without a name, a command is for the guest whose console this is.
";

/// Carries out a line of the user's, for the guest `current` if it names none.
pub fn command(hub: &Hub, current: u16, line: &str) -> String {
    let mut words = line.split_whitespace();
    let Some(name) = words.next() else { return String::new() };
    let named = match (words.next(), words.next()) {
        (_, Some(more)) => {
            return format!("{more:?} is too much: give a command and at most one guest; `help` has all\n");
        }
        (None, _) => None,
        (Some(guest), None) => match hub.find(guest) {
            Some(number) => Some(number),
            None => return no_guest(hub, guest),
        },
    };
    let command = match name {
        "help" => return HELP.to_owned(),
        "stat" => return statistics(hub, named),
        "stop" => Command::Stop,
        "cont" => Command::Continue,
        "reset" => Command::Reset,
        "quit" => Command::Quit,
        _ => return format!("there is no command {name:?}; `help` has all\n"),
    };
    let guest = if command == Command::Quit { named } else { Some(named.unwrap_or(current)) };
    match hub.session().ask(guest, command) {
        Ok(answer) => match answer.refusal {
            None => format!("{name}: done\n"),
            Some(refusal) => format!("{name}: refused: {}\n", refusal.text),
        },
        Err(why) => format!("{name}: {why}\n"),
    }
}

/// What is said of a guest that is not there.
#[must_use]
pub fn no_guest(hub: &Hub, name: &str) -> String {
    format!("there is no guest {name}; there is {}\n", hub.names().collect::<Vec<_>>().join(", "))
}

fn statistics(hub: &Hub, named: Option<u16>) -> String {
    let answer = match hub.session().ask(named, Command::Statistics) {
        Ok(answer) => answer,
        Err(why) => return format!("stat: {why}\n"),
    };
    let mut text = String::new();
    for (number, name) in (0..).zip(hub.names()).filter(|(number, _)| named.is_none_or(|named| named == *number)) {
        let _ = writeln!(text, "{name}: {}", word(hub.session().state(number)));
        for (_, key, value) in answer.figures.iter().filter(|(guest, _, value)| *guest == Some(number) && *value != 0) {
            let _ = writeln!(text, "  {key} {value}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Session;
    use std::sync::Arc;

    #[test]
    fn what_is_no_command_is_said() {
        let hub = Hub::new(Arc::<Session>::default(), &["web".to_owned(), "db".to_owned()]);
        let mut has_ended = Arc::<Session>::default();
        crate::channel::Peer::end(&mut has_ended);
        let ended = Hub::new(has_ended, &["web".to_owned()]);
        let said = |line: &str| command(&hub, 0, line);
        assert_eq!(said("  "), "");
        assert!(said("help").contains("stop [GUEST]"));
        assert!(said("halt").contains("there is no command \"halt\""));
        assert!(said("stop mail").contains("there is no guest mail; there is web, db"));
        assert!(said("stop web now").contains("\"now\" is too much"));
        assert!(command(&ended, 0, "stop").contains("the hypervisor has ended"));
        assert!(command(&ended, 0, "stat").contains("the hypervisor has ended"));
    }
}
