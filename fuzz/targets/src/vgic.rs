// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest that does anything with its interrupt controller.

use arbitrary::{Result, Unstructured};
use twofold_devices::Width;
use twofold_devices::vgic::{Config, Effects, Frame, Here, Intid, Read, SgiRegister, VcpuId, Vgic};

use crate::virtual_interface::Hardware;

const SPIS: u32 = 64;
const TIMER: u32 = 27;
/// The accesses of EL2 to the virtual interface for one call, with 16 list registers: each is read, cleared and
/// written at most, and some for an interrupt that changed before.
const MOST_CALLS: usize = 200;

/// Whatever a guest does, nothing panics, no list register's content is lost, each call's work is bounded, and the state
/// goes through bytes.
pub fn vgic(data: &[u8]) {
    let _ = guest(&mut Unstructured::new(data));
}

/// A state is refused, or is the state that is given back.
pub fn vgic_state(data: &[u8]) {
    let (mut vgic, _) = machine(2);
    let mut bytes = vec![0; vgic.state_len()];
    // The bytes replace some of a valid state's, or are the state.
    vgic.save(&mut bytes).unwrap();
    let before = bytes.clone();
    for change in data.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
        bytes[at] = change[2];
    }
    for state in [&bytes[..], data] {
        match vgic.restore(state) {
            Ok(()) => {
                let mut again = vec![0; state.len()];
                vgic.save(&mut again).unwrap();
                assert_eq!(state, again);
                // It can be used.
                let mut cpu = Hardware::new(2, 5);
                let _ = vgic.load(vcpu(0), &mut cpu);
                let _ = vgic.unload(vcpu(0), &mut cpu);
                vgic.restore(&before).unwrap();
            }
            Err(_) => {
                let mut again = vec![0; before.len()];
                vgic.save(&mut again).unwrap();
                assert_eq!(again, before);
            }
        }
    }
}

fn vcpu(n: usize) -> VcpuId {
    VcpuId::new(n as u32 % VcpuId::MOST).unwrap()
}

/// Two vCPUs, each on a CPU with this number of list registers.
fn machine(list_registers: usize) -> (Vgic, [Hardware; 2]) {
    let linked = [(Intid::new(TIMER).unwrap(), TIMER as u16)];
    let vgic = Vgic::new(&Config { spis: SPIS, affinities: &[0, 0x101], linked: &linked }).unwrap();
    (vgic, [Hardware::new(list_registers, 5), Hardware::new(list_registers, 5)])
}

fn guest(u: &mut Unstructured<'_>) -> Result<()> {
    let (mut vgic, mut cpus) = machine(u.int_in_range(1..=16)?);
    let mut loaded = [false; 2];
    while !u.is_empty() {
        let kind = u.int_in_range(0..=11)?;
        let v = usize::from(u.arbitrary::<bool>()?);
        let cpu = &mut cpus[v];
        if !loaded[v] {
            let _ = vgic.load(vcpu(v), cpu);
            loaded[v] = true;
        } else if kind == 0 {
            let _ = vgic.unload(vcpu(v), cpu);
            loaded[v] = false;
            continue;
        }
        cpu.calls.set(0);
        let here = &mut Here::loaded(vcpu(v), cpu);
        let effects = match kind {
            0 => Effects::default(),
            1 | 2 => {
                let (frame, width) = place(u)?;
                if let Read::Elsewhere(retry) = vgic.read(frame, width, here) {
                    let _ = vgic.retry(retry, here);
                }
                Effects::default()
            }
            3..=5 => {
                let (frame, width) = place(u)?;
                vgic.write(frame, width, u.arbitrary()?, here)
            }
            6 => {
                let register = *u.choose(&[SgiRegister::Group1, SgiRegister::Group0, SgiRegister::Alias])?;
                vgic.send(vcpu(v), register, u.arbitrary()?, here)
            }
            7 => vgic.deactivate(vcpu(v), u.arbitrary::<u16>()?.into(), here),
            8 => line(&mut vgic, v, u, here)?,
            9 => vgic.sync(vcpu(v), here),
            _ => {
                instruction(&mut cpus[v], u)?;
                Effects::default()
            }
        };
        assert!(cpus[v].calls.get() <= MOST_CALLS, "{} accesses of the interface", cpus[v].calls.get());
        for kicked in effects.kick.iter().filter(|kicked| loaded[kicked.index()]) {
            // A kick that is late is sent again.
            if u.ratio(3, 4)? {
                let _ = vgic.sync(kicked, &mut Here::loaded(kicked, &mut cpus[kicked.index()]));
            }
        }
    }
    for v in 0..2 {
        if loaded[v] {
            let _ = vgic.unload(vcpu(v), &mut cpus[v]);
        }
    }
    let mut bytes = vec![0; vgic.state_len()];
    vgic.save(&mut bytes).unwrap();
    machine(1).0.restore(&bytes).unwrap();
    Ok(())
}

fn place(u: &mut Unstructured<'_>) -> Result<(Frame, Width)> {
    let width = Width::from_sas(u.arbitrary()?);
    let offset: u32 = u.arbitrary::<u16>()?.into();
    let offset = if u.ratio(7, 8)? { offset & !(width.bytes() as u32 - 1) } else { offset };
    Ok((
        match u.int_in_range(0..=3)? {
            0 | 1 => Frame::Distributor(offset),
            2 => Frame::Redistributor(vcpu(u.int_in_range(0..=2)?), offset | 0x1_0000),
            _ => Frame::Redistributor(vcpu(u.int_in_range(0..=2)?), u.arbitrary()?),
        },
        width,
    ))
}

fn line(vgic: &mut Vgic, v: usize, u: &mut Unstructured<'_>, here: &mut Here<'_, Hardware>) -> Result<Effects> {
    let intid = Intid::new(u.int_in_range(0..=127)?).unwrap();
    let asserted = u.arbitrary()?;
    Ok(match u.int_in_range(0..=2)? {
        0 => vgic.set_spi(intid, asserted, here),
        1 => vgic.set_ppi(vcpu(v), intid, asserted, here),
        _ => vgic.fire(vcpu(v), Intid::new(TIMER).unwrap(), here),
    })
}

/// What the guest does to its CPU interface without an exit.
fn instruction(cpu: &mut Hardware, u: &mut Unstructured<'_>) -> Result<()> {
    let group1 = u.arbitrary()?;
    match u.int_in_range(0..=7)? {
        0..=2 => {
            cpu.acknowledge(group1);
        }
        3 | 4 => cpu.end(u.int_in_range(0..=130)?, group1),
        5 => cpu.set_mask(u.arbitrary()?),
        6 => cpu.enable(group1, u.arbitrary()?),
        _ => {
            cpu.configure(u.arbitrary()?, u.arbitrary()?);
            cpu.set_point(group1, u.arbitrary()?);
        }
    }
    Ok(())
}
