// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A fake of a CPU's virtual CPU interface, as strict as the architecture (Arm IHI 0069H, chapters 6 and 12): it panics where
//! hardware would do something that nothing can rely on.

use twofold_devices::vgic::{CpuInterface, ListRegister, control};

/// No interrupt is signalled.
pub const SPURIOUS: u32 = 1023;

const UIE: u64 = 1 << 1;
const PENDING: u64 = 1 << 62;
const ACTIVE: u64 = 1 << 63;
const STATE: u64 = PENDING | ACTIVE;
const COUNT: u32 = 27;

/// The registers of one CPU.
#[derive(Clone, Debug)]
pub struct Hardware {
    pub registers: Vec<u64>,
    /// Read since the guest last ran.
    seen: Vec<std::cell::Cell<bool>>,
    counted: std::cell::Cell<bool>,
    pub hcr: u64,
    pub vmcr: u64,
    pub ap: [[u32; 4]; 2],
    bits: u32,
    compares: bool,
    /// Calls of EL2.
    pub calls: std::cell::Cell<usize>,
    /// Physical interrupts that the guest's deactivations deactivated.
    pub deactivated: Vec<u32>,
    /// Chooses among equal priorities.
    choice: u64,
}

impl Hardware {
    pub fn new(list_registers: usize, bits: u32) -> Self {
        Self {
            registers: vec![0; list_registers],
            seen: vec![std::cell::Cell::new(true); list_registers],
            counted: std::cell::Cell::new(true),
            hcr: 0,
            vmcr: 0,
            ap: [[0; 4]; 2],
            bits,
            compares: false,
            calls: std::cell::Cell::new(0),
            deactivated: Vec::new(),
            choice: 1,
        }
    }

    /// An EOI deactivates an interrupt only if its group priority is the one that was dropped, as in QEMU.
    pub fn comparing(mut self, compares: bool) -> Self {
        self.compares = compares;
        self
    }

    /// The guest runs: what EL2 knows of the registers is old from here on.
    fn guest(&mut self) {
        assert_eq!(self.hcr & control::EN, control::EN, "the guest runs without its interface");
        for seen in &self.seen {
            seen.set(false);
        }
        self.counted.set(false);
    }

    fn enabled(&self, group1: bool) -> bool {
        self.vmcr >> u32::from(group1) & 1 == 1
    }

    fn mask(&self, group1: bool) -> u8 {
        let point = if group1 && self.vmcr >> 4 & 1 == 0 { (self.vmcr >> 18 & 7) - 1 } else { self.vmcr >> 21 & 7 };
        (0xff_u64 << (point + 1)) as u8
    }

    pub fn running(&self) -> u8 {
        for n in 0..4 {
            let row = self.ap[0][n] | self.ap[1][n];
            if row != 0 {
                return ((n as u32 * 32 + row.trailing_zeros()) << (8 - self.bits)) as u8;
            }
        }
        0xff
    }

    fn admits(&self, register: ListRegister) -> bool {
        let mask = self.mask(register.is_group1());
        let running = self.running();
        register.priority() < (self.vmcr >> 24) as u8
            && (running == 0xff || register.priority() & mask < running & mask)
    }

    /// The list register of the highest pending interrupt.
    fn highest(&mut self) -> Option<usize> {
        let of = |n: usize| ListRegister::from_raw(self.registers[n]);
        let candidates: Vec<usize> = (0..self.registers.len())
            .filter(|&n| self.registers[n] & STATE == PENDING && self.enabled(of(n).is_group1()))
            .collect();
        let best = candidates.iter().map(|&n| of(n).priority()).min()?;
        let equal: Vec<usize> = candidates.into_iter().filter(|&n| of(n).priority() == best).collect();
        self.choice = self.choice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some(equal[(self.choice >> 33) as usize % equal.len()])
    }

    /// Is an interrupt signalled to the guest? Of equal priorities in two groups, either counts.
    pub fn signals(&self) -> bool {
        let of = |n: usize| ListRegister::from_raw(self.registers[n]);
        let candidates = (0..self.registers.len())
            .filter(|&n| self.registers[n] & STATE == PENDING && self.enabled(of(n).is_group1()));
        let best = candidates.clone().map(|n| of(n).priority()).min();
        candidates.filter(|&n| Some(of(n).priority()) == best).any(|n| self.admits(of(n)))
    }

    /// `ICC_HPPIR<n>_EL1`.
    pub fn highest_pending(&mut self, group1: bool) -> u32 {
        self.guest();
        match self.highest().map(|n| ListRegister::from_raw(self.registers[n])) {
            Some(register) if register.is_group1() == group1 => register.intid(),
            _ => SPURIOUS,
        }
    }

    /// `ICC_IAR<n>_EL1`.
    pub fn acknowledge(&mut self, group1: bool) -> u32 {
        self.guest();
        let Some(n) = self.highest() else { return SPURIOUS };
        let register = ListRegister::from_raw(self.registers[n]);
        if register.is_group1() != group1 || !self.admits(register) {
            return SPURIOUS;
        }
        self.registers[n] ^= STATE;
        let level = u32::from(register.priority() & self.mask(group1)) >> (8 - self.bits);
        self.ap[usize::from(group1)][level as usize / 32] |= 1 << (level % 32);
        register.intid()
    }

    /// `ICC_EOIR<n>_EL1`.
    pub fn end(&mut self, intid: u32, group1: bool) {
        self.guest();
        if intid >= 1020 {
            return;
        }
        let Some(dropped) = self.drop_priority() else { return };
        let split = self.vmcr >> 9 & 1 == 1;
        let active =
            |n: &usize| self.registers[*n] & ACTIVE != 0 && ListRegister::from_raw(self.registers[*n]).intid() == intid;
        match (0..self.registers.len()).find(active) {
            Some(n) => {
                let register = ListRegister::from_raw(self.registers[n]);
                let same = register.is_group1() == group1 && register.priority() & self.mask(group1) == dropped;
                if !split && (same || !self.compares) {
                    self.registers[n] &= !ACTIVE;
                    self.deactivated.extend(register.physical());
                }
            }
            // With EOImode 1 some hardware counts, and some does not.
            None if split && intid & 1 == 0 => {}
            None => self.hcr += 1 << COUNT,
        }
    }

    fn drop_priority(&mut self) -> Option<u8> {
        let running = self.running();
        let level = u32::from(running) >> (8 - self.bits);
        if running == 0xff {
            return None;
        }
        let (row, bit) = (level as usize / 32, 1 << (level % 32));
        let group = usize::from(self.ap[0][row] & bit == 0);
        self.ap[group][row] &= !bit;
        Some(running)
    }

    /// `ICC_PMR_EL1`.
    pub fn set_mask(&mut self, value: u8) {
        self.guest();
        self.vmcr = self.vmcr & !(0xff << 24) | u64::from(value & 0xf8) << 24;
    }

    /// `ICC_BPR<n>_EL1`.
    pub fn set_point(&mut self, group1: bool, value: u8) {
        self.guest();
        let least = 7 - self.bits as u8;
        if !group1 {
            self.vmcr = self.vmcr & !(7 << 21) | u64::from((value & 7).max(least)) << 21;
        } else if self.vmcr >> 4 & 1 == 0 {
            self.vmcr = self.vmcr & !(7 << 18) | u64::from((value & 7).max(least + 1)) << 18;
        }
    }

    /// `ICC_IGRPEN<n>_EL1`.
    pub fn enable(&mut self, group1: bool, on: bool) {
        self.guest();
        let bit = 1 << u32::from(group1);
        self.vmcr = if on { self.vmcr | bit } else { self.vmcr & !bit };
    }

    /// `ICC_CTLR_EL1`: CBPR and EOImode.
    pub fn configure(&mut self, common: bool, split: bool) {
        self.guest();
        self.vmcr = self.vmcr & !(1 << 4 | 1 << 9) | u64::from(common) << 4 | u64::from(split) << 9;
    }

    /// `ICH_MISR_EL2` is not zero: the maintenance interrupt is asserted.
    pub fn maintenance(&self) -> bool {
        if self.hcr & control::EN == 0 {
            return false;
        }
        let on = |bit: u64| self.hcr & bit != 0;
        let valid = self.registers.iter().filter(|&&raw| raw & STATE != 0).count();
        let pending = self.registers.iter().any(|&raw| raw & STATE == PENDING);
        self.ended() != 0
            || on(UIE) && valid < 2
            || on(control::LRENPIE) && self.hcr >> COUNT != 0
            || on(control::NPIE) && !pending
            || on(control::VGRP0EIE) && self.enabled(false)
            // QEMU looks at group 1 instead of group 0. This fake looks at both.
            || on(control::VGRP0DIE) && !(self.enabled(false) && self.enabled(true))
            || on(control::VGRP1EIE) && self.enabled(true)
            || on(control::VGRP1DIE) && !self.enabled(true)
    }
}

impl CpuInterface for Hardware {
    fn list_registers(&self) -> usize {
        self.registers.len()
    }

    fn preemption_bits(&self) -> u32 {
        self.bits
    }

    fn list_register(&self, n: usize) -> u64 {
        self.calls.set(self.calls.get() + 1);
        self.seen[n].set(true);
        self.registers[n]
    }

    fn set_list_register(&mut self, n: usize, value: u64) {
        self.calls.set(self.calls.get() + 1);
        let register = ListRegister::from_raw(value);
        let old = self.registers[n];
        assert!(old & STATE == 0 || self.seen[n].get(), "list register {n} ({old:#x}) is lost");
        if value & STATE != 0 {
            assert_ne!(value & STATE, STATE, "pending and active: {value:#x}");
            assert!(register.intid() < 1020, "{value:#x}");
            let same = |&(m, raw): &(usize, &u64)| {
                m != n && raw & STATE != 0 && ListRegister::from_raw(*raw).intid() == register.intid()
            };
            assert_eq!(self.registers.iter().enumerate().find(same), None, "twice: {value:#x}");
            assert_eq!(register.priority() & 7, 0, "{value:#x}");
            assert!(register.physical().is_none_or(|physical| (16..1020).contains(&physical)), "{value:#x}");
        }
        self.registers[n] = value;
        self.seen[n].set(true);
    }

    fn empty(&self) -> u16 {
        self.calls.set(self.calls.get() + 1);
        let mut mask = 0;
        for (n, &raw) in self.registers.iter().enumerate() {
            if raw & STATE == 0 && !ListRegister::from_raw(raw).has_maintenance() {
                mask |= 1 << n;
            }
        }
        mask
    }

    fn ended(&self) -> u16 {
        self.calls.set(self.calls.get() + 1);
        let mut mask = 0;
        for (n, &raw) in self.registers.iter().enumerate() {
            if raw & STATE == 0 && ListRegister::from_raw(raw).has_maintenance() {
                mask |= 1 << n;
            }
        }
        mask
    }

    fn control(&self) -> u64 {
        self.calls.set(self.calls.get() + 1);
        self.counted.set(true);
        self.hcr
    }

    fn set_control(&mut self, value: u64) {
        self.calls.set(self.calls.get() + 1);
        assert!(self.hcr >> COUNT == 0 || self.counted.get(), "the count of ends is lost");
        self.counted.set(true);
        self.hcr = value;
    }

    fn machine_control(&self) -> u64 {
        self.calls.set(self.calls.get() + 1);
        self.vmcr
    }

    fn set_machine_control(&mut self, value: u64) {
        // The binary points have a least value.
        let least = u64::from(7 - self.bits);
        let (point1, point0) = ((value >> 18 & 7).max(least + 1), (value >> 21 & 7).max(least));
        self.vmcr = value & !(63 << 18) | point1 << 18 | point0 << 21;
    }

    fn active_priorities(&self, group1: bool, n: usize) -> u32 {
        assert!(n < 1 << (self.bits - 5), "active priorities {n} of {} bits", self.bits);
        self.ap[usize::from(group1)][n]
    }

    fn set_active_priorities(&mut self, group1: bool, n: usize, value: u32) {
        assert!(n < 1 << (self.bits - 5), "active priorities {n} of {} bits", self.bits);
        self.ap[usize::from(group1)][n] = value;
    }
}
