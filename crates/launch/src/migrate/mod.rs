// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Live migration of a guest from one hypervisor to another: the `twofold` processes of both sides do it
//! (`docs/migration.md`).
//!
//! The hypervisor has no link. Its launcher reads and writes the guest's memory and state by commands of the control channel
//! (`memory.rs`), and has the link to the other launcher: TCP, encrypted and authenticated with a key that both have ([`link`]).
//! `twofold_migration` has the protocol. The [`source`] sends, the [`target`] starts a machine for what comes, and the owner
//! [`record`], a file that both can reach, says which side runs the guest.

pub mod carried;
mod door;
pub mod fetch;
pub mod link;
mod memory;
pub mod order;
pub mod record;
mod serve;
pub mod source;
pub mod target;

use std::thread;
use std::time::{Duration, Instant};

use twofold_abi::section::Head;
use twofold_migration::stream::Name;
use twofold_migration::{Runtime, Section};
use zerocopy::IntoBytes;

/// The most bytes of a guest's sections: its bundle is one.
const SECTIONS_MAX: u64 = 5 << 30;

/// How long a side in doubt waits between two questions to the record.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The host's clock.
struct Clock(Instant);

impl Clock {
    fn new() -> Self {
        Self(Instant::now())
    }
}

impl Runtime for Clock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn wait(&self, time: Duration) {
        thread::sleep(time);
    }
}

/// A section of the hypervisor's, with its head, as it travels.
fn section(bytes: &[u8]) -> Option<Section> {
    let (head, content, _) = Head::split(bytes)?;
    let name = Name::from_bytes(head.name)?;
    Some(Section { name, instance: head.instance.get(), version: head.version.get(), bytes: content.to_vec() })
}

/// The same section for a hypervisor.
fn with_head(section: &Section) -> Vec<u8> {
    let Section { name, instance, version, bytes } = section;
    let size = (bytes.len() as u64).into();
    let head = Head { name: name.bytes(), instance: (*instance).into(), version: (*version).into(), size };
    [head.as_bytes(), bytes].concat()
}
