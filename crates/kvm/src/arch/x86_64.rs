// SPDX-License-Identifier: Apache-2.0 OR MIT
//! x86-64: a guest in long mode at ring 0. It has no interrupt controller; the host's interrupts are handled by KVM and
//! invisible to it.

use std::arch::global_asm;
use std::mem::offset_of;

use kvm_bindings::{KVM_EXIT_DIRTY_RING_FULL, KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_segment};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use rustix::io::Errno;
use twofold_workload::mode::Mode;
use twofold_workload::pass::{Mailbox, Pass};

pub(crate) use super::tables::Shape;
use super::{Exit, Start};
use crate::error::{KvmError, Unavailable};
use crate::options::KvmOptions;
use crate::system::System;

global_asm!(
    include_str!("x86_64.s"),
    PORT = const PORT,
    MULTIPLIER = const 48271,
    COUNT = const offset_of!(Mailbox, count),
    REPEAT = const offset_of!(Mailbox, repeat),
    STOP = const offset_of!(Mailbox, stop),
    DONE = const offset_of!(Mailbox, done),
    PASSES = const offset_of!(Mailbox, passes),
    PASS = const size_of::<Pass>(),
    START = const offset_of!(Pass, start),
    GROUPS = const offset_of!(Pass, outer_count),
    GROUP_STRIDE = const offset_of!(Pass, outer_stride),
    PLACES = const offset_of!(Pass, inner_count),
    STRIDE = const offset_of!(Pass, inner_stride),
    VALUE = const offset_of!(Pass, value),
    RANDOM = const offset_of!(Pass, random),
    PERCENT = const offset_of!(Pass, write_percent),
    RANDOM_ORDER = const offset_of!(Pass, random_order),
);

/// Whether the guest exits by a store to an address without memory.
pub(crate) const EXITS_BY_STORE: bool = false;

/// Returns the bits of guest-physical address of a machine for `mode`.
pub(crate) fn address_bits(kvm: &Kvm, mode: Mode) -> Result<u32, KvmError> {
    let only = KvmOptions::native_mode();
    if mode != only {
        let why = format!("x86-64 has only the mode {}", only.name);
        return Err(KvmError::Mode { mode: mode.name, why });
    }
    let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(KvmError::refused("KVM_GET_SUPPORTED_CPUID"))?;
    let sizes = cpuid.as_slice().iter().find(|entry| entry.function == ADDRESS_SIZES);
    Ok(sizes.map_or(36, |entry| entry.eax & 0xff))
}

/// Returns the highest address at which the test slots may end: below the range that AMD's CPUs reserve for
/// HyperTransport, from 1012 GiB on.
pub(crate) fn top(bits: u32) -> u64 {
    (1 << bits).min(1012 << 30)
}

/// The root of the tables: CR3.
pub(crate) type Root = u64;

/// Returns the shape of the mode's tables.
pub(crate) fn shape(_mode: Mode, _bits: u32) -> Result<Shape, KvmError> {
    Ok(Shape)
}

/// Creates a machine.
pub(crate) fn create(kvm: &Kvm, _bits: u32) -> Result<VmFd, KvmError> {
    let vm = kvm.create_vm();
    vm.map_err(|error| Unavailable::Create { errno: Errno::from_raw_os_error(error.errno()) }.into())
}

/// Accepts only a chunk of 0, because x86-64 has no chunk to set.
pub(crate) fn set_chunk(_vm: &VmFd, chunk: u64) -> Result<Vec<u64>, KvmError> {
    if chunk == 0 {
        return Ok(Vec::new());
    }
    Err(KvmError::ChunkOnX86 { parameter: System::this().read("sys/module/kvm/parameters/eager_page_split") })
}

/// Prepares the machine before vCPUs are created: sets the address of the three pages that KVM uses on Intel CPUs.
pub(crate) fn prepare(vm: &VmFd) -> Result<(), KvmError> {
    vm.set_tss_address(TSS).map_err(KvmError::refused("KVM_SET_TSS_ADDR"))
}

/// Finishes the machine after vCPUs are created: nothing to do.
pub(crate) fn finish(_vm: &VmFd, _vcpus: u32) -> Result<(), KvmError> {
    Ok(())
}

/// Initializes a vCPU.
pub(crate) fn init(kvm: &Kvm, _vm: &VmFd, vcpu: &VcpuFd, _mode: Mode) -> Result<(), KvmError> {
    let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(KvmError::refused("KVM_GET_SUPPORTED_CPUID"))?;
    vcpu.set_cpuid2(&cpuid).map_err(KvmError::refused("KVM_SET_CPUID2"))
}

/// Sets the registers that a vCPU starts with.
pub(crate) fn start(vcpu: &VcpuFd, start: &Start) -> Result<(), KvmError> {
    let mut system = vcpu.get_sregs().map_err(KvmError::refused("KVM_GET_SREGS"))?;
    let flat = kvm_segment { limit: u32::MAX, present: 1, s: 1, g: 1, ..Default::default() };
    system.cs = kvm_segment { selector: 8, type_: 0b1011, l: 1, ..flat };
    let data = kvm_segment { selector: 16, type_: 0b0011, db: 1, ..flat };
    (system.ds, system.es, system.fs, system.gs, system.ss) = (data, data, data, data, data);
    system.cr0 = CR0;
    system.cr3 = start.root;
    system.cr4 = PAE;
    system.efer = LONG_MODE;
    vcpu.set_sregs(&system).map_err(KvmError::refused("KVM_SET_SREGS"))?;
    // Bit 1 of the flags is always set.
    let registers = kvm_regs { rip: start.code, rdi: start.mailbox, rflags: 2, ..Default::default() };
    vcpu.set_regs(&registers).map_err(KvmError::refused("KVM_SET_REGS"))
}

/// Decodes an exit.
pub(crate) fn decode(exit: &VcpuExit<'_>) -> Exit {
    match exit {
        VcpuExit::IoOut(PORT, _) => Exit::Done,
        VcpuExit::Unsupported(KVM_EXIT_DIRTY_RING_FULL) => Exit::RingFull,
        VcpuExit::Shutdown => Exit::Other("a triple fault".to_owned()),
        other => Exit::Other(format!("{other:x?}")),
    }
}

/// Describes where a stopped vCPU is.
pub(crate) fn whereabouts(vcpu: &VcpuFd) -> String {
    match (vcpu.get_regs(), vcpu.get_sregs()) {
        (Ok(registers), Ok(system)) => {
            format!(" rip {:#x} cr2 {:#x} rbx {:#x}", registers.rip, system.cr2, registers.rbx)
        }
        _ => String::new(),
    }
}

/// The port of the guest's exits, which no device uses.
const PORT: u16 = 0x7f0;
/// The address of KVM's own pages: at the end of 4 GiB below the reset vector, the usual place.
const TSS: usize = 0xfffb_d000;
/// The CPUID leaf with the sizes of addresses.
const ADDRESS_SIZES: u32 = 0x8000_0008;
/// PE, ET, NE, WP and PG.
const CR0: u64 = 1 | 1 << 4 | 1 << 5 | 1 << 16 | 1 << 31;
/// CR4.
const PAE: u64 = 1 << 5;
/// EFER: LME and LMA.
const LONG_MODE: u64 = 1 << 8 | 1 << 10;
