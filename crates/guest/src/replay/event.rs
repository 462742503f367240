// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest may do to its interrupt controller, and the interrupts that it does it to.

/// Interrupts that events concern, few enough to meet each other: SGIs, PPIs with the timers', and SPIs of several banks
/// with the UART's and the clock's. No device of either machine drives the lines of the others.
pub const HOT: [u32; 26] =
    [0, 1, 2, 3, 9, 15, 16, 20, 22, 27, 28, 30, 31, 32, 33, 34, 36, 63, 64, 65, 95, 96, 127, 128, 200, 255];

/// Banks of 32 interrupts: the private ones, and the SPIs of QEMU's `virt`.
pub const BANKS: u32 = 8;

/// One event, of the vCPU that executes it.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// `ICC_IAR<n>_EL1` of the group that ISR_EL1 shows.
    Take,
    /// `ICC_IAR<n>_EL1`.
    Acknowledge { group1: bool },
    /// `ICC_HPPIR<n>_EL1`.
    HighestPending { group1: bool },
    /// `ICC_EOIR<n>_EL1` of the last acknowledged one.
    End,
    /// `ICC_DIR_EL1` of one that was ended, or else of this one.
    Deactivate { intid: u32 },
    /// `ICC_PMR_EL1`.
    Mask(u8),
    /// `ICC_BPR<n>_EL1`.
    Point { group1: bool, value: u8 },
    /// `ICC_IGRPEN<n>_EL1`.
    Enable { group1: bool, on: bool },
    /// `ICC_CTLR_EL1`: CBPR and EOImode.
    Configure { common: bool, split: bool },
    /// A register that sends an SGI.
    Send { register: Sgi, value: u64 },
    /// A register of one bit for each interrupt; bank 0 is of the redistributor of `of`.
    Set { of: usize, kind: Bits, bank: u32, mask: u32 },
    /// A priority, of all vCPUs if the interrupt is private. The interrupt that has it now gets the other one.
    Prioritize { hot: usize, priority: u8 },
    /// `ICFGR`, while the interrupt is disabled.
    Trigger { of: usize, intid: u32, edge: bool },
    /// `GICD_IROUTER`.
    Route { intid: u32, affinity: u8 },
    /// `GICD_CTLR`.
    Control(u8),
    /// The line of a device, or of a timer of the vCPU.
    Drive { line: Line, level: bool, how: u8 },
    /// Reads a register of one bit for each interrupt.
    Get { of: usize, kind: Bits, bank: u32 },
    /// Reads the other registers that concern this interrupt, and those of the CPU interface.
    Read { of: usize, intid: u32 },
}

impl Event {
    /// May another CPU have a part in it? Not if it only concerns this vCPU's CPU interface.
    pub const fn may_need_others(self) -> bool {
        !matches!(
            self,
            Self::Take
                | Self::Acknowledge { .. }
                | Self::HighestPending { .. }
                | Self::End
                | Self::Mask(_)
                | Self::Enable { .. }
        )
    }
}

/// The registers of one bit for each interrupt, by their offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    Group = 0x80,
    SetEnable = 0x100,
    ClearEnable = 0x180,
    SetPending = 0x200,
    ClearPending = 0x280,
    SetActive = 0x300,
    ClearActive = 0x380,
}

/// The registers that send SGIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sgi {
    Group0,
    Group1,
    Alias,
}

/// Lines that the guest drives: by the interrupt mask of a device whose raw interrupt stays on, and by a timer's
/// registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    Uart,
    Clock,
    VirtualTimer,
    PhysicalTimer,
}
