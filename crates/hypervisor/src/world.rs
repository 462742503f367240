// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The switch into the guest and back.
//!
//! While the guest runs `SP_EL2` points to its [`Context`], so the way out (in [`vectors`](crate::vectors)) can save
//! without a spare register. EL2's own registers are not saved as such: [`enter`] tells the compiler that they
//! are gone, and it keeps the few that matter. A round trip is 49 instructions: 25 up to and with the ERET, 24 from the
//! vector on.
//!
//! Only the general registers, ELR_EL2 and SPSR_EL2 are switched. FP/SIMD registers and EL1's system registers
//! stay in the hardware: EL2 uses none of them, and a CPU runs one vCPU only.
//!
//! Invariant: while a guest runs, SP_EL2 is the address of its `Context`, which `enter` borrows for that long.

use core::arch::asm;
use core::mem::offset_of;

use crate::sysreg::{id_field, isb};
use crate::{read_sysreg, write_sysreg};

/// The registers of a vCPU that EL2 overwrites. All of them may be changed between two entries.
#[derive(Clone, Debug)]
#[repr(C, align(16))] // SP may point to it
pub struct Context {
    /// x0 to x30.
    pub x: [u64; 31],
    /// Where the guest goes on (ELR_EL2).
    pub pc: u64,
    /// Its PSTATE (SPSR_EL2).
    pub pstate: u64,
    /// While the guest runs: SP_EL2 for the way out, and where it goes on.
    host: [u64; 2],
}

/// What brought the guest back to EL2. Details are in ESR_EL2, FAR_EL2 and HPFAR_EL2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Trap {
    /// A synchronous exception: an instruction or an access that traps.
    Sync = 0,
    /// A physical IRQ, still pending.
    Irq = 1,
    /// A physical FIQ, still pending.
    Fiq = 2,
    /// A physical SError.
    SError = 3,
}

impl Context {
    /// EL1 with SP_EL1, interrupts masked: the state in which a kernel is entered.
    pub const EL1H_MASKED: u64 = 0x3c5;

    /// A vCPU that starts at `pc` with `x0`, as PSCI CPU_ON and the Linux boot protocol have it.
    #[must_use]
    pub const fn new(pc: u64, x0: u64) -> Self {
        let mut x = [0; 31];
        x[0] = x0;
        Self { x, pc, pstate: Self::EL1H_MASKED, host: [0; 2] }
    }

    /// Goes on behind the A64 instruction that trapped, as if it had been executed: BTYPE and SS end with it.
    pub fn skip(&mut self) {
        const BTYPE: u64 = 3 << 10;
        const SINGLE_STEP: u64 = 1 << 21;
        self.pc = self.pc.wrapping_add(4);
        self.pstate &= !(BTYPE | SINGLE_STEP);
    }
}

/// Runs the guest until it comes back.
///
/// # Safety
/// The CPU must be set up for it: [`init_cpu`] ran, and HCR_EL2, VTTBR_EL2 and VTCR_EL2 confine the guest to memory
/// and devices that are its own. `context` must not put PSTATE at EL2.
#[inline]
pub unsafe fn enter(context: &mut Context) -> Trap {
    let trap: u64;
    // SAFETY: the caller's promise. The guest runs on the context's registers; the way out (in `vectors`) puts what they
    // are then into the context, restores SP, and goes on behind the ERET. Every register that Rust may use is
    // named as overwritten, but for two that cannot be and are kept on the stack.
    unsafe {
        asm!(
            "stp x19, x29, [sp, #-16]!",
            "mov x1, sp",
            "adr x2, 2f",
            "stp x1, x2, [x0, #{host}]",
            "ldp x1, x2, [x0, #{x30} + 8]",
            "mov sp, x0",
            "msr elr_el2, x1",
            "msr spsr_el2, x2",
            "ldp x2, x3, [sp, #16]",
            "ldp x4, x5, [sp, #32]",
            "ldp x6, x7, [sp, #48]",
            "ldp x8, x9, [sp, #64]",
            "ldp x10, x11, [sp, #80]",
            "ldp x12, x13, [sp, #96]",
            "ldp x14, x15, [sp, #112]",
            "ldp x16, x17, [sp, #128]",
            "ldp x18, x19, [sp, #144]",
            "ldp x20, x21, [sp, #160]",
            "ldp x22, x23, [sp, #176]",
            "ldp x24, x25, [sp, #192]",
            "ldp x26, x27, [sp, #208]",
            "ldp x28, x29, [sp, #224]",
            "ldr x30, [sp, #{x30}]",
            "ldp x0, x1, [sp]",
            "eret",
            // Never reached, and no speculation past the ERET either.
            "dsb nsh",
            "isb",
            "2:",
            "ldp x19, x29, [sp], #16",
            x30 = const CONTEXT_X30,
            host = const CONTEXT_HOST,
            inout("x0") &raw mut *context => trap,
            out("x1") _, out("x2") _, out("x3") _, out("x4") _, out("x5") _, out("x6") _, out("x7") _, out("x8") _,
            out("x9") _, out("x10") _, out("x11") _, out("x12") _, out("x13") _, out("x14") _, out("x15") _,
            out("x16") _, out("x17") _, out("x18") _, out("x20") _, out("x21") _, out("x22") _, out("x23") _,
            out("x24") _, out("x25") _, out("x26") _, out("x27") _, out("x28") _, out("x30") _,
        );
    }
    match trap {
        0 => Trap::Sync,
        1 => Trap::Irq,
        2 => Trap::Fiq,
        _ => Trap::SError,
    }
}

/// Sets the controls of EL2 for running a guest on this CPU, and the guest's registers that reset leaves unknown.
/// The guest may use FP, SIMD, SVE, SME, the PMU's counters, debug registers, timers and the GIC's CPU interface.
///
/// # Safety
/// No guest may have run on this CPU; `hcr` must be a value under which EL2 itself works on (E2H=0, TGE=0).
pub unsafe fn init_cpu(hcr: u64) {
    let pfr0 = read_sysreg!(ID_AA64PFR0_EL1);
    let pfr1 = read_sysreg!(ID_AA64PFR1_EL1);
    let sve = id_field(pfr0, 32) != 0;
    let sme = id_field(pfr1, 24) != 0;
    let gic_registers = id_field(pfr0, 24) != 0;
    let pmu = matches!(id_field(read_sysreg!(ID_AA64DFR0_EL1), 8), 1..0xf);
    // HPMN: all event counters are the guest's. HPMD, HCCD: they stand still at EL2.
    const NOT_AT_EL2: u64 = 1 << 17 | 1 << 23;
    let mdcr = if pmu { (read_sysreg!(PMCR_EL0) >> 11) & 0x1f | NOT_AT_EL2 } else { 0 };
    let (midr, mpidr) = (read_sysreg!(MIDR_EL1), read_sysreg!(MPIDR_EL1));
    // Bits 8 (TZ) and 12 (TSM) trap SVE and SME, and are RES1 without them.
    let cptr = 0x33ff & !(u64::from(sve) << 8) & !(u64::from(sme) << 12);

    // SAFETY: none of these changes what EL2's own code and memory mean; the registers written exist on this CPU.
    unsafe {
        write_sysreg!(HCR_EL2, hcr);
        write_sysreg!(CPTR_EL2, cptr);
        isb(); // the next two would be trapped before
        if sve {
            write_sysreg!(S3_4_C1_C2_0, 0x1ff); // ZCR_EL2: all vector lengths
        }
        if sme {
            write_sysreg!(S3_4_C1_C2_6, 0x8000_01ff); // SMCR_EL2: likewise, and FA64
        }
        write_sysreg!(HSTR_EL2, 0);
        write_sysreg!(MDCR_EL2, mdcr);
        write_sysreg!(CNTHCTL_EL2, 3); // EL1 reads the physical counter and owns the physical timer
        write_sysreg!(CNTVOFF_EL2, 0);
        write_sysreg!(VPIDR_EL2, midr);
        write_sysreg!(VMPIDR_EL2, mpidr);
        if gic_registers {
            write_sysreg!(S3_4_C12_C9_5, 0xf); // ICC_SRE_EL2: system registers at EL2 and EL1
            isb();
            write_sysreg!(S3_4_C12_C11_0, 0); // ICH_HCR_EL2: no access to the CPU interface traps
        }
        write_sysreg!(SCTLR_EL1, 0x30d0_0800); // MMU and caches off, little-endian, RES1 bits
    }
    leave_to_the_guest();
    isb();
}

/// Opens what newer architectures keep shut for a guest until EL2 says otherwise. The guest finds these features in its
/// ID registers, so it uses them; EL2 itself uses none, and a CPU runs one vCPU only.
fn leave_to_the_guest() {
    let mmfr0 = read_sysreg!(ID_AA64MMFR0_EL1);
    let mmfr1 = read_sysreg!(ID_AA64MMFR1_EL1);
    if id_field(mmfr1, 40) != 0 {
        // FEAT_HCX. EnAS0, EnALS, EnASR; MSCEn (memory copy and set); TCR2En, SCTLR2En; GCSEn; EnFPM.
        const OPEN: u64 = 0b111 | 1 << 11 | 1 << 14 | 1 << 15 | 1 << 22 | 1 << 23;
        // SAFETY: the register exists, and lets EL1 and EL0 use instructions and registers of their own.
        unsafe { write_sysreg!(S3_4_C1_C2_2, OPEN) };
    }
    if id_field(mmfr0, 56) != 0 {
        // FEAT_FGT. A bit of a register that came with it traps when set, one of a later feature when clear (its name
        // begins with n): nothing is to trap.
        const REGISTERS: u64 = 0b1111_1111_1111 << 52 | 1 << 50;
        const INSTRUCTIONS: u64 = 0b1_1111 << 55;
        const DEBUG_READS: u64 = 0b1111 << 59;
        const DEBUG_WRITES: u64 = 0b111 << 60;
        // SAFETY: the registers exist, and let EL1 and EL0 use registers and instructions of their own.
        unsafe {
            write_sysreg!(S3_4_C1_C1_4, REGISTERS); // HFGRTR_EL2
            write_sysreg!(S3_4_C1_C1_5, REGISTERS); // HFGWTR_EL2
            write_sysreg!(S3_4_C1_C1_6, INSTRUCTIONS); // HFGITR_EL2
            write_sysreg!(S3_4_C3_C1_4, DEBUG_READS); // HDFGRTR_EL2
            write_sysreg!(S3_4_C3_C1_5, DEBUG_WRITES); // HDFGWTR_EL2
        }
    }
}

pub(crate) const CONTEXT_X30: usize = offset_of!(Context, x) + 30 * 8;
pub(crate) const CONTEXT_HOST: usize = offset_of!(Context, host);
