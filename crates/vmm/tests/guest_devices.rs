// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Disks and network cards of several guests: what does not fit together is refused by guest and option, what is admitted
//! is counted, and the device tree has a node for each.

use dtoolkit::fdt::Fdt;
use dtoolkit::{Cells, Node, Property};
use twofold_abi::bundle::{self, disk};
use twofold_abi::virt;
use twofold_memory::Pages;
use twofold_vmm::config::Config;
use twofold_vmm::device_tree;
use twofold_vmm::guests::{
    Admitted, DEVICE_MEMORY, Guest, HOST_DISK_MEMORY, Host, Refused, Why, admit, device_memory, plugs,
};
use twofold_vmm::load::Layout;
use twofold_vmm::name::Name;
use twofold_vmm::scheduler::Weight;
use twofold_vmm::switch::{Plug, Switch};

const MIB: u64 = 1 << 20;
const HOST: Host = Host { free: 4 << 30, vmid_bits: 8, page: 4096, missing: None };
const NO_UPLINK: [u8; 6] = [0; 6];
const UPLINK: [u8; 6] = [2, 0, 0, 0, 1, 0];

/// The head of an Image of 16 MiB.
fn image() -> Vec<u8> {
    let mut image = vec![0; 64];
    image[16..24].copy_from_slice(&(16 * MIB).to_le_bytes());
    image[56..60].copy_from_slice(b"ARM\x64");
    image
}

fn guest<'a>(
    name: &str,
    kernel: &'a [u8],
    disks: &'a [bundle::Disk],
    nets: &'a [bundle::Net],
    devices: u32,
) -> Guest<'a> {
    let config = Config {
        kernel,
        initrd: &[],
        firmware: &[],
        devices,
        disks,
        nets,
        command_line: "",
        memory: 256 * MIB,
        cpus: 1,
        pages: Pages::Largest,
        flags: 0,
        ipa_bits: None,
        test: None,
        policies: 0,
        swap: None,
    };
    Guest { name: Name::new(name).unwrap(), config, weight: Weight::checked(64).unwrap() }
}

fn host_disk(id: &str, (start, sectors): (u64, u64), is_read_only: bool) -> bundle::Disk {
    let mut bytes = [0; disk::ID_MAX];
    bytes[..id.len()].copy_from_slice(id.as_bytes());
    let flags = if is_read_only { disk::READ_ONLY } else { 0 };
    let (start, sectors) = (start.into(), sectors.into());
    bundle::Disk { kind: disk::HOST.into(), flags: flags.into(), id: bytes, start, sectors }
}

fn memory_disk(sectors: u64) -> bundle::Disk {
    let (flags, id) = (0.into(), [0; disk::ID_MAX]);
    bundle::Disk { kind: disk::MEMORY.into(), flags, id, start: 0.into(), sectors: sectors.into() }
}

fn net(number: u8, network: u32, uplink: [u8; 6]) -> bundle::Net {
    bundle::Net { network: network.into(), mac: [2, 0, 0, 0, 0, number], uplink }
}

/// Why the second of two guests is refused, if it is.
fn refused(
    first: (&[bundle::Disk], &[bundle::Net]),
    second: (&[bundle::Disk], &[bundle::Net]),
) -> Option<(Why, String)> {
    let kernel = image();
    let guests = [guest("one", &kernel, first.0, first.1, 0), guest("two", &kernel, second.0, second.1, 0)];
    match admit(&guests, &HOST) {
        Ok(_) => None,
        Err(error) => {
            let text = error.to_string();
            let Refused::Guest { name, why } = error else { panic!("{text}") };
            assert_eq!(&*name.to_string(), "two", "{text}");
            Some((why, text))
        }
    }
}

#[test]
fn an_address_is_that_of_one_card() {
    let (why, text) =
        refused((&[], &[net(1, 0, NO_UPLINK)]), (&[], &[net(2, 0, NO_UPLINK), net(1, 1, NO_UPLINK)])).unwrap();
    assert!(
        matches!(why, Why::SameMac { number: 2, .. }) && text.contains("--net 2") && text.contains("\"one\""),
        "{text}"
    );
    let (why, _) = refused((&[], &[]), (&[], &[net(1, 0, NO_UPLINK), net(1, 0, NO_UPLINK)])).unwrap();
    assert!(matches!(why, Why::SameMac { number: 2, .. }), "{why:?}");
    assert!(refused((&[], &[net(1, 0, NO_UPLINK)]), (&[], &[net(2, 0, NO_UPLINK)])).is_none());
}

#[test]
fn a_network_has_one_uplink() {
    let (why, text) = refused((&[], &[net(1, 3, UPLINK)]), (&[], &[net(2, 3, NO_UPLINK)])).unwrap();
    assert!(matches!(why, Why::Uplink { number: 1, .. }) && text.contains("--net 1"), "{text}");
    assert!(refused((&[], &[net(1, 3, UPLINK)]), (&[], &[net(2, 4, NO_UPLINK), net(3, 3, UPLINK)])).is_none());
}

#[test]
fn a_disk_that_is_written_has_one_guest() {
    let shared = |first, second| refused((&[first], &[]), (&[memory_disk(8), second], &[]));
    let (all, low, high) = ((0, 0), (0, 100), (100, 100));
    let (why, text) = shared(host_disk("a", all, false), host_disk("a", high, true)).unwrap();
    assert!(matches!(why, Why::SharedDisk { number: 2, .. }) && text.contains("--disk 2"), "{text}");
    assert!(shared(host_disk("a", low, true), host_disk("a", (99, 1), false)).is_some());
    assert!(shared(host_disk("a", high, true), host_disk("a", (0, 101), false)).is_some());
    assert!(shared(host_disk("a", low, false), host_disk("a", high, false)).is_none());
    assert!(shared(host_disk("a", all, true), host_disk("a", all, true)).is_none());
    assert!(shared(host_disk("a", all, false), host_disk("b", all, false)).is_none());
    assert!(shared(host_disk("a", high, false), host_disk("a", low, false)).is_none());
    assert!(shared(memory_disk(8), memory_disk(8)).is_none());
    let unnamed = host_disk("", all, false);
    assert!(shared(memory_disk(8), unnamed).is_none() && shared(unnamed, memory_disk(8)).is_none());
}

#[test]
fn a_guest_gets_what_those_before_it_leave() {
    let kernel = image();
    let disks = [memory_disk(300 * 2048), host_disk("a", (0, 0), true)];
    let first = guest("one", &kernel, &disks, &[], 0);
    let Admitted { frames, disk_pages, .. } = admit(&[first], &HOST).unwrap()[0];
    assert_eq!(disk_pages, 150);
    let second = guest("two", &kernel, &disks[..1], &[], 0);
    let devices = device_memory(&[first, second]).next_multiple_of(2 * MIB);
    let taken = frames * 4096 + disk_pages * 2 * MIB;
    let host = Host { free: devices + taken + 100 * MIB, ..HOST };
    let wanted = frames.div_ceil(256) + 300;
    let why = Why::NoMemory { wanted, free: 100 };
    assert_eq!(admit(&[first, second], &host), Err(Refused::Guest { name: second.name, why }));
}

#[test]
fn disks_in_memory_are_counted() {
    let kernel = image();
    let disks = [memory_disk(4096), memory_disk(4097)];
    let admitted = admit(&[guest("one", &kernel, &disks, &[], 0)], &HOST).unwrap();
    assert_eq!(admitted[0].disk_pages, 1 + 2);
    let frames = admitted[0].frames * 4096;
    // EL2's heap for the devices themselves is a huge page.
    let exact = Host { free: frames + (3 + 1) * (2 * MIB), ..HOST };
    assert!(admit(&[guest("one", &kernel, &disks, &[], 0)], &exact).is_ok());
    let less = Host { free: exact.free - 4096, ..HOST };
    assert!(admit(&[guest("one", &kernel, &disks, &[], 0)], &less).is_err());
    let huge = [memory_disk(u64::MAX / 512)];
    assert!(admit(&[guest("one", &kernel, &huge, &[], 0)], &HOST).is_err());
}

#[test]
fn networks_have_the_ports_of_their_cards_and_uplinks() {
    let kernel = image();
    let (one, two) = ([net(1, 0, UPLINK), net(2, 5, NO_UPLINK)], [net(3, 0, UPLINK)]);
    let guests = [guest("one", &kernel, &[], &one, 0), guest("two", &kernel, &[], &two, 0)];
    let card = |number| Plug::Card([2, 0, 0, 0, 0, number]);
    assert_eq!(plugs(&guests, 0), (vec![card(1), card(3), Plug::Uplink], Some(UPLINK)));
    assert_eq!(plugs(&guests, 5), (vec![card(2)], None));
    assert_eq!(plugs(&guests, 1), (vec![], None));
    assert_eq!(device_memory(&guests), (Switch::memory(3) + Switch::memory(1)) as u64 + 3 * DEVICE_MEMORY);
    let disks = [memory_disk(8), host_disk("a", (0, 0), true)];
    let guests = [guest("one", &kernel, &disks, &[], bundle::devices::ALL)];
    // The balloon has a bit for each page.
    let bits = guests[0].config.memory.div_ceil(8 * 4096);
    assert_eq!(device_memory(&guests), 4 * DEVICE_MEMORY + HOST_DISK_MEMORY + bits);
    let disks = [memory_disk(8), memory_disk(8), host_disk("a", (0, 0), true)];
    assert_eq!(device_memory(&[guest("one", &kernel, &disks, &[], 0)]), 2 * DEVICE_MEMORY + HOST_DISK_MEMORY);
    assert_eq!(device_memory(&[]), 0);
}

/// The first disk has the first node, at the first transport: Linux calls it `vda`.
#[test]
fn each_device_has_a_node_in_the_order_of_the_transports() {
    let kernel = image();
    let (disks, nets) = ([memory_disk(8), memory_disk(16)], [net(1, 0, NO_UPLINK)]);
    let all = guest("one", &kernel, &disks, &nets, bundle::devices::ALL);
    for (guest, count) in [(all, 6), (guest("two", &kernel, &[], &[], 0), 0)] {
        let layout = Layout::new(&guest.config).unwrap();
        let blob = device_tree::build(&guest.config, &layout, &[0]);
        let tree = Fdt::new(&blob).unwrap();
        let is_virtio = |name: &&str| name.starts_with("virtio_mmio@");
        let root = tree.root();
        let names: Vec<_> = root.children().map(|node| node.name().to_owned()).collect();
        let names: Vec<_> = names.iter().map(String::as_str).filter(is_virtio).collect();
        let expected: Vec<_> = (0..count)
            .map(|number| format!("virtio_mmio@{:x}", virt::VIRTIO_BASE + number * virt::VIRTIO_SIZE))
            .collect();
        assert_eq!(names, expected);
        for (number, name) in (0..).zip(names) {
            let node = tree.find_node(&format!("/{name}")).unwrap();
            let cells: Cells<'_> = node.property("interrupts").unwrap().value_as().unwrap();
            let bytes =
                [[0, 0, 0, 0], (virt::VIRTIO_INTERRUPT - 32 + number as u32).to_be_bytes(), [0, 0, 0, 1]].concat();
            assert_eq!(node.property("interrupts").unwrap().value(), bytes, "{cells:?}");
            assert!(node.property("dma-coherent").is_some());
        }
    }
}
