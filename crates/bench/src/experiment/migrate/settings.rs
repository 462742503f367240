// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What both processes of the bench know from the start: the guest, the directory that they share, and what a move is to
//! keep to.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use twofold_memory::dirty::Tracker;
use twofold_migration::plan::Wanted;
use twofold_migration::precopy::Postcopy;
use twofold_migration::stream::{Capabilities, Compression, Hello, Name, Slot};
use twofold_workload::key_value::{Mix, Table};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// The address of the guest's memory.
pub const RAM: u64 = 0x4000_0000;
/// The most rounds while the guest runs.
const ROUNDS: u32 = 30;
/// The most that vCPUs are slowed down, in per mille.
const THROTTLE: u16 = 990;

/// What both processes know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Bytes of the guest's memory, a multiple of 2 MiB.
    pub memory: u64,
    /// vCPUs.
    pub vcpus: u32,
    /// Requests a second to all vCPUs together; 0: as many as they can serve.
    pub rate: u64,
    /// The percentage of requests that write.
    pub sets: u64,
    /// The seed of the requests.
    pub seed: u64,
    /// How long the guest may stand still.
    pub downtime: Duration,
    /// Bytes a second that all streams together may send.
    pub bandwidth: Option<u64>,
    /// Whether a guest that writes too fast for pre-copy is not slowed down, and what is left then follows.
    pub postcopy_if_needed: bool,
    /// Streams.
    pub streams: u16,
    /// Whether pages are compressed.
    pub compressed: bool,
    /// How long the guest runs before and after each move.
    pub settle: Duration,
    /// The directory with the owner record, the sockets and the lists of pages.
    pub directory: PathBuf,
    /// This program.
    pub program: PathBuf,
}

/// How a guest moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// By pre-copy, with this tracker.
    Precopy(Tracker),
    /// By post-copy at once.
    Postcopy,
}

impl Settings {
    /// What a move is to keep to. A guest that writes too fast is slowed down, and stopped all the same after the last
    /// round; if post-copy may follow, neither.
    pub fn wanted(&self) -> Wanted {
        // Stopping, the last reading of the log, the state, the commit, and threads that have to wake on a busy host.
        let fixed = Duration::from_millis(2).min(self.downtime / 2);
        let throttle = if self.postcopy_if_needed { 0 } else { THROTTLE };
        Wanted { downtime: self.downtime, fixed, rounds: ROUNDS, throttle, forced: !self.postcopy_if_needed }
    }

    /// Whether pages may follow after the switch.
    pub fn postcopy(&self, how: How) -> Postcopy {
        match how {
            How::Postcopy => Postcopy::AtOnce,
            How::Precopy(_) if self.postcopy_if_needed => Postcopy::IfNeeded,
            How::Precopy(_) => Postcopy::Off,
        }
    }

    /// Whether pages are compressed.
    pub fn compression(&self) -> Compression {
        if self.compressed { Compression::Lz4 } else { Compression::Off }
    }

    /// The guest's memslots.
    pub fn slots(&self) -> [Slot; 1] {
        [Slot { number: 0, read_only: false, first: RAM / PAGE, pages: self.memory / PAGE }]
    }

    /// The hello of a move.
    pub fn hello(&self, migration: [u8; 16]) -> Hello {
        Hello {
            migration,
            stream: 0,
            streams: 1,
            model: model(),
            page_shift: 12,
            ipa_bits: ADDRESS_BITS,
            vcpus: self.vcpus,
            memory: self.memory,
            features: Vec::new(),
        }
    }

    /// What a target has.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities {
            model: model(),
            page_shift: 12,
            ipa_bits: ADDRESS_BITS,
            vcpus: self.vcpus,
            memory: self.memory,
            features: Vec::new(),
        }
    }

    /// The table of a vCPU: its part of the memory. `None` if that is too small.
    pub fn table(&self, vcpu: u32) -> Option<Table> {
        let part = self.memory / u64::from(self.vcpus) / PAGE * PAGE;
        let seed = self.seed.wrapping_mul(0x9e37_79b9).wrapping_add(vcpu.into());
        Table::new(RAM + u64::from(vcpu) * part, part, seed)
    }

    /// The load of each table.
    pub fn mix(&self) -> Mix {
        Mix { sets: self.sets, hot_keys: HOT_KEYS, hot_requests: HOT_REQUESTS }
    }
}

impl How {
    /// Its name in options and figures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Precopy(tracker) => tracker.name(),
            Self::Postcopy => POSTCOPY,
        }
    }

    /// The way with this name.
    pub fn find(name: &str) -> Option<Self> {
        let tracker = Tracker::ALL.into_iter().find(|tracker| tracker.name() == name);
        tracker.map(Self::Precopy).or((name == POSTCOPY).then_some(Self::Postcopy))
    }
}

/// The name of post-copy among the trackers.
pub const POSTCOPY: &str = "post-copy";
/// Bits of a guest physical address.
pub const ADDRESS_BITS: u8 = 40;
/// The percentage of keys that get [`HOT_REQUESTS`].
pub const HOT_KEYS: u64 = 20;
/// The percentage of requests that are for hot keys.
pub const HOT_REQUESTS: u64 = 80;

fn model() -> Name {
    Name::new("machine-kv-1").unwrap_or_else(|| unreachable!("it is a name"))
}
