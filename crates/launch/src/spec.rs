// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest as a user describes it: by options, by one word of `KEY=VALUE,...`, or by a table of a file.
//!
//! Invariant: what these types accept is well-formed, and no key comes twice that has one value. Whether it is possible is
//! checked with the settings of all guests.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use crate::devices::{Backing, Devices, Disk, Network, Part};
use crate::guest::GuestSettings;
use crate::size::Size;
use crate::swap::{Mode, Store, Swap};

/// A guest. What is `None` is taken from another guest, or has a default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Its name.
    pub name: Option<String>,
    /// How many vCPUs it has.
    pub cpus: Option<u32>,
    /// Its RAM.
    pub memory: Option<Size>,
    /// The most of its RAM that the machine holds at a time; `None` without `swap`: all of it.
    pub resident: Option<Size>,
    /// Where the rest goes.
    pub swap: Option<Store>,
    /// What a vCPU does while a page is absent.
    #[serde(rename = "async-fault")]
    pub async_fault: Option<Mode>,
    /// Its share of busy CPUs.
    pub weight: Option<u32>,
    /// Its command line.
    pub append: Option<String>,
    /// Its kernel.
    pub kernel: Option<PathBuf>,
    /// Its initrd; an empty path for none.
    pub initrd: Option<PathBuf>,
    /// Its firmware, instead of kernel and initrd.
    pub firmware: Option<PathBuf>,
    /// Its disks.
    #[serde(default)]
    pub disk: Vec<Disk>,
    /// The networks of its cards.
    #[serde(default)]
    pub net: Vec<Net>,
}

/// What a card is connected with; `None`: there is no card.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Net(pub Option<Network>);

impl Spec {
    /// This guest beside `first`, from which it takes what it does not have. Disks, cards and a store for its pages are its own.
    #[must_use]
    pub fn beside(&self, first: &GuestSettings) -> GuestSettings {
        let (devices, swap) = (self.devices(&first.devices), self.swap());
        let mut guest = GuestSettings { devices, swap, ..first.clone() };
        let Self { name, cpus, memory, weight, append, kernel, initrd, firmware, .. } = self.clone();
        guest.name = name.unwrap_or_default();
        guest.cpus = cpus.unwrap_or(first.cpus);
        guest.memory = memory.map_or(first.memory, Size::bytes);
        guest.weight = weight.unwrap_or(first.weight);
        guest.command_line = append.unwrap_or(guest.command_line);
        if let Some(kernel) = kernel {
            (guest.kernel, guest.firmware) = (kernel, None);
        }
        if let Some(initrd) = initrd {
            guest.initrd = Some(initrd).filter(|path| !path.as_os_str().is_empty());
        }
        if let Some(firmware) = firmware {
            (guest.firmware, guest.kernel, guest.initrd) = (Some(firmware), PathBuf::new(), None);
        }
        guest
    }

    /// Its virtio devices.
    #[must_use]
    pub fn devices(&self, like: &Devices) -> Devices {
        let nets = self.net.iter().filter_map(|net| net.0.clone()).collect();
        Devices { disks: self.disk.clone(), nets, ..like.clone() }
    }

    /// The store for its pages.
    #[must_use]
    pub fn swap(&self) -> Option<Swap> {
        if self.resident.is_none() && self.swap.is_none() && self.async_fault.is_none() {
            return None;
        }
        // Without a limit the check refuses it, and says which are possible.
        let resident = self.resident.map_or(0, Size::bytes);
        let store = self.swap.clone().unwrap_or(Store::Memory(Duration::ZERO));
        Some(Swap { resident, store, mode: self.async_fault.unwrap_or_default() })
    }

    /// What `other` has takes the place of what this has. Disks and cards replace these.
    pub fn replace(&mut self, other: Self) {
        fn take<T>(ours: &mut Option<T>, other: Option<T>) {
            if other.is_some() {
                *ours = other;
            }
        }
        take(&mut self.name, other.name);
        take(&mut self.cpus, other.cpus);
        take(&mut self.memory, other.memory);
        take(&mut self.resident, other.resident);
        take(&mut self.swap, other.swap);
        take(&mut self.async_fault, other.async_fault);
        take(&mut self.weight, other.weight);
        take(&mut self.append, other.append);
        if other.kernel.is_some() {
            self.firmware = None;
        }
        if other.firmware.is_some() {
            (self.kernel, self.initrd) = (None, None);
        }
        take(&mut self.kernel, other.kernel);
        take(&mut self.initrd, other.initrd);
        take(&mut self.firmware, other.firmware);
        if !other.disk.is_empty() {
            self.disk = other.disk;
        }
        if !other.net.is_empty() {
            self.net = other.net;
        }
    }
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut spec = Self::default();
        let mut seen = Vec::new();
        for part in parts(text) {
            let Some((key, value)) = part.split_once('=') else {
                return Err(format!("{part:?} is not KEY=VALUE; within a value, give a comma twice"));
            };
            let failed = |why| format!("{key}={value}: {why}");
            match key {
                "name" => spec.name = Some(value.to_owned()),
                "cpus" => spec.cpus = Some(whole(value).map_err(failed)?),
                "memory" => spec.memory = Some(value.parse().map_err(failed)?),
                "resident" => spec.resident = Some(value.parse().map_err(failed)?),
                "swap" => spec.swap = Some(value.parse().map_err(|why: &str| failed(why.to_owned()))?),
                "async-fault" => spec.async_fault = Some(value.parse().map_err(|why: &str| failed(why.to_owned()))?),
                "weight" => spec.weight = Some(whole(value).map_err(failed)?),
                "append" => spec.append = Some(value.to_owned()),
                "kernel" if value.is_empty() => return Err(failed("give the path of an arm64 Image".to_owned())),
                "kernel" => spec.kernel = Some(value.into()),
                "initrd" => spec.initrd = Some(value.into()),
                "firmware" if value.is_empty() => return Err(failed("give the path of a firmware".to_owned())),
                "firmware" => spec.firmware = Some(value.into()),
                "disk" => spec.disk.push(value.parse().map_err(failed)?),
                "net" => spec.net.push(value.parse().map_err(failed)?),
                _ => return Err(format!("there is no {key:?}; the keys are {}", KEYS.join(", "))),
            }
            if seen.iter().any(|other| other == key) && !LISTS.contains(&key) {
                return Err(format!("{key} is given twice"));
            }
            seen.push(key.to_owned());
        }
        if spec.name.as_deref().is_none_or(str::is_empty) {
            return Err("give the guest a name=, by which commands and messages refer to it".to_owned());
        }
        Ok(spec)
    }
}

const KEYS: [&str; 13] = [
    "name",
    "cpus",
    "memory",
    "resident",
    "swap",
    "async-fault",
    "weight",
    "append",
    "kernel",
    "initrd",
    "firmware",
    "disk",
    "net",
];
/// Keys that may come again.
const LISTS: [&str; 2] = ["disk", "net"];

impl FromStr for Disk {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut backing, mut part, mut is_read_only) = (text, Part::default(), false);
        // A file's name may have commas: only these words at the end are not part of it.
        while let Some((rest, word)) = backing.rsplit_once(',') {
            let bytes = |size: &str| size.parse::<Size>().map(Size::bytes).map_err(|why| format!("{word}: {why}"));
            match word.split_once('=') {
                None if word == "ro" => is_read_only = true,
                Some(("offset", size)) => part.offset = bytes(size)?,
                Some(("size", size)) => part.size = Some(bytes(size)?),
                _ => break,
            }
            backing = rest;
        }
        let backing = match (backing.strip_prefix("memory:"), backing.strip_prefix("nbd:")) {
            (Some(size), _) => Backing::Memory(size.parse::<Size>()?.bytes()),
            (_, Some(socket)) if !socket.is_empty() => Backing::Server(socket.into()),
            _ if backing.is_empty() => return Err("give a file, memory:SIZE, or nbd:SOCKET".to_owned()),
            _ => Backing::File(backing.into()),
        };
        Ok(Self { backing, part, is_read_only })
    }
}

impl FromStr for Net {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let name = words.next().unwrap_or_default();
        let forwards: Vec<_> = words.map(str::to_owned).collect();
        if let Some(bad) = forwards.iter().find(|forward| name != "user" || !is_forward(forward)) {
            return Err(format!(
                "{bad:?} is no port to forward; `user` takes those of the host as tcp:HOST:PORT-:GUEST_PORT, such as \
                 user,tcp:127.0.0.1:8022-:22"
            ));
        }
        match (name, name.strip_prefix("switch:")) {
            ("none", _) => Ok(Self(None)),
            ("inner", _) => Ok(Self(Some(Network::Inner))),
            ("user", _) => Ok(Self(Some(Network::User { forwards }))),
            (_, Some(socket)) if !socket.is_empty() => Ok(Self(Some(Network::Switch(socket.into())))),
            _ => Err(format!(
                "there is no network {text:?}; give user (the host's network), switch:SOCKET (`twofold switch`), inner \
                 (the guests among themselves), or none"
            )),
        }
    }
}

/// `tcp:HOST:PORT-GUEST:PORT`, or `udp`, as QEMU's `hostfwd` takes it. Either address may be empty.
fn is_forward(text: &str) -> bool {
    let ends = |text: &str| text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let ends_of = |rest: &str| rest.split_once('-').is_some_and(|(host, guest)| ends(host) && ends(guest));
    ["tcp:", "udp:"].iter().filter_map(|kind| text.strip_prefix(kind)).any(ends_of)
}

impl TryFrom<String> for Disk {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl TryFrom<String> for Net {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

fn whole(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "give a whole number".to_owned())
}

/// The parts between commas, of which two in a row are one within a part.
fn parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        if character == ',' && rest.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(character);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::tests::GuestFiles;

    fn named(name: &str) -> Spec {
        Spec { name: Some(name.to_owned()), ..Spec::default() }
    }

    #[test]
    fn every_key_is_read() {
        let text = "name=web,cpus=2,memory=256M,weight=128,append=console=ttyAMA0,,115200 a=b,kernel=k,initrd=,\
                    disk=a.img,,ro,disk=memory:1M,net=user,,tcp:127.0.0.1:8022-:22,net=inner";
        let spec: Spec = text.parse().unwrap();
        let user = Network::User { forwards: vec!["tcp:127.0.0.1:8022-:22".to_owned()] };
        let expected = Spec {
            cpus: Some(2),
            memory: "256M".parse().ok(),
            weight: Some(128),
            append: Some("console=ttyAMA0,115200 a=b".to_owned()),
            kernel: Some("k".into()),
            initrd: Some(PathBuf::new()),
            disk: vec![
                Disk { backing: Backing::File("a.img".into()), part: Part::default(), is_read_only: true },
                Disk { backing: Backing::Memory(1 << 20), part: Part::default(), is_read_only: false },
            ],
            net: vec![Net(Some(user)), Net(Some(Network::Inner))],
            ..named("web")
        };
        assert_eq!(spec, expected);
        assert_eq!("name=web".parse(), Ok(named("web")));
        let store: Spec = "name=web,resident=64M,swap=memory:10ms,async-fault=halt".parse().unwrap();
        let expected = Swap { resident: 64 << 20, store: Store::Memory(Duration::from_millis(10)), mode: Mode::Halt };
        assert_eq!((store.swap(), named("web").swap()), (Some(expected), None));
        // Without a limit it is for the check to refuse, not to be left out.
        for half in ["name=web,swap=memory", "name=web,async-fault=pv", "name=web,async-fault=off"] {
            assert_eq!(half.parse::<Spec>().unwrap().swap().map(|swap| swap.resident), Some(0), "{half}");
        }
        assert_eq!("name=a,firmware=f".parse(), Ok(Spec { firmware: Some("f".into()), ..named("a") }));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("cpus=1", "name="),
            ("name=", "name="),
            ("name=a,cpu=1", "there is no \"cpu\"; the keys are name, cpus"),
            ("name=a,name=b", "name is given twice"),
            ("name=a,cpus=x", "cpus=x: give a whole number"),
            ("name=a,cpus=-1", "whole number"),
            ("name=a,memory=much", "memory=much: "),
            ("name=a,kernel=", "kernel="),
            ("name=a,firmware=", "firmware="),
            ("name=a,,b", "name=a,b"),
            ("name=a,", "KEY=VALUE"),
            ("name=a,append=x,y", "\"y\" is not KEY=VALUE; within a value, give a comma twice"),
            ("name=a,disk=,,ro", "give a file, memory:SIZE"),
            ("name=a,disk=memory:x", "disk=memory:x: give a number of bytes"),
            ("name=a,net=tap", "there is no network \"tap\"; give user"),
            ("name=a,net=switch:", "there is no network"),
            ("name=a,net=user,,80", "\"80\" is no port to forward"),
            ("name=a,net=user,,tcp::70000-:22", "is no port to forward"),
            ("name=a,net=none,,tcp::1-:1", "is no port to forward"),
        ] {
            match text.parse::<Spec>() {
                Err(why) => assert!(why.contains(word), "{text}: {why}"),
                Ok(spec) => assert_eq!(format!("name={}", spec.name.unwrap_or_default()), word, "{text}"),
            }
        }
    }

    #[test]
    fn a_disk_may_be_a_part_of_a_file() {
        let disk = |text: &str| text.parse::<Disk>().unwrap();
        let part = Part { offset: 1 << 20, size: Some(512 << 10) };
        let expected = Disk { backing: Backing::File("a,b".into()), part, is_read_only: true };
        assert_eq!(disk("a,b,offset=1M,size=512K,ro"), expected);
        assert_eq!(disk("a,b,ro,size=512K,offset=1M"), expected);
        assert_eq!(disk("nbd:s,offset=512").part, Part { offset: 512, size: None });
        assert_eq!(disk("a,size=1M,x").backing, Backing::File("a,size=1M,x".into()));
        assert_eq!("a,size=much".parse::<Disk>().unwrap_err().split_once(':').unwrap().0, "size=much");
    }

    #[test]
    fn a_guest_takes_what_it_lacks_from_the_first_but_no_disk_and_no_card() {
        let files = GuestFiles::new();
        let mut first = files.guest();
        first.devices.disks = vec!["a".parse().unwrap()];
        first.devices.nets = vec![Network::Inner];
        let spec = |text: &str| text.parse::<Spec>().unwrap().beside(&first);
        let same = spec("name=b");
        assert_eq!(
            (same.cpus, same.memory, &same.kernel, &same.initrd),
            (first.cpus, first.memory, &first.kernel, &first.initrd)
        );
        assert_eq!((&same.name[..], &same.devices.disks[..], &same.devices.nets[..]), ("b", &[][..], &[][..]));
        let other = spec("name=b,kernel=k,initrd=,cpus=7,net=user,net=none");
        assert_eq!((other.kernel, other.initrd, other.cpus, other.devices.nets.len()), ("k".into(), None, 7, 1));
        let firmware = spec("name=b,firmware=f");
        assert_eq!((firmware.firmware, firmware.initrd), (Some("f".into()), None));
    }

    #[test]
    fn an_option_replaces_what_a_file_has() {
        let mut spec: Spec = "name=a,cpus=2,kernel=k,initrd=i,disk=d".parse().unwrap();
        spec.replace(Spec { cpus: Some(3), firmware: Some("f".into()), ..Spec::default() });
        let expected =
            Spec { cpus: Some(3), firmware: Some("f".into()), disk: vec!["d".parse().unwrap()], ..named("a") };
        assert_eq!(spec, expected);
        spec.replace("name=b,kernel=k,disk=e".parse().unwrap());
        assert_eq!((spec.firmware, spec.kernel, spec.disk), (None, Some("k".into()), vec!["e".parse().unwrap()]));
    }
}
