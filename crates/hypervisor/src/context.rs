// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The registers of a vCPU, as data: what `world` switches, and what an answer changes.

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
    pub(crate) host: [u64; 2],
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
