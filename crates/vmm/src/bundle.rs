// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bundle: all guests of the image, as the launcher wrote them.
//!
//! Invariant: a [`Bundle`] exists only if each of its guests is well-formed by itself and the header's settings have a
//! meaning. Whether the guests fit together on this machine is [`admit`](crate::guests::admit)'s question. The bytes
//! come from outside: what is allocated for a bundle is bounded by its real size, whatever number its header has.

use alloc::vec::Vec;

use twofold_abi::bundle::{self, GUESTS_MAX, Header};
use zerocopy::FromBytes;

use crate::config::{Config, ConfigError};
use crate::guests::Guest;
use crate::name::{Name, NotAName};
use crate::scheduler::Weight;

/// All guests of the image.
#[derive(Clone, Debug)]
pub struct Bundle<'a> {
    /// Bits of [`bundle::flags`].
    pub flags: u32,
    /// Bits of [`bundle::POLICIES`].
    pub policies: u32,
    /// The guests, 1 to [`GUESTS_MAX`].
    pub guests: Vec<Guest<'a>>,
}

/// Why a bundle was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// Not a bundle.
    #[error("the initrd is not a guest bundle of this version: start the image with `cargo xtask run`")]
    NoBundle,
    /// The number of guests.
    #[error("--guest: the bundle has {0} guests: 1 to {GUESTS_MAX}")]
    Guests(u32),
    /// The records of the guests point outside of the bundle.
    #[error("the records of the bundle's {0} guests reach beyond its end: it was cut off or damaged")]
    CutOff(u32),
    /// Bits of the baselines that have no meaning.
    #[error("the bundle asks for {0} as baselines: 0 to {most}", most = bundle::POLICIES)]
    Policies(u32),
    /// A guest's name.
    #[error("guest {number} of the bundle: {why}")]
    Name {
        /// The guest's place, from 1.
        number: u32,
        /// The reason.
        why: NotAName,
    },
    /// A guest's weight.
    #[error("guest {name:?}: --weight {weight}: give 1 to {max}", max = Weight::MAX)]
    Weight {
        /// The guest.
        name: Name,
        /// The weight.
        weight: u32,
    },
    /// A guest's record.
    #[error("guest {name:?}: {why}")]
    Guest {
        /// The guest.
        name: Name,
        /// The reason.
        why: ConfigError,
    },
}

impl<'a> Bundle<'a> {
    /// Reads a bundle, whatever its bytes are.
    pub fn read(file: &'a [u8]) -> Result<Self, BundleError> {
        let (header, rest) = Header::ref_from_prefix(file).map_err(|_| BundleError::NoBundle)?;
        if header.magic != bundle::MAGIC {
            return Err(BundleError::NoBundle);
        }
        let count = header.guests.get();
        if !(1..=GUESTS_MAX).contains(&count) {
            return Err(BundleError::Guests(count));
        }
        let records = <[bundle::Guest]>::ref_from_prefix_with_elems(rest, count as usize);
        let (records, _) = records.map_err(|_| BundleError::CutOff(count))?;
        let (flags, policies) = (header.flags.get(), header.policies.get());
        if policies & !bundle::POLICIES != 0 {
            return Err(BundleError::Policies(policies));
        }
        let guest = |(number, record): (u32, &'a bundle::Guest)| {
            let name = Name::from_padded(record.name).map_err(|why| BundleError::Name { number, why })?;
            let weight = record.weight.get();
            let weight = Weight::checked(weight).ok_or(BundleError::Weight { name, weight })?;
            let config = Config::read(file, record, flags, policies);
            let config = config.map_err(|why| BundleError::Guest { name, why })?;
            Ok(Guest { name, config, weight })
        };
        let guests = (1..).zip(records).map(guest).collect::<Result<_, _>>()?;
        Ok(Self { flags, policies, guests })
    }
}
