// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hello: what the guest that comes was given, and whether a target has that.

use alloc::vec::Vec;

use zerocopy::{FromBytes, IntoBytes};

use super::name::Name;
use super::wire::{FEATURES_MAX, FeatureRow, HelloHead};

/// What a stream begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// A random number that names this migration. Its streams have it in common.
    pub migration: [u8; 16],
    /// This stream's number, from 0.
    pub stream: u16,
    /// How many streams carry the migration, at most 64.
    pub streams: u16,
    /// The machine model: memory map and devices.
    pub model: Name,
    /// The page size as a power of two: 12, 14 or 16.
    pub page_shift: u8,
    /// Bits of a guest physical address, 32 to 52.
    pub ipa_bits: u8,
    /// The number of vCPUs, at most 512.
    pub vcpus: u32,
    /// Bytes of guest memory: the sum of its memslots.
    pub memory: u64,
    /// What else the guest was given, in ascending order of names.
    pub features: Vec<Feature>,
}

/// Something that the guest was given, and that the target must have too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name, for example that of a field of an ID register.
    pub name: Name,
    /// Its value.
    pub value: u64,
    /// Whether the target needs this value. If not, a greater one will do.
    pub exact: bool,
}

/// What a target has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The machine model that it can build.
    pub model: Name,
    /// Its page size as a power of two.
    pub page_shift: u8,
    /// The most bits of a guest physical address.
    pub ipa_bits: u8,
    /// The most vCPUs.
    pub vcpus: u32,
    /// The most bytes of guest memory.
    pub memory: u64,
    /// Its features and their values, in any order. A feature that is missing here has no value.
    pub features: Vec<(Name, u64)>,
}

/// Why a target cannot take a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It cannot build the machine.
    #[error("the guest's machine is {wanted}, and this target builds {here}")]
    Model {
        /// The guest's.
        wanted: Name,
        /// The target's.
        here: Name,
    },
    /// It works with pages of another size.
    #[error("the guest's pages have {wanted} bytes, and those of this target {here}")]
    PageSize {
        /// The guest's, in bytes.
        wanted: u64,
        /// The target's, in bytes.
        here: u64,
    },
    /// Its addresses are too short.
    #[error("the guest has {wanted} bits of physical address, and this target at most {here}")]
    AddressBits {
        /// The guest's.
        wanted: u8,
        /// The target's.
        here: u8,
    },
    /// It has too few vCPUs.
    #[error("the guest has {wanted} vCPUs, and this target at most {here}")]
    Vcpus {
        /// The guest's.
        wanted: u32,
        /// The target's.
        here: u32,
    },
    /// It has too little memory.
    #[error("the guest has {wanted} bytes of memory, and this target at most {here}")]
    Memory {
        /// The guest's.
        wanted: u64,
        /// The target's.
        here: u64,
    },
    /// It lacks a feature.
    #[error("the guest was given {name} with value {wanted}, and this target does not have it")]
    Missing {
        /// The feature.
        name: Name,
        /// The guest's value.
        wanted: u64,
    },
    /// A feature is not the same.
    #[error("the guest was given {name} with value {wanted}, and this target has {here}")]
    Value {
        /// The feature.
        name: Name,
        /// The guest's value.
        wanted: u64,
        /// The target's.
        here: u64,
    },
}

/// What is wrong with a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// Its size is not that of its rows.
    #[error("a hello of {0} bytes")]
    Size(usize),
    /// A name is none.
    #[error("a name in a hello is none")]
    Name,
    /// A number is out of its range.
    #[error("a hello with {what} {value}")]
    Number {
        /// What it numbers.
        what: &'static str,
        /// The number.
        value: u64,
    },
    /// The features are not in ascending order, or one comes twice.
    #[error("the feature {0} of a hello is not in order")]
    Order(Name),
}

impl Hello {
    /// Returns each reason why a target with `here` cannot take this guest. Without one, it can.
    pub fn refusals(&self, here: &Capabilities) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        let mut refuse = |unless: bool, refusal: Refusal| {
            if !unless {
                refusals.push(refusal);
            }
        };
        refuse(self.model == here.model, Refusal::Model { wanted: self.model, here: here.model });
        let sizes = [self.page_shift, here.page_shift].map(|shift| 1_u64.checked_shl(shift.into()).unwrap_or(0));
        refuse(sizes[0] == sizes[1], Refusal::PageSize { wanted: sizes[0], here: sizes[1] });
        let bits = (self.ipa_bits, here.ipa_bits);
        refuse(bits.0 <= bits.1, Refusal::AddressBits { wanted: bits.0, here: bits.1 });
        refuse(self.vcpus <= here.vcpus, Refusal::Vcpus { wanted: self.vcpus, here: here.vcpus });
        refuse(self.memory <= here.memory, Refusal::Memory { wanted: self.memory, here: here.memory });
        for &Feature { name, value: wanted, exact } in &self.features {
            match here.features.iter().find(|(there, _)| *there == name) {
                None => refuse(false, Refusal::Missing { name, wanted }),
                Some(&(_, here)) => {
                    refuse(if exact { here == wanted } else { here >= wanted }, Refusal::Value { name, wanted, here })
                }
            }
        }
        refusals
    }

    /// Returns an error if a field is out of its range.
    pub fn check(&self) -> Result<(), HelloError> {
        let number = |good: bool, what, value| if good { Ok(()) } else { Err(HelloError::Number { what, value }) };
        number((1..=64).contains(&self.streams), "streams", self.streams.into())?;
        number(self.stream < self.streams, "stream", self.stream.into())?;
        number([12, 14, 16].contains(&self.page_shift), "page shift", self.page_shift.into())?;
        number((32..=52).contains(&self.ipa_bits), "address bits", self.ipa_bits.into())?;
        number((1..=512).contains(&self.vcpus), "vCPUs", self.vcpus.into())?;
        let whole = self.memory.is_multiple_of(1 << self.page_shift);
        number(whole && (1..=1 << self.ipa_bits).contains(&self.memory), "memory", self.memory)?;
        number(self.features.len() <= FEATURES_MAX, "features", self.features.len() as u64)?;
        match self.features.windows(2).find(|pair| pair[0].name >= pair[1].name) {
            None => Ok(()),
            Some(pair) => Err(HelloError::Order(pair[1].name)),
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let head = HelloHead {
            migration: self.migration,
            model: self.model.bytes(),
            memory: self.memory.into(),
            vcpus: self.vcpus.into(),
            features: (self.features.len() as u32).into(),
            stream: self.stream.into(),
            streams: self.streams.into(),
            page_shift: self.page_shift,
            ipa_bits: self.ipa_bits,
            reserved: [0; 2],
        };
        let mut bytes = head.as_bytes().to_vec();
        for feature in &self.features {
            let (value, exact) = (feature.value.into(), u64::from(feature.exact).into());
            bytes.extend_from_slice(FeatureRow { name: feature.name.bytes(), value, exact }.as_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, HelloError> {
        let size = HelloError::Size(bytes.len());
        let (head, rest) = HelloHead::read_from_prefix(bytes).map_err(|_| size)?;
        let rows = <[FeatureRow]>::ref_from_bytes(rest).map_err(|_| size)?;
        if rows.len() != head.features.get() as usize {
            return Err(size);
        }
        if head.reserved != [0; 2] {
            return Err(HelloError::Number {
                what: "reserved bytes",
                value: head.reserved[0].max(head.reserved[1]).into(),
            });
        }
        let mut features = Vec::with_capacity(rows.len());
        for row in rows {
            let exact = match row.exact.get() {
                0 => false,
                1 => true,
                value => return Err(HelloError::Number { what: "exact", value }),
            };
            let name = Name::from_bytes(row.name).ok_or(HelloError::Name)?;
            features.push(Feature { name, value: row.value.get(), exact });
        }
        let hello = Self {
            migration: head.migration,
            stream: head.stream.get(),
            streams: head.streams.get(),
            model: Name::from_bytes(head.model).ok_or(HelloError::Name)?,
            page_shift: head.page_shift,
            ipa_bits: head.ipa_bits,
            vcpus: head.vcpus.get(),
            memory: head.memory.get(),
            features,
        };
        hello.check()?;
        Ok(hello)
    }
}
