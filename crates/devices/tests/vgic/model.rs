// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A naive GICv3, from the specification alone (Arm IHI 0069H): each interrupt is a struct, each vCPU has a simple CPU
//! interface, nothing is cached, and there are no list registers.
//!
//! Where the specification lets several interrupts be first, the model receives the other side's choice, and
//! checks that it was a possible one.

use twofold_devices::Width;

const SPURIOUS: u32 = 1023;

/// One interrupt, as chapter 4 describes it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interrupt {
    pub enabled: bool,
    pub group1: bool,
    pub edge: bool,
    pub priority: u8,
    pub line: bool,
    pub latch: bool,
    pub active: bool,
    pub route: u64,
}

impl Interrupt {
    pub fn pending(&self) -> bool {
        self.latch || self.line && !self.edge
    }
}

/// A CPU interface.
#[derive(Clone, Debug)]
pub struct Interface {
    pub mask: u8,
    pub point: [u8; 2],
    pub enabled: [bool; 2],
    pub common: bool,
    pub split: bool,
    /// The group priorities of interrupts that are acknowledged and whose priority was not dropped.
    pub running: Vec<u8>,
}

impl Interface {
    fn group_priority(&self, priority: u8, group1: bool) -> u8 {
        let point = if group1 && !self.common { self.point[1] - 1 } else { self.point[0] };
        (u32::from(priority) >> (point + 1) << (point + 1)) as u8
    }
}

/// Of interrupts with equal priorities in two groups, one may be signalled, and another not, because each group has its
/// own binary point. Which is first is open.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    pub certain: bool,
    pub possible: bool,
}

pub struct Model {
    pub control: u8,
    pub affinities: Vec<u32>,
    pub linked: Vec<u32>,
    pub private: Vec<[Interrupt; 32]>,
    pub asleep: Vec<bool>,
    pub shared: Vec<Interrupt>,
    pub interfaces: Vec<Interface>,
    least: u8,
}

/// The vCPU that accesses, where it accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Distributor,
    Redistributor(usize),
}

impl Model {
    pub fn new(affinities: &[u32], spis: usize, linked: &[u32], bits: u32) -> Self {
        let edge = Interrupt { edge: true, ..Interrupt::default() };
        let mut private = [Interrupt::default(); 32];
        private[..16].fill(edge);
        let least = 7 - bits as u8;
        let interface = Interface {
            mask: 0,
            point: [2.max(least), 3.max(least + 1)],
            enabled: [false; 2],
            common: false,
            split: false,
            running: Vec::new(),
        };
        Self {
            control: 0,
            affinities: affinities.to_vec(),
            linked: linked.to_vec(),
            private: vec![private; affinities.len()],
            asleep: vec![true; affinities.len()],
            shared: vec![Interrupt::default(); spis],
            interfaces: vec![interface; affinities.len()],
            least,
        }
    }

    pub fn interrupt(&mut self, vcpu: usize, intid: u32) -> Option<&mut Interrupt> {
        match intid {
            0..32 => Some(&mut self.private[vcpu][intid as usize]),
            _ => self.shared.get_mut(intid as usize - 32),
        }
    }

    /// An input changes.
    pub fn drive(&mut self, vcpu: usize, intid: u32, level: bool) {
        if let Some(interrupt) = self.interrupt(vcpu, intid) {
            interrupt.latch |= interrupt.edge && level && !interrupt.line;
            interrupt.line = level;
        }
    }

    fn reaches(&self, interrupt: &Interrupt) -> bool {
        interrupt.pending()
            && interrupt.enabled
            && !interrupt.active
            && self.control >> u8::from(interrupt.group1) & 1 == 1
    }

    /// The interrupts of the highest priority that reach the CPU interface, and are of a group that it enables.
    fn first(&self, vcpu: usize) -> Vec<(u32, Interrupt)> {
        let route = self.affinities[vcpu];
        let route = u64::from(route >> 24) << 32 | u64::from(route & 0xff_ffff);
        let private = self.private[vcpu].iter().zip(0..);
        let shared = self.shared.iter().zip(32..).filter(|(interrupt, _)| interrupt.route == route);
        let all: Vec<(u32, Interrupt)> = private
            .chain(shared)
            .filter(|(one, _)| self.reaches(one) && self.interfaces[vcpu].enabled[usize::from(one.group1)])
            .map(|(one, intid)| (intid, *one))
            .collect();
        let best = all.iter().map(|(_, one)| one.priority).min();
        all.into_iter().filter(|(_, one)| Some(one.priority) == best).collect()
    }

    fn signalled(&self, vcpu: usize, interrupt: &Interrupt) -> bool {
        let interface = &self.interfaces[vcpu];
        let group = |priority| interface.group_priority(priority, interrupt.group1);
        let running = self.running(vcpu);
        interrupt.priority < interface.mask && (running == 0xff || group(interrupt.priority) < group(running))
    }

    /// `ICC_RPR_EL1`.
    pub fn running(&self, vcpu: usize) -> u8 {
        self.interfaces[vcpu].running.iter().copied().min().unwrap_or(0xff)
    }

    /// Is an interrupt signalled to the vCPU?
    pub fn signals(&self, vcpu: usize) -> Signals {
        let first = self.first(vcpu);
        let mut signalled = first.iter().map(|(_, one)| self.signalled(vcpu, one));
        Signals { certain: !first.is_empty() && signalled.clone().all(|yes| yes), possible: signalled.any(|yes| yes) }
    }

    /// The group of an interrupt that is signalled.
    pub fn signalled_group(&self, vcpu: usize) -> Option<bool> {
        self.first(vcpu).iter().find(|(_, one)| self.signalled(vcpu, one)).map(|(_, one)| one.group1)
    }

    /// `ICC_IAR<n>_EL1` returned `intid`.
    pub fn acknowledge(&mut self, vcpu: usize, group1: bool, intid: u32) {
        let first = self.first(vcpu);
        let possible = first
            .iter()
            .map(|(intid, one)| if one.group1 == group1 && self.signalled(vcpu, one) { *intid } else { SPURIOUS });
        let mut possible: Vec<u32> = possible.collect();
        if possible.is_empty() {
            possible.push(SPURIOUS);
        }
        assert!(possible.contains(&intid), "acknowledged {intid}, and possible is {possible:?}");
        if intid == SPURIOUS {
            return;
        }
        let one = self.interrupt(vcpu, intid).expect("it is possible");
        one.latch = false;
        one.active = true;
        let priority = one.priority;
        let running = self.interfaces[vcpu].group_priority(priority, group1);
        self.interfaces[vcpu].running.push(running);
    }

    /// `ICC_HPPIR<n>_EL1` returned `intid`.
    pub fn highest_pending(&self, vcpu: usize, group1: bool, intid: u32) {
        let first = self.first(vcpu);
        let possible: Vec<u32> =
            first.iter().map(|(intid, one)| if one.group1 == group1 { *intid } else { SPURIOUS }).collect();
        assert!(possible.contains(&intid) || possible.is_empty() && intid == SPURIOUS, "{intid}, {possible:?}");
    }

    /// `ICC_EOIR<n>_EL1` of the last acknowledged interrupt.
    pub fn end(&mut self, vcpu: usize, intid: u32) {
        let interface = &mut self.interfaces[vcpu];
        let best = interface.running.iter().copied().min().expect("it was acknowledged");
        interface.running.retain(|&priority| priority != best);
        if !interface.split {
            self.interrupt(vcpu, intid).expect("it was acknowledged").active = false;
        }
    }

    /// `ICC_DIR_EL1`.
    pub fn deactivate(&mut self, vcpu: usize, intid: u32) {
        let split = self.interfaces[vcpu].split;
        if let Some(one) = self.interrupt(vcpu, intid).filter(|_| split) {
            one.active = false;
        }
    }

    /// `ICC_BPR<n>_EL1`.
    pub fn set_point(&mut self, vcpu: usize, group1: bool, value: u8) {
        let least = self.least;
        let interface = &mut self.interfaces[vcpu];
        if !(group1 && interface.common) {
            interface.point[usize::from(group1)] = (value & 7).max(least + u8::from(group1));
        }
    }

    /// A write of a register that sends SGIs.
    pub fn send(&mut self, from: usize, group1: bool, value: u64) {
        let sgi = (value >> 24 & 15) as usize;
        for to in 0..self.affinities.len() {
            let affinity = u64::from(self.affinities[to]);
            let hit = if value >> 40 & 1 == 1 {
                to != from
            } else {
                affinity >> 24 == value >> 48 & 0xff
                    && affinity >> 16 & 0xff == value >> 32 & 0xff
                    && affinity >> 8 & 0xff == value >> 16 & 0xff
                    && affinity >> 4 & 15 == value >> 44 & 15
                    && value >> (affinity & 15) & 1 == 1
            };
            if hit && self.private[to][sgi].group1 == group1 {
                self.private[to][sgi].latch = true;
            }
        }
    }

    /// The interrupts that a register with `bits` bits for each of them has at `offset` from its first.
    fn range(&mut self, place: Place, offset: u32, bits: u32, width: Width) -> Vec<(usize, &mut Interrupt)> {
        let first = (offset * 8 / bits) as usize;
        let count = width.bytes() as usize * 8 / bits as usize;
        let wanted = |intid: usize| (first..first + count).contains(&intid);
        match place {
            Place::Redistributor(vcpu) => {
                self.private[vcpu].iter_mut().enumerate().filter(|(intid, _)| wanted(*intid)).collect()
            }
            Place::Distributor => {
                let shared = self.shared.iter_mut().enumerate().map(|(n, one)| (n + 32, one));
                shared.filter(|(intid, _)| wanted(*intid)).collect()
            }
        }
    }

    /// Gathers one field of each interrupt of a register.
    fn gather(&mut self, place: Place, offset: u32, bits: u32, width: Width, field: impl Fn(&Interrupt) -> u64) -> u64 {
        let first = u64::from(offset * 8 / bits);
        let all = self.range(place, offset, bits, width);
        all.into_iter().map(|(intid, one)| field(one) << ((intid as u64 - first) * u64::from(bits))).sum()
    }

    fn scatter(
        &mut self,
        place: Place,
        offset: u32,
        bits: u32,
        width: Width,
        value: u64,
        mut field: impl FnMut(usize, &mut Interrupt, u64),
    ) {
        let first = u64::from(offset * 8 / bits);
        for (intid, one) in self.range(place, offset, bits, width) {
            field(intid, one, value >> ((intid as u64 - first) * u64::from(bits)) & ((1 << bits) - 1));
        }
    }

    pub fn read(&mut self, place: Place, offset: u32, width: Width) -> u64 {
        if u64::from(offset) % width.bytes() != 0 {
            return 0;
        }
        let (word, bit) = (width == Width::Word, |on: bool| u64::from(on));
        let inner = match place {
            Place::Distributor => offset,
            Place::Redistributor(_) if offset < 0x1_0000 => return self.read_base(place, offset, width),
            Place::Redistributor(_) => offset - 0x1_0000,
        };
        let distributor = matches!(place, Place::Distributor);
        match inner {
            0x0 if word && distributor => u64::from(self.control) | 0x50,
            0x4 if word && distributor => {
                let wide = self.affinities.iter().any(|affinity| affinity & 0xf0 != 0);
                (self.shared.len() as u64 / 32) | 9 << 19 | 3 << 24 | u64::from(wide) << 26
            }
            0x8 if word && distributor => 0x5400_043b,
            0x80..0x100 if word => self.gather(place, inner - 0x80, 1, width, |one| bit(one.group1)),
            0x100..0x200 if word => self.gather(place, inner & 0x7f, 1, width, |one| bit(one.enabled)),
            0x200..0x300 if word => self.gather(place, inner & 0x7f, 1, width, |one| bit(one.pending())),
            0x300..0x400 if word => self.gather(place, inner & 0x7f, 1, width, |one| bit(one.active)),
            0x400..0x800 if word || width == Width::Byte => {
                self.gather(place, inner - 0x400, 8, width, |one| one.priority.into())
            }
            0xc00..0xd00 if word => self.gather(place, inner - 0xc00, 2, width, |one| bit(one.edge) << 1),
            0x6100..0x8000 if distributor && (word || width == Width::Double) => {
                let route = self.shared.get((inner as usize - 0x6100) / 8).map_or(0, |one| one.route);
                if width == Width::Double { route } else { route >> (inner % 8 * 8) & 0xffff_ffff }
            }
            0xffd0..0x1_0000 if word && distributor => identification(inner),
            _ => 0,
        }
    }

    /// `RD_base`.
    fn read_base(&self, place: Place, offset: u32, width: Width) -> u64 {
        let Place::Redistributor(vcpu) = place else { return 0 };
        let last = vcpu + 1 == self.affinities.len();
        let typer = u64::from(self.affinities[vcpu]) << 32 | (vcpu as u64) << 8 | u64::from(last) << 4;
        match (offset, width) {
            (4, Width::Word) => 0x5400_043b,
            (8, Width::Double) => typer,
            (8, Width::Word) => typer & 0xffff_ffff,
            (12, Width::Word) => typer >> 32,
            (0x14, Width::Word) => u64::from(self.asleep[vcpu]) * 6,
            (0xffd0..0x1_0000, Width::Word) => identification(offset),
            _ => 0,
        }
    }

    pub fn write(&mut self, place: Place, offset: u32, width: Width, value: u64) {
        if u64::from(offset) % width.bytes() != 0 {
            return;
        }
        let word = width == Width::Word;
        let inner = match place {
            Place::Distributor => offset,
            Place::Redistributor(vcpu) if offset < 0x1_0000 => {
                if offset == 0x14 && word {
                    self.asleep[vcpu] = value >> 1 & 1 == 1;
                }
                return;
            }
            Place::Redistributor(_) => offset - 0x1_0000,
        };
        let distributor = matches!(place, Place::Distributor);
        match inner {
            0x0 if word && distributor => self.control = value as u8 & 3,
            0x80..0x100 if word => {
                self.scatter(place, inner - 0x80, 1, width, value, |_, one, bit| one.group1 = bit == 1);
            }
            0x100..0x400 if word => {
                self.scatter(place, inner & 0x7f, 1, width, value, |_, one, bit| match inner >> 7 {
                    _ if bit == 0 => {}
                    2 => one.enabled = true,
                    3 => one.enabled = false,
                    4 => one.latch = true,
                    5 => one.latch = false,
                    6 => one.active = true,
                    _ => one.active = false,
                });
            }
            0x400..0x800 if word || width == Width::Byte => {
                self.scatter(place, inner - 0x400, 8, width, value, |_, one, byte| one.priority = byte as u8 & 0xf8);
            }
            0xc00..0xd00 if word => {
                let linked = self.linked.clone();
                self.scatter(place, inner - 0xc00, 2, width, value, |intid, one, pair| {
                    if intid >= 16 && !linked.contains(&(intid as u32)) {
                        one.edge = pair >> 1 == 1;
                    }
                });
            }
            0x6100..0x8000 if distributor && (word || width == Width::Double) => {
                let Some(one) = self.shared.get_mut((inner as usize - 0x6100) / 8) else { return };
                let route = match width {
                    Width::Double => value,
                    _ if inner % 8 == 0 => one.route >> 32 << 32 | value,
                    _ => one.route & 0xffff_ffff | value << 32,
                };
                one.route = route & 0xff_00ff_ffff;
            }
            _ => {}
        }
    }
}

fn identification(offset: u32) -> u64 {
    match offset {
        0xffe0 => 0x92,
        0xffe4 => 0xb4,
        0xffe8 => 0x3b,
        0xffd0 => 0x44,
        0xfff0 => 0x0d,
        0xfff4 => 0xf0,
        0xfff8 => 0x05,
        0xfffc => 0xb1,
        _ => 0,
    }
}
