// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The layout of the guest's address space.
//!
//! ```text
//! guest-physical                                   virtual
//! 0x0800_0000  its interrupt controller (arm64)    not mapped
//! 0x1000_0000  nothing: the guest's exits (arm64)  the same
//! 0x4000_0000  slot 0: code, mailboxes, tables     the same (tables are not mapped)
//! ...
//! top - size   slots 1 to N: the test region       0xc000_0000
//! ```
//!
//! Invariants: slot 0 is never logged. Test slots are adjacent; each one's size and address is a multiple of the
//! backing's page and of the guest's.

use std::ops::Range;

use crate::arch::{EXITS_BY_STORE, Shape};
use crate::error::KvmError;
use crate::options::Region;

/// The first virtual address of the test region, the same as in the selftests.
pub const REGION: u64 = 0xc000_0000;
/// arm64: a guest-physical address without memory; a store there is an exit.
pub(crate) const EXIT: u64 = 0x1000_0000;
/// The guest-physical address of slot 0.
pub(crate) const FIXED: u64 = 0x4000_0000;
/// Bytes for the guest's code.
const CODE: u64 = 0x1_0000;
/// Bytes for each vCPU's mailbox: a page of its own.
const MAILBOX: u64 = 0x1000;
/// The end of slot 0 and of what is beside it: x86-64 has interrupt controllers and KVM's own pages above.
const FIXED_END: u64 = 0xf000_0000;

/// The layout of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    vcpus: u64,
    region: Region,
    /// Bytes of a vCPU's part, in whole pages of the guest.
    part: u64,
    /// Bytes of a page of the guest.
    granule: u64,
    /// Bytes of code and mailboxes, in whole pages of the guest.
    mapped: u64,
    tables: u64,
    /// The guest-physical address of the first test slot.
    test: u64,
    /// Bytes of each test slot.
    slot: u64,
    slots: u64,
}

/// A mapping of the guest's tables; each number is a multiple of the granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Map {
    /// The first virtual address.
    pub(crate) va: u64,
    /// The first guest-physical address.
    pub(crate) gpa: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// Whether it is device memory: the address of the guest's exits.
    pub(crate) device: bool,
}

/// The inputs of a layout.
pub(crate) struct Wanted {
    pub(crate) vcpus: u32,
    pub(crate) region: Region,
    pub(crate) slots: u32,
    /// Bytes of the backing's page.
    pub(crate) page: u64,
    /// Bits of guest-physical address.
    pub(crate) bits: u32,
    /// The highest address at which the test slots may end.
    pub(crate) top: u64,
}

impl Layout {
    /// Returns the layout for these inputs. Sizes are rounded up.
    pub(crate) fn new(wanted: &Wanted, shape: &Shape) -> Result<Self, KvmError> {
        let granule = shape.granule();
        let Wanted { region, page, bits, .. } = *wanted;
        let (vcpus, slots) = (u64::from(wanted.vcpus), u64::from(wanted.slots));
        let bytes = match region {
            Region::Each(bytes) | Region::Shared(bytes) => bytes,
        };
        if vcpus == 0 || slots == 0 || bytes == 0 {
            return Err(KvmError::Options(
                "a guest needs at least one vCPU, one slot and one byte of memory".to_owned(),
            ));
        }
        let too_large = |size, taken| KvmError::TooLarge { size, taken, bits };
        let part = bytes.checked_next_multiple_of(granule).ok_or_else(|| too_large(bytes, 0))?;
        let parts = if matches!(region, Region::Each(_)) { vcpus } else { 1 };
        // All slots have the same size, in whole pages of the backing and of the guest.
        let unit = slots * page.max(granule);
        let size = part.checked_mul(parts).and_then(|size| size.checked_next_multiple_of(unit));
        let size = size.ok_or_else(|| too_large(u64::MAX, 0))?;

        let end = REGION.checked_add(size).filter(|end| *end <= 1 << shape.va_bits().min(47));
        end.ok_or_else(|| too_large(size, REGION))?;
        let align = page.max(granule);
        let test = wanted.top.checked_sub(size).ok_or_else(|| too_large(size, FIXED))? / align * align;
        let mapped = (CODE + vcpus * MAILBOX).next_multiple_of(granule.max(CODE));
        let layout = Self { vcpus, region, part, granule, mapped, tables: 0, test, slot: size / slots, slots };
        let layout = Self { tables: shape.tables(&layout.maps())?, ..layout };
        let taken = FIXED + layout.fixed_size();
        // On x86-64 the rest of the first 4 GiB is taken too.
        let fits = layout.test >= taken.max(1 << 32) && taken <= FIXED_END;
        if fits { Ok(layout) } else { Err(too_large(size, taken)) }
    }

    /// Returns the mappings of the guest's tables.
    pub(crate) fn maps(&self) -> Vec<Map> {
        let fixed = Map { va: FIXED, gpa: FIXED, size: self.mapped, device: false };
        let region = Map { va: REGION, gpa: self.test, size: self.test_size(), device: false };
        let exit = EXITS_BY_STORE.then_some(Map { va: EXIT, gpa: EXIT, size: self.granule, device: true });
        [fixed, region].into_iter().chain(exit).collect()
    }

    /// Returns the virtual addresses that a vCPU accesses; `None` if there is no such vCPU.
    pub(crate) fn region(&self, vcpu: usize) -> Option<Range<u64>> {
        let vcpu = Some(vcpu as u64).filter(|vcpu| *vcpu < self.vcpus)?;
        let start = REGION + if matches!(self.region, Region::Each(_)) { vcpu * self.part } else { 0 };
        Some(start..start + self.part)
    }

    /// Returns the guest-physical address of a virtual address of the test region.
    pub(crate) fn gpa(&self, va: u64) -> Option<u64> {
        let offset = va.checked_sub(REGION).filter(|offset| *offset < self.test_size())?;
        Some(self.test + offset)
    }

    /// Returns the guest-physical addresses of a test slot, numbered from 0.
    pub(crate) fn slot(&self, slot: usize) -> Option<Range<u64>> {
        let start = Some(slot as u64).filter(|slot| *slot < self.slots)? * self.slot + self.test;
        Some(start..start + self.slot)
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots as usize
    }

    /// Returns the guest-physical address of the first test slot.
    pub(crate) fn test(&self) -> u64 {
        self.test
    }

    /// Returns the bytes of all test slots.
    pub(crate) fn test_size(&self) -> u64 {
        self.slot * self.slots
    }

    /// Returns the bytes of slot 0.
    pub(crate) fn fixed_size(&self) -> u64 {
        self.mapped + self.tables
    }

    /// Returns the guest-physical addresses of the tables, in slot 0.
    pub(crate) fn tables_place(&self) -> Range<u64> {
        FIXED + self.mapped..FIXED + self.mapped + self.tables
    }

    /// Returns the address of a vCPU's mailbox, guest-physical and virtual.
    pub(crate) fn mailbox(&self, vcpu: usize) -> u64 {
        FIXED + CODE + vcpu as u64 * MAILBOX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::shape as shape_of;
    use crate::options::KvmOptions;

    fn shape() -> Shape {
        shape_of(KvmOptions::native_mode(), 36).unwrap()
    }

    fn wanted(region: Region, vcpus: u32, slots: u32, page: u64) -> Wanted {
        Wanted { vcpus, region, slots, page, bits: 36, top: 1 << 36 }
    }

    #[test]
    fn slots_fill_the_top_and_regions_the_slots() {
        let layout = Layout::new(&wanted(Region::Each(3 << 20), 3, 2, 2 << 20), &shape()).unwrap();
        assert_eq!(layout.test_size(), 12 << 20, "9 MiB, in two slots of whole pages");
        assert_eq!(layout.slot(1), Some((1 << 36) - (6 << 20)..1 << 36));
        assert_eq!(layout.slot(2), None);
        assert_eq!(layout.region(2), Some(REGION + (6 << 20)..REGION + (9 << 20)));
        assert_eq!(layout.region(3), None);
        assert_eq!(layout.gpa(REGION + 8), Some((1 << 36) - (12 << 20) + 8));
        assert_eq!(layout.gpa(REGION + (12 << 20)), None);
        assert_eq!(layout.gpa(REGION - 8), None);
    }

    #[test]
    fn a_shared_region_is_all_vcpus() {
        let layout = Layout::new(&wanted(Region::Shared(1 << 20), 4, 1, 65536), &shape()).unwrap();
        assert_eq!(layout.test_size(), 1 << 20);
        assert_eq!(layout.region(0), layout.region(3));
        let place = layout.tables_place();
        assert!(place.start >= layout.mailbox(3) + MAILBOX && place.end == FIXED + layout.fixed_size());
        let region = layout.maps().into_iter().find(|map| map.va == REGION).unwrap();
        assert_eq!((region.gpa, region.size), (layout.test(), 1 << 20));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let fits = Layout::new(&wanted(Region::Each(59 << 30), 1, 1, 4096), &shape());
        assert!(fits.is_ok(), "{fits:?}");
        for bytes in [61 << 30, 64 << 30, 1 << 50, u64::MAX] {
            let refused = Layout::new(&wanted(Region::Each(bytes), 2, 3, 1 << 30), &shape()).unwrap_err();
            assert!(matches!(refused, KvmError::TooLarge { bits: 36, .. }), "{refused}");
        }
        assert!(matches!(Layout::new(&wanted(Region::Each(0), 1, 1, 4096), &shape()), Err(KvmError::Options(_))));
    }
}
