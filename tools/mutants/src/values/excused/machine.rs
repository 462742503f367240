// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of `crates/machine`.

use super::CAPACITY;
use crate::mutation::Excused;

pub(super) const EXCUSED: &[Excused] = &[
    Excused {
        file: "crates/machine/src/file_store/extents.rs",
        mutants: &[("Extents::cut: **end > limit => **end >= limit", "an extent that ends there loses no sector")],
    },
    Excused {
        file: "crates/machine/src/file_store/mod.rs",
        mutants: &[
            ("file_store::size: 0 => 1", "the system reports the size of each file that a test can open"),
            (
                "FileStore::next_work: state.is_closed => false",
                "threads that never end hang every test that has some, and no test fails",
            ),
        ],
    },
    Excused {
        file: "crates/machine/src/file_store/packed.rs",
        mutants: &[
            ("packed::pack: 0 => 1", "the block overwrites these bytes, and those behind it are truncated"),
            ("packed::unpack: 0 => 1", "a page is returned only if all of it was overwritten"),
        ],
    },
    Excused {
        file: "crates/machine/src/file_store/places.rs",
        mutants: &[("Places::new: 0 => 1 #2", PLACE_NUMBER), ("Places::add: 1 => 2", PLACE_NUMBER)],
    },
    Excused {
        file: "crates/machine/src/file_store/serve.rs",
        mutants: &[
            ("FileStore::write_cluster: requests.len() * PAGE => requests.len() / PAGE", CAPACITY),
            ("FileStore::write_cluster: 0 => 1", "each page overwrites the whole buffer"),
        ],
    },
];

const PLACE_NUMBER: &str = "the numbers of places have to differ, and no more";
