// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Interrupt numbers, and the vCPUs that they concern.

use core::fmt;

/// The number of interrupts in one register with one bit an interrupt.
pub(super) const BANK: u16 = 32;

/// The number of an interrupt that this GIC can have: 0 to 1019 (Arm IHI 0069H, chapter 2). The numbers above are special or
/// those of LPIs, which it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Intid(u16);

impl Intid {
    /// An interrupt's number, unless it is a special one or an LPI's.
    #[must_use]
    pub const fn new(intid: u32) -> Option<Self> {
        if intid < 1020 { Some(Self(intid as u16)) } else { None }
    }

    /// The number of SPI `n`, which is 32 + `n`.
    #[must_use]
    pub const fn spi(n: u32) -> Option<Self> {
        if n < 988 { Some(Self(n as u16 + BANK)) } else { None }
    }

    /// The number of PPI `n`, which is 16 + `n`.
    #[must_use]
    pub const fn ppi(n: u32) -> Option<Self> {
        if n < 16 { Some(Self(n as u16 + 16)) } else { None }
    }

    /// The number itself.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0 as u32
    }

    /// Each vCPU has its own interrupt of this number: an SGI or a PPI.
    #[must_use]
    pub const fn is_private(self) -> bool {
        self.0 < BANK
    }

    /// It is an SPI.
    #[must_use]
    pub const fn is_shared(self) -> bool {
        !self.is_private()
    }

    pub(super) const fn from_parts(bank: usize, index: usize) -> Self {
        Self(bank as u16 * BANK + (index & 31) as u16)
    }

    /// Which 32 interrupts it belongs to. Bank 0 is the private ones.
    pub(super) const fn bank(self) -> usize {
        (self.0 / BANK) as usize
    }

    /// Its place in the bank.
    pub(super) const fn index(self) -> usize {
        (self.0 % BANK) as usize
    }

    /// Its bit in the bank's words.
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << self.index()
    }
}

/// A vCPU of the guest, by its index: redistributors are in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VcpuId(u8);

impl VcpuId {
    /// The most vCPUs of a guest.
    pub const MOST: u32 = 64;

    /// The vCPU of an index below [`VcpuId::MOST`].
    #[must_use]
    pub const fn new(index: u32) -> Option<Self> {
        if index < Self::MOST { Some(Self(index as u8)) } else { None }
    }

    /// Its index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    pub(super) const fn from_index(index: usize) -> Self {
        Self((index & 63) as u8)
    }

    pub(super) const fn byte(self) -> u8 {
        self.0
    }
}

impl fmt::Display for VcpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vCPU {}", self.0)
    }
}

/// A set of vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VcpuSet(u64);

impl VcpuSet {
    /// No vCPU.
    pub const EMPTY: Self = Self(0);

    /// There is none in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Is `vcpu` in it?
    #[must_use]
    pub const fn contains(self, vcpu: VcpuId) -> bool {
        self.0 >> vcpu.0 & 1 == 1
    }

    /// Adds a vCPU.
    pub const fn insert(&mut self, vcpu: VcpuId) {
        self.0 |= 1 << vcpu.0;
    }

    /// Takes a vCPU out.
    pub const fn remove(&mut self, vcpu: VcpuId) {
        self.0 &= !(1 << vcpu.0);
    }

    /// Its vCPUs, the lowest index first.
    pub fn iter(self) -> impl Iterator<Item = VcpuId> {
        Bits64(self.0).map(|index| VcpuId(index as u8))
    }
}

struct Bits64(u64);

impl Iterator for Bits64 {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

/// The bits that are set in a word, the lowest first.
pub(super) fn bits(word: u32) -> impl Iterator<Item = usize> {
    Bits64(word.into()).map(|bit| bit as usize)
}
