// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The first bytes of a file that is given as a kernel, and the layout that they lead to.

use arbitrary::{Result, Unstructured};
use twofold_abi::virt::RAM_BASE;
use twofold_launch::guest::MEMORY_MAX;
use twofold_launch::image::{BOUNDARY, Image};
use twofold_launch::layout::{DEVICE_TREE_SIZE, Layout};

/// Bytes are refused with advice, or are a header with the parsed fields. The parts follow one another inside memory;
/// if they do not fit, the error has the exact memory size that suffices.
pub fn image(data: &[u8]) {
    let _ = read(&mut Unstructured::new(data));
}

fn read(u: &mut Unstructured<'_>) -> Result<()> {
    let (file_size, initrd_size) = (size(u)?, size(u)?);
    let memory = size(u)?.min(MEMORY_MAX);
    let head = u.bytes(u.len().min(80))?;
    let image = match Image::parse(head, file_size) {
        Ok(image) => image,
        Err(what) => {
            assert!(what.contains(';'), "an error has its cause and advice: {what}");
            return Ok(());
        }
    };
    let field = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    assert_eq!((&head[56..60], field(24) & 1), (&b"ARM\x64"[..], 0));
    assert_eq!((image.text_offset, image.file_size), (field(8), file_size));
    assert!(image.text_offset < BOUNDARY);
    assert_eq!(image.image_size, field(16).max(file_size));
    place(&image, initrd_size, memory);
    Ok(())
}

fn place(image: &Image, initrd_size: u64, memory: u64) {
    match Layout::new(image, initrd_size, memory) {
        Ok(Layout { kernel, initrd, device_tree }) => {
            assert_eq!(kernel, RAM_BASE + image.text_offset..RAM_BASE + image.text_offset + image.image_size);
            assert!(kernel.end <= initrd.start && initrd.end <= device_tree.start);
            assert!(initrd.start.is_multiple_of(BOUNDARY) && device_tree.start.is_multiple_of(BOUNDARY));
            assert_eq!(
                (initrd.end - initrd.start, device_tree.end - device_tree.start),
                (initrd_size, DEVICE_TREE_SIZE)
            );
            assert!(device_tree.end <= RAM_BASE + memory);
        }
        Err(error) => {
            assert_eq!(error.memory, memory);
            assert!(error.needed > memory && !error.to_string().is_empty());
            if error.needed <= MEMORY_MAX {
                assert!(Layout::new(image, initrd_size, error.needed).is_ok());
                assert!(Layout::new(image, initrd_size, error.needed - 1).is_err());
            }
        }
    }
}

/// Makes any size, mostly one that fits.
fn size(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match u.int_in_range(0..=3)? {
        0 => u.arbitrary()?,
        1 => u64::from(u.arbitrary::<u32>()?),
        2 => u64::from(u.arbitrary::<u16>()?) << 20,
        _ => u64::from(u.arbitrary::<u16>()?),
    })
}
