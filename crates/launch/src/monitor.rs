// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The monitor: a user's words as commands to the hypervisor, and its answer as words.
//!
//! Invariant: a line that is no command has no effect, and its answer says what would be one.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use twofold_abi::channel::Command;

use crate::hub::Hub;
use crate::sample::word;
use crate::session::Answer;
use crate::size::Size;
use crate::snapshot::{self, After};

/// The commands that the monitor carries out.
pub const HELP: &str = "\
stat [GUEST]         what each guest does, and its figures
stop [GUEST]         stops the guest: no vCPU runs, and its counters stand still
cont [GUEST]         lets it go on
reset [GUEST]        starts it anew from its images
dirty start [GUEST]  starts a dirty log of its RAM
dirty [GUEST]        how many pages it wrote since the log started, or was last looked at by `dirty` or `stat`
dirty stop [GUEST]   stops the log; what it has split stays split
split [GUEST]        splits the blocks that map its RAM into pages
coalesce [GUEST]     makes blocks of pages again, where all of a block was touched, and no log runs
balloon SIZE [GUEST] asks it to keep this much of its memory, such as 256M, and to give up the rest
snapshot FILE [GUEST]  writes it into a file, from which `twofold run --from FILE` goes on; the guest goes on here, too
suspend FILE [GUEST]   the same, and ends it here: for a guest that writes to a disk
quit [GUEST]         ends the guest; without a name, all guests, and so the machine
help                 this text
Without a name, a command is for the guest whose console this is.
";

/// Why a guest takes no command now.
pub(crate) const CLAIMED: &str = "the guest moves to or from another machine, or is being saved";

/// Carries out a line of the user's, for the guest `current` if it names none.
pub fn command(hub: &Arc<Hub>, current: u16, line: &str) -> String {
    let mut words = line.split_whitespace().peekable();
    let Some(name) = words.next() else { return String::new() };
    let part = if name == "dirty" { words.next_if(|word| matches!(*word, "start" | "stop")) } else { None };
    let file = if matches!(name, "snapshot" | "suspend") { words.next() } else { None };
    let kept = match if name == "balloon" { words.next() } else { None }.map(mebibytes) {
        Some(Err(why)) => return format!("balloon: {why}\n"),
        Some(Ok(kept)) => Some(kept),
        None => None,
    };
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
    let command = match (name, part) {
        ("help", _) => return HELP.to_owned(),
        ("stat", _) => return statistics(hub, named),
        ("stop", _) => Command::Stop,
        ("cont", _) => Command::Continue,
        ("reset", _) => Command::Reset,
        ("dirty", Some("start")) => Command::DirtyStart,
        ("dirty", Some(_)) => Command::DirtyStop,
        ("dirty", None) => Command::Dirty,
        ("split", _) => Command::Split,
        ("coalesce", _) => Command::Coalesce,
        ("balloon", _) => match kept {
            Some(kept) => Command::Balloon(kept),
            None => return "balloon: give the memory that the guest is to keep, such as 256M\n".to_owned(),
        },
        ("snapshot", _) => {
            let Some(file) = file else { return "snapshot: give a file\n".to_owned() };
            return match snapshot(hub, named.unwrap_or(current), Path::new(file)) {
                Ok(size) => format!("snapshot: done, {size} bytes\n"),
                Err(why) => format!("snapshot: {why}\n"),
            };
        }
        ("suspend", _) => {
            let Some(file) = file else { return "suspend: give a file\n".to_owned() };
            return match suspend(hub, named.unwrap_or(current), Path::new(file), &mut |_| ()) {
                Ok(size) => format!("suspend: done, {size} bytes\n"),
                Err(why) => format!("suspend: {why}\n"),
            };
        }
        ("quit", _) => Command::Quit,
        _ => return format!("there is no command {name:?}; `help` has all\n"),
    };
    let name = part.map_or_else(|| name.to_owned(), |part| format!("{name} {part}"));
    let guest = if command == Command::Quit { named } else { Some(named.unwrap_or(current)) };
    // To end the machine is always possible.
    if guest.is_some_and(|guest| hub.is_claimed(Some(guest))) {
        return format!("{name}: refused: {CLAIMED}\n");
    }
    match hub.session().ask(guest, command) {
        Ok(answer) => match answer.refusal {
            None => format!("{name}: done{}\n", found(&answer, guest)),
            Some(refusal) => format!("{name}: refused: {}\n", refusal.text),
        },
        Err(why) => format!("{name}: {why}\n"),
    }
}

/// Writes a snapshot of a guest into a file, and returns its size in bytes. The guest goes on.
///
/// # Errors
///
/// Why there is none.
pub fn snapshot(hub: &Arc<Hub>, guest: u16, file: &Path) -> Result<u64, String> {
    write(hub, guest, file, After::GoesOn)
}

/// The same, and ends the guest. `ends` is called with the size right before, because the machine may end with the guest.
///
/// # Errors
///
/// Why there is none, or the guest did not end.
pub fn suspend(hub: &Arc<Hub>, guest: u16, file: &Path, ends: &mut dyn FnMut(u64)) -> Result<u64, String> {
    write(hub, guest, file, After::Ends(ends))
}

fn write(hub: &Arc<Hub>, guest: u16, file: &Path, after: After<'_>) -> Result<u64, String> {
    let bundle = hub.bundle().ok_or("this run does not know what its guests were started with")?;
    let _claim = hub.claim(guest).ok_or(CLAIMED)?;
    snapshot::write(hub.session(), guest, bundle, file, after).map_err(|why| why.to_string())
}

/// A size as a number of MiB.
fn mebibytes(text: &str) -> Result<u32, String> {
    const MEBIBYTE: u64 = 1 << 20;
    let bytes = text.parse::<Size>()?.bytes();
    let count = u32::try_from(bytes / MEBIBYTE).ok().filter(|count| *count < 1 << 24);
    count.filter(|_| bytes.is_multiple_of(MEBIBYTE)).ok_or_else(|| format!("{text}: give a multiple of 1M, below 16T"))
}

/// What a command found in a guest.
fn found(answer: &Answer, guest: Option<u16>) -> String {
    let figure = |key: &str| answer.figure(guest, key);
    if let (Some(found), Some(all)) = (figure("dirty.found"), figure("dirty.pages")) {
        return format!(", {found} pages written since the last look, {all} in all");
    }
    let blocks = [("split.blocks", "split"), ("coalesce.blocks", "made")];
    let blocks = blocks.iter().find_map(|(key, how)| Some((figure(key)?, how)));
    blocks.map_or_else(String::new, |(blocks, how)| format!(", {blocks} blocks {how}"))
}

/// What is said of a guest that is not there.
#[must_use]
pub fn no_guest(hub: &Arc<Hub>, name: &str) -> String {
    format!("there is no guest {name}; there is {}\n", hub.names().collect::<Vec<_>>().join(", "))
}

fn statistics(hub: &Arc<Hub>, named: Option<u16>) -> String {
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
        assert!(said("dirty mail").contains("there is no guest mail"));
        assert!(said("dirty start mail").contains("there is no guest mail"));
        assert!(said("dirty stop web now").contains("\"now\" is too much"));
        assert!(said("split start").contains("there is no guest start"));
        assert_eq!(said("snapshot"), "snapshot: give a file\n");
        assert!(said("snapshot a mail").contains("there is no guest mail"));
        assert!(said("snapshot a web").contains("does not know what its guests were started with"));
        assert!(said("balloon").contains("give the memory that the guest is to keep"));
        assert!(said("balloon much").contains("balloon: give a number of bytes"), "{}", said("balloon much"));
        assert!(said("balloon 1K").contains("give a multiple of 1M"));
        assert!(said("balloon 1M mail").contains("there is no guest mail"));
        assert_eq!(mebibytes("2G"), Ok(2048));
        assert_eq!(command(&ended, 0, "balloon 1M web"), format!("balloon: {}\n", crate::session::SessionError::Ended));
        for line in ["stop", "dirty", "dirty start", "dirty stop web", "split", "coalesce web"] {
            let (name, _) = line.split_once(" web").unwrap_or((line, ""));
            assert_eq!(command(&ended, 0, line), format!("{name}: {}\n", crate::session::SessionError::Ended));
        }
        assert!(command(&ended, 0, "stat").contains("the hypervisor has ended"));
    }

    #[test]
    fn what_was_found_is_said() {
        let answer = |figures: &[(&str, u64)]| Answer {
            figures: figures.iter().map(|(key, value)| (Some(1), (*key).to_owned(), *value)).collect(),
            ..Answer::default()
        };
        let said = |figures: &[(&str, u64)]| found(&answer(figures), Some(1));
        assert_eq!(
            said(&[("dirty.found", 3), ("dirty.pages", 70)]),
            ", 3 pages written since the last look, 70 in all"
        );
        assert_eq!(said(&[("split.blocks", 31)]), ", 31 blocks split");
        assert_eq!(said(&[("coalesce.blocks", 0)]), ", 0 blocks made");
        assert_eq!((said(&[]), found(&answer(&[("split.blocks", 31)]), Some(0))), (String::new(), String::new()));
    }
}
