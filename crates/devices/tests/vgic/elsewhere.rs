// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one vCPU does to an interrupt that is in another CPU's list register, before that CPU was kicked: the guest there
//! goes on meanwhile. The random events cannot compare this, because the model knows no delay.

use twofold_devices::Width;
use twofold_devices::vgic::{Config, Effects, Frame, Here, Intid, Read, VcpuId, Vgic};

use crate::fake::{Hardware, SPURIOUS};

const SPI: u32 = 40;
const TIMER: u32 = 27;
const BIT: u32 = 1 << (SPI % 32);

struct Two {
    vgic: Vgic,
    cpus: [Hardware; 2],
}

fn vcpu(n: usize) -> VcpuId {
    VcpuId::new(n as u32).unwrap()
}

impl Two {
    /// Both vCPUs are loaded, one list register each. SPI 40 is an edge, enabled, and goes to vCPU 1.
    fn new() -> Self {
        let linked = [(Intid::new(TIMER).unwrap(), TIMER as u16)];
        let mut vgic = Vgic::new(&Config { spis: 32, affinities: &[0, 1], linked: &linked }).unwrap();
        let mut cpus = [Hardware::new(1, 5), Hardware::new(1, 5)];
        for (n, cpu) in cpus.iter_mut().enumerate() {
            let _ = vgic.load(vcpu(n), cpu);
            cpu.set_mask(0xff);
            cpu.enable(true, true);
        }
        let mut two = Self { vgic, cpus };
        for (offset, value) in [(0x84, u32::MAX), (0xc08, 0xaaaa_aaaa), (0x104, u32::MAX), (0, 2)] {
            assert!(two.write(0, Frame::Distributor(offset), value).is_none());
        }
        for n in 0..2 {
            for offset in [0x1_0080, 0x1_0100] {
                assert!(two.write(n, Frame::Redistributor(vcpu(n), offset), u32::MAX).is_none());
            }
        }
        assert!(two.write(0, Frame::Distributor(0x6000 + 8 * SPI), 1).is_none());
        two
    }

    fn write(&mut self, by: usize, frame: Frame, value: u32) -> Effects {
        let here = &mut Here::loaded(vcpu(by), &mut self.cpus[by]);
        self.vgic.write(frame, Width::Word, value.into(), here)
    }

    /// vCPU 0 writes, and vCPU 1 has to be kicked.
    fn write_there(&mut self, offset: u32, value: u32) {
        let effects = self.write(0, Frame::Distributor(offset), value);
        assert!(effects.kick.contains(vcpu(1)));
        assert_eq!(effects.deactivate, 0);
    }

    fn read(&mut self, by: usize, offset: u32) -> u64 {
        let here = &mut Here::loaded(vcpu(by), &mut self.cpus[by]);
        match self.vgic.read(Frame::Distributor(offset), Width::Word, here) {
            Read::Value(value) => value,
            Read::Elsewhere(_) => panic!("{offset:#x} is elsewhere"),
        }
    }

    fn sync(&mut self, by: usize) -> Effects {
        self.vgic.sync(vcpu(by), &mut Here::loaded(vcpu(by), &mut self.cpus[by]))
    }

    /// The line rises and falls, and vCPU 1's CPU has it.
    fn edge(&mut self) {
        self.edge_late();
        assert!(self.sync(1).is_none());
    }

    fn edge_late(&mut self) {
        let spi = Intid::new(SPI).unwrap();
        let here = &mut Here::loaded(vcpu(0), &mut self.cpus[0]);
        let effects = self.vgic.set_spi(spi, true, here).and(self.vgic.set_spi(spi, false, here));
        assert!(effects.kick.contains(vcpu(1)));
    }

    /// EL2 takes maintenance interrupts as long as there are some.
    fn maintain(&mut self, by: usize) {
        for _ in 0..4 {
            if self.cpus[by].maintenance() {
                assert!(self.sync(by).is_none());
            }
        }
        assert!(!self.cpus[by].maintenance());
    }
}

#[test]
fn a_pending_bit_is_cleared_before_the_guest_there_acknowledges() {
    let mut two = Two::new();
    two.edge();
    two.write_there(0x284, BIT);
    assert!(two.sync(1).is_none());
    assert_eq!(two.cpus[1].acknowledge(true), SPURIOUS);
}

#[test]
fn a_pending_bit_is_cleared_after_the_guest_there_has_acknowledged() {
    let mut two = Two::new();
    two.edge();
    two.write_there(0x284, BIT);
    assert_eq!(two.cpus[1].acknowledge(true), SPI);
    assert!(two.sync(1).is_none());
    assert_eq!((two.read(1, 0x204), two.read(1, 0x304)), (0, BIT.into()));
    two.cpus[1].end(SPI, true);
    two.maintain(1);
    assert_eq!((two.read(1, 0x204), two.read(1, 0x304)), (0, 0));
}

#[test]
fn a_second_edge_is_lost_before_the_acknowledge_and_kept_after_it() {
    for acknowledged_before in [false, true] {
        let mut two = Two::new();
        two.edge();
        if acknowledged_before {
            assert_eq!(two.cpus[1].acknowledge(true), SPI);
            two.edge_late();
            assert!(two.sync(1).is_none());
        } else {
            two.edge_late();
            assert!(two.sync(1).is_none());
            assert_eq!(two.cpus[1].acknowledge(true), SPI);
        }
        two.cpus[1].end(SPI, true);
        two.maintain(1);
        let again = two.cpus[1].acknowledge(true);
        assert_eq!(again, if acknowledged_before { SPI } else { SPURIOUS });
    }
}

#[test]
fn a_second_edge_between_the_end_and_the_kick_is_kept() {
    let mut two = Two::new();
    two.edge();
    assert_eq!(two.cpus[1].acknowledge(true), SPI);
    two.edge_late();
    two.cpus[1].end(SPI, true);
    assert!(two.sync(1).is_none());
    assert_eq!(two.cpus[1].acknowledge(true), SPI);
}

#[test]
fn an_active_state_that_is_cleared_there_is_not_ended_twice() {
    let mut two = Two::new();
    two.edge();
    assert_eq!(two.cpus[1].acknowledge(true), SPI);
    two.write_there(0x384, BIT);
    assert!(two.sync(1).is_none());
    assert_eq!(two.read(1, 0x304), 0);
    two.cpus[1].end(SPI, true);
    two.maintain(1);
    two.edge();
    assert_eq!(two.cpus[1].acknowledge(true), SPI);
}

#[test]
fn an_active_state_that_is_set_there_lasts_beyond_the_guests_end() {
    let mut two = Two::new();
    two.edge();
    two.write_there(0x304, BIT);
    assert!(two.sync(1).is_none());
    assert_eq!(two.cpus[1].acknowledge(true), SPURIOUS);
    assert_eq!((two.read(1, 0x204), two.read(1, 0x304)), (BIT.into(), BIT.into()));
    assert!(two.write(1, Frame::Distributor(0x384), BIT).is_none());
    assert_eq!(two.cpus[1].acknowledge(true), SPI);
}

#[test]
fn a_route_that_changes_takes_a_pending_interrupt_along() {
    let mut two = Two::new();
    two.edge();
    two.write_there(0x6000 + 8 * SPI, 0);
    let effects = two.sync(1);
    assert!(effects.kick.contains(vcpu(0)));
    assert_eq!(two.cpus[1].acknowledge(true), SPURIOUS);
    assert!(two.sync(0).is_none());
    assert_eq!(two.cpus[0].acknowledge(true), SPI);
}

#[test]
fn a_write_that_disables_is_pending_until_the_other_cpu_has_done_it() {
    let mut two = Two::new();
    two.edge();
    two.write_there(0x184, BIT);
    assert_eq!(two.read(0, 0) >> 31, 1);
    assert!(two.sync(1).is_none());
    assert_eq!(two.read(0, 0) >> 31, 0);
    assert_eq!(two.cpus[1].acknowledge(true), SPURIOUS);

    assert!(two.write(1, Frame::Distributor(0x104), BIT).is_none());
    two.write_there(0, 1);
    assert_eq!(two.read(0, 0) >> 31, 1);
    assert!(two.sync(1).is_none());
    assert_eq!(two.read(0, 0) >> 31, 0);
    assert_eq!(two.cpus[1].acknowledge(true), SPURIOUS);
}

/// The timer of vCPU 1 is made inactive by vCPU 0: its physical interrupt is deactivated on the CPU of vCPU 1.
#[test]
fn a_linked_interrupt_is_released_where_its_vcpu_is() {
    let mut two = Two::new();
    let timer = Intid::new(TIMER).unwrap();
    let fire = |two: &mut Two| two.vgic.fire(vcpu(1), timer, &mut Here::loaded(vcpu(1), &mut two.cpus[1]));
    assert!(fire(&mut two).is_none());
    assert_eq!(two.cpus[1].acknowledge(true), TIMER);
    let effects = two.write(0, Frame::Redistributor(vcpu(1), 0x1_0380), 1 << TIMER);
    assert_eq!((effects.kick.contains(vcpu(1)), effects.deactivate), (true, 0));
    let effects = two.sync(1);
    assert_eq!(effects.deactivate, 1 << TIMER);
    assert_eq!(two.vgic.held(vcpu(1)), 0);

    // So does its deactivation by name, with EOImode 1.
    two.cpus[1].end(TIMER, true);
    two.maintain(1);
    two.cpus[1].configure(false, true);
    assert!(fire(&mut two).is_none());
    assert_eq!(two.cpus[1].acknowledge(true), TIMER);
    two.cpus[1].end(TIMER, true);
    let effects = two.vgic.deactivate(vcpu(1), TIMER, &mut Here::loaded(vcpu(1), &mut two.cpus[1]));
    assert_eq!(effects.deactivate, 1 << TIMER);
    assert_eq!(two.cpus[1].acknowledge(true), SPURIOUS);
}

/// The timer of vCPU 1 is lowered by another CPU while it is pending: nothing is left that holds the physical interrupt.
#[test]
fn a_linked_interrupt_whose_line_falls_is_withdrawn_and_released() {
    let mut two = Two::new();
    let timer = Intid::new(TIMER).unwrap();
    assert!(two.vgic.fire(vcpu(1), timer, &mut Here::loaded(vcpu(1), &mut two.cpus[1])).is_none());
    let effects = two.vgic.set_ppi(vcpu(1), timer, false, &mut Here::loaded(vcpu(0), &mut two.cpus[0]));
    assert_eq!((effects.kick.contains(vcpu(1)), effects.deactivate), (true, 0));
    assert_eq!(two.sync(1).deactivate, 1 << TIMER);
    assert_eq!(two.vgic.held(vcpu(1)), 0);
    assert_eq!(two.cpus[1].acknowledge(true), SPURIOUS);
}

/// The guest sets its timer anew while it handles the timer's interrupt. No interrupt says so: the physical one is
/// active. Another vCPU's read waits until the CPU of this vCPU has looked at the line.
#[test]
fn the_line_of_a_held_interrupt_is_read_where_its_vcpu_is() {
    let mut two = Two::new();
    let timer = Intid::new(TIMER).unwrap();
    let pending = Frame::Redistributor(vcpu(1), 0x1_0200);
    let fired = two.vgic.fire(vcpu(1), timer, &mut Here::loaded(vcpu(1), &mut two.cpus[1]));
    assert!(fired.is_none());
    assert_eq!(two.cpus[1].acknowledge(true), TIMER);
    for level in [true, false, true] {
        let Read::Elsewhere(mut retry) =
            two.vgic.read(pending, Width::Word, &mut Here::loaded(vcpu(0), &mut two.cpus[0]))
        else {
            panic!("the line was not looked at")
        };
        assert!(retry.vcpus().contains(vcpu(1)));
        assert!(!two.vgic.is_quiet(vcpu(1), 1 << TIMER));
        // It is not enough to ask once more.
        retry = match two.vgic.retry(retry, &mut Here::loaded(vcpu(0), &mut two.cpus[0])) {
            Read::Elsewhere(retry) => retry,
            Read::Value(_) => panic!("the line was not looked at"),
        };
        let reported = two.vgic.set_ppi(vcpu(1), timer, level, &mut Here::loaded(vcpu(1), &mut two.cpus[1]));
        assert!(reported.is_none());
        assert!(two.sync(1).is_none());
        let value = two.vgic.retry(retry, &mut Here::loaded(vcpu(0), &mut two.cpus[0]));
        assert_eq!(value, Read::Value(u64::from(level) << TIMER));
    }

    // The CPU of vCPU 1 sees its line itself, and the line of a vCPU that is not loaded is as the embedder says.
    let own = two.vgic.read(pending, Width::Word, &mut Here::loaded(vcpu(1), &mut two.cpus[1]));
    assert_eq!(own, Read::Value(1 << TIMER));
    assert_eq!(two.vgic.unload(vcpu(1), &mut two.cpus[1]).deactivate, 0);
    let other = two.vgic.read(pending, Width::Word, &mut Here::loaded(vcpu(0), &mut two.cpus[0]));
    assert_eq!(other, Read::Value(1 << TIMER));
}
