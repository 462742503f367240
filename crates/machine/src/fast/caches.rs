// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host's data caches, cleaned and invalidated by the host's own instructions. They show what the engine's `DC
//! CIVAC` costs on real hardware.
//!
//! Invariant: a clean covers every line that its range touches, whatever step the engine uses, and no line outside the
//! arena. It changes no content. If a page was never touched, the clean takes the host's page fault first, as a load
//! would.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::arch::asm;
use std::fmt;
use std::ops::Range;

/// The host's instruction that cleans and invalidates a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCaches {
    instruction: Instruction,
    /// Bytes of a line: a power of two.
    line: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instruction {
    /// Weakly ordered: a barrier waits for its completion.
    #[cfg(target_arch = "x86_64")]
    ClflushOpt,
    /// Ordered with other `clflush` and with stores.
    #[cfg(target_arch = "x86_64")]
    Clflush,
    /// Cleans and invalidates to the point of coherency.
    #[cfg(target_arch = "aarch64")]
    DcCivac,
}

impl HostCaches {
    /// The caches of this host; `None` if a process has no such instruction (neither x86-64 nor aarch64).
    pub fn find() -> Option<Self> {
        find()
    }

    /// Bytes of a line.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Cleans and invalidates each line of `range` inside `arena`, and returns the number of lines. The clean is
    /// complete after [`barrier`](Self::barrier).
    ///
    /// # Safety
    ///
    /// The arena is mapped, and its start and end are aligned to a line.
    pub(super) unsafe fn clean(&self, range: Range<usize>, arena: Range<usize>) -> usize {
        let lines = lines(range, arena, self.line);
        let count = lines.len() / self.line;
        match self.instruction {
            #[cfg(target_arch = "x86_64")]
            Instruction::ClflushOpt => lines.step_by(self.line).for_each(|at| {
                // SAFETY: the line is mapped, as the caller promises, and no data changes; `find` saw the CPUID bit.
                unsafe { asm!("clflushopt [{}]", in(reg) at, options(nostack, preserves_flags)) }
            }),
            #[cfg(target_arch = "x86_64")]
            Instruction::Clflush => lines.step_by(self.line).for_each(|at| {
                // SAFETY: the line is mapped, as the caller promises, and no data changes.
                unsafe { asm!("clflush [{}]", in(reg) at, options(nostack, preserves_flags)) }
            }),
            #[cfg(target_arch = "aarch64")]
            Instruction::DcCivac => lines.step_by(self.line).for_each(|at| {
                // SAFETY: the line is mapped, as the caller promises, and no data changes. Linux sets SCTLR_EL1.UCI, so
                // EL0 may do it.
                unsafe { asm!("dc civac, {}", in(reg) at, options(nostack, preserves_flags)) }
            }),
            #[allow(unreachable_patterns, reason = "other hosts have no instruction, so no value exists")]
            _ => {}
        }
        count
    }

    /// Waits until every clean of this thread is complete.
    pub(super) fn barrier(&self) {
        // SAFETY: only a barrier. A Rust fence need not be an instruction that orders cache maintenance.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!("mfence", options(nostack, preserves_flags));
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            asm!("dsb ish", options(nostack, preserves_flags));
        }
    }
}

impl fmt::Display for HostCaches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.instruction {
            #[cfg(target_arch = "x86_64")]
            Instruction::ClflushOpt => "clflushopt",
            #[cfg(target_arch = "x86_64")]
            Instruction::Clflush => "clflush",
            #[cfg(target_arch = "aarch64")]
            Instruction::DcCivac => "dc civac",
            #[allow(unreachable_patterns, reason = "other hosts have no instruction, so no value exists")]
            _ => "none",
        };
        write!(f, "{name}, lines of {} bytes", self.line)
    }
}

/// The bytes from the first to the last line that `range` touches inside the arena.
fn lines(range: Range<usize>, arena: Range<usize>, line: usize) -> Range<usize> {
    let (start, end) = (range.start.max(arena.start), range.end.min(arena.end));
    if start >= end { 0..0 } else { start & !(line - 1)..end.next_multiple_of(line) }
}

#[cfg(target_arch = "x86_64")]
fn find() -> Option<HostCaches> {
    use std::arch::x86_64::__cpuid_count;
    const CLFLUSHOPT: u32 = 1 << 23;
    #[allow(unused_unsafe, reason = "newer compilers have it as a safe function")]
    // SAFETY: every x86-64 CPU has CPUID with leaves 0 and 1.
    let leaf = |number| unsafe { __cpuid_count(number, 0) };
    let extended = if leaf(0).eax >= 7 { leaf(7).ebx } else { 0 };
    // CLFLUSH line size, in units of 8 bytes.
    let line = (leaf(1).ebx >> 8 & 0xff) as usize * 8;
    let instruction = if extended & CLFLUSHOPT != 0 { Instruction::ClflushOpt } else { Instruction::Clflush };
    Some(HostCaches { instruction, line: if line.is_power_of_two() { line } else { 64 } })
}

#[cfg(target_arch = "aarch64")]
fn find() -> Option<HostCaches> {
    let ctr: u64;
    // SAFETY: only reads a register. Linux lets EL0 read it, or emulates the read (SCTLR_EL1.UCT).
    unsafe { asm!("mrs {}, ctr_el0", out(reg) ctr, options(nomem, nostack, preserves_flags)) };
    // DminLine: log2 of the smallest line, in words of 4 bytes.
    Some(HostCaches { instruction: Instruction::DcCivac, line: 4 << (ctr >> 16 & 0xf) })
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn find() -> Option<HostCaches> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARENA: Range<usize> = 0x10_0000..0x20_0000;

    #[test]
    fn all_lines_that_are_touched_and_no_others() {
        for (range, expected) in [
            (0x10_0000..0x10_1000, 0x10_0000..0x10_1000),
            (0x10_0001..0x10_0041, 0x10_0000..0x10_0080),
            (0x10_003f..0x10_0040, 0x10_0000..0x10_0040),
            (0x10_0040..0x10_0040, 0..0),
            (0xf_ff00..0x10_0001, 0x10_0000..0x10_0040),
            (0x1f_ffff..0x30_0000, 0x1f_ffc0..0x20_0000),
            (0..usize::MAX, ARENA),
            (0..0x10_0000, 0..0),
            (0x20_0000..usize::MAX, 0..0),
        ] {
            assert_eq!(lines(range.clone(), ARENA, 64), expected, "{range:x?}");
        }
    }

    #[test]
    fn the_host_has_lines() {
        let found = HostCaches::find();
        assert_eq!(found.is_some(), cfg!(any(target_arch = "x86_64", target_arch = "aarch64")));
        let Some(caches) = found else { return };
        assert!(caches.line().is_power_of_two() && (16..=2048).contains(&caches.line()), "{caches}");
    }
}
