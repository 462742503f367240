// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine's instructions as lines of the trace.

use core::ops::Deref;
use core::ptr::NonNull;

use twofold_abi::trace::{self, Event};
use twofold_stage2::platform::{Dc, Domain, Ic, Platform, Tlbi};
use twofold_stage2::{Features, Pa, TableMetadata};

use super::lines::instruction;

/// A platform that traces each instruction after its execution.
pub struct Traced<P> {
    platform: P,
    instruction_line: u64,
}

impl<P> Traced<P> {
    /// The same platform, traced.
    pub fn new(platform: P, features: &Features) -> Self {
        Self { platform, instruction_line: features.instruction_line }
    }
}

impl<P> Deref for Traced<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.platform
    }
}

// SAFETY: everything is forwarded to a platform.
unsafe impl<P: Platform> Platform for Traced<P> {
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        self.platform.tlbi(operation, operand);
        let vttbr = self.platform.vttbr();
        instruction(Event::Tlbi { operation: trace::Tlbi::ALL[operation as usize], operand, vttbr });
    }

    fn dsb(&self, domain: Domain) {
        self.platform.dsb(domain);
        instruction(Event::Dsb { domain: trace::Domain::ALL[domain as usize] });
    }

    fn isb(&self) {
        self.platform.isb();
        instruction(Event::Isb);
    }

    unsafe fn dc(&self, operation: Dc, address: usize) {
        // SAFETY: promised by the caller.
        unsafe { self.dc_lines(operation, address, 1, 1) };
    }

    unsafe fn dc_lines(&self, operation: Dc, start: usize, size: u64, line: u64) {
        // SAFETY: promised by the caller.
        unsafe { self.platform.dc_lines(operation, start, size, line) };
        instruction(Event::Dc { operation: trace::Dc::ALL[operation as usize], pa: start as u64, size });
    }

    fn ic(&self, operation: Ic, address: usize) {
        self.platform.ic(operation, address);
        let (pa, size) = if operation == Ic::IallUis { (0, 0) } else { (address as u64, self.instruction_line) };
        instruction(Event::Ic { operation: trace::Ic::ALL[operation as usize], pa, size });
    }

    fn vttbr(&self) -> u64 {
        self.platform.vttbr()
    }

    fn load_vttbr(&self, value: u64) {
        self.platform.load_vttbr(value);
        instruction(Event::Vttbr { vttbr: value });
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.platform.pointer(pa)
    }

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        self.platform.metadata(pa)
    }

    fn abandoned(&self, root: Pa) {
        self.platform.abandoned(root);
    }

    fn interrupt_is_pending(&self) -> bool {
        self.platform.interrupt_is_pending()
    }
}
