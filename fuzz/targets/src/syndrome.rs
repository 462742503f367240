// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any values of `ESR_EL2`, `HPFAR_EL2` and `PAR_EL1`, compared with a second reading of the manual (Arm ARM DDI
//! 0487K.a, D23.2).

use arbitrary::{Result, Unstructured};
use twofold_stage2::Ipa;
use twofold_stage2::fault::{AccessKind, Fault, FaultKind, ipa_from_hpfar, ipa_from_par};

/// A fault is recognised exactly if there is one, and only from its own bits. An address is a page's.
pub fn syndrome(data: &[u8]) {
    let _ = read(&mut Unstructured::new(data));
}

fn read(u: &mut Unstructured<'_>) -> Result<()> {
    let (esr, hpfar, par) = (u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
    fault(esr);
    // FIPA is bits 43:4; bit 63 is NS.
    let ipa = ipa_from_hpfar(hpfar);
    assert_eq!(ipa.raw() >> 12 << 4, hpfar & 0xfff_ffff_fff0);
    assert!(ipa.is_aligned(4096));
    // F is bit 0; PA[51:12] is at bits 51:12.
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
        // A permission fault on a walk comes from the walk's update of an entry.
        (true, _) if kind == FaultKind::Permission => AccessKind::Write,
        (true, _) => AccessKind::Read,
        (false, 0x20) => AccessKind::Execute,
        // With CM set, WnR has no meaning.
        (false, _) if bit(8) => AccessKind::Maintenance,
        (false, _) => [AccessKind::Read, AccessKind::Write][usize::from(bit(6))],
    };
    assert_eq!(access, expected);
    let fault = Fault { kind, access, level, stage1_walk };
    assert_eq!(fault.hpfar_is_valid(), kind != FaultKind::Permission || stage1_walk);
    // Only EC, CM, S1PTW, WnR and xFSC determine the fault.
    assert_eq!(Fault::from_syndrome(esr & 0xfc00_01ff), Some(fault));
}
