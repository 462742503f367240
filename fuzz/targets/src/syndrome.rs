// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `ESR_EL2`, `HPFAR_EL2` and `PAR_EL1` as a CPU may leave them, beside a reading of the manual (Arm ARM D23.2).

use arbitrary::{Result, Unstructured};
use twofold_stage2::Ipa;
use twofold_stage2::fault::{AccessKind, Fault, FaultKind, ipa_from_hpfar, ipa_from_par};

/// A fault is read where there is one, from its own bits and no others; an address is a page's.
pub fn syndrome(data: &[u8]) {
    let _ = read(&mut Unstructured::new(data));
}

fn read(u: &mut Unstructured<'_>) -> Result<()> {
    let (esr, hpfar, par) = (u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
    fault(esr);
    // FIPA is 40 bits from bit 4 on; bit 63 is NS.
    let ipa = ipa_from_hpfar(hpfar);
    assert_eq!(ipa.raw() >> 12 << 4, hpfar & 0xfff_ffff_fff0);
    assert!(ipa.is_aligned(4096));
    // F is bit 0; PA[51:12] is at its place.
    let page = Ipa::new(par & 0x000f_ffff_ffff_f000);
    assert_eq!(ipa_from_par(par), (par & 1 == 0).then_some(page));
    Ok(())
}

fn fault(esr: u64) {
    let bit = |number: u32| esr >> number & 1 == 1;
    let (class, status) = (esr >> 26 & 0x3f, esr & 0x3f);
    let fault = Fault::from_syndrome(esr);
    assert_eq!(fault.is_some(), [0x20, 0x24].contains(&class) && (0b00_0100..=0b00_1111).contains(&status));
    let Some(Fault { kind, access, level, stage1_walk }) = fault else { return };
    assert_eq!((kind as u64) << 2 | u64::from(level.raw()), status);
    assert_eq!(stage1_walk, bit(7));
    let expected = match (bit(7), class) {
        // What refused a walk permission refused it an update.
        (true, _) if kind == FaultKind::Permission => AccessKind::Write,
        (true, _) => AccessKind::Read,
        (false, 0x20) => AccessKind::Execute,
        // CM: WnR says nothing beside it.
        (false, _) if bit(8) => AccessKind::Maintenance,
        (false, _) => [AccessKind::Read, AccessKind::Write][usize::from(bit(6))],
    };
    assert_eq!(access, expected);
    let fault = Fault { kind, access, level, stage1_walk };
    assert_eq!(fault.hpfar_is_valid(), kind != FaultKind::Permission || stage1_walk);
    // EC, CM, S1PTW, WnR and xFSC; the rest of the register says nothing about it.
    assert_eq!(Fault::from_syndrome(esr & 0xfc00_01ff), Some(fault));
}
