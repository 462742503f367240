// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The drivers of the machine's disks and network cards: the image's own files.

#[path = "../../../crates/hypervisor/src/host_devices/card.rs"]
pub mod card;
#[path = "../../../crates/hypervisor/src/host_devices/disk.rs"]
pub mod disk;
#[path = "../../../crates/hypervisor/src/host_devices/negotiate.rs"]
pub mod negotiate;
