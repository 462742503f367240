// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bundle. Two targets: any bytes, read by the hypervisor; and any guests, written by the launcher and read by the
//! hypervisor.

use std::fs;
use std::path::{Path, PathBuf};

use arbitrary::{Result, Unstructured};
use twofold_abi::bundle::{self, Header};
use twofold_abi::virt::RAM_BASE;
use twofold_launch::image::Image;
use twofold_launch::{Bundle as Written, Devices, GuestError, GuestSettings, Pages, TestMemory, guest, layout};
use twofold_vmm::bundle::{Bundle, BundleError};
use twofold_vmm::config::Config;
use twofold_vmm::guests::{Guest, Host, Refused, Why, admit};
use twofold_vmm::program::Program;
use twofold_vmm::{images, load};
use twofold_workload::policies::Policies;
use zerocopy::{FromBytes, IntoBytes};

/// Any bytes are refused, or make guests whose parts are inside the file. Launcher and hypervisor place these parts at
/// the same addresses. Any guests that are read are admitted to a machine or refused.
pub fn bundle(data: &[u8]) {
    let header = Header::read_from_prefix(data).ok().filter(|(header, _)| header.magic == bundle::MAGIC);
    let read = Bundle::read(data);
    let Some((header, rest)) = header else { return assert_eq!(read.err(), Some(BundleError::NoBundle)) };
    assert_eq!(header.as_bytes(), &data[..size_of::<Header>()], "a header equals the bytes that it was read from");
    let read = match read {
        Ok(read) => read,
        Err(error) => return assert_ne!(error, BundleError::NoBundle),
    };
    assert_eq!((read.flags, read.policies), (header.flags.get(), header.policies.get()));
    assert_eq!(read.guests.len(), header.guests.get() as usize);
    let records = <[bundle::Guest]>::ref_from_prefix_with_elems(rest, read.guests.len());
    let (records, _) = records.expect("the guests were read from inside the file");
    read.guests.iter().zip(records).for_each(|(guest, record)| check_guest(data, guest, record));
    admit_or_refuse(&read.guests);
}

/// The launcher and the hypervisor agree: both refuse the guests, or both place their parts at the same addresses.
pub fn guest_bundle(data: &[u8]) {
    let _ = write_and_read(&mut Unstructured::new(data));
}

/// Checks a guest against the record that it was read from.
fn check_guest(file: &[u8], guest: &Guest<'_>, record: &bundle::Guest) {
    let config = &guest.config;
    let name = guest.name.as_str();
    assert!(record.name.starts_with(name.as_bytes()) && record.name[name.len()] == 0 && !name.is_empty());
    assert!((1..=bundle::WEIGHT_MAX).contains(&record.weight.get()));
    let part = |offset: u64, size: u64| &file[offset as usize..][..size as usize];
    assert_eq!(config.kernel, part(record.kernel_offset.get(), record.kernel_size.get()));
    assert_eq!(config.initrd, part(record.initrd_offset.get(), record.initrd_size.get()));
    assert_eq!(config.command_line.as_bytes(), &record.command_line[..record.command_line_size.get() as usize]);
    assert_eq!((config.memory, config.cpus), (record.memory.get(), record.cpus.get()));
    assert_eq!(config.ipa_bits.unwrap_or(0), record.ipa_bits.get());
    let test = config.test.map_or((0, 0), |test| (test.start, test.size()));
    assert!(test == (record.test_start.get(), record.test_size.get()) || config.test.is_none() && test.1 == 0);
    assert!((1..=64).contains(&config.cpus) && config.memory.is_multiple_of(4096) && config.memory > 0);
    check_layout(config);
}

/// What is admitted fits, and has numbers and names of its own.
fn admit_or_refuse(guests: &[Guest<'_>]) {
    let host = Host { free: 8 << 30, vmid_bits: 8, page: 4096, missing: None };
    let Ok(admitted) = admit(guests, &host) else { return };
    assert!(admitted.iter().map(|guest| guest.frames * 4096).sum::<u64>() <= host.free);
    for (number, guest) in guests.iter().enumerate() {
        assert!(guests[..number].iter().all(|other| other.name != guest.name));
        assert!(admitted[..number].iter().all(|other| other.vmid != admitted[number].vmid));
        assert_eq!(admitted[number].weight, guest.weight);
    }
}

/// Checks that launcher and hypervisor place the parts at the same addresses.
fn check_layout(config: &Config<'_>) {
    // The hypervisor refuses more memory than the machine has before it computes the layout.
    if config.memory > guest::MEMORY_MAX {
        return;
    }
    let ours = load::Layout::new(config);
    if config.has_firmware() {
        let theirs = layout::Layout::of_firmware();
        let starts = [theirs.kernel.start, theirs.initrd.start, theirs.device_tree.start];
        match ours {
            Ok(ours) => assert_eq!([ours.kernel.raw(), ours.initrd.raw(), ours.device_tree.raw()], starts),
            Err(why) => assert!(matches!(why, load::LoadError::DoesNotFit { .. }), "{why:?}"),
        }
        return;
    }
    let image = match Program::of(config.kernel) {
        Some(Program { load, entry, bytes }) => {
            let is_inside = load >= RAM_BASE && entry >= load && entry - load < bytes.len() as u64;
            if !is_inside {
                assert!(matches!(ours, Err(load::LoadError::Program { .. })), "{ours:?}");
                return;
            }
            assert!(ours.as_ref().is_ok_and(|ours| ours.entry.raw() == entry) || ours.is_err());
            let size = bytes.len() as u64;
            Ok(Image { text_offset: load - RAM_BASE, image_size: size, file_size: size })
        }
        None => {
            let head = &config.kernel[..config.kernel.len().min(64)];
            Image::parse(head, config.kernel.len() as u64)
        }
    };
    let theirs = image.map(|image| layout::Layout::new(&image, config.initrd.len() as u64, config.memory));
    match (ours, theirs) {
        (Ok(ours), Ok(Ok(theirs))) => {
            let starts = [theirs.kernel.start, theirs.initrd.start, theirs.device_tree.start];
            assert_eq!([ours.kernel.raw(), ours.initrd.raw(), ours.device_tree.raw()], starts);
        }
        (Err(load::LoadError::DoesNotFit { .. }), Ok(Err(_))) => {}
        (Err(load::LoadError::NotAnImage | load::LoadError::TextOffset(_)), Err(_)) => {}
        // Only the launcher recognises big-endian kernels.
        (_, Err(what)) if what.contains("big-endian") => {}
        (ours, theirs) => panic!("the hypervisor: {ours:?}; the launcher: {theirs:?}"),
    }
}

fn write_and_read(u: &mut Unstructured<'_>) -> Result<()> {
    let directory = tempfile::tempdir().expect("there is room for a few small files");
    let mut parts = Vec::new();
    let count = u.int_in_range(1..=3)?;
    let flags = u.arbitrary()?;
    let policies = Policies::from_bits(u.int_in_range(0..=bundle::POLICIES)?).unwrap_or_default();
    let mut guests = Vec::new();
    for number in 0..count {
        let files = files(u, directory.path(), number, parts.last())?;
        guests.push(GuestSettings { flags, policies, ..any_guest(u, number, &files)? });
        parts.push(files);
    }
    let path = directory.path().join("bundle");
    let written = match Written::write(&guests, &path) {
        Ok(written) => written,
        Err(error) => {
            assert!(!path.exists() && !matches!(error, GuestError::Write { .. }), "{error}");
            return Ok(());
        }
    };
    let bytes = fs::read(&path).expect("the bundle was just written");
    assert_eq!((written.size, written.size % bundle::ALIGN), (bytes.len() as u64, 0));
    let read = Bundle::read(&bytes).unwrap_or_else(|error| panic!("{guests:?}: {error}"));
    assert_eq!((read.flags, read.policies), (flags, policies.bits()));
    assert_eq!(read.guests.len(), guests.len());
    for ((read, guest), files) in read.guests.iter().zip(&guests).zip(&parts) {
        assert_eq!((read.name.as_str(), read.config.flags), (&guest.name[..], guest.flags));
        check_written(&read.config, guest, files);
    }
    // Equal kernels are stored once.
    for (one, other) in read.guests.iter().zip(&read.guests[1..]) {
        let equal = one.config.kernel == other.config.kernel;
        assert_eq!(equal, one.config.kernel.as_ptr() == other.config.kernel.as_ptr());
    }
    // Of what the launcher accepts, the hypervisor refuses only what depends on the machine.
    let host = Host { free: 1 << 60, vmid_bits: 8, page: 4096, missing: None };
    match admit(&read.guests, &host) {
        Ok(_) | Err(Refused::Guest { why: Why::NoMemory { .. }, .. }) => {}
        Err(error) => panic!("{guests:?}: {error}"),
    }
    Ok(())
}

fn check_written(config: &Config<'_>, guest: &GuestSettings, files: &Files) {
    assert_eq!((config.kernel, config.initrd), (&files.kernel[..], files.initrd.as_deref().unwrap_or_default()));
    assert_eq!((config.command_line, config.memory), (&guest.command_line[..], guest.memory));
    assert_eq!(config.cpus, guest.cpus);
    assert_eq!(config.ipa_bits, guest.test.map(|test| test.ipa_bits));
    let test = config.test.map(|test| (test.start, test.size(), test.slots));
    assert_eq!(test, guest.test.map(|test| (test.start(), test.size, test.slots)));
    assert!(guest.test.is_none_or(|test| config.end() <= 1 << test.ipa_bits), "{guest:?}");
    assert_eq!(config.pages == twofold_memory::Pages::Small, guest.pages == Pages::Small);
    assert!(load::Layout::new(config).is_ok(), "{guest:?}");
    assert_eq!((images::check_kernel(config.kernel), images::check_initrd(config.initrd)), (Ok(()), Ok(())));
    check_layout(config);
}

/// The files of a guest, and what is in them.
struct Files {
    paths: (PathBuf, Option<PathBuf>),
    kernel: Vec<u8>,
    initrd: Option<Vec<u8>>,
}

/// Writes a guest's files, whose kernel may equal that of the guest before.
fn files(u: &mut Unstructured<'_>, directory: &Path, number: u32, before: Option<&Files>) -> Result<Files> {
    let put = |name: &str, bytes: &[u8]| {
        let path = directory.join(format!("{name}-{number}"));
        fs::write(&path, bytes).expect("there is room for a small file");
        path
    };
    let kernel = match before {
        Some(before) if u.arbitrary()? => before.kernel.clone(),
        _ => kernel(u)?,
    };
    let initrd = initrd(u)?;
    let paths = (put("kernel", &kernel), initrd.as_ref().map(|initrd| put("initrd", initrd)));
    Ok(Files { paths, kernel, initrd })
}

fn any_guest(u: &mut Unstructured<'_>, number: u32, files: &Files) -> Result<GuestSettings> {
    let (kernel, initrd) = files.paths.clone();
    let unit = *u.choose(&[1u64, 4096, 2 << 20, 1 << 30])?;
    Ok(GuestSettings {
        name: if u.ratio(1, 10)? { u.arbitrary()? } else { format!("guest-{number}") },
        weight: if u.ratio(1, 10)? { u.arbitrary()? } else { u.int_in_range(1..=bundle::WEIGHT_MAX)? },
        firmware: None,
        kernel,
        initrd,
        memory: u.int_in_range(0..=300u64)?.wrapping_mul(unit).wrapping_add(*u.choose(&[0, 64 << 20, 128 << 20])?),
        cpus: if u.arbitrary()? { u.int_in_range(0..=70)? } else { u.arbitrary()? },
        pages: *u.choose(&[Pages::Auto, Pages::Small, Pages::Blocks])?,
        flags: 0,
        command_line: u.arbitrary()?,
        devices: Devices::default(),
        swap: None,
        test: if u.arbitrary()? { Some(any_test_memory(u)?) } else { None },
        policies: Policies::default(),
    })
}

fn any_test_memory(u: &mut Unstructured<'_>) -> Result<TestMemory> {
    let slots = if u.arbitrary()? { u.int_in_range(0..=70)? } else { u.arbitrary()? };
    let size =
        u.int_in_range(0..=1u64 << 20)?.wrapping_mul(4096).wrapping_mul(slots.into()) + u64::from(u.ratio(1, 10)?);
    let ipa_bits = u.int_in_range(30..=50)?;
    Ok(TestMemory { ipa_bits, size, slots, leaf: if u.arbitrary()? { Some(u.int_in_range(0..=4)?) } else { None } })
}

/// Makes bytes that begin with an arm64 Image header, mostly a valid one.
fn kernel(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut bytes = vec![u.arbitrary()?; u.int_in_range(0..=9000)?];
    let fields: [(usize, [u8; 8]); 3] = [
        (8, if u.arbitrary()? { u.arbitrary::<u64>()? } else { u.int_in_range(0..=3)? << 19 }.to_le_bytes()),
        (16, if u.arbitrary()? { u.arbitrary::<u64>()? } else { u.int_in_range(0..=200)? << 20 }.to_le_bytes()),
        (24, u.int_in_range(0..=15u64)?.to_le_bytes()),
    ];
    if bytes.len() >= 64 {
        fields.into_iter().for_each(|(at, field)| bytes[at..at + 8].copy_from_slice(&field));
        bytes[56..60].copy_from_slice(if u.ratio(9, 10)? { b"ARM\x64" } else { b"arm\x64" });
    }
    Ok(bytes)
}

/// Makes an initrd, mostly one that begins like an archive.
fn initrd(u: &mut Unstructured<'_>) -> Result<Option<Vec<u8>>> {
    if u.arbitrary()? {
        return Ok(None);
    }
    let head: &[u8] =
        if u.ratio(9, 10)? { u.choose(&[&b"070701"[..], b"\0\0\0\x00070702", b"\x1f\x8b"])? } else { b"" };
    Ok(Some([head, &vec![u.arbitrary()?; u.int_in_range(0..=9000)?]].concat()))
}
