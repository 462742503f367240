// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a run of frames holds: written, read, copied, and searched for anything but zeroes.
//!
//! A guest or a device may reach the memory meanwhile, so each access is volatile.
//!
//! Invariant: no access is wider than its address is aligned, so no CPU sees half of a number of 2, 4 or 8 bytes.

use core::ptr::NonNull;

use crate::Pa;
use crate::frame::Run;
use crate::platform::Platform;
use crate::primitive;

/// What is read and written at once: on Arm a pair of registers of 8 bytes, each of which is one access to memory.
type Pair = u128;
/// Pairs that are read before it is decided whether one is not zero.
const SEARCHED: usize = 8;
/// Pairs that are copied at a time.
const COPIED: usize = 4;
/// Bytes of those.
const COPIED_SIZE: u64 = (COPIED * size_of::<Pair>()) as u64;

impl Run {
    /// Whether all of it is zero.
    pub fn is_zero<P: Platform>(&self, platform: &P) -> bool {
        let start = platform.pointer(self.pa()).cast::<Pair>();
        let pieces = self.size() as usize / (SEARCHED * size_of::<Pair>());
        (0..pieces).all(|piece| {
            // SAFETY: the piece is inside donated memory, which is mapped while the platform lives, and no reference covers
            // it. Frames are aligned, and whole pages are whole pieces.
            let pair = |index| unsafe { start.add(piece * SEARCHED + index).read_volatile() };
            (0..SEARCHED).fold(0, |all, index| all | pair(index)) == 0
        })
    }

    /// Copies `size` bytes from the place `first` bytes into `from` to the place `offset` bytes into this run. As for
    /// [`write`](Self::write), no guest may have this run mapped.
    ///
    /// # Panics
    ///
    /// If one of the runs does not have the bytes, or `offset`, `first` or `size` is no multiple of 64.
    pub fn copy<P: Platform>(&self, platform: &P, offset: u64, (from, first): (&Self, u64), size: u64) {
        let has = |run: &Self, start: u64| start.checked_add(size).is_some_and(|end| end <= run.size());
        let fits = has(self, offset) && has(from, first) && (offset | first | size).is_multiple_of(COPIED_SIZE);
        assert!(fits, "{size} bytes at {first:#x} of {from:?} cannot be copied to {offset:#x} of {self:?}");
        let to = self.pa() + offset;
        let (source, target) =
            (platform.pointer(from.pa() + first).cast::<Pair>(), platform.pointer(to).cast::<Pair>());
        for piece in 0..(size / COPIED_SIZE) as usize {
            for pair in 0..COPIED {
                let index = piece * COPIED + pair;
                // SAFETY: both places are inside donated memory, which is mapped while the platform lives, and no reference
                // covers it. Frames are aligned.
                unsafe { target.add(index).write_volatile(source.add(index).read_volatile()) };
            }
        }
        primitive::data_written(to, size);
    }

    /// Writes `bytes` into the run, from `offset` on. No guest may have the run mapped: this cleans no lines that the
    /// guest may have in caches.
    ///
    /// 2, 4 or 8 bytes at a multiple of their number are one store, so no CPU sees half of them. More bytes are stored by words
    /// where they are aligned.
    ///
    /// # Panics
    ///
    /// If they do not fit.
    pub fn write<P: Platform>(&self, platform: &P, offset: u64, bytes: &[u8]) {
        let fits = offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.size());
        assert!(fits, "{} bytes do not fit {offset:#x} bytes into {self:?}", bytes.len());
        let pa = self.pa() + offset;
        let start = platform.pointer(pa);
        let (mut at, mut left) = (0, bytes);
        while let Some((now, later)) = left.split_at_checked(units(pa + at as u64, left.len())) {
            // SAFETY: `now` is inside donated memory, so it is mapped while the platform lives, and no reference covers it.
            let place = unsafe { start.add(at) };
            match *now {
                [] => break,
                [byte] => {
                    // SAFETY: as above; a byte needs no alignment.
                    unsafe { place.write_volatile(byte) }
                }
                [a, b] => {
                    // SAFETY: as above. Frames are aligned, and `units` returns 2 for a multiple of 2.
                    unsafe { place.cast::<u16>().write_volatile(u16::from_ne_bytes([a, b])) }
                }
                [a, b, c, d] => {
                    // SAFETY: as above. Frames are aligned, and `units` returns 4 for a multiple of 4.
                    unsafe { place.cast::<u32>().write_volatile(u32::from_ne_bytes([a, b, c, d])) }
                }
                [a, b, c, d, e, f, g, h] => {
                    // SAFETY: as above. Frames are aligned, and `units` returns 8 for a multiple of 8.
                    unsafe { place.cast::<u64>().write_volatile(u64::from_ne_bytes([a, b, c, d, e, f, g, h])) }
                }
                // SAFETY: as above. Frames are aligned, and `units` returns a multiple of 8 for one of 8.
                _ => unsafe { write_words(place, now) },
            }
            (at, left) = (at + now.len(), later);
        }
        primitive::data_written(pa, bytes.len() as u64);
    }

    /// Fills `bytes` from `offset` on, by loads as wide as the stores of [`write`](Self::write). The guest may be writing
    /// there.
    ///
    /// # Panics
    ///
    /// If the run ends before `offset + bytes.len()`.
    pub fn read<P: Platform>(&self, platform: &P, offset: u64, bytes: &mut [u8]) {
        let fits = offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.size());
        assert!(fits, "{} bytes at {offset:#x} are not in {self:?}", bytes.len());
        let pa = self.pa() + offset;
        let start = platform.pointer(pa);
        let (mut at, mut left) = (0, bytes);
        while let Some((now, later)) = left.split_at_mut_checked(units(pa + at as u64, left.len())) {
            // SAFETY: `now` is inside donated memory, so it is mapped while the platform lives, and no reference covers it.
            let place = unsafe { start.add(at) };
            at += now.len();
            match now.len() {
                0 => break,
                1 => {
                    // SAFETY: as above; a byte needs no alignment.
                    now.copy_from_slice(&[unsafe { place.read_volatile() }]);
                }
                2 => {
                    // SAFETY: as above. Frames are aligned, and `units` returns 2 for a multiple of 2.
                    now.copy_from_slice(&unsafe { place.cast::<u16>().read_volatile() }.to_ne_bytes());
                }
                4 => {
                    // SAFETY: as above. Frames are aligned, and `units` returns 4 for a multiple of 4.
                    now.copy_from_slice(&unsafe { place.cast::<u32>().read_volatile() }.to_ne_bytes());
                }
                8 => {
                    // SAFETY: as above. Frames are aligned, and `units` returns 8 for a multiple of 8.
                    now.copy_from_slice(&unsafe { place.cast::<u64>().read_volatile() }.to_ne_bytes());
                }
                // SAFETY: as above. Frames are aligned, and `units` returns a multiple of 8 for one of 8.
                _ => unsafe { read_words(place, now) },
            }
            left = later;
        }
    }
}

/// Writes several words. The image's target accesses nothing that is not aligned, so bytes that are not would be gathered one
/// by one: if they are at a multiple of 4 at least, each store is of 4 bytes.
///
/// # Safety
///
/// `bytes` is a number of whole words, `place` is a multiple of 8, and volatile stores may be made there.
unsafe fn write_words(place: NonNull<u8>, bytes: &[u8]) {
    // SAFETY: any bytes are a number.
    let (words, halves) = unsafe { (bytes.align_to::<u64>().1, bytes.align_to::<u32>().1) };
    if size_of_val(words) == bytes.len() {
        for (index, word) in words.iter().enumerate() {
            // SAFETY: promised by the caller.
            unsafe { place.cast::<u64>().add(index).write_volatile(*word) };
        }
    } else if size_of_val(halves) == bytes.len() {
        for (index, half) in halves.iter().enumerate() {
            // SAFETY: promised by the caller.
            unsafe { place.cast::<u32>().add(index).write_volatile(*half) };
        }
    } else {
        for (index, word) in bytes.as_chunks().0.iter().enumerate() {
            // SAFETY: promised by the caller.
            unsafe { place.cast::<u64>().add(index).write_volatile(u64::from_ne_bytes(*word)) };
        }
    }
}

/// Reads several words, as [`write_words`] writes them.
///
/// # Safety
///
/// As for [`write_words`], for loads.
unsafe fn read_words(place: NonNull<u8>, bytes: &mut [u8]) {
    let length = bytes.len();
    // SAFETY: any bytes are a number, and any number is bytes.
    let words = unsafe { bytes.align_to_mut::<u64>().1 };
    if size_of_val(words) == length {
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: promised by the caller.
            *word = unsafe { place.cast::<u64>().add(index).read_volatile() };
        }
        return;
    }
    // SAFETY: as above.
    let halves = unsafe { bytes.align_to_mut::<u32>().1 };
    if size_of_val(halves) == length {
        for (index, half) in halves.iter_mut().enumerate() {
            // SAFETY: promised by the caller.
            *half = unsafe { place.cast::<u32>().add(index).read_volatile() };
        }
        return;
    }
    for (index, word) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
        // SAFETY: promised by the caller.
        *word = unsafe { place.cast::<u64>().add(index).read_volatile() }.to_ne_bytes();
    }
}

/// How many of `left` bytes from `pa` on are accessed next: 1, 2 or 4 by one access, or all that are whole words. No
/// access is wider than `pa` is aligned.
#[inline]
const fn units(pa: Pa, left: usize) -> usize {
    if pa.is_aligned(8) && left >= 8 {
        left & !7
    } else if pa.is_aligned(4) && left >= 4 {
        4
    } else if pa.is_aligned(2) && left >= 2 {
        2
    } else if left >= 1 {
        1
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_as_wide_as_they_are_aligned() {
        let all = |pa: u64, bytes: usize| {
            let (mut at, mut left, mut widths) = (pa, bytes, Vec::new());
            while left > 0 {
                let now = units(Pa::new(at), left);
                widths.push(now);
                (at, left) = (at + now as u64, left - now);
            }
            widths
        };
        for (pa, bytes, widths) in [
            (0x10_0000, 4096, &[4096][..]),
            (0x10_0008, 79, &[72, 4, 2, 1]),
            (0x10_0008, 8, &[8]),
            (0x10_0ff8, 7, &[4, 2, 1]),
            (0x10_0001, 64, &[1, 2, 4, 56, 1]),
            (0x10_0004, 64, &[4, 56, 4]),
            (0x10_0002, 2, &[2]),
            (0x10_0006, 2, &[2]),
            (0x10_0004, 4, &[4]),
            (0x10_0003, 2, &[1, 1]),
            (0x10_0002, 4, &[2, 2]),
        ] {
            assert_eq!(all(pa, bytes), widths, "{bytes} bytes at {pa:#x}");
        }
        assert_eq!(units(Pa::new(0x10_0000), 0), 0);
    }
}
