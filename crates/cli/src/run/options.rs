// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `twofold run`, and the guests that they ask for.
//!
//! Invariant: options of the first guest come before those of a file, and those before a default. Further guests are those of
//! the file, then those of `--guest`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Deserialize;
use twofold_abi::bundle::{WEIGHT_MAX, flags};
use twofold_abi::virt::MAX_CPUS;
use twofold_launch::devices::Disk;
use twofold_launch::guest::{NAME_DEFAULT, WEIGHT_DEFAULT};
use twofold_launch::size::Size;
use twofold_launch::spec::{Net, Spec};
use twofold_launch::swap::{Mode, Store};
use twofold_launch::{Devices, GuestSettings, Pages, machine};
use twofold_workload::policies::Policies;

use super::config::Config;

/// The options that say what a guest is.
const OF_GUESTS: [&str; 18] = [
    "kernel",
    "initrd",
    "append",
    "firmware",
    "cpus",
    "memory",
    "resident",
    "swap",
    "async_fault",
    "share_resident",
    "name",
    "weight",
    "guest",
    "config",
    "dtb_dump",
    "restart",
    "pages",
    "attach",
];

/// The options that do not go with a guest that another machine sends: of those that say what a guest is, only its memory has a
/// meaning then, as a limit.
fn not_incoming() -> impl Iterator<Item = &'static str> {
    OF_GUESTS.into_iter().filter(|option| *option != "memory").chain(["disk", "from"])
}

/// Options of `run`.
#[derive(Args, Clone, Debug, Default)]
pub struct Options {
    /// An uncompressed arm64 Image, or a program as an ELF file that is linked for RAM, which starts at 0x40000000
    #[arg(long, value_name = "FILE", conflicts_with = "firmware")]
    pub kernel: Option<PathBuf>,
    /// The kernel's initrd
    #[arg(long, value_name = "FILE", conflicts_with = "firmware")]
    pub initrd: Option<PathBuf>,
    /// The guest's command line. Default: none, and Linux finds its console in the device tree
    #[arg(long, value_name = "TEXT")]
    pub append: Option<String>,
    /// A firmware that starts at address 0, instead of a kernel, such as U-Boot's for qemu_arm64: at most 64M
    #[arg(long, value_name = "FILE")]
    pub firmware: Option<PathBuf>,
    /// Number of vCPUs, 1 to 64. Default: 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CPUS)))]
    pub cpus: Option<u32>,
    /// Guest memory in bytes, or with K, M or G (powers of 1024): a multiple of 4K, 64M to 255G. Default: 512M
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    /// The most of the guest's memory that the machine holds at a time; the rest leaves to the store of --swap. A multiple of 4K,
    /// 64K at least for each vCPU. Default: all of it
    #[arg(long, value_name = "SIZE")]
    pub resident: Option<Size>,
    /// Where the guest's pages leave to: FILE, a raw image that is overwritten, as large as the guest's memory and 2M; nbd:SOCKET,
    /// an NBD server; `memory`, the machine's memory; memory:10ms or memory:100us lets each transfer take that time.
    /// Default: memory
    #[arg(long, value_name = "FILE|nbd:SOCKET|memory[:TIME]", requires = "resident")]
    pub swap: Option<Store>,
    /// What a vCPU does while a page is absent: `off` waits for it, `halt` takes interrupts meanwhile, with `pv` a guest that
    /// knows how runs another task (docs/async-page-fault.md). Default: off
    #[arg(long, value_name = "off|halt|pv", requires = "resident")]
    pub async_fault: Option<Mode>,
    /// Guests with --resident share what they may have in memory, the sum of it: what one does not need, another has, and gets it
    /// back when it needs its own (docs/run.md)
    #[arg(long)]
    pub share_resident: bool,
    /// A disk: FILE is a raw image, a multiple of 512 bytes; `,ro` behind it has nothing write to it. Or memory:SIZE, which
    /// is lost at the end, or nbd:SOCKET, an NBD server. `,offset=SIZE` and `,size=SIZE` behind a file or a server take a
    /// part. Again for more disks
    #[arg(long, value_name = "FILE[,ro]|memory:SIZE|nbd:SOCKET")]
    pub disk: Vec<Disk>,
    /// A network card: `user` for the host's network, with ports of the host that lead in as
    /// user,tcp:127.0.0.1:8022-:22; switch:SOCKET for `twofold switch`; `inner` for the guests among themselves; `none`.
    /// Again for more cards. Default: none
    #[arg(long, value_name = "user|switch:SOCKET|inner|none")]
    pub net: Vec<Net>,
    /// The guest's name: 1 to 15 letters from a to z, digits and hyphens. Default: guest
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The guest's share of busy CPUs, in relation to the other guests' weights: 1 to 1024. Default: 64
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(WEIGHT_MAX)))]
    pub weight: Option<u32>,
    /// One more guest, as KEY=VALUE,...: a `name`, and as wanted `cpus`, `memory`, `weight`, `append`, `kernel`, `initrd`
    /// (empty for none), `firmware`, `disk`, `net`, as in the options of these names. What it lacks is the first guest's, but
    /// disks and cards are its own. Two commas within a value are one. Again for more guests
    #[arg(long, value_name = "SPEC")]
    pub guest: Vec<Spec>,
    /// A file with the same (docs/run.md). Options replace what it says of the first guest
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Goes on with the guest in this file, which `twofold snapshot` has written: its settings and images are there, too. Its disks are
    /// where they were, and its network cards lead to where they led. --disk, once for each disk, says where the same disk is now;
    /// --net, once for each card, gives it another network
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_GUESTS)]
    pub from: Option<PathBuf>,
    /// Waits at this address, such as :4444, for a guest that `twofold migrate` moves here. --key and --owner are those of the other
    /// side. --memory is the most memory that the guest may have, and --net, once for each card, gives its cards other networks
    #[arg(long, value_name = "[HOST]:PORT", conflicts_with_all = not_incoming(), requires_all = ["key", "owner"])]
    pub incoming: Option<String>,
    /// The key of a move: a file with 64 hexadecimal digits, as `openssl rand -hex 32` writes them, which its owner alone can read
    #[arg(long, value_name = "FILE", requires = "incoming")]
    pub key: Option<PathBuf>,
    /// The owner record of a guest that moves: a file that both sides reach, which says which side runs the guest
    #[arg(long, value_name = "FILE", requires = "incoming")]
    pub owner: Option<PathBuf>,
    /// Takes no guest whose pages follow it (`twofold migrate --postcopy`)
    #[arg(long, requires = "incoming")]
    pub no_postcopy: bool,
    /// Writes the guests' device trees to FILE (NAME.FILE for each, if there are several), and starts nothing
    #[arg(long, value_name = "FILE")]
    pub dtb_dump: Option<PathBuf>,
    /// The hypervisor's image, instead of the one in this command
    #[arg(long, value_name = "FILE")]
    pub image: Option<PathBuf>,
    /// Lets a guest that asks for a reset begin anew from its images; without it, the last guest's reset ends the run
    #[arg(long)]
    pub restart: bool,
    /// Number of the machine's CPUs, which the vCPUs share, 1 to 64. Default: one for each vCPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CPUS)))]
    pub host_cpus: Option<u32>,
    /// Size of the mappings of guest memory. Default: auto
    #[arg(long, value_enum)]
    pub pages: Option<PagesOption>,
    /// CPU model, a value of QEMU's -cpu
    #[arg(long, value_name = "MODEL", default_value = machine::CPU_DEFAULT)]
    pub cpu: String,
    /// Gives standard input and output to the console of this guest. Default: on a terminal the first guest; without one, each
    /// line of all guests, with the guest's name if there are several
    #[arg(long, value_name = "NAME")]
    pub attach: Option<String>,
    /// Seconds after which the guests are ended. Default: none
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: Option<u64>,
}

/// Values of `--pages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PagesOption {
    /// The largest size that alignment and backing allow
    Auto,
    /// 4 KiB pages only
    #[value(name = "4k")]
    #[serde(rename = "4k")]
    Small,
    /// Blocks of 2 MiB or 1 GiB only; guest memory must be a multiple of 2M
    Blocks,
}

impl From<PagesOption> for Pages {
    fn from(option: PagesOption) -> Self {
        match option {
            PagesOption::Auto => Self::Auto,
            PagesOption::Small => Self::Small,
            PagesOption::Blocks => Self::Blocks,
        }
    }
}

impl Options {
    /// Takes what the file has and the options do not. Returns the further guests of the file.
    pub fn complete(&mut self, config: Config) -> Vec<Spec> {
        let Config { guest, image, restart, share_resident, host_cpus, pages } = config;
        let mut guests = guest.into_iter();
        let mut first = guests.next().unwrap_or_default();
        first.replace(self.first());
        self.set_first(first);
        self.image = self.image.take().or(image);
        self.restart |= restart;
        self.share_resident |= share_resident;
        self.host_cpus = self.host_cpus.or(host_cpus);
        self.pages = self.pages.or(pages);
        guests.collect()
    }

    /// The settings of all guests. `more` are further guests before those of `--guest`.
    pub fn guests(&self, more: &[Spec]) -> Vec<GuestSettings> {
        let first = self.first();
        let base = GuestSettings {
            name: NAME_DEFAULT.to_owned(),
            weight: WEIGHT_DEFAULT,
            firmware: None,
            kernel: PathBuf::new(),
            initrd: None,
            command_line: String::new(),
            memory: 512 << 20,
            cpus: 1,
            pages: self.pages.map_or(Pages::Auto, Pages::from),
            flags: flags::CONSOLES
                | if self.restart { flags::RESTART } else { 0 }
                | if self.share_resident { flags::SHARE_RESIDENT } else { 0 },
            // Random bytes for the guest's first keys; a balloon, so that memory that it does not use is the machine's.
            devices: Devices { has_random: true, has_balloon: true, ..Devices::default() },
            swap: None,
            test: None,
            policies: Policies::default(),
        };
        let name = first.name.clone().unwrap_or_else(|| base.name.clone());
        let first = GuestSettings { name, ..first.beside(&base) };
        let more: Vec<_> = more.iter().chain(&self.guest).map(|spec| spec.beside(&first)).collect();
        [vec![first], more].concat()
    }

    fn first(&self) -> Spec {
        let Self { name, cpus, memory, resident, swap, async_fault, weight, append, .. } = self.clone();
        let Self { kernel, initrd, firmware, disk, net, .. } = self.clone();
        Spec { name, cpus, memory, resident, swap, async_fault, weight, append, kernel, initrd, firmware, disk, net }
    }

    fn set_first(&mut self, spec: Spec) {
        let Spec { name, cpus, memory, resident, swap, async_fault, weight, append, .. } = spec;
        let Spec { kernel, initrd, firmware, disk, net, .. } = spec;
        let rest = Self { name, cpus, memory, resident, swap, async_fault, weight, append, ..self.clone() };
        *self = Self { kernel, initrd, firmware, disk, net, ..rest };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use twofold_launch::devices::Network;

    #[test]
    fn options_come_before_the_file_and_the_file_before_defaults() {
        let config = "pages = \"4k\"\n[[guest]]\nname = \"web\"\nkernel = \"k\"\ncpus = 2\ndisk = [\"a\"]\n\
                      [[guest]]\nname = \"db\"\nnet = [\"inner\"]\n";
        let mut options =
            Options { cpus: Some(3), guest: vec!["name=c,memory=1G".parse().unwrap()], ..Options::default() };
        let more = options.complete(toml::from_str(config).unwrap());
        let guests = options.guests(&more);
        let names: Vec<_> = guests.iter().map(|guest| (guest.name.as_str(), guest.cpus, guest.memory >> 20)).collect();
        assert_eq!(names, [("web", 3, 512), ("db", 3, 512), ("c", 3, 1024)]);
        assert!(guests.iter().all(|guest| guest.kernel.to_str() == Some("k") && guest.pages == Pages::Small));
        assert_eq!((guests[0].devices.disks.len(), guests[1].devices.disks.len()), (1, 0));
        assert_eq!((&guests[0].devices.nets[..], &guests[1].devices.nets[..]), (&[][..], &[Network::Inner][..]));
    }
}
