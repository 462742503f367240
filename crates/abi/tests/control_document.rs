// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `docs/control.md` agrees with the code, and each test that it names exists.

use twofold_abi::channel::wire::{
    COMMANDS_MAX, CONTENT_MAX, ENCODED_MAX, HEADER_SIZE, KEY_MAX, NO_GUEST, PAYLOAD_MAX, TEXT_MAX, WINDOW_MAX, command,
    kind, reason, state,
};
use twofold_abi::channel::{FrameReader, FrameWriter, ToLauncher};

const DOCUMENT: &str = include_str!("../../../docs/control.md");

/// The first two cells of each row of the table whose head begins with `head`.
fn table(head: &str) -> Vec<(&'static str, &'static str)> {
    let rows = DOCUMENT.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    let cells = |line: &'static str| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        Some((cells.next()?, cells.next()?))
    };
    rows.map_while(cells).collect()
}

#[test]
fn kinds_and_numbers_are_the_documented_ones() {
    let kinds = [
        (kind::HELLO, "hello"),
        (kind::COMMAND, "command"),
        (kind::INPUT, "input"),
        (kind::OUTPUT_CREDIT, "output credit"),
        (kind::TAKEN, "taken"),
        (kind::CONTENT, "content"),
        (kind::WELCOME, "welcome"),
        (kind::DONE, "done"),
        (kind::REFUSED, "refused"),
        (kind::OUTPUT, "output"),
        (kind::INPUT_CREDIT, "input credit"),
        (kind::STATISTIC, "statistic"),
        (kind::STATE, "state"),
        (kind::LOG, "log"),
        (kind::LINE, "line"),
        (kind::TRACE, "trace"),
        (kind::POSITION, "position"),
        (kind::PART, "part"),
    ];
    let documented = table("| kind | name");
    assert_eq!(documented.len(), kinds.len());
    for ((number, name), row) in kinds.into_iter().zip(documented) {
        assert_eq!((&*format!("{number:#04x}"), name), row);
    }
    let numbers = |head: &str, numbers: &[(u16, &str)]| {
        let rows = table(head);
        assert_eq!(rows.len(), numbers.len(), "{head}");
        for (&(number, word), row) in numbers.iter().zip(rows) {
            assert!(row.0 == number.to_string() && row.1.contains(word), "{head}: {row:?} is not {number}, {word}");
        }
    };
    numbers(
        "| command |",
        &[
            (command::STATISTICS.into(), "statistics"),
            (command::STOP.into(), "stop"),
            (command::CONTINUE.into(), "continue"),
            (command::RESET.into(), "reset"),
            (command::QUIT.into(), "quit"),
            (command::DIRTY_START.into(), "dirty start"),
            (command::DIRTY_STOP.into(), "dirty stop"),
            (command::DIRTY.into(), "dirty"),
            (command::SPLIT.into(), "split"),
            (command::COALESCE.into(), "coalesce"),
            (command::BALLOON.into(), "balloon"),
            (command::SAVE.into(), "save"),
            (command::RESTORE.into(), "restore"),
            (command::READ.into(), "read"),
            (command::WRITE.into(), "write"),
            (command::TRACK.into(), "track"),
            (command::WRITTEN.into(), "written"),
            (command::CLEAR.into(), "clear"),
            (command::FRAMES.into(), "frames"),
            (command::ABSENT.into(), "absent"),
            (command::WANTED.into(), "wanted"),
            (command::FILL.into(), "fill"),
            (command::ZERO.into(), "zero"),
        ],
    );
    numbers(
        "| state |",
        &[
            (state::RUNNING.into(), "running"),
            (state::STOPPED.into(), "stopped"),
            (state::OFF.into(), "off"),
            (state::RESET.into(), "starts anew"),
            (state::FAILED.into(), "ended by the hypervisor"),
        ],
    );
    numbers(
        "| reason |",
        &[
            (reason::VERSION, "versions"),
            (reason::MALFORMED, "malformed"),
            (reason::KIND, "no such kind"),
            (reason::GUEST, "no such guest"),
            (reason::STATE, "state"),
            (reason::BUSY, "too many commands"),
            (reason::CREDIT, "more input"),
            (reason::FAILED, "failed"),
        ],
    );
}

#[test]
fn limits_are_the_documented_ones() {
    for (limit, text) in [
        (HEADER_SIZE, "a header of {} bytes"),
        (PAYLOAD_MAX, "a payload of at most {}."),
        (PAYLOAD_MAX, "1 to {} bytes for the guest's console"),
        (ENCODED_MAX, "at most {} bytes on the wire"),
        (KEY_MAX, "A key is at most {} bytes"),
        (TEXT_MAX, "at most {} bytes, and for people"),
        (WINDOW_MAX as usize, "bytes (u32), 1 to {} |"),
        (CONTENT_MAX, "At most {} bytes"),
        (COMMANDS_MAX, "{} are the most |"),
        (COMMANDS_MAX, "at most {} commands without an answer"),
    ] {
        let text = text.replace("{}", &limit.to_string());
        assert!(DOCUMENT.contains(&text), "{text}");
    }
    assert!(DOCUMENT.contains(&format!("number, or {NO_GUEST:#x}")));
}

#[test]
fn the_example_is_on_the_wire_as_documented() {
    let line = |word: &str| {
        let line = DOCUMENT.lines().find_map(|line| line.strip_prefix(word)).unwrap();
        line.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect::<Vec<_>>()
    };
    let mut writer = FrameWriter::new();
    let wire = ToLauncher::Done(7).write(None, &mut writer).unwrap();
    assert_eq!(line("wire "), wire);
    let mut reader = FrameReader::new();
    assert!(reader.read(&mut &[0][..]).is_none());
    let frame = reader.read(&mut &*wire).unwrap().unwrap();
    let header = [frame.kind, 0, 0xff, 0xff, frame.payload.len() as u8, 0];
    assert_eq!(line("frame "), [&header, frame.payload].concat());
}

#[test]
fn each_test_that_the_document_names_exists() {
    let tests = concat!(include_str!("channel.rs"), include_str!("../../../fuzz/targets/src/channel.rs"));
    let names: Vec<_> = DOCUMENT.split("(`").skip(1).filter_map(|rest| rest.split('`').next()).collect();
    let names: Vec<_> = names.into_iter().filter(|name| name.contains('_')).collect();
    assert_eq!(names.len(), 5, "{names:?}");
    for name in names {
        assert!(tests.contains(&format!("fn {name}(")), "{name}");
    }
}
