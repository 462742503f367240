// SPDX-License-Identifier: Apache-2.0 OR MIT
//! For each CPU: the guest that it has loaded, the guest that it runs, and the guests that its TLB may hold.
//!
//! The vCPUs of a guest share its VMID, and each may use an ASID for a different address space. A vCPU that runs on a
//! CPU after another vCPU may hit TLB entries of that vCPU's stage 1 (Arm ARM DDI 0487K.a, D8.16).

use std::collections::HashMap;

use twofold_abi::trace::Domain;

use super::operands::{Named, What};

/// The bits of VTTBR_EL2 that hold the address of the root.
const ROOT: u64 = 0x0000_ffff_ffff_fffe;

/// Returns the address of the root in a VTTBR_EL2.
pub fn root_of(vttbr: u64) -> u64 {
    vttbr & ROOT
}

/// Returns the VMID in a VTTBR_EL2.
pub fn vmid_of(vttbr: u64) -> u16 {
    (vttbr >> 48) as u16
}

/// The state of all CPUs.
#[derive(Clone, Default)]
pub struct Guests {
    cpus: HashMap<u32, Cpu>,
}

#[derive(Clone, Default)]
struct Cpu {
    /// VTTBR_EL2, if known, and the event that loaded it.
    loaded: Option<(u64, usize)>,
    /// Whether the context was synchronized after that.
    synchronized: bool,
    inside: Option<Inside>,
    /// For each VMID: the vCPU whose stage 1 the TLB may hold, and the event at which it entered.
    ran: HashMap<u16, (u32, usize)>,
    /// Invalidations of stage 1 that no DSB has completed yet: the VMID, and whether they are broadcast.
    issued: Vec<(u16, bool)>,
}

#[derive(Clone, Copy)]
struct Inside {
    vcpu: u32,
    vmid: u16,
    at: usize,
}

/// A description of the breach, and the earlier event that conflicts.
pub type Wrong = (String, Option<usize>);

impl Guests {
    fn cpu(&mut self, cpu: u32) -> &mut Cpu {
        self.cpus.entry(cpu).or_default()
    }

    /// A CPU loads VTTBR_EL2.
    pub fn load(&mut self, at: usize, cpu: u32, vttbr: u64) {
        let cpu = self.cpu(cpu);
        cpu.synchronized = cpu.loaded.is_some_and(|(before, _)| before == vttbr) && cpu.synchronized;
        cpu.loaded = Some((vttbr, at));
    }

    pub fn synchronize(&mut self, cpu: u32) {
        self.cpu(cpu).synchronized = true;
    }

    /// Returns a CPU that has this root loaded.
    pub fn with_root(&self, root: u64) -> Option<(u32, usize)> {
        let mut cpus = self.cpus.iter();
        cpus.find_map(|(cpu, state)| {
            state.loaded.filter(|(vttbr, _)| root_of(*vttbr) == root).map(|(_, at)| (*cpu, at))
        })
    }

    /// A CPU issues an invalidation, which applies to the VTTBR_EL2 that it has loaded.
    pub fn invalidate(&mut self, cpu: u32, vttbr: u64, named: &Named) -> Result<(), Wrong> {
        let cpu = self.cpu(cpu);
        if !matches!(named.what, What::ByIpa { .. }) {
            cpu.issued.push((vmid_of(vttbr), named.broadcast));
        }
        match cpu.loaded {
            Some((loaded, at)) if loaded != vttbr => Err((format!("the CPU has loaded {loaded:#x}"), Some(at))),
            Some((_, at)) if !cpu.synchronized => Err(("no ISB followed the load of VTTBR_EL2".to_owned(), Some(at))),
            _ => Ok(()),
        }
    }

    /// A CPU executes a DSB; one that waits for stores only completes no TLBI.
    pub fn barrier(&mut self, cpu: u32, domain: Domain) {
        if matches!(domain, Domain::IshSt | Domain::NshSt) {
            return;
        }
        let everywhere = domain == Domain::Ish;
        let issued = std::mem::take(&mut self.cpu(cpu).issued);
        for (vmid, broadcast) in issued {
            if broadcast && everywhere {
                self.cpus.values_mut().for_each(|cpu| cpu.forget(vmid));
            } else {
                self.cpu(cpu).forget(vmid);
            }
        }
    }

    /// A CPU enters a guest.
    pub fn enter(&mut self, at: usize, cpu: u32, vcpu: u32, vttbr: u64) -> Result<(), Wrong> {
        let (cpu, vmid) = (self.cpu(cpu), vmid_of(vttbr));
        let before = cpu.ran.insert(vmid, (vcpu, at));
        let inside = cpu.inside.replace(Inside { vcpu, vmid, at });
        cpu.synchronized = true;
        if let Some(Inside { vcpu, at, .. }) = inside {
            return Err((format!("the CPU is inside already, as vCPU {vcpu}"), Some(at)));
        }
        match before {
            Some((other, at)) if other != vcpu => {
                Err((format!("the TLB may hold stage-1 entries of vCPU {other}, which ran here last"), Some(at)))
            }
            _ => Ok(()),
        }
    }

    /// Returns the loaded VTTBR_EL2, if it differs from `vttbr`.
    pub fn differs_from_loaded(&self, cpu: u32, vttbr: u64) -> Option<(u64, usize)> {
        self.cpus.get(&cpu)?.loaded.filter(|(loaded, _)| *loaded != vttbr)
    }

    /// A CPU leaves its guest.
    pub fn leave(&mut self, cpu: u32, vcpu: u32) -> Result<(), Wrong> {
        match self.cpu(cpu).inside.take() {
            Some(inside) if inside.vcpu == vcpu => Ok(()),
            Some(inside) => Err((format!("the CPU is inside as vCPU {}", inside.vcpu), Some(inside.at))),
            None => Err(("the CPU is in no guest".to_owned(), None)),
        }
    }
}

impl Cpu {
    /// The TLB holds no stage-1 entries of this VMID, unless a guest with it runs and refills the TLB.
    fn forget(&mut self, vmid: u16) {
        if self.inside.is_none_or(|inside| inside.vmid != vmid) {
            self.ran.remove(&vmid);
        }
    }
}
