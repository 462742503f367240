// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the switch between vCPUs over faked registers: each register of the table is carried, each step that is left
//! out is noticed, and the steps come in the order that the architecture asks for.

use std::collections::{BTreeMap, BTreeSet};

use arm_sysregs::{el0, el1};
use twofold_fuzz_hypervisor::faked::{self, ISB};
use twofold_fuzz_hypervisor::omitted::{leave_out, name, steps};
use twofold_fuzz_hypervisor::registers::access::Access;
use twofold_fuzz_hypervisor::switch::has::Group;
use twofold_fuzz_hypervisor::switch::table::{Part, Row, TABLE, encoding};
use twofold_fuzz_hypervisor::switch::{Has, LastVcpu, Seat, State, Switch, left, simd};

const CPTR: &str = "CPTR_EL2";
const MDCR: &str = "MDCR_EL2";
const TFP: u64 = 1 << 10;
const OSLAR: &str = "OSLAR_EL1";
const MDSCR: &str = "MDSCR_EL1";

/// Makes this thread's CPU one that has every register of the table.
fn cpu_with_everything() {
    faked::reset();
    faked::set("ID_AA64PFR0_EL1", 1 << 24 | 1 << 28 | 2 << 56);
    faked::set("ID_AA64PFR1_EL1", 1 << 24);
    faked::set("ID_AA64DFR0_EL1", 15 << 12 | 15 << 20);
    faked::set("ID_AA64ISAR1_EL1", 1 << 4);
    faked::set("S3_0_C0_C7_3", 1 | 1 << 4 | 1 << 8 | 1 << 16);
}

/// The name of a row's register in the faked CPU.
fn faked_name(row: &Row) -> &'static str {
    thread_local! {
        static NAMES: BTreeMap<u16, &'static str> = TABLE.iter().map(|row| (row.encoding, {
            let [op0, op1, crn, crm, op2] = fields(row.encoding);
            &*format!("S{op0}_{op1}_C{crn}_C{crm}_{op2}").leak()
        })).collect();
    }
    NAMES.with(|names| names[&row.encoding])
}

fn fields(encoding: u16) -> [u64; 5] {
    [encoding >> 14, encoding >> 11 & 7, encoding >> 7 & 15, encoding >> 3 & 15, encoding & 7].map(u64::from)
}

/// A generator of values, none of which occurs twice.
struct Values(u64);

impl Values {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.0 ^ self.0 >> 29
    }

    /// A value for a row.
    fn of(&mut self, row: &Row) -> u64 {
        match row.name {
            MDSCR => (self.next() | MONITOR_EVENTS) & row.allowed,
            _ => self.next() & row.allowed,
        }
    }
}

/// MDSCR_EL1.MDE, without which pairs are not loaded.
const MONITOR_EVENTS: u64 = 1 << 15;

fn is_debug(row: &Row) -> bool {
    matches!(row.part, Part::debug | Part::debug_pairs)
}

/// The state of a vCPU, as a test knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Expected {
    registers: Vec<u64>,
    vectors: [u128; 32],
}

impl Expected {
    /// Values, with the OS lock locked or not: one bit would often be right by chance.
    fn new(values: &mut Values, locked: bool) -> Self {
        let value = |row: &Row| if row.name == OSLAR { locked.into() } else { values.of(row) };
        let registers = TABLE.iter().map(value).collect();
        let vectors = std::array::from_fn(|_| u128::from(values.next()) << 64 | u128::from(values.next()));
        Self { registers, vectors }
    }

    fn state(&self) -> State {
        let mut state = State::new(0, 0);
        for (row, value) in TABLE.iter().zip(&self.registers) {
            assert!(state.set(row.encoding, *value));
        }
        state.vectors.0 = self.vectors;
        state
    }

    /// The registers in which the hardware differs.
    fn differ_from_hardware(&self) -> Vec<String> {
        let rows = TABLE.iter().zip(&self.registers).filter(|(row, value)| faked::read(faked_name(row)) != **value);
        let vectors = (0..32).filter(|n| faked::vector(*n) != self.vectors[*n]).map(|n| simd::NAMES[n].to_owned());
        rows.map(|(row, _)| row.name.to_owned()).chain(vectors).collect()
    }

    /// The registers in which a state differs.
    fn differ_from(&self, state: &State) -> Vec<String> {
        let rows = TABLE.iter().zip(&self.registers).filter(|(row, value)| state.get(row.encoding) != Some(**value));
        let vectors = (0..32).filter(|n| state.vectors.0[*n] != self.vectors[*n]).map(|n| simd::NAMES[n].to_owned());
        rows.map(|(row, _)| row.name.to_owned()).chain(vectors).collect()
    }

    /// The guest changes all its registers, except debug registers, which trap.
    fn change(&mut self, values: &mut Values) {
        for (row, value) in TABLE.iter().zip(&mut self.registers).filter(|(row, _)| !is_debug(row)) {
            *value = values.of(row);
            faked::set(faked_name(row), *value);
        }
        for (n, value) in self.vectors.iter_mut().enumerate() {
            *value = u128::from(values.next()) << 64 | u128::from(values.next());
            faked::set_vector(n, *value);
        }
    }
}

fn seat(last: &LastVcpu, vcpu: u32) -> Seat<'_> {
    Seat { hcr: 1, vtcr: 2, vttbr: 3, vmpidr: vcpu.into(), counter_offset: 5, vcpu, last }
}

/// Two vCPUs take turns on a CPU; returns the registers that were wrong at any time.
fn take_turns(turns: u32) -> BTreeSet<String> {
    cpu_with_everything();
    let mut values = Values(turns.into());
    let last = LastVcpu::default();
    let mut expected = [Expected::new(&mut values, true), Expected::new(&mut values, false)];
    let mut states = expected.each_ref().map(Expected::state);
    // SAFETY: the registers are faked.
    let mut cpu = unsafe { Switch::new(0) };
    let mut wrong = BTreeSet::new();
    for turn in 0..turns as usize {
        let (expected, state) = (&mut expected[turn % 2], &mut states[turn % 2]);
        // SAFETY: the registers are faked.
        let mut running = unsafe { cpu.load(state, &seat(&last, turn as u32 % 2), || (), || ()) };
        running.first_use_of_fp();
        wrong.extend(expected.differ_from_hardware());
        expected.change(&mut values);
        running.put();
        wrong.extend(expected.differ_from(state));
    }
    wrong
}

#[test]
fn vcpus_that_take_turns_keep_every_register() {
    assert_eq!(take_turns(20), BTreeSet::new());
}

#[test]
fn each_step_that_is_left_out_is_noticed() {
    assert_eq!(steps().count(), 2 * (TABLE.len() + 32) - TABLE.iter().filter(|row| is_debug(row)).count());
    for (step, register) in steps() {
        leave_out(Some((step, register)));
        let wrong = take_turns(6);
        leave_out(None);
        assert_eq!(wrong, BTreeSet::from([register.to_owned()]), "{}", name(step, register));
    }
}

#[test]
fn a_vcpu_that_uses_no_fp_leaves_it_alone() {
    cpu_with_everything();
    let (mut values, last) = (Values(7), LastVcpu::default());
    let mut state = Expected::new(&mut values, false).state();
    let (fpcr, before) = (encoding("S3_3_C4_C4_0"), state.clone());
    // SAFETY: the registers are faked.
    let mut cpu = unsafe { Switch::new(0) };
    for n in 0..32 {
        faked::set_vector(n, 1 << 127);
    }
    for used in [false, true] {
        // SAFETY: the registers are faked.
        let mut running = unsafe { cpu.load(&mut state, &seat(&last, 0), || (), || ()) };
        assert_eq!(faked::read(CPTR), TFP, "FP traps until it is used");
        if used {
            running.first_use_of_fp();
            assert_eq!(faked::read(CPTR), 0, "FP is open");
            assert_eq!(faked::vector(31), before.vectors.0[31]);
            faked::set_vector(31, 5);
            // A second trap would be spurious, and must not load the old values again.
            running.first_use_of_fp();
        }
        running.put();
        assert_eq!(faked::read(CPTR), TFP, "FP is closed again");
        assert_eq!(state.get(fpcr), before.get(fpcr));
        assert_eq!(state.vectors.0[0], before.vectors.0[0]);
        assert_eq!(state.vectors.0[31], if used { 5 } else { before.vectors.0[31] });
    }
}

#[test]
fn a_drop_puts_the_vcpu_away() {
    cpu_with_everything();
    let (last, mut state) = (LastVcpu::default(), State::new(0, 0));
    // SAFETY: the registers are faked.
    let mut cpu = unsafe { Switch::new(0) };
    // SAFETY: the registers are faked.
    let running = unsafe { cpu.load(&mut state, &seat(&last, 0), || (), || ()) };
    faked::set("S3_0_C2_C0_0", 77);
    drop(running);
    assert_eq!(state.get(encoding("S3_0_C2_C0_0")), Some(77), "TTBR0_EL1");
}

#[test]
fn the_entries_of_another_vcpu_are_invalidated_on_this_cpu_alone() {
    cpu_with_everything();
    let (last, mut states) = ([LastVcpu::default(), LastVcpu::default()], [State::new(0, 0), State::new(0, 0)]);
    // SAFETY: the registers are faked.
    let mut cpus = unsafe { [Switch::new(0), Switch::new(1)] };
    // CPU, guest, vCPU, and whether the entries of another one are there. A CPU's last guest is still set up there.
    let turns = [
        (0, 0, 0, true),
        (0, 0, 0, false),
        (0, 0, 1, true),
        (0, 0, 1, false),
        (0, 1, 1, true),
        (0, 0, 1, false),
        (1, 0, 0, true),
        (0, 0, 0, true),
        (1, 0, 0, false),
        (0, 1, 1, false),
    ];
    let mut loaded = [None; 2];
    for (turn, (cpu, guest, vcpu, expected)) in turns.into_iter().enumerate() {
        faked::take_written();
        let (mut changed, mut invalidated) = (false, false);
        let seat = Seat { vttbr: 100 + guest as u64, ..seat(&last[guest], vcpu) };
        // SAFETY: the registers are faked.
        let running = unsafe {
            cpus[cpu].load(
                &mut states[vcpu as usize],
                &seat,
                || changed = true,
                || {
                    invalidated = true;
                    assert_eq!(faked::read("VTTBR_EL2"), 100 + guest as u64, "the VMID is the guest's");
                    let written = faked::take_written();
                    assert!(written.last().is_none_or(|last| *last == (ISB, 0)), "and has taken effect: {written:?}");
                },
            )
        };
        running.put();
        assert_eq!(invalidated, expected, "turn {turn}");
        assert_eq!(changed, loaded[cpu].replace(guest) != Some(guest), "turn {turn}");
    }
}

#[test]
fn what_a_guest_has_at_el2_is_loaded() {
    cpu_with_everything();
    let (last, mut state) = (LastVcpu::default(), State::new(0, 0));
    // SAFETY: the registers are faked.
    let mut cpu = unsafe { Switch::new(3) };
    // SAFETY: the registers are faked.
    unsafe { cpu.load(&mut state, &seat(&last, 9), || (), || ()) }.put();
    let read = ["HCR_EL2", "VTCR_EL2", "VTTBR_EL2", "VMPIDR_EL2", "CNTVOFF_EL2"].map(faked::read);
    // FB, and BSU for the inner shareable domain. This CPU has error records and SME, which trap (TERR, TID1).
    assert_eq!(read, [1 | 1 << 9 | 1 << 10 | 1 << 36 | 1 << 16, 2, 3, 9, 5]);
}

#[test]
fn the_physical_counter_has_the_offset_where_a_cpu_has_one() {
    const CNTPOFF: &str = "S3_4_C14_C0_6";
    for (ecv, expected) in [(0, None), (1, None), (2, Some(5))] {
        cpu_with_everything();
        faked::set("ID_AA64MMFR0_EL1", ecv << 60);
        let (last, mut state) = (LastVcpu::default(), State::new(0, 0));
        // SAFETY: the registers are faked.
        let mut cpu = unsafe { Switch::new(0) };
        faked::take_written();
        // SAFETY: the registers are faked.
        unsafe { cpu.load(&mut state, &seat(&last, 0), || (), || ()) }.put();
        let written = faked::take_written().into_iter().find(|(name, _)| *name == CNTPOFF);
        assert_eq!(written.map(|(_, value)| value), expected, "ID_AA64MMFR0_EL1.ECV is {ecv}");
    }
}

/// The places of these writes in a switch.
fn order(written: &[(&str, u64)], name: &str) -> usize {
    written.iter().position(|(other, _)| *other == name).unwrap_or_else(|| panic!("{name} was not written"))
}

#[test]
fn a_load_writes_in_the_architectures_order() {
    cpu_with_everything();
    let (last, mut state) = (LastVcpu::default(), State::new(0, 0));
    // SAFETY: the registers are faked.
    let mut cpu = unsafe { Switch::new(0) };
    faked::take_written();
    // SAFETY: the registers are faked.
    let running = unsafe { cpu.load(&mut state, &seat(&last, 0), || (), || ()) };
    let written = faked::take_written();
    let of = |name: &str| order(&written, name);
    let isbs: Vec<_> = (0..written.len()).filter(|at| written[*at].0 == ISB).collect();
    let between = |first: &str, second: &str| isbs.iter().any(|isb| of(first) < *isb && *isb < of(second));
    for stage1 in ["S3_0_C2_C0_2", "S3_0_C2_C0_0", "S3_0_C2_C0_1", "S3_0_C10_C2_0", "S3_0_C2_C0_3", "S3_0_C10_C2_3"] {
        assert!(of(stage1) < of("S3_0_C1_C0_0"), "{stage1} after SCTLR_EL1");
    }
    assert!(between("S3_3_C14_C3_2", "S3_3_C14_C3_1"), "an ISB between CNTV_CVAL_EL0 and CNTV_CTL_EL0");
    assert!(between("S3_3_C14_C2_2", "S3_3_C14_C2_1"), "an ISB between CNTP_CVAL_EL0 and CNTP_CTL_EL0");
    assert!(between("CNTVOFF_EL2", "S3_3_C14_C3_1"), "an ISB between CNTVOFF_EL2 and CNTV_CTL_EL0");
    assert!(isbs.iter().any(|isb| of("S3_0_C12_C12_5") < *isb), "ICC_SRE_EL1 is in effect for the interface's fields");
    assert!(between("VTTBR_EL2", "S3_0_C2_C0_2"), "stage 2 before stage 1");

    drop(running);
    let written = faked::take_written();
    let of = |name: &str| order(&written, name);
    assert_eq!(written.last(), Some(&(ISB, 0)), "the timers are off at the end");
    for off in ["S3_3_C14_C3_1", "S3_3_C14_C2_1"] {
        assert_eq!(written[of(off)], (off, 0));
    }
}

#[test]
fn a_register_that_a_cpu_lacks_is_not_touched() {
    cpu_with_everything();
    for id in ["ID_AA64PFR0_EL1", "ID_AA64PFR1_EL1", "ID_AA64DFR0_EL1", "ID_AA64ISAR1_EL1", "S3_0_C0_C7_3"] {
        faked::set(id, 0);
    }
    let mut values = Values(1);
    let (last, mut state) = (LastVcpu::default(), Expected::new(&mut values, false).state());
    // SAFETY: the registers are faked.
    let mut cpu = unsafe { Switch::new(0) };
    faked::take_written();
    // SAFETY: the registers are faked.
    unsafe { cpu.load(&mut state, &seat(&last, 0), || (), || ()) }.put();
    let written: BTreeSet<_> = faked::take_written().into_iter().map(|(name, _)| name).collect();
    for row in TABLE {
        let is_there = cpu.has().has(row.group);
        let expected = is_there && row.part != Part::floating_point;
        assert_eq!(written.contains(faked_name(row)), expected, "{}", row.name);
    }
    assert!(cpu.has().has(Group::breakpoint(0)) && !cpu.has().has(Group::breakpoint(1)), "BRPs is one less");
}

#[test]
fn the_groups_follow_the_id_registers() {
    let has = |id: &'static str, value| {
        faked::reset();
        faked::set(id, value);
        Has::read()
    };
    let none = has("ID_AA64PFR0_EL1", 0);
    let optional = [
        (Group::PAUTH, "ID_AA64ISAR1_EL1", 4, 1),
        (Group::PAUTH, "ID_AA64ISAR1_EL1", 8, 1),
        (Group::PAUTH, "ID_AA64ISAR1_EL1", 24, 1),
        (Group::PAUTH, "ID_AA64ISAR1_EL1", 28, 1),
        (Group::PAUTH, "S3_0_C0_C6_2", 8, 1),
        (Group::PAUTH, "S3_0_C0_C6_2", 12, 1),
        (Group::SCXTNUM, "ID_AA64PFR0_EL1", 56, 2),
        (Group::SCXTNUM, "ID_AA64PFR1_EL1", 32, 2),
        (Group::RAS, "ID_AA64PFR0_EL1", 28, 1),
        (Group::TCR2, "S3_0_C0_C7_3", 0, 1),
        (Group::SCTLR2, "S3_0_C0_C7_3", 4, 1),
        (Group::S1PIE, "S3_0_C0_C7_3", 8, 1),
        (Group::S1POE, "S3_0_C0_C7_3", 16, 1),
        (Group::SME, "ID_AA64PFR1_EL1", 24, 1),
        (Group::GIC, "ID_AA64PFR0_EL1", 24, 1),
    ];
    for (group, id, low, first) in optional {
        assert!(!none.has(group), "{group:?}");
        for value in 0..16 {
            assert_eq!(has(id, value << low).has(group), value >= first, "{group:?} where {id} has {value} at {low}");
        }
    }
    faked::set("ID_AA64PFR1_EL1", 1 << 24);
    faked::set("ID_AA64MMFR0_EL1", 1 << 56);
    assert!(!Has::read().has(Group::SME), "FEAT_FGT traps its registers");
    for count in 1..=16 {
        let breakpoints = has("ID_AA64DFR0_EL1", (count - 1) << 12);
        let watchpoints = has("ID_AA64DFR0_EL1", (count - 1) << 20);
        assert_eq!((0..16).filter(|n| breakpoints.has(Group::breakpoint(*n))).count() as u64, count);
        assert_eq!((0..16).filter(|n| watchpoints.has(Group::watchpoint(*n))).count() as u64, count);
        assert_eq!((0..16).filter(|n| watchpoints.has(Group::breakpoint(*n))).count(), 1);
    }
}

fn access(text: &str, is_read: bool) -> Access {
    Access { encoding: fields(encoding(text)), rt: 5, is_read }
}

#[test]
fn debug_registers_live_in_the_state() {
    cpu_with_everything();
    // Two breakpoints, three watchpoints.
    faked::set("ID_AA64DFR0_EL1", 1 << 12 | 2 << 20);
    let (last, mut state) = (LastVcpu::default(), State::new(0, 0));
    // SAFETY: the registers are faked.
    let mut cpu = unsafe { Switch::new(0) };
    assert_eq!(faked::read(MDCR), 0b111 << 9, "TDA, TDOSA and TDRA");
    // SAFETY: the registers are faked.
    let mut running = unsafe { cpu.load(&mut state, &seat(&last, 0), || (), || ()) };
    let write = |running: &mut twofold_fuzz_hypervisor::switch::Running<'_>, text: &str, value| {
        running.context().x[5] = value;
        running.debug_register(&access(text, false))
    };
    let read = |running: &mut twofold_fuzz_hypervisor::switch::Running<'_>, text: &str| {
        running.context().x[5] = u64::MAX;
        running.debug_register(&access(text, true)).then(|| running.context().x[5])
    };
    let running = &mut running;
    assert_eq!(read(running, "S2_0_C1_C1_4"), Some(0b1010), "OSLSR_EL1: locked as after a reset");
    assert!(write(running, "S2_0_C1_C0_4", u64::MAX - 1));
    assert_eq!((read(running, "S2_0_C1_C1_4"), faked::read("S2_0_C1_C0_4")), (Some(0b1000), 0), "OSLSR_EL1: unlocked");
    assert_eq!(read(running, "S2_0_C1_C0_4"), None, "OSLAR_EL1 is write-only");
    assert!(!write(running, "S2_0_C1_C1_4", 1), "OSLSR_EL1 is read-only");

    assert!(write(running, "S2_0_C0_C1_4", 0x1234) && write(running, "S2_0_C0_C1_5", u64::MAX));
    assert_eq!(read(running, "S2_0_C0_C1_4"), Some(0x1234), "DBGBVR1_EL1");
    assert_eq!(read(running, "S2_0_C0_C1_5"), Some(0xff_e1e7), "DBGBCR1_EL1 without reserved bits");
    assert_eq!(faked::read("S2_0_C0_C1_4"), 0, "no pair is in hardware while MDSCR_EL1.MDE is clear");
    assert!(write(running, "S2_0_C0_C2_2", 1 << 15 | 1 << 14));
    assert_eq!(faked::read("S2_0_C0_C2_2"), 1 << 15, "MDSCR_EL1, without the external debugger's HDE");
    assert_eq!(faked::read("S2_0_C0_C1_4"), 0x1234, "the pair is in hardware now");
    assert!(write(running, "S2_0_C0_C2_6", 0x77));
    assert_eq!(faked::read("S2_0_C0_C2_6"), 0x77, "DBGWVR2_EL1 at once");
    for absent in ["S2_0_C0_C2_4", "S2_0_C0_C2_5", "S2_0_C0_C3_6", "S2_0_C0_C3_7", "S2_0_C0_C15_4"] {
        assert_eq!(read(running, absent), None, "{absent} does not exist");
    }
    // DBGDTR_EL0, OSDTRTX_EL1, MDCCINT_EL1, OSDLR_EL1, DBGPRCR_EL1, DBGCLAIMSET_EL1, DBGAUTHSTATUS_EL1.
    for zero in [
        "S2_3_C0_C4_0",
        "S2_0_C0_C3_2",
        "S2_0_C0_C2_0",
        "S2_0_C1_C3_4",
        "S2_0_C1_C4_4",
        "S2_0_C7_C8_6",
        "S2_0_C7_C14_6",
    ] {
        assert!(write(running, zero, 5));
        assert_eq!(running.context().x[5], 5, "a write of {zero} changes no general register");
        assert_eq!(read(running, zero), Some(0), "{zero}");
    }
    // TRFCR_EL1, TTBR0_EL1, a list register, a trace register.
    for other in ["S3_0_C1_C2_1", "S3_0_C2_C0_0", "S3_4_C12_C12_0", "S2_1_C0_C0_0"] {
        assert_eq!(read(running, other), None, "{other} is not a debug register");
        assert!(!write(running, other, 1));
    }
    // XZR reads as zero when it is written from.
    assert!(running.debug_register(&Access { rt: 31, ..access("S2_0_C0_C1_4", false) }));
    assert_eq!(read(running, "S2_0_C0_C1_4"), Some(0));
}

/// A debugger may set any bit of a state.
#[test]
fn breakpoints_are_loaded_by_one_bit() {
    let (mdscr, value) = (encoding("S2_0_C0_C2_2"), encoding("S2_0_C0_C0_4"));
    for (bits, expected) in [(MONITOR_EVENTS, 0x1234), (!MONITOR_EVENTS, 0)] {
        cpu_with_everything();
        let (last, mut state) = (LastVcpu::default(), State::new(0, 0));
        assert!(state.set(mdscr, bits) && state.set(value, 0x1234));
        // SAFETY: the registers are faked.
        let mut cpu = unsafe { Switch::new(0) };
        // SAFETY: the registers are faked.
        unsafe { cpu.load(&mut state, &seat(&last, 0), || (), || ()) }.put();
        assert_eq!(faked::read("S2_0_C0_C0_4"), expected, "DBGBVR0_EL1 where MDSCR_EL1 is {bits:#x}");
    }
}

/// The names of the registers of EL1 and EL0, from an independent crate.
fn independent() -> BTreeSet<String> {
    let all = format!("{:?} {:?}", el1::fake::SystemRegisters::default(), el0::fake::SystemRegisters::default());
    let words = all.split(|other: char| !other.is_ascii_alphanumeric() && other != '_');
    let fields = words.filter(|word| word.starts_with(|first: char| first.is_ascii_lowercase()) && word.len() > 2);
    let known = ["fpcr", "fpsr", "fpmr", "daif", "dit", "pan", "svcr", "currentel", "uao", "ssbs", "nzcv", "allint"];
    fields
        .filter(|word| word.ends_with("_el1") || word.ends_with("_el0") || known.contains(word))
        .map(str::to_uppercase)
        .collect()
}

#[test]
fn no_register_of_el1_and_el0_is_missing() {
    let names = independent();
    assert!(names.len() > 120, "only {} names were found: {names:?}", names.len());
    let in_table = |name: &str| TABLE.iter().filter(|row| row.name.to_uppercase() == name).count();
    let missing: Vec<_> = names.iter().filter(|name| in_table(name) == 0 && left::row(name).is_none()).collect();
    assert!(missing.is_empty(), "neither switched nor left with a reason: {missing:?}");
    let twice: Vec<_> =
        names.iter().filter(|name| in_table(name) + usize::from(left::row(name).is_some()) > 1).collect();
    assert!(twice.is_empty(), "switched twice, or switched and left: {twice:?}");
}

#[test]
fn each_row_is_one_register_with_a_reason() {
    let encodings: BTreeSet<_> = TABLE.iter().map(|row| row.encoding).collect();
    assert_eq!(encodings.len(), TABLE.len());
    assert!(TABLE.iter().all(|row| row.why.len() > 10));
    assert!(left::LEFT.iter().all(|left| left.why.len() > 10 && !left.names.is_empty()));
    assert_eq!(encoding("S3_0_C13_C0_4"), 0b11 << 14 | 13 << 7 | 4, "TPIDR_EL1");
    assert_eq!(encoding("S2_3_C14_C15_7"), 0b10 << 14 | 3 << 11 | 14 << 7 | 15 << 3 | 7);
    assert_eq!(access("S3_4_C12_C11_7", true).number(), encoding("S3_4_C12_C11_7"));
}

#[test]
fn the_os_lock_has_one_bit() {
    let row = TABLE.iter().find(|row| row.name == OSLAR).unwrap();
    assert_eq!(row.allowed, 1);
}

#[test]
fn a_left_row_with_numbers_has_each_number() {
    for (name, is_left) in [
        ("ICC_AP0R3_EL1", true),
        ("ID_AA64PFR0_EL1", true),
        ("AMEVCNTR115_EL0", true),
        ("PMEVCNTR30_EL0", true),
        ("ICC_APR_EL1", false),
        ("ICC_AP0R3_EL2", false),
        ("PMEVCNTR_EL0", false),
    ] {
        assert_eq!(left::row(name).is_some(), is_left, "{name}");
    }
}
