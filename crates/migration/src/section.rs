// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest is besides its memory: the state of devices and vCPUs, as the embedder saves it.

use alloc::vec::Vec;

use crate::stream::Name;

/// The state of a device or a vCPU, or an image: opaque bytes with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// What it is the state of.
    pub name: Name,
    /// Which of several of that name.
    pub instance: u32,
    /// The version of its content.
    pub version: u32,
    /// Its content.
    pub bytes: Vec<u8>,
}
