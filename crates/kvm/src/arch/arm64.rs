// SPDX-License-Identifier: Apache-2.0 OR MIT
//! arm64: a guest at EL1 with its stage 1 on. It takes no interrupts; the host's are handled by KVM and invisible to
//! it.

use std::arch::global_asm;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use kvm_bindings::{
    KVM_CAP_ARM_EAGER_SPLIT_CHUNK_SIZE, KVM_CAP_ARM_SUPPORTED_BLOCK_SIZES, KVM_EXIT_DIRTY_RING_FULL, kvm_enable_cap,
    kvm_vcpu_init,
};
use kvm_ioctls::{Cap, Kvm, VcpuExit, VcpuFd, VmFd};
use rustix::io::Errno;
use twofold_workload::mode::{Granule, Mode};
use twofold_workload::pass::{Mailbox, Pass};
use twofold_workload::stage1::{self, Leaves, Memory, Registers, Stage1, TableMemory};

use super::{Exit, Start};
use crate::error::{KvmError, Unavailable};
use crate::layout::{EXIT, Map};
use crate::mapping::Mapping;

global_asm!(
    include_str!("arm64.s"),
    MULTIPLIER = const 48271,
    COUNT = const offset_of!(Mailbox, count),
    REPEAT = const offset_of!(Mailbox, repeat),
    STOP = const offset_of!(Mailbox, stop),
    DONE = const offset_of!(Mailbox, done),
    PASSES = const offset_of!(Mailbox, passes),
    PASS = const size_of::<Pass>(),
    START = const offset_of!(Pass, start),
    RANDOM = const offset_of!(Pass, random),
);

/// The assembly loads pairs of a pass's fields.
const _: () = {
    let fields = [
        offset_of!(Pass, start),
        offset_of!(Pass, outer_count),
        offset_of!(Pass, outer_stride),
        offset_of!(Pass, inner_count),
        offset_of!(Pass, inner_stride),
        offset_of!(Pass, value),
        offset_of!(Pass, random),
        offset_of!(Pass, write_percent),
        offset_of!(Pass, random_order),
    ];
    let mut field = 0;
    while field < fields.len() {
        assert!(fields[field] == field * 8);
        field += 1;
    }
};

/// Whether the guest exits by a store to an address without memory.
pub(crate) const EXITS_BY_STORE: bool = true;

/// Returns the bits of guest-physical address of a machine for `mode`.
pub(crate) fn address_bits(kvm: &Kvm, mode: Mode) -> Result<u32, KvmError> {
    // Without the capability, a machine has 40 bits.
    let most = match kvm.check_extension_int(Cap::ArmVmIPASize) {
        0 => 40,
        bits => bits as u32,
    };
    Ok(shape(mode, most)?.0.pa_bits())
}

/// Returns the highest address at which the test slots may end.
pub(crate) fn top(bits: u32) -> u64 {
    1 << bits
}

/// The root of the tables: the registers of stage 1.
pub(crate) type Root = Registers;

/// The shape of a guest's tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape(stage1::Layout);

/// Returns the shape of the mode's tables. They map pages of its granule only, as the selftests' tables do.
pub(crate) fn shape(mode: Mode, bits: u32) -> Result<Shape, KvmError> {
    let layout = stage1::Layout::new(&mode, bits, Leaves::Pages);
    layout.map(Shape).map_err(|error| {
        let text = error.to_string();
        // The text begins with the mode, and so does ours.
        let why = text.strip_prefix(mode.name).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&text);
        KvmError::Mode { mode: mode.name, why: why.to_owned() }
    })
}

impl Shape {
    /// Bytes of a page.
    pub(crate) const fn granule(&self) -> u64 {
        self.0.granule().size()
    }

    /// Returns the bits of a virtual address.
    pub(crate) const fn va_bits(&self) -> u32 {
        self.0.va_bits()
    }

    /// Returns the most bytes of tables, root included, that it takes to map all of this.
    pub(crate) fn tables(&self, maps: &[Map]) -> Result<u64, KvmError> {
        // Each count includes a root.
        let tables = maps.iter().map(|map| Ok(self.0.tables(map.va, map.gpa, map.size).map_err(nowhere)? - 1));
        Ok((1 + tables.sum::<Result<u64, KvmError>>()?) * self.granule())
    }

    /// Builds the tables in a part of `memory` that is still all zero; returns the registers. `base` is the guest's
    /// address of `memory`, and `place` is the part, in the guest's addresses.
    pub(crate) fn build(&self, memory: &Mapping, base: u64, place: Range<u64>, maps: &[Map]) -> Result<Root, KvmError> {
        let mut room = Room { memory, base, place };
        let tables = Stage1::new(self.0, &mut room).map_err(nowhere)?;
        for map in maps {
            let kind = if map.device { Memory::Device } else { Memory::Normal };
            tables.map(&mut room, map.va, map.gpa, map.size, kind).map_err(nowhere)?;
        }
        Ok(tables.registers())
    }
}

/// The memory for tables, taken from its first page on.
struct Room<'m> {
    memory: &'m Mapping,
    base: u64,
    place: Range<u64>,
}

impl Room<'_> {
    fn entry(&self, ipa: u64) -> Result<&AtomicU64, KvmError> {
        self.memory.word(ipa.wrapping_sub(self.base)).ok_or_else(|| nowhere(format!("no table is at {ipa:#x}")))
    }
}

impl TableMemory for Room<'_> {
    type Error = KvmError;

    fn take(&mut self, size: u64) -> Result<Option<u64>, KvmError> {
        let table = self.place.start;
        let fits = table + size <= self.place.end;
        self.place.start += if fits { size } else { 0 };
        Ok(fits.then_some(table))
    }

    fn read(&mut self, ipa: u64) -> Result<u64, KvmError> {
        Ok(u64::from_le(self.entry(ipa)?.load(Ordering::Relaxed)))
    }

    fn write(&mut self, ipa: u64, entry: u64) -> Result<(), KvmError> {
        self.entry(ipa)?.store(entry.to_le(), Ordering::Relaxed);
        Ok(())
    }
}

fn nowhere(why: impl ToString) -> KvmError {
    KvmError::Nowhere(format!("the guest's tables: {}", why.to_string()))
}

/// Creates a machine with `bits` bits of guest-physical address.
pub(crate) fn create(kvm: &Kvm, bits: u32) -> Result<VmFd, KvmError> {
    let vm = kvm.create_vm_with_ipa_size(bits);
    vm.map_err(|error| Unavailable::Create { errno: Errno::from_raw_os_error(error.errno()) }.into())
}

/// Sets the eager-split chunk, which KVM refuses once there are slots; returns the chunk sizes that KVM supports.
pub(crate) fn set_chunk(vm: &VmFd, chunk: u64) -> Result<Vec<u64>, KvmError> {
    let sizes = vm.check_extension_raw(KVM_CAP_ARM_SUPPORTED_BLOCK_SIZES.into()).max(0) as u64;
    let supported: Vec<u64> = (0..64).map(|bit| 1 << bit).filter(|size| sizes & size != 0).collect();
    if chunk == 0 {
        return Ok(supported);
    }
    if supported.is_empty() {
        return Err(KvmError::Missing {
            what: "KVM_CAP_ARM_EAGER_SPLIT_CHUNK_SIZE",
            instead: "it came with Linux 6.5; leave the chunk at 0",
        });
    }
    if !supported.contains(&chunk) {
        return Err(KvmError::Chunk { chunk, supported });
    }
    let mut cap = kvm_enable_cap { cap: KVM_CAP_ARM_EAGER_SPLIT_CHUNK_SIZE, ..Default::default() };
    cap.args[0] = chunk;
    vm.enable_cap(&cap).map_err(KvmError::refused("KVM_ENABLE_CAP(KVM_CAP_ARM_EAGER_SPLIT_CHUNK_SIZE)"))?;
    Ok(supported)
}

/// Prepares the machine before vCPUs are created: nothing to do.
pub(crate) fn prepare(_vm: &VmFd) -> Result<(), KvmError> {
    Ok(())
}

/// Initializes a vCPU for the mode.
pub(crate) fn init(_kvm: &Kvm, vm: &VmFd, vcpu: &VcpuFd, mode: Mode) -> Result<(), KvmError> {
    let mut target = kvm_vcpu_init::default();
    vm.get_preferred_target(&mut target).map_err(KvmError::refused("KVM_ARM_PREFERRED_TARGET"))?;
    vcpu.vcpu_init(&target).map_err(KvmError::refused("KVM_ARM_VCPU_INIT"))?;

    // ID_AA64MMFR0_EL1: 4K and 64K granules are supported unless 0b1111, 16K granules unless 0.
    let features = get(vcpu, sysreg(0, 0, 7, 0))?;
    let field = |shift: u32| features >> shift & 0xf;
    let has = match mode.granule {
        Granule::Kib4 => field(28) != 0xf,
        Granule::Kib64 => field(24) != 0xf,
        Granule::Kib16 => field(20) != 0,
    };
    let lacks = || KvmError::Mode {
        mode: mode.name,
        why: format!("this CPU's stage 1 has no granule of {} KiB; take another", mode.granule.size() >> 10),
    };
    if has { Ok(()) } else { Err(lacks()) }
}

/// Finishes the machine after vCPUs are created: makes the interrupt controller.
pub(crate) fn finish(vm: &VmFd, vcpus: u32) -> Result<(), KvmError> {
    super::gic::create(vm, vcpus)
}

/// Sets the registers that a vCPU starts with.
pub(crate) fn start(vcpu: &VcpuFd, start: &Start) -> Result<(), KvmError> {
    let registers = [
        (sysreg(0, 10, 2, 0), start.root.mair),
        (sysreg(0, 2, 0, 2), start.root.tcr),
        (sysreg(0, 2, 0, 0), start.root.ttbr0),
        (sysreg(0, 12, 0, 0), start.code),
        (sysreg(0, 1, 0, 0), start.root.sctlr),
        (x(19), start.mailbox),
        (x(20), EXIT),
        (PC, start.code + ENTRY),
        (PSTATE, EL1H_MASKED),
    ];
    registers.into_iter().try_for_each(|(register, value)| set(vcpu, register, value))
}

/// Decodes an exit.
pub(crate) fn decode(exit: &VcpuExit<'_>) -> Exit {
    match exit {
        VcpuExit::MmioWrite(EXIT, _) => Exit::Done,
        VcpuExit::MmioWrite(at, data) if *at == EXIT + 8 => {
            let syndrome = data.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
            Exit::Other(format!("an exception, ESR_EL1 {syndrome:#x}"))
        }
        VcpuExit::Unsupported(KVM_EXIT_DIRTY_RING_FULL) => Exit::RingFull,
        other => Exit::Other(format!("{other:x?}")),
    }
}

/// Describes where a stopped vCPU is.
pub(crate) fn whereabouts(vcpu: &VcpuFd) -> String {
    let name = |name, register| match get(vcpu, register) {
        Ok(value) => format!(" {name} {value:#x}"),
        Err(_) => String::new(),
    };
    let (elr, far) = (name("ELR_EL1", ELR_EL1), name("FAR_EL1", sysreg(0, 6, 0, 0)));
    format!("{}{elr}{far}", name("pc", PC))
}

pub(super) fn set(vcpu: &VcpuFd, register: u64, value: u64) -> Result<(), KvmError> {
    vcpu.set_one_reg(register, &value.to_le_bytes()).map_err(KvmError::refused("KVM_SET_ONE_REG"))?;
    Ok(())
}

fn get(vcpu: &VcpuFd, register: u64) -> Result<u64, KvmError> {
    let mut bytes = [0; 8];
    vcpu.get_one_reg(register, &mut bytes).map_err(KvmError::refused("KVM_GET_ONE_REG"))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Returns KVM's number of a system register with op0 = 3 (arm64, 64 bits, kind 0x13).
const fn sysreg(op1: u64, crn: u64, crm: u64, op2: u64) -> u64 {
    0x6030_0000_0013_0000 | 3 << 14 | op1 << 11 | crn << 7 | crm << 3 | op2
}

/// Returns KVM's number of a word of `struct kvm_regs` (kind 0x10), which counts in units of 4 bytes.
const fn core(word: u64) -> u64 {
    0x6030_0000_0010_0000 | (word * 2)
}

pub(super) const fn x(number: u64) -> u64 {
    core(number)
}

pub(super) const PC: u64 = core(32);
pub(super) const PSTATE: u64 = core(33);
const ELR_EL1: u64 = core(35);

/// The entry comes after the vectors, which are 2 KiB.
const ENTRY: u64 = 0x800;
/// EL1 with its own stack pointer; D, A, I and F masked.
pub(super) const EL1H_MASKED: u64 = 0x3c5;
