// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RAM: the ranges in the device tree, those of them that are free, and the words in those.
//!
//! A range is free if nothing uses it. Taken are the image and all below it in its bank (where a loader may keep its
//! own data), the device tree, the initrd and reserved ranges. Only volatile accesses reach free memory, those of words
//! through [`read`] and [`write()`]. No reference or slice to it exists, so the program makes exactly the accesses that
//! its source spells out.

use core::ops::Range;

use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::{Cells, Node, Property, ToCellInt};

use crate::{image, mmu};

/// The size of a page.
pub const PAGE: u64 = 4096;

/// RAM, and the taken ranges of it.
pub struct Memory {
    banks: List,
    taken: List,
}

/// Why [`Memory::find`] failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the device tree has no usable /memory node")]
    NoMemory,
    #[error("{0} in the device tree cannot be read")]
    Malformed(&'static str),
    #[error("the device tree has more than {LIST_MAX} ranges of RAM or of reserved memory")]
    TooMany,
}

impl Memory {
    /// Reads the device tree.
    pub fn find(tree: Fdt<'_>) -> Result<Self, Failure> {
        let node = tree.find_node("/memory").ok_or(Failure::NoMemory)?;
        let mut banks = List::default();
        for_each_range(node, "/memory", |start, end| banks.push_within(start, end))?;
        if banks.ranges().is_empty() {
            return Err(Failure::NoMemory);
        }
        let taken = taken(tree, banks.ranges())?;
        Ok(Self { banks, taken })
    }

    /// The ranges of RAM.
    pub fn banks(&self) -> &[Range<u64>] {
        self.banks.ranges()
    }

    /// The free ranges, in whole pages, bank by bank, in the order of their addresses.
    pub fn free(&self) -> impl Iterator<Item = Range<u64>> {
        self.banks().iter().flat_map(|bank| Gaps { next: bank.start, end: bank.end, taken: self.taken.ranges() })
    }

    /// Bytes of free RAM.
    pub fn free_bytes(&self) -> u64 {
        self.free().map(|range| range.end - range.start).sum()
    }
}

/// Reads the word at `address`.
///
/// # Safety
///
/// `address` is a multiple of 8 in a range of [`Memory::free`].
pub unsafe fn read(address: u64) -> u64 {
    // SAFETY: free RAM is mapped, and by the module's invariant holds no Rust object.
    unsafe { core::ptr::with_exposed_provenance::<u64>(address as usize).read_volatile() }
}

/// Writes the word at `address`.
///
/// # Safety
///
/// `address` is a multiple of 8 in a range of [`Memory::free`].
pub unsafe fn write(address: u64, value: u64) {
    // SAFETY: as in `read`.
    unsafe { core::ptr::with_exposed_provenance_mut::<u64>(address as usize).write_volatile(value) }
}

fn taken(tree: Fdt<'_>, banks: &[Range<u64>]) -> Result<List, Failure> {
    let mut taken = List::default();
    let image_end = image::end_of_image();
    if let Some(bank) = banks.iter().find(|bank| bank.contains(&(image_end - 1))) {
        taken.push_around(bank.start, image_end)?;
    }
    let tree_start = tree.data().as_ptr().addr() as u64;
    taken.push_around(tree_start, tree_start + tree.data().len() as u64)?;
    for reservation in tree.memory_reservations() {
        taken.push_around(reservation.address(), reservation.address().saturating_add(reservation.size()))?;
    }
    for node in tree.find_node("/reserved-memory").iter().flat_map(|node| node.children()) {
        for_each_range(node, "/reserved-memory", |start, end| taken.push_around(start, end))?;
    }
    if let Some((start, end)) = initrd(tree)? {
        taken.push_around(start, end)?;
    }
    Ok(taken)
}

fn initrd(tree: Fdt<'_>) -> Result<Option<(u64, u64)>, Failure> {
    const WHAT: &str = "the initrd's place";
    let Some(chosen) = tree.chosen() else { return Ok(None) };
    let place = |name| {
        let Some(property) = chosen.property(name) else { return Ok(None) };
        let cells: Cells<'_> = property.value_as().map_err(|_| Failure::Malformed(WHAT))?;
        cells.to_int::<u64>().map(Some).map_err(|_| Failure::Malformed(WHAT))
    };
    match (place("linux,initrd-start")?, place("linux,initrd-end")?) {
        (Some(start), Some(end)) => Ok(Some((start, end))),
        (None, None) => Ok(None),
        _ => Err(Failure::Malformed(WHAT)),
    }
}

/// Calls `each` with the start and end of each range in the node's `reg`.
fn for_each_range(
    node: FdtNode<'_>,
    what: &'static str,
    mut each: impl FnMut(u64, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for range in node.reg().map_err(|_| Failure::Malformed(what))?.into_iter().flatten() {
        let start: u64 = range.address().map_err(|_| Failure::Malformed(what))?;
        let size: u64 = range.size().map_err(|_| Failure::Malformed(what))?;
        each(start, start.saturating_add(size))?;
    }
    Ok(())
}

const LIST_MAX: usize = 16;

/// A few ranges of whole pages. None is empty, and none lies beyond the addresses that stage 1 maps.
#[derive(Default)]
struct List {
    ranges: [Range<u64>; LIST_MAX],
    count: usize,
}

impl List {
    fn ranges(&self) -> &[Range<u64>] {
        &self.ranges[..self.count]
    }

    /// Adds the pages that lie wholly within `start` to `end`.
    fn push_within(&mut self, start: u64, end: u64) -> Result<(), Failure> {
        self.push(start.min(mmu::ADDRESS_END).next_multiple_of(PAGE), end)
    }

    /// Adds the pages of which any byte lies within `start` to `end`.
    fn push_around(&mut self, start: u64, end: u64) -> Result<(), Failure> {
        self.push(start / PAGE * PAGE, end.min(mmu::ADDRESS_END).next_multiple_of(PAGE))
    }

    fn push(&mut self, start: u64, end: u64) -> Result<(), Failure> {
        let end = end.min(mmu::ADDRESS_END) / PAGE * PAGE;
        if start < end {
            *self.ranges.get_mut(self.count).ok_or(Failure::TooMany)? = start..end;
            self.count += 1;
        }
        Ok(())
    }
}

/// The parts of `next` to `end` outside of the `taken` ranges, which may overlap and come in any order.
struct Gaps<'a> {
    next: u64,
    end: u64,
    taken: &'a [Range<u64>],
}

impl Iterator for Gaps<'_> {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        while let Some(over) = self.taken.iter().find(|taken| taken.contains(&self.next)) {
            self.next = over.end;
        }
        if self.next >= self.end {
            return None;
        }
        let start = self.next;
        let above = self.taken.iter().map(|taken| taken.start).filter(|taken| *taken > start);
        self.next = above.fold(self.end, u64::min);
        Some(start..self.next)
    }
}
