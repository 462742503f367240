// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Configurations and states that are refused, by name.

use twofold_devices::vgic::{Config, ConfigError, Impossible, Intid, StateError, VcpuId, Vgic};

use crate::fake::Hardware;

const TIMER: u32 = 27;
const HEADER: usize = 12;
/// From a vCPU's start to its bank, and the bank's rows of bytes.
const PRIVATE: usize = HEADER + 48;
const PRIORITY: usize = 36;
const HANDLER: usize = 36 + 64;
const SHARED: usize = HEADER + 180;

fn vgic() -> Vgic {
    let linked = [(Intid::new(TIMER).unwrap(), 30)];
    Vgic::new(&Config { spis: 32, affinities: &[0], linked: &linked }).unwrap()
}

fn vcpu() -> VcpuId {
    VcpuId::new(0).unwrap()
}

/// A state of which one byte is changed is refused, and the old state stays.
fn refused(at: usize, byte: u8) -> StateError {
    let mut vgic = vgic();
    let mut before = vec![0; vgic.state_len()];
    vgic.save(&mut before).unwrap();
    let mut bytes = before.clone();
    bytes[at] = byte;
    let error = vgic.restore(&bytes).unwrap_err();
    let mut after = vec![0; before.len()];
    vgic.save(&mut after).unwrap();
    assert_eq!(before, after);
    error
}

fn private(intid: u32, impossible: Impossible) -> StateError {
    StateError::Private { vcpu: vcpu(), intid, impossible }
}

#[test]
fn a_configuration_that_cannot_be() {
    let new = |spis, affinities: &[u32], linked: &[(Intid, u16)]| {
        Vgic::new(&Config { spis, affinities, linked }).map(drop).unwrap_err()
    };
    assert_eq!(new(31, &[0], &[]), ConfigError::Spis(31));
    assert_eq!(new(992, &[0], &[]), ConfigError::Spis(992));
    assert_eq!(new(32, &[], &[]), ConfigError::Vcpus(0));
    assert_eq!(new(32, &[0; 65], &[]), ConfigError::Vcpus(65));
    assert_eq!(new(32, &[1, 2, 1], &[]), ConfigError::Affinity(1));
    assert_eq!(new(32, &[0], &[(Intid::new(5).unwrap(), 27)]), ConfigError::Link { ppi: 5, physical: 27 });
    assert_eq!(new(32, &[0], &[(Intid::new(27).unwrap(), 3)]), ConfigError::Link { ppi: 27, physical: 3 });
}

#[test]
fn a_state_that_is_not_one() {
    let mut vgic = vgic();
    let expected = vgic.state_len();
    assert_eq!(vgic.restore(&[]), Err(StateError::Length { length: 0, expected }));
    assert_eq!(refused(0, b'X'), StateError::Version);
    assert_eq!(refused(4, 2), StateError::Version);
    assert_eq!(refused(6, 2), StateError::Shape { vcpus: 2, spis: 32 });
    assert_eq!(refused(8, 64), StateError::Shape { vcpus: 1, spis: 64 });
    assert_eq!(refused(10, 4), StateError::Control(4));
    assert_eq!(refused(HEADER, 9), StateError::Affinity { vcpu: vcpu(), affinity: 9 });
    assert_eq!(refused(HEADER + 4, 2), StateError::Waker { vcpu: vcpu(), value: 2 });
    assert!(matches!(refused(HEADER + 12, 1), StateError::MachineControl { .. }));
}

#[test]
fn an_interrupt_that_cannot_be_so() {
    // Word 2 of a bank is edge, word 3 line, word 6 acknowledged, word 7 its group, word 8 held.
    assert_eq!(refused(PRIVATE + 8, 0xfe), private(0, Impossible::Trigger));
    assert_eq!(refused(PRIVATE + 11, 1 << 3), private(TIMER, Impossible::Trigger));
    assert_eq!(refused(PRIVATE + 12, 4), private(2, Impossible::Line));
    assert_eq!(refused(PRIVATE + 24, 2), private(1, Impossible::Handler));
    assert_eq!(refused(PRIVATE + 28, 2), private(1, Impossible::Unacknowledged));
    assert_eq!(refused(PRIVATE + 34, 1), private(16, Impossible::Held));
    assert_eq!(refused(PRIVATE + 35, 1 << 3), private(TIMER, Impossible::Held));
    assert_eq!(refused(PRIVATE + PRIORITY + 7, 0x44), private(7, Impossible::Priority));
    assert_eq!(refused(PRIVATE + HANDLER + 7, 0), private(7, Impossible::Unacknowledged));
    let impossible = Impossible::Handler;
    assert_eq!(refused(SHARED + 24, 1), StateError::Shared { intid: 32, impossible });
}

#[test]
fn a_state_of_a_vcpu_that_is_loaded() {
    let mut vgic = vgic();
    let mut bytes = vec![0; vgic.state_len()];
    let mut cpu = Hardware::new(4, 5);
    let _ = vgic.load(vcpu(), &mut cpu);
    assert_eq!(vgic.save(&mut bytes), Err(StateError::Loaded(vcpu())));
    assert_eq!(vgic.restore(&bytes), Err(StateError::Loaded(vcpu())));
    assert_eq!(vgic.reset(), Err(StateError::Loaded(vcpu())));
    let _ = vgic.unload(vcpu(), &mut cpu);
    assert_eq!(vgic.save(&mut bytes), Ok(()));
}
