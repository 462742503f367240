// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of `crates/migration`.

use super::NAME;
use crate::mutation::Excused;

pub(super) const EXCUSED: &[Excused] = &[
    Excused {
        file: "crates/migration/src/postcopy/peer.rs",
        mutants: &[("peer::AT_PEER: 1 << 63 => a bit more", "no bit is above it, so the value is the same")],
    },
    Excused {
        file: "crates/migration/src/postcopy/source.rs",
        mutants: &[
            ("Source::new: 0 => 1 #3", "pages that are on their way on another link are none at first"),
            ("Source::resume: 1 => 2", NAME),
        ],
    },
    Excused {
        file: "crates/migration/src/precopy/lane.rs",
        mutants: &[("Lane::new: 0 => 1", "each round sets it before it counts its pages")],
    },
    Excused {
        file: "crates/migration/src/ram/ahead.rs",
        mutants: &[("Ahead::new: 0 => 1", "pages that are on their way on another link are none at first")],
    },
    Excused {
        file: "crates/migration/src/ram/guest.rs",
        mutants: &[
            ("GuestRam::zero: 0 => 1", "the read fills the bytes"),
            (
                "GuestRam::zero: bytes.iter().any(|&byte| byte != 0) => true",
                "the page is overwritten with the zeroes that it already has",
            ),
        ],
    },
    Excused {
        file: "crates/migration/src/receive/join.rs",
        mutants: &[
            ("Seen::new: 0 => 1", "each page has a bit of its own, wherever the first one is"),
            ("Seen::new: any => true", NOTED_TWICE),
            ("Seen::note: 0 => 1", "the reader refuses pages of memslots that it does not know"),
        ],
    },
    Excused {
        file: "crates/migration/src/receive/lane.rs",
        mutants: &[
            ("Lane::new: 0 => 1", "a round's begin sets it before its end reads it"),
            ("Lane::new: false => true", "a round's begin sets it before its end reads it"),
            ("Lane::number: 0 => 1", "a stream without a head is refused before its number is read"),
            (
                "Lane::read: number == 1 => true",
                "the streams then wait for each other once more, and nothing has come meanwhile",
            ),
        ],
    },
    Excused {
        file: "crates/migration/src/receive/mod.rs",
        mutants: &[("Receive::receive: lanes.len() > 1 => lanes.len() >= 1", NOTED_TWICE)],
    },
    Excused {
        file: "crates/migration/src/sealed.rs",
        mutants: &[
            ("SealedWriter::write: count == FULL => false", "a full frame is copied, and then sent in the same way"),
            ("SealedReader::receive: 0 => 1", FILLED),
            ("sealed::send: 0 => 1", FILLED),
            ("sealed::receive: 0 => 1", FILLED),
            (
                "sealed::sealed: frame[HEAD..].as_ptr().align_offset(LINE).min(LINE) => frame[HEAD..].as_ptr().align_offset(LINE).max(LINE)",
                "where the ciphertext begins affects only the time",
            ),
        ],
    },
    Excused {
        file: "crates/migration/src/stream/hello.rs",
        mutants: &[
            ("Hello::refusals: 0 => 1", "no page of a hello that was checked has one byte, nor none"),
            ("Hello::check: 1 => 2 #4", "one byte is no multiple of a page"),
        ],
    },
    Excused {
        file: "crates/migration/src/stream/message.rs",
        mutants: &[
            ("message::text: 0 => 1", "a character fits, and an empty text has the same end without any"),
            ("message::text: 0 => 1 #2", "a character has at most four bytes, so an end is found"),
        ],
    },
    Excused {
        file: "crates/migration/src/stream/order.rs",
        mutants: &[
            ("Order::new: 0 => 1 #2", "a section sets it before a part reads it"),
            ("Order::new: 0 => 1 #3", "a section sets it before a part reads it"),
            ("Order::resume: 0 => 1 #2", "after a resumption, only whether it is set is read"),
            ("Order::resume: 0 => 1 #3", "after a resumption, only whether it is set is read"),
        ],
    },
    Excused {
        file: "crates/migration/src/stream/page.rs",
        mutants: &[("Packer::pack: 0 => 1", "only what the compression has written is sent")],
    },
    Excused {
        file: "crates/migration/src/stream/record.rs",
        mutants: &[("record::interpret: 0 => 1", "a page fills the bytes, or is refused")],
    },
    Excused {
        file: "crates/migration/src/stream/slots.rs",
        mutants: &[
            ("Slots::begin: self.count > 0 => true", "a round without pages has no bits to clear"),
            ("Slots::begin: self.count > 0 => self.count >= 0", "a round without pages has no bits to clear"),
        ],
    },
];

const NOTED_TWICE: &str =
    "the reader of one stream, or the first round, has found the same before, so this only takes memory";
const FILLED: &str = "each byte is overwritten before it is read";
