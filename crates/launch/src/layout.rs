// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The places of kernel, initrd and device tree in guest memory.
//!
//! The hypervisor lays them out by the same rule. The launcher checks the rule before it starts anything, so a guest
//! that does not fit is an error on the host. Invariant: in a [`Layout`] the parts follow one another without overlap,
//! and all of them end within guest RAM.

use std::ops::Range;

use thiserror::Error;
use twofold_abi::virt::{FLASH_BASE, RAM_BASE};

use crate::image::{BOUNDARY, Image};

/// Bytes kept for the guest's device tree.
pub const DEVICE_TREE_SIZE: u64 = 64 << 10;

/// Guest-physical address ranges of the parts that a guest starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The kernel, zero-initialised data included.
    pub kernel: Range<u64>,
    /// The initrd; empty without one.
    pub initrd: Range<u64>,
    /// The room for the device tree.
    pub device_tree: Range<u64>,
}

/// The part that does not fit into guest memory.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "the {part} does not fit: the guest has {} MiB, and kernel, initrd and device tree need {} MiB; \
     give at least `--memory {}M`",
    memory >> 20, needed.div_ceil(1 << 20), needed.div_ceil(1 << 20)
)]
pub struct DoesNotFit {
    /// "kernel", "initrd" or "device tree": the first that crosses the end.
    pub part: &'static str,
    /// Guest RAM in bytes.
    pub memory: u64,
    /// Guest RAM that would be enough, in bytes.
    pub needed: u64,
}

impl Layout {
    /// Lays out a kernel and an initrd of `initrd_size` bytes in `memory` bytes of guest RAM.
    pub fn new(image: &Image, initrd_size: u64, memory: u64) -> Result<Self, DoesNotFit> {
        // u128: sizes come from file headers and may be anything.
        let start = u128::from(RAM_BASE) + u128::from(image.text_offset);
        let kernel = start..start + u128::from(image.image_size);
        let initrd_start = kernel.end.next_multiple_of(u128::from(BOUNDARY));
        let initrd = initrd_start..initrd_start + u128::from(initrd_size);
        let tree_start = initrd.end.next_multiple_of(u128::from(BOUNDARY));
        let device_tree = tree_start..tree_start + u128::from(DEVICE_TREE_SIZE);

        let end = u128::from(RAM_BASE) + u128::from(memory);
        let parts = [("kernel", &kernel), ("initrd", &initrd), ("device tree", &device_tree)];
        if let Some((part, _)) = parts.iter().find(|(_, range)| range.end > end) {
            let needed = u64::try_from(device_tree.end - u128::from(RAM_BASE)).unwrap_or(u64::MAX);
            return Err(DoesNotFit { part, memory, needed });
        }
        // Every end is at most RAM_BASE + memory, and the caller has bounded `memory`.
        let narrow = |range: Range<u128>| range.start as u64..range.end as u64;
        Ok(Self { kernel: narrow(kernel), initrd: narrow(initrd), device_tree: narrow(device_tree) })
    }

    /// The layout of a guest that starts in a firmware, which looks for the device tree where RAM starts.
    #[must_use]
    pub fn of_firmware() -> Self {
        let none = RAM_BASE..RAM_BASE;
        Self { kernel: FLASH_BASE..FLASH_BASE, initrd: none, device_tree: RAM_BASE..RAM_BASE + DEVICE_TREE_SIZE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn image(text_offset: u64, image_size: u64) -> Image {
        Image { text_offset, image_size, file_size: image_size }
    }

    #[test]
    fn parts_follow_at_the_next_boundary() {
        let layout = Layout::new(&image(0, 5 * MIB), MIB, 64 * MIB).unwrap();
        assert_eq!(layout.kernel, RAM_BASE..RAM_BASE + 5 * MIB);
        assert_eq!(layout.initrd, RAM_BASE + 6 * MIB..RAM_BASE + 7 * MIB);
        assert_eq!(layout.device_tree, RAM_BASE + 8 * MIB..RAM_BASE + 8 * MIB + DEVICE_TREE_SIZE);
    }

    #[test]
    fn an_end_on_a_boundary_leaves_no_gap() {
        let layout = Layout::new(&image(0, 4 * MIB), 0, 64 * MIB).unwrap();
        assert_eq!(layout.initrd, RAM_BASE + 4 * MIB..RAM_BASE + 4 * MIB);
        assert_eq!(layout.device_tree.start, RAM_BASE + 4 * MIB);
    }

    #[test]
    fn text_offset_moves_the_kernel() {
        let layout = Layout::new(&image(0x8_0000, 2 * MIB), 0, 64 * MIB).unwrap();
        assert_eq!(layout.kernel.start, RAM_BASE + 0x8_0000);
        assert_eq!(layout.initrd.start, RAM_BASE + 4 * MIB);
    }

    #[test]
    fn names_the_first_part_that_does_not_fit() {
        let part = |kernel, initrd| Layout::new(&image(0, kernel), initrd, 64 * MIB).unwrap_err().part;
        assert_eq!(part(65 * MIB, 0), "kernel");
        assert_eq!(part(10 * MIB, 60 * MIB), "initrd");
        assert_eq!(part(10 * MIB, 54 * MIB), "device tree");
        assert_eq!(part(u64::MAX, u64::MAX), "kernel");
    }

    #[test]
    fn the_message_says_how_much_would_do() {
        let error = Layout::new(&image(0, 10 * MIB), 60 * MIB, 64 * MIB).unwrap_err();
        assert_eq!(error.needed, 70 * MIB + DEVICE_TREE_SIZE);
        assert!(error.to_string().contains("--memory 71M"), "{error}");
    }
}
