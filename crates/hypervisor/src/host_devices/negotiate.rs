// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The first steps with a device of the machine (VIRTIO 1.2, 3.1.1): reset, features; and its reset in the end.

use thiserror::Error;
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};

/// The device conforms to VIRTIO 1.0 or later.
pub const VERSION_1: u64 = 1 << 32;

/// Reads of the status until a reset is complete.
const RESET_READS: u32 = 1 << 16;

/// Why a device of the machine cannot be driven.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Unusable {
    /// It is of another kind.
    #[error("it is a virtio device of kind {0:?}")]
    Kind(DeviceType),
    /// It is a legacy device.
    #[error("it is a legacy device: start QEMU with `-global virtio-mmio.force-legacy=false`")]
    Legacy,
    /// It does not accept its own features.
    #[error("it refuses its own features")]
    Refused,
    /// It does not complete a reset.
    #[error("it does not complete its reset")]
    Reset,
    /// Its sectors are not the guests'.
    #[error("its blocks have {0} bytes, and 512 are needed: start QEMU with `logical_block_size=512`")]
    BlockSize(u32),
    /// Its size changed at each look.
    #[error("its size does not stand still")]
    Size,
    /// It did not answer in time.
    #[error("it does not say its serial number")]
    Silent,
    /// It broke the rules.
    #[error("it broke the rules of its queue")]
    Broken,
    /// The driver refused it.
    #[error("its driver: {0}")]
    Driver(#[from] virtio_drivers::Error),
}

/// Resets the device, and agrees with it on the features in `wanted` that it offers. Returns those.
pub fn negotiate(transport: &mut impl Transport, kind: DeviceType, wanted: u64) -> Result<u64, Unusable> {
    check(transport, kind)?;
    reset(transport)?;
    let driver = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER;
    transport.set_status(driver);
    let features = transport.read_device_features() & (wanted | VERSION_1);
    if features & VERSION_1 == 0 {
        return Err(Unusable::Legacy);
    }
    transport.write_driver_features(features);
    transport.set_status(driver | DeviceStatus::FEATURES_OK);
    let is_agreed = transport.get_status().contains(DeviceStatus::FEATURES_OK);
    if is_agreed { Ok(features) } else { Err(Unusable::Refused) }
}

/// Whether the device is one of this kind, and not a legacy one.
pub fn check(transport: &impl Transport, kind: DeviceType) -> Result<(), Unusable> {
    match transport.device_type() {
        _ if transport.requires_legacy_layout() => Err(Unusable::Legacy),
        same if same == kind => Ok(()),
        other => Err(Unusable::Kind(other)),
    }
}

/// Resets the device. Afterwards it reaches no memory.
pub fn reset(transport: &mut impl Transport) -> Result<(), Unusable> {
    transport.set_status(DeviceStatus::empty());
    let is_done = (0..RESET_READS).any(|_| transport.get_status() == DeviceStatus::empty());
    if is_done { Ok(()) } else { Err(Unusable::Reset) }
}
