// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The virtual CPU interface of this CPU: `ICH_*_EL2` (Arm IHI 0069H, 12.4), as the model of a guest's interrupt
//! controller uses it.
//!
//! A vCPU owns its CPU, so its state stays in these registers while EL2 handles an exit. EL2 reads and writes them only
//! for an exit that concerns interrupts.

use core::arch::asm;

use twofold_devices::vgic::{CpuInterface, control};

use crate::sysreg::isb;
use crate::{read_sysreg, write_sysreg};

/// Calls `$do` with the name of the list register of this number.
macro_rules! list_register {
    ($index:expr, $do:ident) => {
        match $index {
            0 => $do!(S3_4_C12_C12_0),
            1 => $do!(S3_4_C12_C12_1),
            2 => $do!(S3_4_C12_C12_2),
            3 => $do!(S3_4_C12_C12_3),
            4 => $do!(S3_4_C12_C12_4),
            5 => $do!(S3_4_C12_C12_5),
            6 => $do!(S3_4_C12_C12_6),
            7 => $do!(S3_4_C12_C12_7),
            8 => $do!(S3_4_C12_C13_0),
            9 => $do!(S3_4_C12_C13_1),
            10 => $do!(S3_4_C12_C13_2),
            11 => $do!(S3_4_C12_C13_3),
            12 => $do!(S3_4_C12_C13_4),
            13 => $do!(S3_4_C12_C13_5),
            14 => $do!(S3_4_C12_C13_6),
            _ => $do!(S3_4_C12_C13_7),
        }
    };
}

/// The interface of the CPU that executes.
#[derive(Debug)]
pub struct ThisCpu;

impl CpuInterface for ThisCpu {
    #[inline(always)]
    fn list_registers(&self) -> usize {
        (vtr() as usize & 0xf) + 1
    }

    #[inline(always)]
    fn preemption_bits(&self) -> u32 {
        (vtr() >> 26 & 7) as u32 + 1
    }

    #[inline(always)]
    fn list_register(&self, n: usize) -> u64 {
        macro_rules! read {
            ($name:ident) => {
                read_sysreg!($name)
            };
        }
        list_register!(n, read)
    }

    #[inline(always)]
    fn set_list_register(&mut self, n: usize, value: u64) {
        macro_rules! write {
            ($name:ident) => {
                // SAFETY: a list register holds an interrupt of the guest, which is not running.
                unsafe { write_sysreg!($name, value) }
            };
        }
        list_register!(n, write);
    }

    #[inline(always)]
    fn empty(&self) -> u16 {
        isb();
        read_sysreg!(ICH_ELRSR_EL2) as u16
    }

    #[inline(always)]
    fn ended(&self) -> u16 {
        read_sysreg!(ICH_EISR_EL2) as u16
    }

    #[inline(always)]
    fn control(&self) -> u64 {
        read_sysreg!(ICH_HCR_EL2)
    }

    #[inline(always)]
    fn set_control(&mut self, value: u64) {
        // SAFETY: the register controls only the guest's interface, and when that asks for EL2.
        unsafe { write_sysreg!(ICH_HCR_EL2, value) };
    }

    #[inline(always)]
    fn machine_control(&self) -> u64 {
        read_sysreg!(ICH_VMCR_EL2)
    }

    fn set_machine_control(&mut self, value: u64) {
        // SAFETY: the state of the guest's interface.
        unsafe { write_sysreg!(ICH_VMCR_EL2, value) };
    }

    fn active_priorities(&self, group1: bool, n: usize) -> u32 {
        (match (group1, n) {
            (false, 0) => read_sysreg!(S3_4_C12_C8_0),
            (false, 1) => read_sysreg!(S3_4_C12_C8_1),
            (false, 2) => read_sysreg!(S3_4_C12_C8_2),
            (false, _) => read_sysreg!(S3_4_C12_C8_3),
            (true, 0) => read_sysreg!(S3_4_C12_C9_0),
            (true, 1) => read_sysreg!(S3_4_C12_C9_1),
            (true, 2) => read_sysreg!(S3_4_C12_C9_2),
            (true, _) => read_sysreg!(S3_4_C12_C9_3),
        }) as u32
    }

    fn set_active_priorities(&mut self, group1: bool, n: usize, value: u32) {
        let value = u64::from(value);
        // SAFETY: the state of the guest's interface. The caller names only registers that exist.
        unsafe {
            match (group1, n) {
                (false, 0) => write_sysreg!(S3_4_C12_C8_0, value),
                (false, 1) => write_sysreg!(S3_4_C12_C8_1, value),
                (false, 2) => write_sysreg!(S3_4_C12_C8_2, value),
                (false, _) => write_sysreg!(S3_4_C12_C8_3, value),
                (true, 0) => write_sysreg!(S3_4_C12_C9_0, value),
                (true, 1) => write_sysreg!(S3_4_C12_C9_1, value),
                (true, 2) => write_sysreg!(S3_4_C12_C9_2, value),
                (true, _) => write_sysreg!(S3_4_C12_C9_3, value),
            }
        }
    }
}

/// ICH_VTR_EL2, which is constant: the compiler may read it once.
#[inline(always)]
fn vtr() -> u64 {
    let value: u64;
    // SAFETY: reading it changes nothing, and it has one value on each CPU. EL2's code stays on its CPU.
    unsafe { asm!("mrs {}, ICH_VTR_EL2", out(reg) value, options(pure, nomem, nostack, preserves_flags)) };
    value
}

impl ThisCpu {
    /// Whether the interface signals the interrupts of its vCPU. Those that it does not signal stay pending.
    pub fn signal(&mut self, does: bool) {
        let others = self.control() & !control::EN;
        self.set_control(others | if does { control::EN } else { 0 });
        isb();
    }

    /// Empties the list registers: what an earlier vCPU of this CPU, or firmware, has left there.
    pub fn clear(&mut self) {
        self.set_control(0);
        for n in 0..self.list_registers() {
            self.set_list_register(n, 0);
        }
        isb();
    }
}
