// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the bundle, where a Linux finds its initrd, and loads it.
//!
//! - B1 A boot loader serves it by LoadFile2 (GRUB's and systemd-boot's `initrd`, QEMU's `-initrd`).
//! - B2 The program's options have a word `initrd=FILE`, a file of the volume that the program came from.
//! - B3 That volume has a file `twofold.bundle`.
//!
//! Invariant: the first of these that exists counts. If it cannot be read, the others are not tried.

use core::ops::Range;
use core::ptr::{NonNull, null_mut};

use arrayvec::ArrayVec;
use uefi_raw::protocol::device_path::DevicePathProtocol;
use uefi_raw::protocol::file_system::{FileAttribute, FileMode, FileProtocolV1, SimpleFileSystemProtocol};
use uefi_raw::protocol::loaded_image::LoadedImageProtocol;
use uefi_raw::protocol::media::LoadFile2Protocol;
use uefi_raw::{Boolean, Guid, Handle, Status, guid};

use super::Refused;
use super::firmware::{Firmware, done};

/// Loads the bundle. Returns its place.
pub fn load(firmware: &Firmware) -> Result<Range<u64>, Refused> {
    let bytes = match served(firmware).map_err(Refused::Bundle)? {
        Some(bytes) => bytes,
        None => from_volume(firmware)?,
    };
    let bytes = bytes.as_ptr_range();
    Ok(bytes.start.expose_provenance() as u64..bytes.end.expose_provenance() as u64)
}

/// B1. `None`: nothing serves it.
fn served(firmware: &Firmware) -> Result<Option<&'static [u8]>, Status> {
    // SAFETY: the path ends.
    let found = unsafe { firmware.device((&raw const INITRD).cast(), &LoadFile2Protocol::GUID) };
    let (handle, rest) = match found {
        Ok(found) => found,
        Err(Status::NOT_FOUND) => return Ok(None),
        Err(status) => return Err(status),
    };
    // SAFETY: the firmware gave the handle, and the types are those of the GUID.
    let file: NonNull<LoadFile2Protocol> = unsafe { firmware.protocol(handle, &LoadFile2Protocol::GUID)? };
    let file = file.as_ptr();
    let mut size = 0;
    // SAFETY: without a buffer the call returns the size.
    let status = unsafe { ((*file).load_file)(file, rest, Boolean::FALSE, &mut size, null_mut()) };
    if status != Status::BUFFER_TOO_SMALL {
        return Err(if status.is_error() { status } else { Status::END_OF_FILE });
    }
    let bytes = firmware.allocate(size)?;
    // SAFETY: the buffer has this size.
    done(unsafe { ((*file).load_file)(file, rest, Boolean::FALSE, &mut size, bytes.as_mut_ptr().cast()) })?;
    Ok(bytes.get(..size))
}

/// The path of the initrd that is served: a node of the media type by its vendor's GUID (LINUX_EFI_INITRD_MEDIA_GUID), and
/// the end.
#[repr(C, packed)]
struct Path {
    vendor: DevicePathProtocol,
    guid: Guid,
    end: DevicePathProtocol,
}

static INITRD: Path =
    Path { vendor: node(4, 3, 20), guid: guid!("5568e427-68fc-4f3d-ac74-ca555231cc68"), end: node(0x7f, 0xff, 4) };

const fn node(major: u8, sub: u8, length: u8) -> DevicePathProtocol {
    use uefi_raw::protocol::device_path::{DeviceSubType, DeviceType};
    DevicePathProtocol { major_type: DeviceType(major), sub_type: DeviceSubType(sub), length: [length, 0] }
}

/// The most characters of a file's name.
const NAME_MAX: usize = 255;
/// A name in UTF-16, with its final zero.
type Name = ArrayVec<u16, { NAME_MAX + 1 }>;

/// B2 and B3.
fn from_volume(firmware: &Firmware) -> Result<&'static [u8], Refused> {
    // SAFETY: the firmware gave the handle, and the types are those of the GUID.
    let image = unsafe { firmware.protocol(firmware.image, &LoadedImageProtocol::GUID) }.map_err(Refused::Bundle)?;
    // SAFETY: the firmware's structure stays as long as the image.
    let image: &LoadedImageProtocol = unsafe { image.as_ref() };
    let options = match image.load_options.is_null() {
        true => &[],
        // SAFETY: the firmware says that these bytes are there.
        false => unsafe { core::slice::from_raw_parts(image.load_options.cast(), image.load_options_size as usize) },
    };
    let name = match named(options).map_err(Refused::Bundle)? {
        Some(name) => name,
        None => "\\twofold.bundle\0".encode_utf16().collect(),
    };
    match read(firmware, image.device_handle, &name) {
        // A volume without files: the image came from the memory of another program.
        Err(Status::NOT_FOUND | Status::UNSUPPORTED | Status::INVALID_PARAMETER) => Err(Refused::NoBundle),
        read => read.map_err(Refused::Bundle),
    }
}

/// The name after `initrd=` in the options, which are UTF-16.
fn named(options: &[u8]) -> Result<Option<Name>, Status> {
    const SPACE: u16 = b' ' as u16;
    let units = options.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes(*unit)).take_while(|unit| *unit != 0);
    let mut word = Name::new();
    for unit in units.chain([SPACE]) {
        if unit != SPACE {
            // A word that is too long is not ours, unless it begins as ours does.
            let unit = if unit == b'/'.into() { b'\\'.into() } else { unit };
            if word.len() < NAME_MAX {
                word.push(unit);
            } else if word.iter().copied().take(KEY.len()).eq(KEY.encode_utf16()) {
                return Err(Status::BUFFER_TOO_SMALL);
            }
            continue;
        }
        if word.iter().copied().take(KEY.len()).eq(KEY.encode_utf16()) {
            let mut name: Name = word.iter().skip(KEY.len()).copied().collect();
            name.push(0);
            return Ok(Some(name));
        }
        word.clear();
    }
    Ok(None)
}

const KEY: &str = "initrd=";

/// A file of the volume `device`.
fn read(firmware: &Firmware, device: Handle, name: &[u16]) -> Result<&'static [u8], Status> {
    if device.is_null() {
        return Err(Status::NOT_FOUND);
    }
    // SAFETY: the firmware gave the handle, and the types are those of the GUID.
    let volume: NonNull<SimpleFileSystemProtocol> =
        unsafe { firmware.protocol(device, &SimpleFileSystemProtocol::GUID)? };
    let volume = volume.as_ptr();
    let (mut root, mut file): (*mut FileProtocolV1, *mut FileProtocolV1) = (null_mut(), null_mut());
    // SAFETY: the firmware's own volume. Each call is made on what the call before it gave, and the name ends with zero.
    let size = unsafe {
        done(((*volume).open_volume)(volume, &mut root))?;
        done(((*root).open)(root, &mut file, name.as_ptr(), FileMode::READ, FileAttribute::empty()))?;
        // UEFI 2.10, 13.5.12: this position is the file's end.
        done(((*file).set_position)(file, u64::MAX))?;
        let mut size = 0;
        done(((*file).get_position)(file, &mut size))?;
        done(((*file).set_position)(file, 0))?;
        size as usize
    };
    let bytes = firmware.allocate(size)?;
    let mut at = 0;
    while at < size {
        let mut count = size - at;
        // SAFETY: the buffer has `count` bytes from there.
        done(unsafe { ((*file).read)(file, &mut count, bytes.as_mut_ptr().add(at).cast()) })?;
        if count == 0 {
            return Err(Status::END_OF_FILE);
        }
        at += count;
    }
    Ok(bytes)
}
