// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's devices as arguments of QEMU.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{Backing, HostCard, HostDevices, HostDisk, Network};

impl HostDevices {
    /// QEMU's arguments, each an option with its value.
    pub fn add(&self, add: &mut impl FnMut(&str, OsString)) {
        for (number, disk) in self.disks.iter().enumerate() {
            let HostDisk { serial, backing, .. } = disk;
            let access = if disk.is_read_only() { "on" } else { "off" };
            let place = match backing {
                Backing::Server(_) => "file.driver=nbd,file.server.type=unix,file.server.path=",
                _ if self.are_taken_over && disk.is_written() => "file.driver=file,file.locking=off,file.filename=",
                _ => "file.driver=file,file.filename=",
            };
            let head = format!("driver=raw,node-name=disk{number},read-only={access},discard=unmap,{place}");
            add("-blockdev", joined(&head, disk.path()));
            // By default QEMU stops the machine, so all guests, if the host's disk is full.
            let errors = "rerror=report,werror=report";
            add("-device", format!("virtio-blk-device,drive=disk{number},serial={serial},{errors}").into());
        }
        for (number, HostCard { mac, network }) in self.cards.iter().enumerate() {
            match network {
                // No card stands behind it.
                Network::Inner => continue,
                Network::User { forwards } => {
                    let forwards: String = forwards.iter().map(|forward| format!(",hostfwd={forward}")).collect();
                    add("-netdev", format!("user,id=net{number}{forwards}").into());
                }
                Network::Switch(path) => {
                    let head = format!("stream,id=net{number},server=off,addr.type=unix,addr.path=");
                    add("-netdev", joined(&head, path));
                }
            }
            let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
            add("-device", format!("virtio-net-device,netdev=net{number},mac={mac}").into());
        }
    }
}

/// An argument of QEMU that ends in a path. QEMU ends a value at a comma that is not doubled.
fn joined(head: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(head);
    for (number, part) in path.as_os_str().as_bytes().split(|byte| *byte == b',').enumerate() {
        if number > 0 {
            argument.push(",,");
        }
        argument.push(<OsStr as OsStrExt>::from_bytes(part));
    }
    argument
}

#[cfg(test)]
mod tests {
    use super::super::check::tests::{WHOLE, host_disk, server};
    use super::super::records::uplink;
    use super::*;

    #[test]
    fn qemu_is_given_each_device() {
        let disk = host_disk("a,b.img".into(), &[(WHOLE, true)]);
        let forwards = vec!["tcp:127.0.0.1:8022-:22".to_owned()];
        let cards = [(uplink(0), Network::User { forwards }), (uplink(3), Network::Switch("s,w".into()))];
        let cards = cards.map(|(mac, network)| HostCard { mac, network }).to_vec();
        let mut all = Vec::new();
        // Another QEMU has the image that is written, and only that one.
        let taken = vec![host_disk("b.img".into(), &[(WHOLE, false)]), disk.clone(), server(Path::new("s,1"))];
        let mut locks = Vec::new();
        HostDevices { disks: taken, are_taken_over: true, ..HostDevices::default() }.add(&mut |_, value| {
            locks.push(
                value.to_str().unwrap().contains("read-only=off")
                    == value.to_str().unwrap().contains("file.locking=off,file.filename=b.img"),
            )
        });
        assert_eq!(locks, [true, true, true, true, false, true], "an NBD server has no lock");
        HostDevices { disks: vec![disk, server(Path::new("s,1"))], cards, ..HostDevices::default() }
            .add(&mut |option, value| all.push(format!("{option} {}", value.to_str().unwrap())));
        assert_eq!(
            all,
            [
                "-blockdev driver=raw,node-name=disk0,read-only=on,discard=unmap,file.driver=file,file.filename=a,,b.img",
                "-device virtio-blk-device,drive=disk0,serial=twofold-0-0,rerror=report,werror=report",
                "-blockdev driver=raw,node-name=disk1,read-only=off,discard=unmap,file.driver=nbd,file.server.type=unix,\
                 file.server.path=s,,1",
                "-device virtio-blk-device,drive=disk1,serial=twofold-0-0,rerror=report,werror=report",
                "-netdev user,id=net0,hostfwd=tcp:127.0.0.1:8022-:22",
                "-device virtio-net-device,netdev=net0,mac=02:74:66:01:00:00",
                "-netdev stream,id=net1,server=off,addr.type=unix,addr.path=s,,w",
                "-device virtio-net-device,netdev=net1,mac=02:74:66:01:00:03",
            ]
        );
    }
}
