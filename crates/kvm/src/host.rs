// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The properties of the host that figures depend on, for a report to record.
//!
//! The host's name is not among them. A value that the kernel does not report is `None`.

use std::thread;

use serde::Serialize;

use crate::measure::counts_instructions;
use crate::system::System;

/// A host of guests under KVM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// The kernel's release.
    pub kernel: Option<String>,
    /// Its command line.
    pub command_line: Option<String>,
    /// The architecture, by Rust's name.
    pub architecture: &'static str,
    /// x86-64: the CPU's model. arm64: MIDR_EL1 of the first CPU, as a number.
    pub cpu: Option<String>,
    /// How many CPUs this process may run on.
    pub cpus: usize,
    /// Which CPUs those are.
    pub allowed: Option<String>,
    /// The first CPU's frequency governor.
    pub governor: Option<String>,
    /// Pools of huge pages.
    pub pools: Vec<Pool>,
    /// The setting of transparent huge pages.
    pub transparent_huge_pages: Option<String>,
    /// Parameters of KVM's modules, for example `kvm.eager_page_split` and its value.
    pub parameters: Vec<(String, String)>,
    /// Whether KVM uses a second level of paging here. Without one (`kvm_pvm`, or with EPT or NPT off) it shadows the
    /// guest's tables, so its times measure something else. Such a host is for functional tests, never for a figure.
    pub second_level: Option<bool>,
    /// Whether instructions of the kernel can be counted.
    pub counts_instructions: bool,
}

/// A pool of huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pool {
    /// Bytes of a page.
    pub size: u64,
    /// How many pages there are.
    pub pages: u64,
    /// How many of them are free and not reserved.
    pub free: u64,
}

impl Host {
    /// Returns this host.
    pub fn this() -> Self {
        let count = thread::available_parallelism().map_or(1, usize::from);
        Self::of(&System::this(), count, counts_instructions())
    }

    fn of(system: &System, cpus: usize, counts_instructions: bool) -> Self {
        let parameters = parameters(system);
        Self {
            kernel: system.read("proc/sys/kernel/osrelease"),
            command_line: system.read("proc/cmdline"),
            architecture: std::env::consts::ARCH,
            cpu: cpu(system),
            cpus,
            allowed: after(system, "proc/self/status", "Cpus_allowed_list"),
            governor: system.read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            pools: pools(system),
            transparent_huge_pages: system.read("sys/kernel/mm/transparent_hugepage/enabled"),
            second_level: second_level(system, &parameters),
            parameters,
            counts_instructions,
        }
    }

    /// Returns why this host's times are not figures; `None` if they are.
    pub fn functional_only(&self) -> Option<&'static str> {
        (self.second_level == Some(false)).then_some(
            "KVM has no second level of paging here (kvm_pvm, or EPT or NPT is off): functional only, never a figure",
        )
    }
}

/// Modules whose parameters change what KVM does.
const MODULES: [&str; 4] = ["kvm", "kvm_intel", "kvm_amd", "kvm_pvm"];
/// The parameters that matter here.
const PARAMETERS: [&str; 7] = ["eager_page_split", "tdp_mmu", "ept", "npt", "nested", "pml", "nx_huge_pages"];

fn parameters(system: &System) -> Vec<(String, String)> {
    let all = MODULES.iter().flat_map(|module| PARAMETERS.map(|parameter| (module, parameter)));
    let found = all.filter_map(|(module, parameter)| {
        let value = system.read(format!("sys/module/{module}/parameters/{parameter}"))?;
        Some((format!("{module}.{parameter}"), value))
    });
    found.collect()
}

fn second_level(system: &System, parameters: &[(String, String)]) -> Option<bool> {
    if cfg!(target_arch = "aarch64") {
        return Some(true);
    }
    let switches = ["kvm_intel.ept", "kvm_amd.npt"];
    let switch = parameters.iter().find(|(name, _)| switches.contains(&name.as_str()));
    let on = switch.map(|(_, value)| matches!(value.as_str(), "Y" | "1"));
    let shadows = system.names("sys/module").iter().any(|name| name == "kvm_pvm");
    on.or(shadows.then_some(false))
}

fn cpu(system: &System) -> Option<String> {
    let identification = "sys/devices/system/cpu/cpu0/regs/identification/midr_el1";
    system.read(identification).or_else(|| after(system, "proc/cpuinfo", "model name"))
}

fn pools(system: &System) -> Vec<Pool> {
    let names = system.names("sys/kernel/mm/hugepages");
    let sizes =
        names.iter().filter_map(|name| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok());
    let pool = |size| Pool {
        size,
        pages: system.huge_pages(size, "nr_hugepages").unwrap_or(0),
        free: system.free_huge_pages(size),
    };
    let mut pools: Vec<_> = sizes.map(|kib| pool(kib << 10)).collect();
    pools.sort_by_key(|pool| pool.size);
    pools
}

/// Returns the text after a name and a colon, in the first line that has the name.
fn after(system: &System, file: &str, name: &str) -> Option<String> {
    let text = system.read(file)?;
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find_map(|(key, value)| (key.trim() == name).then(|| value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::tests::with;

    #[test]
    fn a_host_is_identified_by_its_files() {
        let (_root, system) = with(&[
            ("proc/sys/kernel/osrelease", "6.12.1\n"),
            ("proc/cpuinfo", "processor\t: 0\nmodel name\t: A CPU: fast\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "9\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "8\n"),
            ("sys/kernel/mm/hugepages/hugepages-64kB/nr_hugepages", "0\n"),
            ("sys/module/kvm/parameters/eager_page_split", "Y\n"),
            ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3\n"),
        ]);
        let host = Host::of(&system, 4, false);
        assert_eq!(host.kernel.as_deref(), Some("6.12.1"));
        assert_eq!(host.cpu.as_deref(), Some("A CPU: fast"));
        assert_eq!(host.allowed.as_deref(), Some("0-3"));
        let large = Pool { size: 2 << 20, pages: 9, free: 8 };
        assert_eq!(host.pools, [Pool { size: 64 << 10, pages: 0, free: 0 }, large]);
        assert_eq!(host.parameters, [("kvm.eager_page_split".to_owned(), "Y".to_owned())]);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn figures_need_a_second_level() {
        let of = |files: &[(&str, &str)]| Host::of(&with(files).1, 1, false);
        assert_eq!(of(&[("sys/module/kvm_intel/parameters/ept", "Y")]).second_level, Some(true));
        assert_eq!(of(&[("sys/module/kvm_amd/parameters/npt", "0")]).second_level, Some(false));
        assert_eq!(of(&[]).second_level, None);
        let pvm = of(&[("sys/module/kvm_pvm/parameters/force", "N")]);
        assert_eq!(pvm.second_level, Some(false));
        assert!(pvm.functional_only().is_some());
    }
}
