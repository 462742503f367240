// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the driver needs of the machine. A test has a device behind it.

/// The device's registers.
pub trait Registers {
    /// Reads the register at this offset.
    fn read(&self, offset: usize) -> u32;

    /// Writes it.
    fn write(&mut self, offset: usize, value: u32);
}

/// Memory that the device shares, aligned to 16 bytes. The device may change it at any time.
///
/// Offsets are inside it: the driver needs [`MEMORY_SIZE`](super::MEMORY_SIZE) bytes and uses no others.
pub trait SharedMemory {
    /// Where the device finds it.
    fn address(&self) -> u64;

    /// Its bytes.
    fn size(&self) -> usize;

    /// Copies bytes out of it.
    fn read(&self, at: usize, bytes: &mut [u8]);

    /// Copies bytes into it.
    fn write(&mut self, at: usize, bytes: &[u8]);

    /// Reads a number by one access.
    fn load(&self, at: usize) -> u16;

    /// Writes a number by one access.
    fn store(&mut self, at: usize, value: u16);

    /// What this CPU did to the memory before and does after, the device sees in this order; and the other way round.
    fn fence(&self);
}
