// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's bundle. Two targets: any bytes, read by the hypervisor; and any guest, written by the launcher and read by
//! the hypervisor.

use std::fs;
use std::path::PathBuf;

use arbitrary::{Result, Unstructured};
use twofold_abi::bundle::{self, Header};
use twofold_launch::image::Image;
use twofold_launch::{GuestError, GuestSettings, Pages, TestMemory, guest, layout};
use twofold_vmm::config::{Config, ConfigError};
use twofold_vmm::load;
use twofold_workload::policies::Policies;
use zerocopy::{FromBytes, IntoBytes};

/// Any bytes are refused, or make a guest whose parts are inside the file. Launcher and hypervisor place these parts at
/// the same addresses.
pub fn bundle(data: &[u8]) {
    let header = Header::read_from_prefix(data).ok().filter(|(header, _)| header.magic == bundle::MAGIC);
    let config = Config::from_bundle(data);
    let Some((header, _)) = header else { return assert_eq!(config.err(), Some(ConfigError::NoBundle)) };
    assert_eq!(header.as_bytes(), &data[..size_of::<Header>()], "a header equals the bytes that it was read from");
    let config = match config {
        Ok(config) => config,
        Err(error) => return assert_ne!(error, ConfigError::NoBundle),
    };
    let part = |offset: u64, size: u64| &data[offset as usize..][..size as usize];
    assert_eq!(config.kernel, part(header.kernel_offset.get(), header.kernel_size.get()));
    assert_eq!(config.initrd, part(header.initrd_offset.get(), header.initrd_size.get()));
    assert_eq!(config.command_line.as_bytes(), &header.command_line[..header.command_line_size.get() as usize]);
    assert_eq!((config.memory, config.cpus), (header.memory.get(), header.cpus.get()));
    assert_eq!(config.ipa_bits.unwrap_or(0), header.ipa_bits.get());
    let test = config.test.map_or((0, 0), |test| (test.start, test.size()));
    assert!(test == (header.test_start.get(), header.test_size.get()) || config.test.is_none() && test.1 == 0);
    assert!((1..=64).contains(&config.cpus) && config.memory.is_multiple_of(4096) && config.memory > 0);
    check_layout(&config);
}

/// The launcher and the hypervisor agree: both refuse a guest, or both place its parts at the same addresses.
pub fn guest_bundle(data: &[u8]) {
    let _ = write_and_read(&mut Unstructured::new(data));
}

/// Checks that launcher and hypervisor place the parts at the same addresses.
fn check_layout(config: &Config<'_>) {
    // The hypervisor refuses more memory than the machine has before it computes the layout.
    if config.memory > guest::MEMORY_MAX {
        return;
    }
    let ours = load::Layout::new(config);
    let head = &config.kernel[..config.kernel.len().min(64)];
    let image = Image::parse(head, config.kernel.len() as u64);
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
    let file = |name: &str| directory.path().join(name);
    let put = |name: &str, bytes: &[u8]| fs::write(file(name), bytes).expect("there is room for a small file");
    let (kernel, initrd) = (kernel(u)?, initrd(u)?);
    put("kernel", &kernel);
    if let Some(initrd) = &initrd {
        put("initrd", initrd);
    }
    let initrd_path = initrd.as_ref().map(|_| file("initrd"));
    let guest = any_guest(u, file("kernel"), initrd_path)?;
    let path = file("bundle");
    let written = match guest.write_bundle(&path) {
        Ok(written) => written,
        Err(error) => {
            assert!(!path.exists() && !matches!(error, GuestError::Write { .. }), "{error}");
            return Ok(());
        }
    };
    let bytes = fs::read(&path).expect("the bundle was just written");
    assert_eq!((written.size, written.size % bundle::ALIGN), (bytes.len() as u64, 0));
    let config = Config::from_bundle(&bytes).unwrap_or_else(|error| panic!("{guest:?}: {error}"));
    assert_eq!((config.kernel, config.initrd), (&kernel[..], &initrd.unwrap_or_default()[..]));
    assert_eq!((config.command_line, config.memory), (&guest.command_line[..], guest.memory));
    assert_eq!((config.cpus, config.flags), (guest.cpus, guest.flags));
    assert_eq!(config.policies, guest.policies.bits());
    assert_eq!(config.ipa_bits, guest.test.map(|test| test.ipa_bits));
    let test = config.test.map(|test| (test.start, test.size(), test.slots));
    assert_eq!(test, guest.test.map(|test| (test.start(), test.size, test.slots)));
    assert!(guest.test.is_none_or(|test| config.end() <= 1 << test.ipa_bits), "{guest:?}");
    assert_eq!(config.pages == twofold_memory::Pages::Small, guest.pages == Pages::Small);
    assert!(load::Layout::new(&config).is_ok(), "{guest:?}");
    check_layout(&config);
    Ok(())
}

fn any_guest(u: &mut Unstructured<'_>, kernel: PathBuf, initrd: Option<PathBuf>) -> Result<GuestSettings> {
    let unit = *u.choose(&[1u64, 4096, 2 << 20, 1 << 30])?;
    Ok(GuestSettings {
        kernel,
        initrd,
        memory: u.int_in_range(0..=300u64)?.wrapping_mul(unit).wrapping_add(*u.choose(&[0, 64 << 20, 128 << 20])?),
        cpus: if u.arbitrary()? { u.int_in_range(0..=70)? } else { u.arbitrary()? },
        pages: *u.choose(&[Pages::Auto, Pages::Small, Pages::Blocks])?,
        flags: u.arbitrary()?,
        command_line: u.arbitrary()?,
        test: if u.arbitrary()? { Some(any_test_memory(u)?) } else { None },
        policies: Policies::from_bits(u.int_in_range(0..=bundle::POLICIES)?).unwrap_or_default(),
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

fn initrd(u: &mut Unstructured<'_>) -> Result<Option<Vec<u8>>> {
    Ok(if u.arbitrary()? { Some(vec![u.arbitrary()?; u.int_in_range(0..=9000)?]) } else { None })
}
