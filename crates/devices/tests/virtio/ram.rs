// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory that counts, logs, and fails on demand.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use twofold_devices::{Barrier, GuestRam, RamError};

use crate::random::Random;

pub const BASE: u64 = 0x4000_0000;
pub const SIZE: u64 = 1 << 20;
pub const PAGE: u64 = 4096;

/// What a device did, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read(u64, usize),
    Write(u64, usize),
    Barrier(Barrier),
}

#[derive(Default)]
pub struct Ram {
    bytes: RefCell<Vec<u8>>,
    pub absent: RefCell<BTreeSet<u64>>,
    pub read_only: RefCell<BTreeSet<u64>>,
    /// This many accesses are left until one meets an absent page.
    pub absent_in: Cell<Option<usize>>,
    /// By these numbers, one access in four meets an absent page.
    pub is_flaky: RefCell<Option<Random>>,
    pub log: RefCell<Vec<Access>>,
    /// How often each byte was read.
    pub reads: RefCell<BTreeMap<u64, u32>>,
    pub dirty: RefCell<BTreeSet<u64>>,
    /// Each read changes the memory behind the device's back.
    pub is_unsteady: Cell<bool>,
    /// But not what is here, which a device may read again.
    pub steady: RefCell<Range<u64>>,
}

impl Ram {
    pub fn new() -> Self {
        Self { bytes: RefCell::new(vec![0; SIZE as usize]), ..Self::default() }
    }

    /// What the guest reads.
    pub fn peek(&self, address: u64, length: usize) -> Vec<u8> {
        self.bytes.borrow()[(address - BASE) as usize..][..length].to_vec()
    }

    pub fn peek16(&self, address: u64) -> u16 {
        u16::from_le_bytes(self.peek(address, 2).try_into().unwrap())
    }

    pub fn peek32(&self, address: u64) -> u32 {
        u32::from_le_bytes(self.peek(address, 4).try_into().unwrap())
    }

    /// The guest writes.
    pub fn poke(&self, address: u64, bytes: &[u8]) {
        self.bytes.borrow_mut()[(address - BASE) as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub fn poke16(&self, address: u64, value: u16) {
        self.poke(address, &value.to_le_bytes());
    }

    /// All pages that were asked for come back.
    pub fn bring_back(&self, address: u64) {
        self.absent.borrow_mut().remove(&(address & !(PAGE - 1)));
    }

    pub fn forget(&self) {
        self.log.borrow_mut().clear();
        self.reads.borrow_mut().clear();
        self.dirty.borrow_mut().clear();
    }

    fn check(&self, address: u64, length: usize, writes: bool) -> Result<(), RamError> {
        assert!(length > 0, "an access of nothing at {address:#x}");
        if let Some(left) = self.absent_in.get() {
            self.absent_in.set(left.checked_sub(1));
            if left == 0 {
                return Err(RamError::Absent(address));
            }
        }
        if self.is_flaky.borrow().as_ref().is_some_and(|random| random.one_in(4)) {
            return Err(RamError::Absent(address));
        }
        let end = address.checked_add(length as u64).expect("the device adds beyond the last address");
        if address < BASE || end > BASE + SIZE {
            return Err(RamError::NotRam(address));
        }
        for page in (address & !(PAGE - 1)..end).step_by(PAGE as usize) {
            if self.absent.borrow().contains(&page) {
                return Err(RamError::Absent(page.max(address)));
            }
            if writes && self.read_only.borrow().contains(&page) {
                return Err(RamError::ReadOnly(page.max(address)));
            }
        }
        Ok(())
    }
}

impl GuestRam for Ram {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), RamError> {
        self.check(address, bytes.len(), false)?;
        self.log.borrow_mut().push(Access::Read(address, bytes.len()));
        let mut memory = self.bytes.borrow_mut();
        for (at, byte) in (address..).zip(bytes) {
            *self.reads.borrow_mut().entry(at).or_default() += 1;
            let place = &mut memory[(at - BASE) as usize];
            *byte = *place;
            if self.is_unsteady.get() && !self.steady.borrow().contains(&at) {
                *place = place.wrapping_mul(167).wrapping_add(13);
            }
        }
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), RamError> {
        self.check(address, bytes.len(), true)?;
        self.log.borrow_mut().push(Access::Write(address, bytes.len()));
        let end = address + bytes.len() as u64;
        self.dirty.borrow_mut().extend((address & !(PAGE - 1)..end).step_by(PAGE as usize));
        self.poke(address, bytes);
        Ok(())
    }

    fn barrier(&self, barrier: Barrier) {
        self.log.borrow_mut().push(Access::Barrier(barrier));
    }
}
