// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest is besides its memory, as bytes: sections, one behind the other, and the content of those that no device
//! model writes.
//!
//! A section is a [`Head`] of 40 bytes, and its content. All numbers are little-endian. Those of this module:
//!
//! | name | instance | content |
//! |---|---|---|
//! | `time` | 0 | the guest's counter (u64), its ticks in a second (u64) |
//! | `power` | a vCPU | the state: 0 off, 1 switched on, 2 on, 3 suspended (u64); for 1, entry and x0 (u64 each), else 0 |
//! | `async-fault` | a vCPU | of its asynchronous page faults: 1 if announcements are enabled, the area's address and the flags then, announcements so far, the token that is not acknowledged, 1 if all tasks are to be woken (u64 each) |
//! | `disk` | a transport | what a disk is for its guest: sectors (u64), 1 if it is read-only (u32), its serial number (20 bytes) |
//! | `card` | a transport | what a network card is for its guest: its address (6 bytes), 0 (u16) |
//!
//! Invariant: what is read is checked in form. Whether it fits the guest is decided where it is used.

use alloc::vec::Vec;
use core::fmt;

use thiserror::Error;
use twofold_abi::section::{self, Head};
use twofold_memory::async_fault::Snapshot;
use twofold_stage2::Ipa;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::power::{Start, State};

/// The version of the content of all sections.
pub const VERSION: u32 = 1;

/// A section, and its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section<'a> {
    /// What it is the state of.
    pub name: &'a str,
    /// Which of several of that name.
    pub instance: u32,
    /// Its content.
    pub bytes: &'a [u8],
}

/// Why bytes are no section, or not the content of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SectionError {
    /// There are fewer bytes than the section has, or more.
    #[error("a section of {wanted} bytes has {found}")]
    Length {
        /// The bytes there should be.
        wanted: u64,
        /// The bytes there are.
        found: u64,
    },
    /// The name has other characters than a name may have.
    #[error("the name of a section is no name")]
    Name,
    /// The content has a version that is not known here.
    #[error("the content of a section has version {0}, and version {VERSION} is known here")]
    Version(u32),
    /// A field has a value that it cannot have.
    #[error("{field} is {value:#x}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

impl<'a> Section<'a> {
    /// Appends the section. The name has 1 to 24 characters of `[a-z0-9._-]`.
    pub fn write(&self, to: &mut Vec<u8>) {
        debug_assert!(section::padded(self.name).is_some(), "{:?}", self.name);
        let name = section::padded(self.name).unwrap_or_default();
        let (instance, size) = (self.instance.into(), (self.bytes.len() as u64).into());
        to.extend_from_slice(Head { name, instance, version: VERSION.into(), size }.as_bytes());
        to.extend_from_slice(self.bytes);
    }

    /// The first section of `bytes`, and the bytes after it.
    ///
    /// # Errors
    ///
    /// [`SectionError`].
    pub fn read(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), SectionError> {
        let length = |wanted: u64| SectionError::Length { wanted, found: bytes.len() as u64 };
        let (head, _) = Head::ref_from_prefix(bytes).map_err(|_| length(size_of::<Head>() as u64))?;
        let name = section::name(&head.name).ok_or(SectionError::Name)?;
        if head.version != VERSION {
            return Err(SectionError::Version(head.version.get()));
        }
        let whole = head.size.get().saturating_add(size_of::<Head>() as u64);
        let (head, content, rest) = Head::split(bytes).ok_or(length(whole))?;
        Ok((Self { name, instance: head.instance.get(), bytes: content }, rest))
    }
}

/// The content of a section that is a row of numbers.
fn row<T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &[u8]) -> Result<T, SectionError> {
    let length = SectionError::Length { wanted: size_of::<T>() as u64, found: bytes.len() as u64 };
    T::read_from_bytes(bytes).map_err(|_| length)
}

fn check(field: &'static str, value: u64, fits: bool) -> Result<(), SectionError> {
    if fits { Ok(()) } else { Err(SectionError::Field { field, value }) }
}

/// The guest's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// Its counters.
    pub counter: u64,
    /// Their ticks in a second.
    pub frequency: u64,
}

impl Time {
    /// The content of its section.
    #[must_use]
    pub fn bytes(&self) -> [u8; 16] {
        zerocopy::transmute!([U64::from(self.counter), U64::from(self.frequency)])
    }

    /// The time that had this content.
    ///
    /// # Errors
    ///
    /// [`SectionError`].
    pub fn read(bytes: &[u8]) -> Result<Self, SectionError> {
        let [counter, frequency] = row::<[U64; 2]>(bytes)?.map(U64::get);
        check("the counter's frequency", frequency, frequency > 0)?;
        Ok(Self { counter, frequency })
    }
}

/// The content of a vCPU's section `async-fault`.
#[must_use]
pub fn async_fault_bytes(snapshot: &Snapshot) -> [u8; 48] {
    let Snapshot { enabled, sequence, unacknowledged, wake_all } = *snapshot;
    let (area, flags) = enabled.map_or((0, 0), |(area, flags)| (area.raw(), flags));
    let row = [enabled.is_some().into(), area, flags, sequence, unacknowledged.into(), wake_all.into()];
    zerocopy::transmute!(row.map(U64::from))
}

/// The asynchronous page faults that had this content. Whether they fit the guest is decided where they are restored.
///
/// # Errors
///
/// [`SectionError`].
pub fn read_async_fault(bytes: &[u8]) -> Result<Snapshot, SectionError> {
    let [is_enabled, area, flags, sequence, token, wake_all] = row::<[U64; 6]>(bytes)?.map(U64::get);
    check("whether announcements are enabled", is_enabled, is_enabled <= 1)?;
    check("whether all tasks are to be woken", wake_all, wake_all <= is_enabled)?;
    for (field, value) in [("an area's address without announcements", area), ("flags without announcements", flags)] {
        check(field, value, is_enabled == 1 || value == 0)?;
    }
    let unacknowledged = u32::try_from(token).ok().filter(|token| is_enabled == 1 || *token == 0);
    let unacknowledged =
        unacknowledged.ok_or(SectionError::Field { field: "the token that is not acknowledged", value: token })?;
    let enabled = (is_enabled == 1).then_some((Ipa::new(area), flags));
    Ok(Snapshot { enabled, sequence, unacknowledged, wake_all: wake_all == 1 })
}

/// What a network card is for its guest, besides the state of its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// Its address.
    pub mac: [u8; 6],
}

/// What a disk is for its guest, besides the state of its model. Its content is elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its size.
    pub sectors: u64,
    /// The guest may not write.
    pub is_read_only: bool,
    /// Its serial number, padded with zeros.
    pub id: [u8; 20],
}

/// Why a device is not the one that the guest knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OtherDevice {
    /// A disk has another size.
    #[error("the disk had {there} sectors, and has {here} here: start the guest with the disk that it had")]
    Sectors {
        /// Where the guest comes from.
        there: u64,
        /// Here.
        here: u64,
    },
    /// A disk can be written here alone, or there alone.
    #[error("the disk was {}, and is {} here", access(*.was_read_only), access(!*.was_read_only))]
    Access {
        /// Where the guest comes from.
        was_read_only: bool,
    },
    /// A disk has another serial number.
    #[error("the disk's serial number was {there}, and is {here} here: start the guest with the disk that it had")]
    Serial {
        /// Where the guest comes from.
        there: Serial,
        /// Here.
        here: Serial,
    },
    /// A network card has another address.
    #[error("the card's address was {there}, and is {here} here: start the guest with the cards that it had")]
    Address {
        /// Where the guest comes from.
        there: Mac,
        /// Here.
        here: Mac,
    },
}

fn access(is_read_only: bool) -> &'static str {
    if is_read_only { "read-only" } else { "writable" }
}

/// The serial number of a disk, for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serial(pub [u8; 20]);

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        write!(f, "`{}`", self.0[..used].escape_ascii())
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskRow {
    sectors: U64,
    is_read_only: U32,
    id: [u8; 20],
}

impl Disk {
    /// The content of its section.
    #[must_use]
    pub fn bytes(&self) -> [u8; 32] {
        let Self { sectors, is_read_only, id } = *self;
        let row = DiskRow { sectors: sectors.into(), is_read_only: u32::from(is_read_only).into(), id };
        zerocopy::transmute!(row)
    }

    /// The disk that had this content.
    ///
    /// # Errors
    ///
    /// [`SectionError`].
    pub fn read(bytes: &[u8]) -> Result<Self, SectionError> {
        let DiskRow { sectors, is_read_only, id } = row(bytes)?;
        check("whether a disk is read-only", is_read_only.get().into(), is_read_only <= 1)?;
        Ok(Self { sectors: sectors.get(), is_read_only: is_read_only == 1, id })
    }

    /// Compares the disk that the guest had with the one that it has here.
    ///
    /// # Errors
    ///
    /// [`OtherDevice`].
    pub fn check(&self, here: &Self) -> Result<(), OtherDevice> {
        if self.id != here.id {
            return Err(OtherDevice::Serial { there: Serial(self.id), here: Serial(here.id) });
        }
        if self.sectors != here.sectors {
            return Err(OtherDevice::Sectors { there: self.sectors, here: here.sectors });
        }
        match self.is_read_only == here.is_read_only {
            true => Ok(()),
            false => Err(OtherDevice::Access { was_read_only: self.is_read_only }),
        }
    }
}

/// The address of a card, for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.0;
        write!(f, "{first:02x}")?;
        rest.iter().try_for_each(|byte| write!(f, ":{byte:02x}"))
    }
}

impl Card {
    /// The content of its section.
    #[must_use]
    pub fn bytes(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..6].copy_from_slice(&self.mac);
        bytes
    }

    /// The card that had this content.
    ///
    /// # Errors
    ///
    /// [`SectionError`].
    pub fn read(bytes: &[u8]) -> Result<Self, SectionError> {
        let [a, b, c, d, e, f, rest @ ..] = row::<[u8; 8]>(bytes)?;
        let reserved = u16::from_le_bytes(rest).into();
        check("what follows the address of a card", reserved, reserved == 0)?;
        Ok(Self { mac: [a, b, c, d, e, f] })
    }

    /// Compares the card that the guest had with the one that it has here.
    ///
    /// # Errors
    ///
    /// [`OtherDevice`].
    pub fn check(&self, here: &Self) -> Result<(), OtherDevice> {
        match self.mac == here.mac {
            true => Ok(()),
            false => Err(OtherDevice::Address { there: Mac(self.mac), here: Mac(here.mac) }),
        }
    }
}

const OFF: u64 = 0;
const ON_PENDING: u64 = 1;
const ON: u64 = 2;
const SUSPENDED: u64 = 3;

/// The content of a vCPU's section `power`.
#[must_use]
pub fn power_bytes(state: State) -> [u8; 24] {
    let [state, entry, argument] = match state {
        State::Off => [OFF, 0, 0],
        State::OnPending(Start { entry, argument }) => [ON_PENDING, entry, argument],
        State::On => [ON, 0, 0],
        State::Suspended => [SUSPENDED, 0, 0],
    };
    zerocopy::transmute!([U64::from(state), U64::from(entry), U64::from(argument)])
}

/// The state that had this content.
///
/// # Errors
///
/// [`SectionError`].
pub fn read_power(bytes: &[u8]) -> Result<State, SectionError> {
    let [state, entry, argument] = row::<[U64; 3]>(bytes)?.map(U64::get);
    check("the entry of a vCPU that does not begin", entry, state == ON_PENDING || entry == 0)?;
    check("the argument of a vCPU that does not begin", argument, state == ON_PENDING || argument == 0)?;
    match state {
        OFF => Ok(State::Off),
        ON_PENDING => Ok(State::OnPending(Start { entry, argument })),
        ON => Ok(State::On),
        SUSPENDED => Ok(State::Suspended),
        _ => Err(SectionError::Field { field: "the power state of a vCPU", value: state }),
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn sections_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        let long = Section { name: "a-name.of_24.characters-", instance: 7, bytes: &[1, 2, 3] };
        let empty = Section { name: "b", instance: 0, bytes: &[] };
        long.write(&mut bytes);
        empty.write(&mut bytes);
        assert_eq!(bytes[28..32], [1, 0, 0, 0], "the version");
        let (first, rest) = Section::read(&bytes).unwrap();
        assert_eq!(first, long);
        assert_eq!(Section::read(rest), Ok((empty, &[][..])));
    }

    #[test]
    fn what_is_no_section_is_refused_by_name() {
        let mut bytes = Vec::new();
        Section { name: "time", instance: 0, bytes: &[1, 2, 3] }.write(&mut bytes);
        let with = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            Section::read(&bytes).map(|_| ()).unwrap_err()
        };
        assert_eq!(with(0, b'T'), SectionError::Name);
        assert_eq!(with(0, 0), SectionError::Name);
        assert_eq!(with(9, b'x'), SectionError::Name);
        assert_eq!(with(28, 2), SectionError::Version(2));
        assert_eq!(with(32, 4), SectionError::Length { wanted: 44, found: 43 });
        assert_eq!(with(39, 0xff), SectionError::Length { wanted: 0xff00_0000_0000_002b, found: 43 });
        assert_eq!(Section::read(&bytes[..39]), Err(SectionError::Length { wanted: 40, found: 39 }));
    }

    #[test]
    fn contents_are_read_as_they_were_written_and_nothing_else_is() {
        let time = Time { counter: 5 << 40, frequency: 62_500_000 };
        assert_eq!(Time::read(&time.bytes()), Ok(time));
        assert!(Time::read(&Time { frequency: 0, ..time }.bytes()).is_err());
        let slow = Time { frequency: 1, ..time };
        assert_eq!(Time::read(&slow.bytes()), Ok(slow));
        for state in [State::Off, State::On, State::Suspended, State::OnPending(Start { entry: 4, argument: 5 })] {
            assert_eq!(read_power(&power_bytes(state)), Ok(state));
        }
        let card = Card { mac: [2, 0x74, 0x66, 0, 0, 1] };
        assert_eq!(Card::read(&card.bytes()), Ok(card));
        assert!(Card::read(&[1; 8]).is_err() && Card::read(&[0; 6]).is_err());
        let disk = Disk { sectors: 5 << 40, is_read_only: true, id: *b"a serial number of 2" };
        assert_eq!(Disk::read(&disk.bytes()), Ok(disk));
        assert!(Disk::read(&[2; 32]).is_err() && Disk::read(&[0; 31]).is_err());
        let mut bad = disk.bytes();
        bad[8] = 2;
        assert!(Disk::read(&bad).is_err());
        let faults = Snapshot {
            enabled: Some((Ipa::new(0x4000_0040), 1)),
            sequence: 5 << 40,
            unacknowledged: u32::MAX,
            wake_all: true,
        };
        for faults in [faults, Snapshot { enabled: None, unacknowledged: 0, wake_all: false, ..faults }] {
            assert_eq!(read_async_fault(&async_fault_bytes(&faults)), Ok(faults));
            for at in (0..48).step_by(8).filter(|at| *at != 24 && (faults.enabled.is_none() || ![8, 16].contains(at))) {
                let mut bad = async_fault_bytes(&faults);
                bad[at..at + 8].fill(0xff);
                assert!(read_async_fault(&bad).is_err(), "{at}");
            }
        }
        let mut bad = async_fault_bytes(&Snapshot { enabled: None, unacknowledged: 0, wake_all: false, ..faults });
        bad[0] = 2;
        assert!(read_async_fault(&bad).is_err());
        let mut bad = power_bytes(State::On);
        bad[8] = 1;
        assert!(read_power(&bad).is_err());
        assert!(read_power(&[9; 24]).is_err());
    }

    #[test]
    fn a_device_that_the_guest_does_not_know_is_refused_by_name() {
        let card = |last| Card { mac: [2, 0x74, 0x66, 0, 0, last] };
        assert_eq!(card(1).check(&card(1)), Ok(()));
        let refused = card(1).check(&card(0x20)).unwrap_err().to_string();
        let disk = Disk { sectors: 8, is_read_only: true, id: *b"twofold-0-0\0\0\0\0\0\0\0\0\0" };
        assert_eq!(disk.check(&disk), Ok(()));
        for (other, why) in [
            (Disk { sectors: 9, ..disk }, "the disk had 8 sectors, and has 9 here"),
            (Disk { is_read_only: false, ..disk }, "the disk was read-only, and is writable here"),
            (Disk { id: [b'x'; 20], ..disk }, "was `twofold-0-0`, and is `xxxxxxxxxxxxxxxxxxxx` here"),
        ] {
            let error = disk.check(&other).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(refused.starts_with("the card's address was 02:74:66:00:00:01, and is 02:74:66:00:00:20 here"));
    }
}
