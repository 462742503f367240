// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest with our interrupt controller over faked hardware, and the same guest with the model: both get the same
//! events, and whatever the guest can see must be equal.

use std::collections::VecDeque;

use twofold_devices::Width;
use twofold_devices::vgic::{Config, Effects, Frame, Here, Intid, Read, SgiRegister, VcpuId, Vgic};

use crate::events::{Event, Events, SPIS, TIMER, setup};
use crate::fake::{Hardware, SPURIOUS};
use crate::model::{Model, Place};
use crate::random::Random;

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The list registers of each CPU.
    pub list_registers: Vec<usize>,
    pub affinities: Vec<u32>,
    pub bits: u32,
    /// An EOI deactivates an interrupt only if its group priority is the one that was dropped, as in QEMU.
    pub compares: bool,
}

pub struct World {
    shape: Shape,
    vgic: Vgic,
    model: Model,
    cpus: Vec<Hardware>,
    /// The CPU of each vCPU that is loaded.
    place: Vec<Option<usize>>,
    /// The level of each vCPU's timer.
    timer: Vec<bool>,
    /// Its physical interrupt is active.
    physical: Vec<bool>,
    /// What each vCPU acknowledged and has to end, the last one last.
    handling: Vec<Vec<(u32, bool)>>,
    /// What it has to deactivate after that.
    ended: Vec<Vec<u32>>,
    events: Events,
    last: VecDeque<(usize, Event)>,
    /// How often the model and ours agreed on an interrupt.
    pub acknowledged: u64,
    pub evictions: u64,
}

fn vcpu(index: usize) -> VcpuId {
    VcpuId::new(index as u32).unwrap()
}

fn timer() -> Intid {
    Intid::new(TIMER).unwrap()
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?}, timers {:?}, active {:?}", self.shape, self.timer, self.physical);
            eprintln!("handling {:?}, ended {:?}, places {:?}", self.handling, self.ended, self.place);
            for (vcpu, event) in &self.last {
                eprintln!("  vCPU {vcpu}: {event:x?}");
            }
        }
    }
}

impl World {
    pub fn new(shape: Shape, random: Random) -> Self {
        let count = shape.affinities.len();
        let events = Events { random, affinities: shape.affinities.clone() };
        Self {
            vgic: controller(&shape),
            model: Model::new(&shape.affinities, SPIS as usize, &[TIMER], shape.bits),
            cpus: shape
                .list_registers
                .iter()
                .map(|&n| Hardware::new(n, shape.bits).comparing(shape.compares))
                .collect(),
            place: vec![None; count],
            timer: vec![false; count],
            physical: vec![false; count],
            handling: vec![Vec::new(); count],
            ended: vec![Vec::new(); count],
            last: VecDeque::new(),
            shape,
            events,
            acknowledged: 0,
            evictions: 0,
        }
    }

    /// Each vCPU sets its interrupts up.
    pub fn setup(&mut self) {
        for vcpu in 0..self.place.len() {
            for event in setup(&self.shape.affinities) {
                self.apply(vcpu, event);
                self.settle();
            }
        }
    }

    /// One event, and sometimes a second that comes before EL2 has taken the maintenance interrupt of the first.
    pub fn step(&mut self) {
        let vcpu = self.events.random.below(self.place.len());
        let event = match self.model.signalled_group(vcpu) {
            Some(group1) if self.events.random.one_in(4) => Event::Acknowledge { group1 },
            _ => self.events.next(),
        };
        self.apply(vcpu, event);
        if self.events.random.one_in(6) && self.place[vcpu].is_some() {
            let trap = self.events.trap();
            self.apply(vcpu, trap);
        }
        self.settle();
        self.compare();
        if self.events.random.one_in(8) || std::env::var_os("TWOFOLD_VGIC_AUDIT").is_some() {
            self.audit();
        }
    }

    /// A vCPU reads the state of all interrupts.
    fn audit(&mut self) {
        let Some(v) = self.place.iter().position(Option::is_some) else { return };
        for offset in (0x80..0x400).step_by(0x80) {
            for n in 0..=SPIS / 32 {
                self.read(v, Place::Distributor, offset + n * 4, Width::Word);
            }
            for w in 0..self.place.len() {
                self.read(v, Place::Redistributor(w), 0x1_0000 + offset, Width::Word);
            }
        }
        self.settle();
    }

    fn apply(&mut self, vcpu: usize, event: Event) {
        if self.last.len() == 40 {
            self.last.pop_front();
        }
        self.last.push_back((vcpu, event));
        match event {
            Event::Line { intid, level, outside } => self.line(vcpu, intid, level, outside),
            Event::Timer { level } => self.set_timer(vcpu, level),
            Event::Move => self.move_away(vcpu),
            Event::Restore => self.restore(),
            _ => {
                self.load(vcpu);
                self.execute(vcpu, event);
            }
        }
    }

    fn execute(&mut self, v: usize, event: Event) {
        let Some(c) = self.place[v] else { return };
        let (cpu, interface) = (&mut self.cpus[c], &mut self.model.interfaces[v]);
        match event {
            Event::Acknowledge { group1 } => {
                let intid = cpu.acknowledge(group1);
                self.model.acknowledge(v, group1, intid);
                if intid != SPURIOUS {
                    self.handling[v].push((intid, group1));
                    self.acknowledged += 1;
                }
            }
            Event::HighestPending { group1 } => {
                let intid = cpu.highest_pending(group1);
                self.model.highest_pending(v, group1, intid);
            }
            Event::End => {
                let Some((intid, group1)) = self.handling[v].pop() else { return };
                let before = cpu.hcr;
                cpu.end(intid, group1);
                self.evictions += u64::from(cpu.hcr != before);
                self.model.end(v, intid);
                if self.model.interfaces[v].split {
                    self.ended[v].push(intid);
                }
            }
            Event::Deactivate { intid } => self.deactivate(v, intid),
            Event::Mask(value) => {
                cpu.set_mask(value);
                interface.mask = value & 0xf8;
            }
            // While it handles interrupts, some hardware then ends none of them.
            Event::Point { .. } if self.shape.compares && !self.handling[v].is_empty() => {}
            Event::Point { group1, value } => {
                cpu.set_point(group1, value);
                self.model.set_point(v, group1, value);
            }
            Event::Enable { group1, on } => {
                cpu.enable(group1, on);
                interface.enabled[usize::from(group1)] = on;
            }
            Event::Configure { common, split } => {
                // A guest changes how it ends interrupts while it handles none.
                let idle = self.handling[v].is_empty() && self.ended[v].is_empty();
                let common = if idle || !self.shape.compares { common } else { interface.common };
                interface.common = common;
                interface.split = if idle { split } else { interface.split };
                cpu.configure(common, interface.split);
            }
            Event::Send { group1, alias, value } => {
                let register = match (group1, alias) {
                    (true, _) => SgiRegister::Group1,
                    (false, true) => SgiRegister::Alias,
                    (false, false) => SgiRegister::Group0,
                };
                let effects = self.vgic.send(vcpu(v), register, value, &mut Here::loaded(vcpu(v), cpu));
                self.model.send(v, group1, value);
                self.done(v, effects);
            }
            Event::Read { place, offset, width } => self.read(v, place, offset, width),
            Event::Write { place, offset, width, value } => self.write(v, place, offset, width, value),
            _ => {}
        }
        for physical in self.cpus[c].deactivated.drain(..) {
            assert_eq!(physical, TIMER);
            assert!(self.physical[v], "the physical interrupt was not active");
            self.physical[v] = false;
        }
    }

    fn deactivate(&mut self, v: usize, wild: u32) {
        let intid = self.ended[v].pop().unwrap_or(wild);
        // With EOImode 0, the end of an interrupt deactivates it, and nothing else should.
        let handled = |w: usize| !self.model.interfaces[w].split && self.handling[w].iter().any(|one| one.0 == intid);
        if (0..self.place.len()).any(|w| handled(w) && (w == v || intid >= 32)) {
            return;
        }
        let Some(c) = self.place[v] else { return };
        let effects = self.vgic.deactivate(vcpu(v), intid, &mut Here::loaded(vcpu(v), &mut self.cpus[c]));
        self.model.deactivate(v, intid);
        self.done(v, effects);
    }

    fn frame(place: Place, offset: u32) -> Frame {
        match place {
            Place::Distributor => Frame::Distributor(offset),
            Place::Redistributor(of) => Frame::Redistributor(vcpu(of), offset),
        }
    }

    /// Before the guest's access to its own redistributor, EL2 looks at the timer's line. It cannot see that of another
    /// CPU.
    fn sample(&mut self, v: usize, place: Place) {
        if place == Place::Redistributor(v) {
            self.report_timer(v);
        }
    }

    /// EL2 looks at the timer's line on the CPU that has the vCPU loaded.
    fn report_timer(&mut self, v: usize) {
        let Some(c) = self.place[v] else { return };
        let here = &mut Here::loaded(vcpu(v), &mut self.cpus[c]);
        let effects = self.vgic.set_ppi(vcpu(v), timer(), self.timer[v], here);
        self.done(v, effects);
    }

    fn read(&mut self, v: usize, place: Place, offset: u32, width: Width) {
        self.sample(v, place);
        let Some(c) = self.place[v] else { return };
        let mut read = self.vgic.read(Self::frame(place, offset), width, &mut Here::loaded(vcpu(v), &mut self.cpus[c]));
        let value = loop {
            match read {
                Read::Value(value) => break value,
                Read::Elsewhere(retry) => {
                    for other in retry.vcpus().iter() {
                        assert!(self.place[other.index()].is_some(), "{other} is not loaded");
                        self.sync(other.index());
                    }
                    self.sample(v, place);
                    read = self.vgic.retry(retry, &mut Here::loaded(vcpu(v), &mut self.cpus[c]));
                }
            }
        };
        assert_eq!(value, self.model.read(place, offset, width), "{place:?} {offset:#x} {width:?}");
    }

    fn write(&mut self, v: usize, place: Place, offset: u32, width: Width, mut value: u64) {
        // A guest does not deactivate by ICACTIVER what it handles.
        let inner = if let Place::Redistributor(_) = place { offset.wrapping_sub(0x1_0000) } else { offset };
        if let 0x380..0x400 = inner {
            let bank = (inner & 0x7f) / 4;
            for (w, handling) in self.handling.iter().enumerate() {
                let same = !matches!(place, Place::Redistributor(of) if of != w);
                for &(intid, _) in handling.iter().filter(|one| same && one.0 / 32 == bank) {
                    value &= !(1 << (intid % 32));
                }
            }
        }
        self.sample(v, place);
        let Some(c) = self.place[v] else { return };
        let here = &mut Here::loaded(vcpu(v), &mut self.cpus[c]);
        let effects = self.vgic.write(Self::frame(place, offset), width, value, here);
        self.model.write(place, offset, width, value);
        self.done(v, effects);
    }

    fn line(&mut self, v: usize, intid: u32, level: bool, outside: bool) {
        let line = Intid::new(intid).unwrap();
        self.model.drive(v, intid, level);
        let here = self.place[v].filter(|_| !outside);
        let set = |vgic: &mut Vgic, cpu: Option<&mut Hardware>| match (cpu, line.is_shared()) {
            (Some(cpu), true) => vgic.set_spi(line, level, &mut Here::loaded(vcpu(v), cpu)),
            (Some(cpu), false) => vgic.set_ppi(vcpu(v), line, level, &mut Here::loaded(vcpu(v), cpu)),
            (None, true) => vgic.set_spi(line, level, &mut Here::without_vcpu()),
            (None, false) => vgic.set_ppi(vcpu(v), line, level, &mut Here::without_vcpu()),
        };
        let effects = set(&mut self.vgic, here.map(|c| &mut self.cpus[c]));
        if here.is_none() {
            assert_eq!(effects.deactivate, 0);
        }
        self.done(v, effects);
    }

    /// The timer's level changes. A loaded vCPU's fires by itself, and falls while the guest handles it, which EL2 may
    /// not see; else EL2 looks.
    fn set_timer(&mut self, v: usize, level: bool) {
        self.timer[v] = level;
        self.model.drive(v, TIMER, level);
        let active = self.model.private[v][TIMER as usize].active;
        let effects = match self.place[v] {
            Some(_) if level => return self.settle(),
            Some(_) if active && self.events.random.one_in(2) => return,
            Some(c) => self.vgic.set_ppi(vcpu(v), timer(), level, &mut Here::loaded(vcpu(v), &mut self.cpus[c])),
            None => self.vgic.set_ppi(vcpu(v), timer(), level, &mut Here::without_vcpu()),
        };
        self.done(v, effects);
    }

    /// What a call left to do, made on the CPU of `v`.
    fn done(&mut self, v: usize, effects: Effects) {
        if effects.deactivate != 0 {
            assert_eq!(effects.deactivate, 1 << TIMER);
            assert!(self.physical[v], "the physical interrupt was not active");
            self.physical[v] = false;
        }
        for kicked in effects.kick.iter() {
            self.sync(kicked.index());
        }
    }

    fn sync(&mut self, v: usize) {
        if !self.vgic.is_quiet(vcpu(v), 1 << TIMER) {
            self.report_timer(v);
        }
        if let Some(c) = self.place[v] {
            let effects = self.vgic.sync(vcpu(v), &mut Here::loaded(vcpu(v), &mut self.cpus[c]));
            self.done(v, effects);
            assert!(!self.vgic.needs_sync(vcpu(v)) || self.cpus[c].hcr & 8 != 0, "work remains for vCPU {v}");
        }
    }

    /// EL2 takes the interrupts that are asserted.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 8, "an interrupt of EL2 is asserted for ever");
            let mut quiet = true;
            for v in 0..self.place.len() {
                let Some(c) = self.place[v] else { continue };
                if self.cpus[c].maintenance() {
                    quiet = false;
                    self.sync(v);
                }
                if self.timer[v] && !self.physical[v] {
                    quiet = false;
                    self.physical[v] = true;
                    let here = &mut Here::loaded(vcpu(v), &mut self.cpus[c]);
                    let effects = self.vgic.fire(vcpu(v), timer(), here);
                    self.done(v, effects);
                }
            }
            if quiet {
                return;
            }
        }
    }

    fn compare(&mut self) {
        for v in 0..self.place.len() {
            let signals = self.model.signals(v);
            let agree = |ours: bool| if ours { signals.possible } else { !signals.certain };
            let ours = match self.place[v] {
                None => self.vgic.has_deliverable(vcpu(v), &Here::without_vcpu()),
                Some(c) => {
                    let cpu = &mut self.cpus[c];
                    assert!(agree(cpu.signals()), "vCPU {v}'s hardware: {:x?}, {signals:?}", cpu.registers);
                    assert_eq!(cpu.running(), self.model.running(v), "vCPU {v}");
                    let interface = &self.model.interfaces[v];
                    let point = u64::from(interface.point[1]) << 18 | u64::from(interface.point[0]) << 21;
                    assert_eq!(cpu.vmcr & 0xfffc_0000, point | u64::from(interface.mask) << 24, "vCPU {v}");
                    self.vgic.has_deliverable(vcpu(v), &Here::loaded(vcpu(v), cpu))
                }
            };
            assert!(agree(ours), "vCPU {v} can take an interrupt: {ours}, {signals:?}");
        }
    }

    fn load(&mut self, v: usize) {
        if self.place[v].is_some() {
            return;
        }
        let c = self.events.random.below(self.cpus.len());
        if let Some(other) = self.place.iter().position(|&place| place == Some(c)) {
            self.unload(other);
        }
        let effects = self.vgic.set_ppi(vcpu(v), timer(), self.timer[v], &mut Here::without_vcpu());
        self.done(v, effects);
        self.physical[v] = self.vgic.load(vcpu(v), &mut self.cpus[c]) >> TIMER & 1 == 1;
        self.place[v] = Some(c);
        self.settle();
    }

    fn unload(&mut self, v: usize) {
        self.settle();
        let Some(c) = self.place[v].take() else { return };
        let effects = self.vgic.unload(vcpu(v), &mut self.cpus[c]);
        let cpu = &self.cpus[c];
        assert!(cpu.registers.iter().all(|raw| raw >> 62 == 0) && !cpu.maintenance(), "{:x?}", cpu.registers);
        self.done(v, effects);
        self.physical[v] = false;
        let effects = self.vgic.set_ppi(vcpu(v), timer(), self.timer[v], &mut Here::without_vcpu());
        self.done(v, effects);
    }

    fn move_away(&mut self, v: usize) {
        self.unload(v);
        if self.events.random.one_in(2) {
            self.load(v);
        }
    }

    fn restore(&mut self) {
        for v in 0..self.place.len() {
            self.unload(v);
        }
        let mut bytes = vec![0; self.vgic.state_len()];
        self.vgic.save(&mut bytes).unwrap();
        let mut other = controller(&self.shape);
        other.restore(&bytes).unwrap();
        let mut again = vec![0xaa; bytes.len()];
        other.save(&mut again).unwrap();
        assert_eq!(bytes, again);
        self.vgic = other;
    }
}

fn controller(shape: &Shape) -> Vgic {
    let linked = [(timer(), TIMER as u16)];
    Vgic::new(&Config { spis: SPIS, affinities: &shape.affinities, linked: &linked }).unwrap()
}
