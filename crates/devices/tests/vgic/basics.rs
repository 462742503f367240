// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One step at a time: what each call does, on hardware with four list registers.

use twofold_devices::Width;
use twofold_devices::vgic::{Config, Effects, Frame, Here, Intid, Read, SgiRegister, VcpuId, Vgic};

use crate::fake::{Hardware, SPURIOUS};

const GROUP: u32 = 0x1_0080;
const ENABLE: u32 = 0x1_0100;
const TIMER: u32 = 27;
const UART: u32 = 33;

fn vcpu(n: u32) -> VcpuId {
    VcpuId::new(n).unwrap()
}

fn intid(n: u32) -> Intid {
    Intid::new(n).unwrap()
}

/// Two vCPUs, of which vCPU 0 is loaded; all interrupts are of group 1 and enabled; the UART's goes to vCPU 0.
fn machine() -> (Vgic, Hardware) {
    let config = Config { spis: 64, affinities: &[0, 1], linked: &[(intid(TIMER), 27)] };
    let mut vgic = Vgic::new(&config).unwrap();
    let mut cpu = Hardware::new(4, 5);
    assert_eq!(vgic.load(vcpu(0), &mut cpu), 0);
    cpu.set_mask(0xff);
    cpu.enable(true, true);
    let mut here = Here::loaded(vcpu(0), &mut cpu);
    for n in 0..2 {
        for offset in [GROUP, ENABLE] {
            write(&mut vgic, Frame::Redistributor(vcpu(n), offset), u32::MAX, &mut here);
        }
    }
    for offset in [0x84, 0x104] {
        write(&mut vgic, Frame::Distributor(offset), u32::MAX, &mut here);
    }
    write(&mut vgic, Frame::Distributor(0), 3, &mut here);
    (vgic, cpu)
}

fn write(vgic: &mut Vgic, frame: Frame, value: u32, here: &mut Here<'_, Hardware>) {
    assert!(vgic.write(frame, Width::Word, value.into(), here).is_none());
}

fn read(vgic: &mut Vgic, frame: Frame, cpu: &mut Hardware) -> Read {
    vgic.read(frame, Width::Word, &mut Here::loaded(vcpu(0), cpu))
}

fn kicked(effects: Effects) -> Vec<usize> {
    assert_eq!(effects.deactivate, 0);
    effects.kick.iter().map(VcpuId::index).collect()
}

#[test]
fn a_timer_fires_is_handled_and_fires_again_with_no_exit_between() {
    let (mut vgic, mut cpu) = machine();
    for _ in 0..10 {
        assert!(vgic.fire(vcpu(0), intid(TIMER), &mut Here::loaded(vcpu(0), &mut cpu)).is_none());
        assert_eq!(cpu.acknowledge(true), TIMER);
        cpu.end(TIMER, true);
        assert!(!cpu.maintenance());
        assert_eq!(cpu.deactivated.pop(), Some(27));
    }
    assert_eq!(cpu.registers[1..], [0; 3]);
}

#[test]
fn a_line_that_stays_asserted_interrupts_again_after_the_end() {
    let (mut vgic, mut cpu) = machine();
    assert!(vgic.set_spi(intid(UART), true, &mut Here::loaded(vcpu(0), &mut cpu)).is_none());
    for _ in 0..3 {
        assert_eq!(cpu.acknowledge(true), UART);
        cpu.end(UART, true);
        assert!(cpu.maintenance());
        assert!(vgic.sync(vcpu(0), &mut Here::loaded(vcpu(0), &mut cpu)).is_none());
    }
    // A line that falls while the guest handles the interrupt needs no maintenance interrupt.
    assert_eq!(cpu.acknowledge(true), UART);
    assert!(vgic.set_spi(intid(UART), false, &mut Here::loaded(vcpu(0), &mut cpu)).is_none());
    cpu.end(UART, true);
    assert!(!cpu.maintenance());
    assert_eq!(cpu.acknowledge(true), SPURIOUS);
}

#[test]
fn an_sgi_reaches_another_vcpu_by_a_kick() {
    let (mut vgic, mut cpu) = machine();
    let mut other = Hardware::new(1, 5);
    let _ = vgic.load(vcpu(1), &mut other);
    other.set_mask(0xff);
    other.enable(true, true);
    for _ in 0..3 {
        let sent = vgic.send(vcpu(0), SgiRegister::Group1, 5 << 24 | 0b11, &mut Here::loaded(vcpu(0), &mut cpu));
        assert_eq!(kicked(sent), [1]);
        assert!(vgic.needs_sync(vcpu(1)));
        assert!(vgic.sync(vcpu(1), &mut Here::loaded(vcpu(1), &mut other)).is_none());
        assert!(!vgic.needs_sync(vcpu(1)));
        for cpu in [&mut cpu, &mut other] {
            assert_eq!(cpu.acknowledge(true), 5);
            cpu.end(5, true);
            assert_eq!(cpu.acknowledge(true), SPURIOUS);
        }
    }
}

#[test]
fn a_pending_bit_in_another_cpus_list_register_is_read_after_that_cpu_synchronized() {
    let (mut vgic, mut cpu) = machine();
    let mut other = Hardware::new(1, 5);
    let _ = vgic.load(vcpu(1), &mut other);
    let sent = vgic.send(vcpu(0), SgiRegister::Group1, 5 << 24 | 0b10, &mut Here::loaded(vcpu(0), &mut cpu));
    assert_eq!(kicked(sent), [1]);
    let _ = vgic.sync(vcpu(1), &mut Here::loaded(vcpu(1), &mut other));
    let frame = Frame::Redistributor(vcpu(1), 0x1_0200);
    let Read::Elsewhere(retry) = read(&mut vgic, frame, &mut cpu) else { panic!() };
    assert!(retry.vcpus().contains(vcpu(1)));
    // Without a synchronization it is still not known.
    let Read::Elsewhere(retry) = vgic.retry(retry, &mut Here::loaded(vcpu(0), &mut cpu)) else { panic!() };
    assert!(vgic.needs_sync(vcpu(1)));
    let _ = vgic.sync(vcpu(1), &mut Here::loaded(vcpu(1), &mut other));
    assert_eq!(vgic.retry(retry, &mut Here::loaded(vcpu(0), &mut cpu)), Read::Value(1 << 5));
}

#[test]
fn a_reset_state_identifies_itself() {
    let (mut vgic, mut cpu) = machine();
    let mut word = |frame| match read(&mut vgic, frame, &mut cpu) {
        Read::Value(value) => value,
        Read::Elsewhere(_) => panic!(),
    };
    assert_eq!(word(Frame::Distributor(0)), 0x53);
    assert_eq!(word(Frame::Distributor(4)), 1 << 25 | 1 << 24 | 9 << 19 | 2);
    assert_eq!(word(Frame::Distributor(0xffe8)) >> 4 & 15, 3);
    assert_eq!(word(Frame::Redistributor(vcpu(1), 8)), 1 << 8 | 1 << 4);
    assert_eq!(word(Frame::Redistributor(vcpu(1), 12)), 1);
    assert_eq!(word(Frame::Redistributor(vcpu(1), 0xffe8)) >> 4 & 15, 3);
    assert_eq!(word(Frame::Redistributor(vcpu(1), 0x14)), 6);
}

/// The timer's interrupt is pended by software while it is handled: its list register cannot be linked any more, so
/// software ends the physical interrupt.
#[test]
fn a_linked_interrupt_that_is_pended_twice_ends_by_software() {
    let (mut vgic, mut cpu) = machine();
    assert!(vgic.fire(vcpu(0), intid(TIMER), &mut Here::loaded(vcpu(0), &mut cpu)).is_none());
    assert_eq!(cpu.acknowledge(true), TIMER);
    write(&mut vgic, Frame::Redistributor(vcpu(0), 0x1_0200), 1 << TIMER, &mut Here::loaded(vcpu(0), &mut cpu));
    assert!(vgic.unload(vcpu(0), &mut cpu).is_none());
    assert_eq!(vgic.load(vcpu(0), &mut cpu), 1 << TIMER);
    cpu.end(TIMER, true);
    assert!(cpu.maintenance());
    let effects = vgic.sync(vcpu(0), &mut Here::loaded(vcpu(0), &mut cpu));
    assert_eq!(effects.deactivate, 1 << TIMER);
    assert_eq!(cpu.acknowledge(true), TIMER);
    cpu.end(TIMER, true);
    assert_eq!(cpu.deactivated, []);
    assert_eq!(cpu.acknowledge(true), SPURIOUS);
}

/// The guest set the timer's interrupt active, and then the timer fires: what the guest ends is not lost.
#[test]
fn a_linked_interrupt_that_fires_while_it_is_handled_fires_again() {
    let (mut vgic, mut cpu) = machine();
    write(&mut vgic, Frame::Redistributor(vcpu(0), 0x1_0200), 1 << TIMER, &mut Here::loaded(vcpu(0), &mut cpu));
    assert_eq!(cpu.acknowledge(true), TIMER);
    assert!(vgic.fire(vcpu(0), intid(TIMER), &mut Here::loaded(vcpu(0), &mut cpu)).is_none());
    cpu.end(TIMER, true);
    assert!(cpu.maintenance());
    let effects = vgic.sync(vcpu(0), &mut Here::loaded(vcpu(0), &mut cpu));
    assert_eq!(effects.deactivate, 1 << TIMER);
}

/// More interrupts wait than there are list registers, and the guest enables and disables each group: EL2 is called when
/// one outside may be the next, and one call is enough.
#[test]
fn a_group_that_is_disabled_asks_for_one_synchronization() {
    for [first, second] in [[false, true], [true, false]] {
        let (mut vgic, mut cpu) = machine();
        cpu.enable(false, true);
        let mut here = Here::loaded(vcpu(0), &mut cpu);
        write(&mut vgic, Frame::Redistributor(vcpu(0), GROUP), 0x5555_5555, &mut here);
        write(&mut vgic, Frame::Redistributor(vcpu(0), 0x1_0200), 0xfff0, &mut here);
        let states = [(first, false), (second, false), (second, true), (second, false), (first, true), (second, true)];
        let mut enabled = [true; 2];
        for (group1, on) in states {
            cpu.enable(group1, on);
            enabled[usize::from(group1)] = on;
            if cpu.maintenance() {
                assert!(vgic.sync(vcpu(0), &mut Here::loaded(vcpu(0), &mut cpu)).is_none());
            }
            assert!(!cpu.maintenance(), "groups {enabled:?}");
            for group1 in [false, true] {
                let is_first = cpu.highest_pending(group1) != SPURIOUS;
                assert!(!is_first || enabled[usize::from(group1)], "groups {enabled:?}");
            }
            assert_eq!(cpu.signals(), enabled != [false; 2], "groups {enabled:?}");
        }
    }
}

/// The guest handles an interrupt whose line is asserted, and sets it pending. Then the line falls: it is still pending
/// at its end. For a while more interrupts wait than there are list registers, so the handled one is put back into one.
#[test]
fn an_interrupt_set_pending_while_it_is_handled_outlasts_its_line() {
    let (mut vgic, mut cpu) = machine();
    for offset in [0x1_0404, 0x1_0408, 0x1_040c] {
        let here = &mut Here::loaded(vcpu(0), &mut cpu);
        write(&mut vgic, Frame::Redistributor(vcpu(0), offset), 0x8080_8080, here);
    }
    assert!(vgic.set_spi(intid(UART), true, &mut Here::loaded(vcpu(0), &mut cpu)).is_none());
    assert_eq!(cpu.acknowledge(true), UART);
    let mut here = Here::loaded(vcpu(0), &mut cpu);
    write(&mut vgic, Frame::Redistributor(vcpu(0), 0x1_0200), 0xfff0, &mut here);
    write(&mut vgic, Frame::Distributor(0x204), 1 << (UART % 32), &mut here);
    write(&mut vgic, Frame::Redistributor(vcpu(0), 0x1_0280), 0xffc0, &mut here);
    assert!(vgic.set_spi(intid(UART), false, &mut here).is_none());
    cpu.end(UART, true);
    assert!(cpu.maintenance());
    assert!(vgic.sync(vcpu(0), &mut Here::loaded(vcpu(0), &mut cpu)).is_none());
    assert_eq!(cpu.acknowledge(true), UART);
}
