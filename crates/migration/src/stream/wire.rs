// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bytes of a stream: its layouts, numbers and checksums, as `docs/migration.md` specifies them.
//!
//! Invariant: nothing here changes once a version is released. A change is a new [`VERSION`].

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first eight bytes of a stream.
pub const MAGIC: [u8; 8] = *b"TWOFMOVE";
/// The newest version, which has absent pages.
pub const VERSION: u32 = 2;
/// The version of a stream without absent pages.
pub const WHOLE: u32 = 1;
/// The oldest version that the reader reads.
pub const OLDEST: u32 = 1;
/// The most bytes of a record's payload, and the largest page: 64 KiB.
pub const PAYLOAD_MAX: usize = 1 << 16;
/// The most features in a hello.
pub const FEATURES_MAX: usize = 512;
/// The most memslots.
pub const SLOTS_MAX: usize = 512;
/// The most sections.
pub const SECTIONS_MAX: usize = 1024;
/// The most bytes of a message's text.
pub const TEXT_MAX: usize = 512;
pub use twofold_abi::section::{Head as SectionHead, NAME_SIZE};

/// Values of [`Header::kind`].
pub mod kind {
    /// Which guest comes: a [`HelloHead`](super::HelloHead) and its features.
    pub const HELLO: u8 = 1;
    /// The guest's memslots: [`SlotRow`](super::SlotRow)s.
    pub const SLOTS: u8 = 2;
    /// A round begins.
    pub const ROUND: u8 = 3;
    /// A page, or a run of zero pages.
    pub const PAGE: u8 = 4;
    /// The round ends.
    pub const ROUND_END: u8 = 5;
    /// A section begins: a [`SectionHead`](super::SectionHead).
    pub const SECTION: u8 = 6;
    /// The next bytes of the section.
    pub const PART: u8 = 7;
    /// Everything was sent: an [`OwnershipRow`](super::OwnershipRow).
    pub const END: u8 = 8;
    /// A message of the commit.
    pub const MESSAGE: u8 = 9;
    /// From version 2 on. Pages that come after the end, or that the target still lacks: a bit for each.
    pub const ABSENT: u8 = 10;
    /// From version 2 on. Target to source: absent pages are wanted.
    pub const REQUEST: u8 = 11;
    /// From version 2 on. The link is back, and absent pages follow: an [`OwnershipRow`](super::OwnershipRow).
    pub const RESUME: u8 = 12;
}

/// Values of [`Header::form`] in a round's record.
pub mod round {
    /// The guest runs meanwhile.
    pub const RUNNING: u8 = 0;
    /// The guest is stopped: the last round.
    pub const STOPPED: u8 = 1;
}

/// Values of [`Header::form`] in a page's record.
pub mod page {
    /// Zeros, without a payload: [`Header::length`](super::Header::length) is the number of pages.
    pub const ZERO: u8 = 0;
    /// The page's bytes.
    pub const WHOLE: u8 = 1;
    /// The page's bytes as an lz4 block, shorter than the page.
    pub const LZ4: u8 = 2;
}

/// Values of [`Header::form`] in a message's record.
pub mod message {
    /// Target to source: the hello is accepted.
    pub const ACCEPTED: u8 = 0;
    /// Target to source: the target refuses; a text says why.
    pub const REFUSED: u8 = 1;
    /// Either way: the side has taken the guest; an [`OwnershipRow`](super::OwnershipRow).
    pub const TAKEN: u8 = 2;
    /// Source to target: the source keeps the guest; a text says why.
    pub const WITHDRAWN: u8 = 3;
    /// From version 2 on. Target to source: all absent pages have come.
    pub const COMPLETE: u8 = 4;
}

/// Values of [`Header::form`] in a request.
pub mod request {
    /// A vCPU waits for the page.
    pub const WAITS: u8 = 0;
    /// The pages are wanted soon.
    pub const AHEAD: u8 = 1;
}

/// The head of a stream. It never changes, so that each version can name another.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Preamble {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`WHOLE`] or [`VERSION`].
    pub version: U32,
    /// Zero.
    pub reserved: U32,
}

impl Preamble {
    /// The preamble of a stream without absent pages.
    pub const fn new() -> Self {
        Self::of(WHOLE)
    }

    /// The preamble of a version.
    pub const fn of(version: u32) -> Self {
        Self { magic: MAGIC, version: U32::new(version), reserved: U32::ZERO }
    }

    /// Returns what the chain starts from.
    pub fn chain(&self) -> u64 {
        xxh3_64(self.as_bytes())
    }
}

impl Default for Preamble {
    fn default() -> Self {
        Self::new()
    }
}

/// The head of each record. The payload follows.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// See [`kind`].
    pub kind: u8,
    /// See [`round`], [`page`], [`message`] and [`request`]; else zero.
    pub form: u8,
    /// The slot of a page, of absent pages or of a request; else zero.
    pub slot: U16,
    /// Bytes of the payload; in a record of zero pages and in a request, the number of pages.
    pub length: U32,
    /// A round's number, the (first) page's number in its slot, a round's pages, a part's place in its section; else zero.
    pub argument: U64,
    /// The payload's checksum (a page's: of its bytes before compression); zero without a payload.
    pub content: U64,
    /// The checksum of the 24 bytes above, with the previous record's `chain` as its seed.
    pub chain: U64,
}

impl Header {
    /// Returns the chain after this record, if `before` is the one before it.
    pub fn chain_after(&self, before: u64) -> u64 {
        xxh3_64_with_seed(&self.as_bytes()[..size_of::<Self>() - size_of::<U64>()], before)
    }

    /// Returns the bytes of payload that follow.
    pub fn payload(&self) -> usize {
        let pages = self.kind == kind::REQUEST || self.kind == kind::PAGE && self.form == page::ZERO;
        if pages { 0 } else { self.length.get() as usize }
    }
}

/// Returns the checksum of a payload, or of a page's bytes.
pub fn checksum(bytes: &[u8]) -> u64 {
    if bytes.is_empty() { 0 } else { xxh3_64(bytes) }
}

/// The payload of a hello. [`HelloHead::features`] rows follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct HelloHead {
    /// A random number that names this migration. Its streams have it in common.
    pub migration: [u8; 16],
    /// The machine model's name.
    pub model: [u8; NAME_SIZE],
    /// Bytes of guest memory: the sum of its memslots.
    pub memory: U64,
    /// The number of vCPUs.
    pub vcpus: U32,
    /// The number of [`FeatureRow`]s.
    pub features: U32,
    /// This stream's number, from 0.
    pub stream: U16,
    /// How many streams carry the migration.
    pub streams: U16,
    /// The page size as a power of two: 12, 14 or 16.
    pub page_shift: u8,
    /// Bits of a guest physical address, 32 to 52.
    pub ipa_bits: u8,
    /// Zero.
    pub reserved: [u8; 2],
}

/// Something that the guest was given, and that the target must have too.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FeatureRow {
    /// Its name.
    pub name: [u8; NAME_SIZE],
    /// Its value.
    pub value: U64,
    /// 0: the target needs this value or more. 1: it needs this value.
    pub exact: U64,
}

/// A memslot.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SlotRow {
    /// Its number, which page records give.
    pub number: U16,
    /// Bit 0: the guest cannot write to it. The other bits are zero.
    pub flags: U16,
    /// Zero.
    pub reserved: U32,
    /// Its guest physical address, divided by the page size.
    pub first: U64,
    /// Its size in pages.
    pub pages: U64,
}

/// The owner record's content, in an end or a message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct OwnershipRow {
    /// The owner's host.
    pub host: U64,
    /// Which start of that host's program.
    pub incarnation: U64,
    /// How often the guest has been taken.
    pub epoch: U64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_the_sizes_of_the_specification() {
        let sizes = [size_of::<Preamble>(), size_of::<Header>(), size_of::<HelloHead>(), size_of::<FeatureRow>()];
        assert_eq!(sizes, [16, 32, 64, 40]);
        assert_eq!([size_of::<SlotRow>(), size_of::<SectionHead>(), size_of::<OwnershipRow>()], [24, 40, 24]);
    }
}
