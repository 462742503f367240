// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The registers of a vCPU, as data: `world` switches them, and an answer to an exit changes them.

/// The registers of a vCPU that EL2 overwrites. All of them may be changed between an exit and the next entry.
#[derive(Clone, Debug)]
#[repr(C, align(16))] // SP may point to it
pub struct Context {
    /// x0 to x30.
    pub x: [u64; 31],
    /// The address where the guest continues (ELR_EL2).
    pub pc: u64,
    /// The guest's PSTATE (SPSR_EL2).
    pub pstate: u64,
    /// While the guest runs: SP_EL2 and the return address for the exit path.
    pub(crate) host: [u64; 2],
}

impl Context {
    /// EL1 with SP_EL1, interrupts masked: the state at the entry of a kernel.
    pub const EL1H_MASKED: u64 = 0x3c5;

    /// A vCPU that starts at `pc` with `x0`, by the rules of PSCI CPU_ON and of the Linux boot protocol.
    #[must_use]
    pub const fn new(pc: u64, x0: u64) -> Self {
        let mut x = [0; 31];
        x[0] = x0;
        Self { x, pc, pstate: Self::EL1H_MASKED, host: [0; 2] }
    }

    /// Continues after the A64 instruction that trapped, as if it had been executed: it clears BTYPE and SS.
    pub fn skip(&mut self) {
        const BTYPE: u64 = 3 << 10;
        const SINGLE_STEP: u64 = 1 << 21;
        self.pc = self.pc.wrapping_add(4);
        self.pstate &= !(BTYPE | SINGLE_STEP);
    }
}
