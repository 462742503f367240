// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a device's work ends: nothing to do, a page is absent, the driver broke a rule.

use thiserror::Error;

use crate::ram::RamError;

/// What a device needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a device that is not polled again may wait for ever"]
pub enum Next {
    /// Nothing, until the guest writes a register or the far end changes.
    Idle,
    /// Another call: this one has done as much as one call may do.
    Again,
    /// Another call, as soon as the page of this address is in memory.
    Absent(u64),
    /// The guest's reset. The driver broke a rule, and the device has set DEVICE_NEEDS_RESET. This is returned once.
    Broken(Fault),
}

/// The rule that a driver broke.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The available index runs away from what the device has taken.
    #[error("{ahead} buffers are available in queue {queue}, which has room for {size}")]
    Index {
        /// The queue.
        queue: u8,
        /// How far the index is ahead.
        ahead: u16,
        /// The queue's size.
        size: u16,
    },
    /// There is no such descriptor.
    #[error("descriptor {index} of a table of {count}")]
    NoDescriptor {
        /// Its number.
        index: u16,
        /// Descriptors of the table.
        count: u16,
    },
    /// A chain is longer than its table or than a device takes, or it is a loop.
    #[error("a chain of more than {0} descriptors")]
    Long(u16),
    /// An indirect descriptor without the feature, in an indirect table, or with `next`.
    #[error("an indirect descriptor that is not allowed")]
    Indirect,
    /// An indirect table is empty, too long, or no whole number of descriptors.
    #[error("an indirect table of {0} bytes")]
    Table(u32),
    /// A buffer without bytes, or one that ends behind the last address.
    #[error("a buffer of {length} bytes at {address:#x}")]
    Buffer {
        /// Where.
        address: u64,
        /// How long.
        length: u32,
    },
    /// A buffer for reading comes after one for writing.
    #[error("a buffer that the device reads comes after one that it writes")]
    Order,
    /// A chain has 4 GiB or more.
    #[error("a chain of 4 GiB or more")]
    Huge,
    /// A chain lacks the bytes that the device has to read or write.
    #[error("a chain with {readable} bytes to read and {writable} to write")]
    Short {
        /// Bytes that the device may read.
        readable: u32,
        /// Bytes that the device may write.
        writable: u32,
    },
    /// A ring or a buffer is not in RAM that the guest can use so.
    #[error("{0}")]
    Ram(#[from] RamError),
}

/// Why the work on a queue stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The page of this address is absent. Nothing has changed.
    Absent(u64),
    /// The driver broke a rule.
    Broken(Fault),
}

impl From<RamError> for Stop {
    fn from(error: RamError) -> Self {
        match error {
            RamError::Absent(address) => Self::Absent(address),
            error => Self::Broken(Fault::Ram(error)),
        }
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Broken(fault)
    }
}

/// What a device needs whose two queues need this. A queue that waits for a page does not hold up the other.
pub(super) fn both(one: Result<Next, Stop>, other: Result<Next, Stop>) -> Result<Next, Stop> {
    match (one, other) {
        (Err(broken @ Stop::Broken(_)), _) | (_, Err(broken @ Stop::Broken(_))) => Err(broken),
        (Ok(Next::Again), _) | (_, Ok(Next::Again)) => Ok(Next::Again),
        (Err(absent), _) | (_, Err(absent)) => Err(absent),
        (Ok(next), Ok(_)) => Ok(next),
    }
}
