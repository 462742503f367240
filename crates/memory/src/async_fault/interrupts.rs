// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a vCPU can take an interrupt now.
//!
//! A vCPU that waits for a page is woken only by an interrupt that it takes as its next step. If a masked one woke it,
//! the guest would repeat the access, fault on the page that is still absent, wait, and be woken again at once: a spin.
//!
//! The conditions are those of GICv3 with one security state (Arm IHI 0069H, 4.8), for a virtual interrupt that EL1 of
//! the guest takes. FEAT_NMI is hidden from guests.

/// The bits of PSTATE, as SPSR_EL2 has them, that matter here.
const IRQ_MASKED: u64 = 1 << 7;
const FIQ_MASKED: u64 = 1 << 6;
const EXCEPTION_LEVEL: u64 = 0b1111;

/// Whether PSTATE, as SPSR_EL2 has it, is of EL0.
pub fn is_user(pstate: u64) -> bool {
    pstate & EXCEPTION_LEVEL == 0
}

/// A group of interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Signalled as FIQ.
    Zero,
    /// Signalled as IRQ.
    One,
}

/// A vCPU's interface to its GIC, as the guest has set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuInterface {
    /// Whether the distributor and the interface (`ICC_IGRPEN0_EL1`, `ICC_IGRPEN1_EL1`) both let the group through.
    pub enabled: [bool; 2],
    /// `ICC_PMR_EL1`: only an interrupt of a lower value is signalled.
    pub mask: u8,
    /// `ICC_RPR_EL1`: the group priority of the interrupt that is active, 0xff if none is.
    pub running: u8,
    /// `ICC_BPR0_EL1` and `ICC_BPR1_EL1`, from 0 to 7. If `ICC_CTLR_EL1.CBPR` is set, the second is what a read of it
    /// returns: the first, plus one.
    pub binary_point: [u8; 2],
}

/// An interrupt of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// Its group.
    pub group: Group,
    /// Whether it is enabled.
    pub enabled: bool,
    /// Whether it is pending.
    pub pending: bool,
    /// Whether it is active. An active interrupt is not taken again before it is deactivated.
    pub active: bool,
    /// Its priority. A lower value is more urgent.
    pub priority: u8,
}

/// Whether the vCPU would take this interrupt as its next step if it were pending. `pstate` is SPSR_EL2's.
pub fn would_take(pstate: u64, interface: &CpuInterface, interrupt: &Interrupt) -> bool {
    let (index, masked) = match interrupt.group {
        Group::Zero => (0, FIQ_MASKED),
        Group::One => (1, IRQ_MASKED),
    };
    // Priority bits below the binary point do not preempt. Those of group 1 begin one bit lower.
    let below = u32::from(interface.binary_point[index]) + 1 - index as u32;
    let group_priority = interrupt.priority & u8::MAX.checked_shl(below).unwrap_or(0);
    pstate & masked == 0
        && interface.enabled[index]
        && interrupt.enabled
        && !interrupt.active
        && interrupt.priority < interface.mask
        && group_priority < interface.running
}

/// Whether the vCPU takes this interrupt as its next step.
pub fn can_take(pstate: u64, interface: &CpuInterface, interrupt: &Interrupt) -> bool {
    interrupt.pending && would_take(pstate, interface, interrupt)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const OPEN: CpuInterface = CpuInterface { enabled: [true; 2], mask: 0xf0, running: 0xff, binary_point: [2, 3] };
    const IRQ: Interrupt = Interrupt { group: Group::One, enabled: true, pending: true, active: false, priority: 0xa0 };

    fn takes(pstate: u64, change: impl FnOnce(&mut CpuInterface, &mut Interrupt)) -> bool {
        let (mut interface, mut interrupt) = (OPEN, IRQ);
        change(&mut interface, &mut interrupt);
        can_take(pstate, &interface, &interrupt)
    }

    #[test]
    fn each_condition_alone_keeps_an_interrupt_away() {
        assert!(takes(0, |_, _| ()));
        assert!(!takes(IRQ_MASKED, |_, _| ()));
        assert!(takes(FIQ_MASKED, |_, _| ()), "PSTATE.F masks FIQ alone");
        assert!(takes(1 << 8 | 1 << 9, |_, _| ()), "PSTATE.A and PSTATE.D mask no interrupt");
        assert!(!takes(0, |interface, _| interface.enabled[1] = false));
        assert!(takes(0, |interface, _| interface.enabled[0] = false));
        assert!(!takes(0, |_, interrupt| interrupt.enabled = false));
        assert!(!takes(0, |_, interrupt| interrupt.pending = false));
        assert!(!takes(0, |_, interrupt| interrupt.active = true));
        assert!(!takes(0, |interface, _| interface.mask = 0xa0), "equal to the mask");
        assert!(takes(0, |interface, _| interface.mask = 0xa1));
    }

    #[test]
    fn group_zero_is_masked_as_fiq() {
        let zero = |_: &mut CpuInterface, interrupt: &mut Interrupt| interrupt.group = Group::Zero;
        assert!(takes(IRQ_MASKED, zero));
        assert!(!takes(FIQ_MASKED, zero));
        assert!(!takes(0, |interface, interrupt| {
            zero(interface, interrupt);
            interface.enabled[0] = false;
        }));
    }

    #[test]
    fn only_a_more_urgent_group_priority_preempts() {
        for (group, running, priority, binary_point, taken) in [
            (Group::One, 0xa0, 0xa0, [2, 3], false),
            (Group::One, 0xa8, 0xa0, [2, 3], true),
            (Group::One, 0xa0, 0x98, [2, 3], true),
            // Bit 3 is the first that does not count: 0x98 and 0x90 have the same group priority.
            (Group::One, 0x90, 0x98, [3, 4], false),
            (Group::One, 0x90, 0x8f, [3, 4], true),
            (Group::Zero, 0x98, 0x90, [2, 3], true),
            (Group::Zero, 0x90, 0x98, [3, 4], false),
            // No bit of group 0 counts: its group priority is 0, which preempts any other.
            (Group::Zero, 0x00, 0x00, [7, 7], false),
            (Group::Zero, 0x01, 0x01, [7, 7], true),
            (Group::Zero, 0xff, 0xa0, [7, 7], true),
        ] {
            let result = takes(0, |interface, interrupt| {
                (interface.running, interface.binary_point) = (running, binary_point);
                (interrupt.group, interrupt.priority) = (group, priority);
            });
            assert_eq!(result, taken, "{group:?} {priority:#x} over {running:#x}, {binary_point:?}");
        }
    }

    #[test]
    fn a_user_is_el0_of_either_state() {
        // EL0t, AArch32 User; EL1t, EL1h, AArch32 FIQ and Supervisor.
        assert!([0b0_0000, 0b1_0000].into_iter().all(is_user));
        assert!(![0b0_0100, 0b0_0101, 0b1_0001, 0b1_0011].into_iter().any(is_user));
        assert!(is_user(1 << 31 | IRQ_MASKED), "other bits do not matter");
    }
}
