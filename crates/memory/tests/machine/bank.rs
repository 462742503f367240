// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RAM as a CPU sees it: one content through the caches, and one past them. Both begin as another guest's garbage. A
//! line gets from the caches to memory only by cleaning.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use twofold_stage2::{Features, Pa, TableMetadata};

use super::PAGE;
use super::platform::HostMemory;

/// The content of the caches at first, as if another guest left it. A walk takes it for a table with bits that no table
/// has.
pub const LEFT_IN_CACHE: u8 = 0xff;
/// The content of memory at first, as if another guest left it.
pub const LEFT_IN_MEMORY: u8 = 0xee;
/// Memory of this size and more is zero at first, so that only the part in use takes memory of the host.
const LARGE: u64 = 1 << 30;

/// All RAM of a machine.
pub struct Banks(Vec<Bank>);

/// One range of RAM.
pub struct Bank {
    start: Pa,
    /// Zero once the memory is freed, so that no pointer into it is given any more.
    size: Cell<u64>,
    /// The allocation, with one page more for alignment: zeroed memory costs nothing only without an alignment request.
    allocation: Cell<Option<(NonNull<u8>, Layout)>>,
    cached: NonNull<u8>,
    past_caches: RefCell<Vec<u8>>,
    metadata: Vec<TableMetadata>,
}

impl Banks {
    pub fn new(banks: &[(Pa, u64)]) -> Self {
        Self(banks.iter().map(|(start, size)| Bank::new(*start, *size)).collect())
    }

    pub fn has(&self, pa: Pa, size: u64) -> bool {
        self.0.iter().any(|bank| bank.has(pa, size))
    }

    /// Frees the memory of a machine that is not used any more and cannot be dropped.
    pub fn forget(&self) {
        self.0.iter().for_each(Bank::forget);
    }

    pub fn bank(&self, pa: Pa) -> &Bank {
        self.0.iter().find(|bank| bank.has(pa, 1)).unwrap_or_else(|| panic!("{pa} is not RAM"))
    }
}

impl HostMemory for Banks {
    fn read(&self, pa: Pa) -> u64 {
        self.bank(pa).word(pa)
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.bank(pa).pointer(pa)
    }

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        self.bank(pa).metadata(pa)
    }

    fn at(&self, address: usize) -> Pa {
        self.0.iter().find_map(|bank| bank.at(address)).expect("a cache operation outside of RAM")
    }

    fn zero(&self, pa: Pa, size: u64) {
        self.bank(pa).zero(pa, size);
    }

    fn clean(&self, pa: Pa, size: u64) {
        self.bank(pa).clean(pa, size);
    }

    fn check_page(&self, pa: Pa, expected: &[u8], features: &Features) {
        let bank = self.bank(pa);
        assert!(bank.load(pa, PAGE) == expected, "{pa}: the page's content is not what the guest should read");
        let past = || bank.load_past_caches(pa, PAGE);
        let clean = features.forced_write_back || past() == expected;
        assert!(clean, "{pa}: with its caches off, the guest reads something else");
    }
}

impl Bank {
    pub fn new(start: Pa, size: u64) -> Self {
        let layout = Layout::from_size_align(size as usize + 4096, 8).unwrap();
        // SAFETY: the size is not zero.
        let all = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("out of memory");
        // SAFETY: the offset is less than the extra page.
        let cached = unsafe { all.add(all.align_offset(4096)) };
        if size < LARGE {
            // SAFETY: the allocation has `size` bytes from here on.
            unsafe { cached.as_ptr().write_bytes(LEFT_IN_CACHE, size as usize) };
        }
        let past_caches = RefCell::new(vec![if size < LARGE { LEFT_IN_MEMORY } else { 0 }; size as usize]);
        let metadata = (0..size.div_ceil(4096)).map(|_| TableMetadata::new()).collect();
        let (size, allocation) = (Cell::new(size), Cell::new(Some((all, layout))));
        Self { start, size, allocation, cached, past_caches, metadata }
    }

    fn forget(&self) {
        self.size.set(0);
        drop(self.past_caches.take());
        if let Some((start, layout)) = self.allocation.take() {
            // SAFETY: allocated with this layout. The engine and the tests ask for a pointer before each access, and a
            // bank without bytes gives none.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }

    pub fn has(&self, pa: Pa, size: u64) -> bool {
        pa >= self.start && pa - self.start + size <= self.size.get()
    }

    /// The PA of the host's `address`, if this bank has it.
    pub fn at(&self, address: usize) -> Option<Pa> {
        let offset =
            address.checked_sub(self.cached.addr().get()).filter(|offset| *offset < self.size.get() as usize)?;
        Some(self.start + offset as u64)
    }

    pub fn pointer(&self, pa: Pa) -> NonNull<u8> {
        assert!(self.has(pa, 1));
        // SAFETY: the offset is inside the allocation.
        unsafe { self.cached.add((pa - self.start) as usize) }
    }

    /// The metadata of a frame, in case it becomes a table.
    pub fn metadata(&self, pa: Pa) -> &TableMetadata {
        assert!(self.has(pa, 1));
        &self.metadata[((pa - self.start) / 4096) as usize]
    }

    pub fn word(&self, pa: Pa) -> u64 {
        self.atomic(pa).load(Ordering::Acquire)
    }

    pub fn set_word(&self, pa: Pa, word: u64) {
        self.atomic(pa).store(word, Ordering::Release);
    }

    fn atomic(&self, pa: Pa) -> &AtomicU64 {
        assert!(pa.is_aligned(8) && self.has(pa, 8));
        // SAFETY: inside the allocation, aligned; only references to atomics ever cover it.
        unsafe { self.pointer(pa).cast::<AtomicU64>().as_ref() }
    }

    pub fn zero(&self, pa: Pa, size: u64) {
        assert!(self.has(pa, size));
        // SAFETY: inside the allocation; the machine has one thread.
        unsafe { self.pointer(pa).as_ptr().write_bytes(0, size as usize) };
    }

    /// Zeroes the whole bank, once, before it is used. A large bank is zero already.
    pub fn make_zero(&self) {
        if self.size.get() < LARGE {
            self.zero(self.start, self.size.get());
        }
    }

    pub fn store(&self, pa: Pa, bytes: &[u8]) {
        assert!(self.has(pa, bytes.len() as u64));
        // SAFETY: inside the allocation; `bytes` is not, since no reference covers the allocation; the machine has one
        // thread.
        unsafe { self.pointer(pa).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub fn load(&self, pa: Pa, size: u64) -> Vec<u8> {
        assert!(self.has(pa, size));
        let mut bytes = vec![0; size as usize];
        // SAFETY: inside the allocation, and no other object overlaps it; the machine has one thread.
        unsafe { self.pointer(pa).as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    /// The bytes that a CPU reads with its caches off.
    pub fn load_past_caches(&self, pa: Pa, size: u64) -> Vec<u8> {
        let start = (pa - self.start) as usize;
        self.past_caches.borrow()[start..start + size as usize].to_vec()
    }

    /// Writes a line back.
    pub fn clean(&self, pa: Pa, size: u64) {
        let start = (pa - self.start) as usize;
        self.past_caches.borrow_mut()[start..start + size as usize].copy_from_slice(&self.load(pa, size));
    }
}

impl Drop for Bank {
    fn drop(&mut self) {
        // The machine and every platform are dropped, so nothing asks for a pointer any more.
        self.forget();
    }
}
