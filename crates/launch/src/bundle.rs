// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bundle file: all guests of an image.
//!
//! Invariant: a [`Bundle`] is written only from guests that passed every check that the host can make, each by itself
//! and all together. The file has exactly the layout of [`twofold_abi::bundle`]. Equal kernels and initrds are stored
//! once. The head is written last: a file that was not finished is not a bundle.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use twofold_abi::bundle::{
    self, ALIGN, COMMAND_LINE_MAX, DISKS_MAX, GUESTS_MAX, Header, NAME_MAX, NETS_MAX, NETWORKS_MAX, VCPUS_MAX,
};
use twofold_abi::virt::MAX_CPUS;
use zerocopy::{FromZeros, IntoBytes};

use crate::devices::{self, Devices, HostDevices};
use crate::guest::{GuestError, GuestSettings, MEMORY_MAX};
use crate::image::ImageError;
use crate::initrd::InitrdError;
use crate::swap;

/// A bundle file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// The names of its guests.
    pub names: Vec<String>,
    /// The machine's devices that its guests need.
    pub devices: HostDevices,
}

/// Bytes of the machine beside the memory of each guest but the first: alignment to huge pages, and the first tables.
const GUEST_RESERVE: u64 = 4 << 20;

impl Bundle {
    /// Checks the guests and writes their bundle to `path`.
    pub fn write(guests: &[GuestSettings], path: &Path) -> Result<Self, GuestError> {
        check(guests)?;
        let failed = |why| GuestError::Write { path: path.to_owned(), why };
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path).map_err(failed)?;
        let head_size = size_of::<Header>() + size_of::<bundle::Guest>() * guests.len();
        let mut contents = Contents { path, file, stored: Vec::new(), end: align(head_size as u64) };
        let mut head = header(guests).as_bytes().to_vec();
        for (number, guest) in guests.iter().enumerate() {
            let parts = contents.add(guest).map_err(|why| named(guests, guest, why))?;
            let record = record(guests, number, parts);
            head.extend_from_slice(record.as_bytes());
        }
        let Contents { mut file, end: size, .. } = contents;
        file.set_len(size).map_err(failed)?;
        file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&head)).map_err(failed)?;
        let names = guests.iter().map(|guest| guest.name.clone()).collect();
        // The machine that a guest comes from may have its images yet.
        let are_taken_over = guests.iter().any(|guest| guest.flags & bundle::flags::INCOMING != 0);
        let devices = HostDevices { are_taken_over, ..HostDevices::of(guests) };
        Ok(Self { path: path.to_owned(), size, names, devices })
    }
}

/// Makes all checks of these guests that are possible on the host.
pub fn check(guests: &[GuestSettings]) -> Result<(), GuestError> {
    check_settings(guests)?;
    guests.iter().try_for_each(|guest| guest.check().map(drop).map_err(|why| named(guests, guest, why)))?;
    Ok(HostDevices::of(guests).check()?)
}

/// Checks everything that needs no file.
pub fn check_settings(guests: &[GuestSettings]) -> Result<(), GuestError> {
    if !(1..=GUESTS_MAX as usize).contains(&guests.len()) {
        return Err(GuestError::Guests(guests.len()));
    }
    let first = &guests[0];
    for (number, guest) in guests.iter().enumerate() {
        guest.check_settings().map_err(|why| named(guests, guest, why))?;
        if guests[..number].iter().any(|other| other.name == guest.name) {
            return Err(GuestError::SameName(guest.name.clone()));
        }
        if (guest.flags, guest.policies.bits()) != (first.flags, first.policies.bits()) {
            return Err(GuestError::Mixed(first.name.clone(), guest.name.clone()));
        }
    }
    let cpus = guests.iter().map(|guest| u64::from(guest.cpus)).sum();
    if cpus > u64::from(VCPUS_MAX) {
        return Err(GuestError::CpusTogether(cpus));
    }
    // No overflow: there are at most 64 guests, each with at most 255 GiB.
    let memory = guests.iter().map(|guest| guest.memory).sum();
    if memory > MEMORY_MAX {
        return Err(GuestError::MemoryTogether(memory));
    }
    if first.flags & bundle::flags::SHARE_RESIDENT != 0 {
        let with_limit = guests.iter().filter(|guest| guest.swap.is_some()).count();
        if with_limit < 2 {
            return Err(GuestError::SharesNothing { with_limit, guests: guests.len() });
        }
    }
    let networks = devices::networks(guests).len();
    if networks > NETWORKS_MAX as usize {
        return Err(GuestError::NetworksTogether(networks));
    }
    Ok(())
}

/// Bytes of machine memory that the guests take together.
pub fn total_memory(guests: &[GuestSettings]) -> u64 {
    let reserve = GUEST_RESERVE * guests.len().saturating_sub(1) as u64;
    guests.iter().fold(reserve, |sum, guest| sum.saturating_add(guest.total_memory()))
}

/// The number of CPUs of a machine for these guests: one for each vCPU, as far as there are CPUs.
pub fn machine_cpus(guests: &[GuestSettings]) -> u32 {
    guests.iter().fold(0, |sum: u32, guest| sum.saturating_add(guest.cpus)).min(MAX_CPUS)
}

/// Names the guest in its error, if there are several.
pub fn named(guests: &[GuestSettings], guest: &GuestSettings, why: GuestError) -> GuestError {
    match guests.len() {
        1 => why,
        _ => GuestError::Named { name: guest.name.clone(), why: Box::new(why) },
    }
}

fn header(guests: &[GuestSettings]) -> Header {
    Header {
        magic: bundle::MAGIC,
        flags: guests[0].flags.into(),
        policies: guests[0].policies.bits().into(),
        guests: (guests.len() as u32).into(),
    }
}

/// The kernels and initrds that are in the file.
struct Contents<'a> {
    path: &'a Path,
    file: File,
    stored: Vec<Part>,
    /// Where the next part starts.
    end: u64,
}

#[derive(Clone, Copy)]
struct Part {
    offset: u64,
    size: u64,
}

/// What is in the file for a guest.
struct Parts {
    kernel: Part,
    initrd: Part,
    firmware: Part,
}

impl Contents<'_> {
    /// Stores what a guest has, unless it is there already.
    fn add(&mut self, guest: &GuestSettings) -> Result<Parts, GuestError> {
        let none = Part { offset: self.end, size: 0 };
        if let Some(path) = &guest.firmware {
            let unreadable = |why| ImageError::Unreadable { path: path.clone(), why };
            let file = File::open(path).map_err(unreadable)?;
            let size = file.metadata().map_err(unreadable)?.len();
            return Ok(Parts { kernel: none, initrd: none, firmware: self.store(file, size)? });
        }
        let unreadable = |why| ImageError::Unreadable { path: guest.kernel.clone(), why };
        let kernel_file = match guest.program()? {
            Some(program) => program.stored(),
            None => File::open(&guest.kernel),
        };
        let kernel_file = kernel_file.map_err(unreadable)?;
        let kernel_size = kernel_file.metadata().map_err(unreadable)?.len();
        let kernel = self.store(kernel_file, kernel_size)?;
        let initrd = match &guest.initrd {
            Some(path) => {
                let file = File::open(path).map_err(|why| InitrdError::Unreadable { path: path.clone(), why });
                self.store(file?, guest.initrd_size()?)?
            }
            None => Part { offset: self.end, size: 0 },
        };
        Ok(Parts { kernel, initrd, firmware: none })
    }

    fn store(&mut self, mut from: File, size: u64) -> Result<Part, GuestError> {
        let failed = |why| GuestError::Write { path: self.path.to_owned(), why };
        for part in self.stored.iter().filter(|part| part.size == size) {
            if holds(&self.file, *part, &from).map_err(failed)? {
                return Ok(*part);
            }
        }
        let part = Part { offset: self.end, size };
        // Padding is a hole in the file: it reads as zeros and takes no space.
        self.file.seek(SeekFrom::Start(part.offset)).map_err(failed)?;
        copy_exactly(&mut from, &mut self.file, size).map_err(failed)?;
        self.stored.push(part);
        self.end = align(part.offset + size);
        Ok(part)
    }
}

/// The record of the guest of this number.
fn record(guests: &[GuestSettings], number: usize, Parts { kernel, initrd, firmware }: Parts) -> bundle::Guest {
    let guest = &guests[number];
    let mut name = [0; NAME_MAX + 1];
    name[..guest.name.len()].copy_from_slice(guest.name.as_bytes());
    let mut command_line = [0; COMMAND_LINE_MAX + 1];
    command_line[..guest.command_line.len()].copy_from_slice(guest.command_line.as_bytes());
    let Devices { has_console, has_random, has_balloon, disks, nets } = &guest.devices;
    let bits = [
        (has_console, bundle::devices::CONSOLE),
        (has_random, bundle::devices::RANDOM),
        (has_balloon, bundle::devices::BALLOON),
    ];
    let mut disk: [bundle::Disk; DISKS_MAX] = FromZeros::new_zeroed();
    for (place, record) in disk.iter_mut().enumerate().take(disks.len()) {
        *record = devices::disk(guests, number, place);
    }
    let mut net: [bundle::Net; NETS_MAX] = FromZeros::new_zeroed();
    for ((place, record), network) in net.iter_mut().enumerate().zip(nets) {
        *record = devices::net(guests, number, place, network);
    }
    bundle::Guest {
        name,
        weight: guest.weight.into(),
        cpus: guest.cpus.into(),
        pages: guest.pages.number().into(),
        ipa_bits: guest.test.map_or(0, |test| test.ipa_bits).into(),
        memory: guest.memory.into(),
        kernel_offset: kernel.offset.into(),
        kernel_size: kernel.size.into(),
        initrd_offset: initrd.offset.into(),
        initrd_size: initrd.size.into(),
        firmware_offset: firmware.offset.into(),
        firmware_size: firmware.size.into(),
        devices: bits.iter().map(|(is_set, bit)| if **is_set { *bit } else { 0 }).sum::<u32>().into(),
        disks: (disks.len() as u32).into(),
        nets: (nets.len() as u32).into(),
        disk,
        net,
        swap: swap::record(guest.swap.as_ref(), number),
        test_start: guest.test.map_or(0, |test| test.start()).into(),
        test_size: guest.test.map_or(0, |test| test.size).into(),
        test_slots: guest.test.map_or(0, |test| test.slots).into(),
        test_leaf: guest.test.and_then(|test| test.leaf).unwrap_or(0).into(),
        command_line_size: (guest.command_line.len() as u32).into(),
        command_line,
    }
}

/// Whether a part of the bundle equals a file of the same size. The files' positions stay where they are.
fn holds(bundle: &File, part: Part, other: &File) -> io::Result<bool> {
    const PIECE: u64 = 1 << 20;
    let (mut ours, mut theirs) = (vec![0; PIECE as usize], vec![0; PIECE as usize]);
    let mut at = 0;
    while at < part.size {
        let size = PIECE.min(part.size - at) as usize;
        bundle.read_exact_at(&mut ours[..size], part.offset + at)?;
        other.read_exact_at(&mut theirs[..size], at)?;
        if ours[..size] != theirs[..size] {
            return Ok(false);
        }
        at += size as u64;
    }
    Ok(true)
}

/// Copies exactly `size` bytes: if the file changes its size meanwhile, the part after it must not move.
fn copy_exactly(from: &mut File, to: &mut File, size: u64) -> io::Result<()> {
    let copied = io::copy(&mut io::Read::take(from, size), to)?;
    if copied == size { Ok(()) } else { Err(io::Error::other("the file became shorter while it was copied")) }
}

fn align(size: u64) -> u64 {
    size.next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::Pages;
    use crate::guest::tests::GuestFiles;
    use std::fs;
    use twofold_abi::bundle::flags;
    use zerocopy::FromBytes;

    /// Changes the guest of this number.
    type Change = fn(usize, &mut GuestSettings);

    /// Writes a bundle, and returns its bytes, head and records.
    fn write(files: &GuestFiles, guests: &[GuestSettings]) -> (Vec<u8>, Header, Vec<bundle::Guest>) {
        let path = files.path("bundle");
        let bundle = Bundle::write(guests, &path).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!((bundle.path, bundle.size), (path, bytes.len() as u64));
        let (header, rest) = Header::read_from_prefix(&bytes).unwrap();
        let (records, rest) = <[bundle::Guest]>::ref_from_prefix_with_elems(rest, guests.len()).unwrap();
        let records = records.to_vec();
        let first = records.iter().map(|record| record.kernel_offset.get()).min().unwrap();
        let padding = first as usize - (bytes.len() - rest.len());
        assert!(rest[..padding].iter().all(|byte| *byte == 0) && padding < ALIGN as usize);
        (bytes, header, records)
    }

    #[test]
    fn bundle_bytes() {
        let files = GuestFiles::new();
        let (bytes, header, records) = write(&files, &[files.guest()]);
        let align = ALIGN as usize;
        assert_eq!(bytes.len(), 4 * align);
        assert_eq!((header.magic, header.flags.get(), header.guests.get()), (bundle::MAGIC, flags::COUNT, 1));
        let guest = &records[0];
        assert_eq!((&guest.name, guest.weight.get()), (b"guest\0\0\0\0\0\0\0\0\0\0\0", 64));
        assert_eq!(guest.pages.get(), bundle::pages::SMALL);
        assert_eq!((guest.cpus.get(), guest.memory.get()), (2, 128 << 20));
        assert_eq!((guest.kernel_offset.get(), guest.kernel_size.get()), (ALIGN, 0x1234));
        assert_eq!((guest.initrd_offset.get(), guest.initrd_size.get()), (3 * ALIGN, 0x567));
        let used = guest.command_line_size.get() as usize;
        assert_eq!(&guest.command_line[..used], b"console=ttyAMA0");
        assert!(guest.command_line[used..].iter().all(|byte| *byte == 0));

        assert_eq!(&bytes[align + 0x38..align + 0x3c], b"ARM\x64");
        assert_eq!(bytes[align + 0x1233], 0xaa);
        assert!(bytes[align + 0x1234..3 * align].iter().all(|byte| *byte == 0));
        assert_eq!(&bytes[3 * align..3 * align + 6], b"070701");
        assert!(bytes[3 * align + 6..3 * align + 0x567].iter().all(|byte| *byte == 0xbb));
        assert!(bytes[3 * align + 0x567..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_guest_without_initrd() {
        let files = GuestFiles::new();
        let guest = GuestSettings { initrd: None, pages: Pages::Blocks, ..files.guest() };
        let (bytes, _, records) = write(&files, &[guest]);
        assert_eq!(bytes.len() as u64, 3 * ALIGN);
        assert_eq!((records[0].initrd_offset.get(), records[0].initrd_size.get()), (3 * ALIGN, 0));
        assert_eq!(records[0].pages.get(), bundle::pages::BLOCKS);
    }

    #[test]
    fn the_longest_command_line_is_not_cut() {
        let files = GuestFiles::new();
        let guest = GuestSettings { command_line: "x".repeat(COMMAND_LINE_MAX), ..files.guest() };
        let (_, _, records) = write(&files, &[guest]);
        assert_eq!(records[0].command_line_size.get() as usize, COMMAND_LINE_MAX);
        assert_eq!(records[0].command_line[COMMAND_LINE_MAX], 0);
    }

    #[test]
    fn equal_files_are_stored_once() {
        let files = GuestFiles::new();
        let first = files.guest();
        let (alone, ..) = write(&files, std::slice::from_ref(&first));
        // The same kernel by another name, and an initrd that has the same size and another last byte.
        let copy = files.write("copy", &fs::read(&first.kernel).unwrap());
        let mut initrd = fs::read(first.initrd.as_ref().unwrap()).unwrap();
        *initrd.last_mut().unwrap() ^= 1;
        let other = files.write("other", &initrd);
        let second = GuestSettings { name: "web".to_owned(), kernel: copy, initrd: Some(other), ..first.clone() };
        let third = GuestSettings { name: "db".to_owned(), weight: 1024, ..first.clone() };
        let (bytes, header, records) = write(&files, &[first, second, third]);
        assert_eq!(header.guests.get(), 3);
        // One more page of records, and one more initrd.
        assert_eq!(bytes.len(), alone.len() + 2 * ALIGN as usize);
        let places = |record: &bundle::Guest| (record.kernel_offset.get(), record.initrd_offset.get());
        assert_eq!(places(&records[0]), places(&records[2]));
        assert_eq!(records[0].kernel_offset, records[1].kernel_offset);
        assert_ne!(records[0].initrd_offset, records[1].initrd_offset);
        assert_eq!(&bytes[records[1].initrd_offset.get() as usize..][..initrd.len()], initrd);
        assert_eq!(records[2].weight.get(), 1024);
    }

    #[test]
    fn guests_that_are_not_possible_together_are_refused_with_advice() {
        let files = GuestFiles::new();
        let guests = |count: usize, change: Change| {
            let guest = |number| {
                let mut guest = GuestSettings { name: format!("g{number}"), ..files.guest() };
                change(number, &mut guest);
                guest
            };
            (0..count).map(guest).collect::<Vec<_>>()
        };
        let cases: [(usize, Change, &str); 9] = [
            (0, |_, _| (), "0 guests are not possible; give 1 to 64"),
            (65, |_, _| (), "65 guests are not possible"),
            (2, |_, guest| guest.name = "web".to_owned(), "two guests have the name web"),
            (9, |_, guest| guest.cpus = 64, "576 vCPUs together; give them at most 512"),
            (3, |_, guest| guest.memory = 100 << 30, "300G of memory together; give them at most 255G"),
            (2, |number, guest| guest.flags = number as u32, "g0 and g1 differ in flags"),
            (2, |number, guest| guest.cpus = 1 - number as u32, "guest g1: 0 vCPUs are not possible"),
            (2, |number, guest| guest.weight = 1025 * number as u32 + 1, "guest g1: `--weight 1026`"),
            (2, |number, guest| guest.memory -= number as u64 * (100 << 20), "guest g1: `--memory 28M` is too little"),
        ];
        for (count, change, expected) in cases {
            let error = Bundle::write(&guests(count, change), &files.path("refused")).unwrap_err().to_string();
            assert!(error.contains(expected) && !files.path("refused").exists(), "{error}");
        }
        let mut missing = guests(2, |_, _| ());
        missing[1].kernel = files.path("nowhere");
        let error = Bundle::write(&missing, &files.path("refused")).unwrap_err().to_string();
        assert!(error.contains("guest g1: cannot read the kernel") && !files.path("refused").exists(), "{error}");
    }

    #[test]
    fn a_machine_has_room_for_all_guests() {
        let files = GuestFiles::new();
        let one = files.guest();
        assert_eq!(
            (total_memory(std::slice::from_ref(&one)), machine_cpus(std::slice::from_ref(&one))),
            (128 << 20, 2)
        );
        let many = vec![GuestSettings { cpus: 30, ..one }; 3];
        assert_eq!((total_memory(&many), machine_cpus(&many)), (3 * (128 << 20) + 2 * (4 << 20), 64));
    }
}
