// SPDX-License-Identifier: Apache-2.0 OR MIT
//! vCPUs that take turns on one CPU: the short ways to load and to put away a quiet vCPU do what the long ones do.
//!
//! The short ways need five bits of priorities. So the same steps go to two machines, whose CPUs have five bits and six.
//! Their guests must see the same, and their states must be equal at each switch.

use twofold_devices::Width;
use twofold_devices::vgic::{Config, Frame, Here, Intid, SgiRegister, VcpuId, Vgic};

use crate::fake::Hardware;
use crate::random::Random;

/// A PPI that is not linked to a physical interrupt.
const PPI: u32 = 20;
const UART: u32 = 33;

struct Machine {
    vgic: Vgic,
    cpu: Hardware,
    /// The vCPU that is loaded.
    loaded: usize,
    /// What each vCPU has acknowledged and not yet ended.
    handled: [Vec<u32>; 2],
}

fn vcpu(n: usize) -> VcpuId {
    VcpuId::new(n as u32).unwrap()
}

fn intid(n: u32) -> Intid {
    Intid::new(n).unwrap()
}

impl Machine {
    fn new(list_registers: usize, bits: u32) -> Self {
        let vgic = Vgic::new(&Config { spis: 32, affinities: &[0, 1], linked: &[] }).unwrap();
        let mut machine =
            Self { vgic, cpu: Hardware::new(list_registers, bits), loaded: 0, handled: Default::default() };
        for n in [1, 0] {
            assert_eq!(machine.vgic.load(vcpu(n), &mut machine.cpu), 0);
            machine.loaded = n;
            machine.cpu.set_mask(0xff);
            machine.cpu.enable(true, true);
            for offset in [0x1_0080, 0x1_0100] {
                machine.write(Frame::Redistributor(vcpu(n), offset), Width::Word, u64::from(u32::MAX));
            }
            // No two that can be pending together are equally urgent, so their order is known.
            for private in 0..32 {
                machine.write(Frame::Redistributor(vcpu(n), 0x1_0400 + private), Width::Byte, u64::from(private) * 8);
            }
            if n == 1 {
                assert!(machine.vgic.unload(vcpu(n), &mut machine.cpu).is_none());
            }
        }
        for (offset, value) in [(0x84, u32::MAX), (0x104, u32::MAX), (0, 3)] {
            machine.write(Frame::Distributor(offset), Width::Word, value.into());
        }
        machine
    }

    fn write(&mut self, frame: Frame, width: Width, value: u64) {
        let _ = self.vgic.write(frame, width, value, &mut Here::loaded(vcpu(self.loaded), &mut self.cpu));
    }

    /// One step. Returns what the guest sees of it, and at a switch the whole state. If `late`, the vCPU may be put away
    /// before its maintenance interrupt is handled.
    fn step(&mut self, step: usize, number: u32, to: usize, (level, late): (bool, bool)) -> (u32, Vec<u8>) {
        let this = vcpu(self.loaded);
        let mut seen = (0, Vec::new());
        let mut here = Here::loaded(this, &mut self.cpu);
        match step {
            0..4 => {
                let sgi = u64::from(number % 4) << 24 | 1 << to;
                if level {
                    // From another CPU: this one has not synchronized yet when its vCPU leaves it.
                    let _ = self.vgic.send(this, SgiRegister::Group1, sgi, &mut Here::without_vcpu());
                    return seen;
                }
                let _ = self.vgic.send(this, SgiRegister::Group1, sgi, &mut here);
            }
            4..7 => {
                seen.0 = self.cpu.acknowledge(true);
                if seen.0 < 1020 {
                    self.handled[self.loaded].push(seen.0);
                }
            }
            7..10 => {
                if let Some(intid) = self.handled[self.loaded].pop() {
                    self.cpu.end(intid, true);
                }
            }
            10 => _ = self.vgic.set_ppi(vcpu(to), intid(PPI), level, &mut here),
            11 => _ = self.vgic.set_spi(intid(UART), level, &mut here),
            12 => {
                // ISACTIVER and ICACTIVER, from another CPU.
                let offset = if level { 0x1_0300 } else { 0x1_0380 };
                let frame = Frame::Redistributor(vcpu(to), offset);
                let _ = self.vgic.write(frame, Width::Word, 1 << (number % 4), &mut Here::without_vcpu());
            }
            _ => seen = self.switch(),
        }
        if self.cpu.maintenance() && !late {
            let _ = self.vgic.sync(vcpu(self.loaded), &mut Here::loaded(vcpu(self.loaded), &mut self.cpu));
        }
        seen
    }

    fn switch(&mut self) -> (u32, Vec<u8>) {
        let is_quiet = self.vgic.unload_quiet(vcpu(self.loaded), &mut self.cpu);
        if !is_quiet {
            let _ = self.vgic.unload(vcpu(self.loaded), &mut self.cpu);
        }
        let can_take = [0, 1].map(|n| self.vgic.has_deliverable(vcpu(n), &Here::without_vcpu()));
        assert!(!is_quiet || !can_take[self.loaded], "an interrupt waits for a vCPU that was put away as quiet");
        let mut state = vec![0; self.vgic.state_len()];
        self.vgic.save(&mut state).unwrap();
        self.loaded ^= 1;
        assert_eq!(self.vgic.load(vcpu(self.loaded), &mut self.cpu), 0);
        (u32::from(can_take[0]) | u32::from(can_take[1]) << 1 | u32::from(self.cpu.signals()) << 2, state)
    }
}

#[test]
fn the_short_ways_do_what_the_long_ones_do() {
    for seed in 1..=200 {
        let mut random = Random(seed);
        // With one list register, an interrupt that the guest handles leaves it for a more urgent one.
        let list_registers = if seed % 2 == 0 { 4 } else { 1 };
        let mut machines = [5, 6].map(|bits| Machine::new(list_registers, bits));
        // Lines are high in a part of the runs only: the short ways are for vCPUs whose lines are low.
        let kinds = match seed % 3 {
            0 => [0, 4, 5, 7, 8, 13, 13, 13],
            1 => [0, 4, 7, 8, 10, 11, 13, 13],
            _ => [0, 4, 5, 7, 8, 12, 13, 13],
        };
        for number in 0..2000 {
            let (step, sgi, to) = (random.pick(&kinds), random.below(4) as u32, random.below(2));
            let with = (random.one_in(4), random.one_in(4));
            let [short, long] = machines.each_mut().map(|machine| machine.step(step, sgi, to, with));
            assert!(short == long, "seed {seed}, step {number} of kind {step}: {short:?} and {long:?}");
        }
    }
}
