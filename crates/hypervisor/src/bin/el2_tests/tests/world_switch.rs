// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The world switch: two vCPUs of one guest and one of another take turns on a CPU. Each has every register that it can
//! write filled with its own values, and finds them again.

use alloc::vec::Vec;
use core::arch::asm;

use twofold_devices::vgic::VcpuId;
use twofold_hypervisor::gic::guest::{GuestGic, TimerLines};
use twofold_hypervisor::gic::sources::Sources;
use twofold_hypervisor::pmu::Counter;
use twofold_hypervisor::registers::access::Access as RegisterAccess;
use twofold_hypervisor::switch::table::encoding;
use twofold_hypervisor::switch::{LastVcpu, Record, Seat, State, Switch};
use twofold_hypervisor::world::{self, Trap};
use twofold_hypervisor::{log, read_sysreg, sysreg, vm, write_sysreg};
use twofold_stage2::{Access, Attributes, Execute, Ipa, Level, Vmid};
use twofold_vmm::scheduler::{DEFAULT_WEIGHT, Scheduler};

use crate::canary::{Canary, DIFFERS, DONE, Program, STRIDE, canaries, program};
use crate::check::{Failure, Outcome};
use crate::hand_mapped_guest::HandMappedGuest;
use crate::machine::{Machine, PAGE};

tests!(
    world_switch::vcpus_that_take_turns_keep_every_register,
    world_switch::a_hundred_thousand_switches_keep_every_register,
    world_switch::each_register_that_differs_is_noticed,
    world_switch::a_state_that_went_out_and_came_back_runs_on,
    world_switch::a_switch_takes_at_most_700_instructions,
);

/// The place of the programs.
const CODE: Ipa = Ipa::new(0x2000_0000);
const CODE_PAGES: u64 = 16;
/// The data of the first vCPU; the others' follow.
const DATA: Ipa = Ipa::new(0x2100_0000);
const DATA_PAGES: u64 = 2;

/// A guest with the programs.
struct Guest {
    guest: HandMappedGuest,
    gic: GuestGic,
    last: LastVcpu,
}

/// A vCPU, of the guest with this number.
struct Vcpu {
    guest: usize,
    number: u32,
    state: State,
}

/// All of a test.
struct Stage {
    cpu: Switch,
    counter: Option<Counter>,
    canaries: Vec<Canary>,
    /// The addresses of the programs.
    probe: u64,
    fill: u64,
    check: u64,
    check_debug: u64,
    guests: Vec<Guest>,
    vcpus: Vec<Vcpu>,
    hcr: u64,
}

impl Stage {
    /// Two vCPUs of one guest and one of another, with their registers filled.
    fn new(machine: &mut Machine) -> Outcome<Self> {
        // SAFETY: `take_over` set this CPU up; no other counter is started on it.
        let counter = unsafe { Counter::start() };
        // SAFETY: `take_over` set this CPU up, and from here on its guests run by this value.
        let cpu = unsafe { Switch::new(0) };
        open_physical_timer();
        let canaries = canaries(cpu.has());
        let of = |is_debug: bool| canaries.iter().enumerate().filter(move |(_, canary)| canary.is_debug == is_debug);
        let mut code = Vec::new();
        let mut add = |words: Vec<u32>| {
            let at = CODE.raw() + code.len() as u64 * 4;
            code.extend(words);
            at
        };
        let probe = add(program(Program::Probe, canaries.iter().enumerate()));
        let fill = add(program(Program::Fill, canaries.iter().enumerate()));
        let check = add(program(Program::CheckAndChange, of(false)));
        let check_debug = add(program(Program::CheckAndChange, of(true)));
        let code: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
        check!(code.len() as u64 <= CODE_PAGES * PAGE, "the programs have {} bytes", code.len());
        check!(canaries.len() as u64 * STRIDE <= DATA_PAGES * PAGE, "there are {} registers", canaries.len());
        let mut stage = Self {
            cpu,
            counter,
            canaries,
            probe,
            fill,
            check,
            check_debug,
            guests: Vec::new(),
            vcpus: Vec::new(),
            hcr: vm::hcr(&machine.features) | VIRTUAL_INTERRUPTS,
        };
        for vcpus in [2, 1] {
            stage.add_guest(machine, &code, vcpus)?;
        }
        for vcpu in 0..stage.vcpus.len() {
            stage.run(vcpu, stage.probe)?;
            stage.run(vcpu, stage.fill)?;
        }
        Ok(stage)
    }

    fn add_guest(&mut self, machine: &mut Machine, code: &[u8], vcpus: u64) -> Outcome {
        let vmid = Vmid::new(self.guests.len() as u16 + 1);
        let mut guest = HandMappedGuest::new(machine, vmid)?;
        let frame = machine.frame(CODE_PAGES * PAGE)?;
        frame.fill(code);
        let executable = Attributes::ram(Access { execute: Execute::ALWAYS, ..Access::READ });
        for page in 0..CODE_PAGES {
            guest.map(machine, CODE + page * PAGE, frame.pa + page * PAGE, Level::L3, &executable)?;
        }
        for number in 0..vcpus {
            let data = DATA + number * DATA_PAGES * PAGE;
            let frame = machine.frame(DATA_PAGES * PAGE)?;
            let own = (self.vcpus.len() as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for (index, canary) in self.canaries.iter().enumerate() {
                let seed = own.rotate_left(index as u32);
                for (word, value) in (0..).zip(canary.data(seed)) {
                    frame.write(index as u64 * STRIDE + word * 8, value);
                }
            }
            for page in 0..DATA_PAGES {
                let attributes = Attributes::ram(Access::READ_WRITE);
                guest.map(machine, data + page * PAGE, frame.pa + page * PAGE, Level::L3, &attributes)?;
            }
            let mut state = State::new(CODE.raw(), 0);
            state.context.x[19] = data.raw();
            state.context.x[20] = own | 1;
            self.vcpus.push(Vcpu { guest: self.guests.len(), number: number as u32, state });
        }
        let mut scheduler = Scheduler::new(1, 1);
        let group = scheduler.add_group(DEFAULT_WEIGHT);
        let affinities: Vec<_> = (0..vcpus).map(|number| (number, scheduler.add(group))).collect();
        let gic = GuestGic::new(&affinities, &SOURCES)?;
        self.guests.push(Guest { guest, gic, last: LastVcpu::default() });
        Ok(())
    }

    /// Loads a vCPU, runs its program, and puts it away. Returns the register that differs, if one does.
    fn turn(&mut self, vcpu: usize, program: u64) -> Outcome<Option<usize>> {
        let Self { cpu, guests, vcpus, .. } = self;
        let vcpu = &mut vcpus[vcpu];
        let Guest { guest, gic, last } = &guests[vcpu.guest];
        let (vtcr, vttbr) = (guest.stage2.vtcr(), guest.stage2.vttbr());
        let seat = Seat {
            hcr: self.hcr,
            vtcr,
            vttbr,
            vmpidr: 1 << 31 | u64::from(vcpu.number),
            counter_offset: 0,
            vcpu: vcpu.number,
            last,
        };
        vcpu.state.context.pc = program;
        // SAFETY: the seat's tables map only the test's own memory, and its VMID is the guest's own.
        let mut running =
            unsafe { cpu.load(&mut vcpu.state, &seat, || (), || guest.stage2.invalidate_for_other_vcpu()) };
        let id = VcpuId::new(vcpu.number).expect("three vCPUs");
        let _active = gic.load(id, 0, NO_LINES);
        let differs = loop {
            // SAFETY: `load` set the CPU up for this guest, and nothing sets its PSTATE to EL2.
            let trap = unsafe { world::enter(running.context()) };
            let (esr, pc) = (read_sysreg!(ESR_EL2), running.context().pc);
            match (trap, esr >> 26 & 0x3f) {
                (Trap::Sync, 0x16) if esr & 0xffff == DONE => break Ok(None),
                (Trap::Sync, 0x16) if esr & 0xffff == DIFFERS => break Ok(Some(running.context().x[0] as usize)),
                (Trap::Sync, 0x07) => running.first_use_of_fp(),
                (Trap::Sync, 0x18) if running.debug_register(&RegisterAccess::from_syndrome(esr)) => {
                    running.context().skip();
                }
                _ => break Err(Failure::new(alloc::format!("{trap:?} at {pc:#x}, ESR_EL2={esr:#x}"))),
            }
        };
        running.put();
        gic.unload(id, NO_LINES, false);
        differs
    }

    /// The same; a register that differs is a failure.
    fn run(&mut self, vcpu: usize, program: u64) -> Outcome {
        match self.turn(vcpu, program)? {
            None => Ok(()),
            Some(register) => {
                let (name, x) = (&self.canaries[register].name, &self.vcpus[vcpu].state.context.x);
                Err(Failure::new(alloc::format!("vCPU {vcpu}: {name} is {:#x}, not {:#x}", x[2], x[1])))
            }
        }
    }

    /// `count` switches, in an order in which each vCPU follows each other one, and itself.
    fn switches(&mut self, count: u64) -> Outcome {
        const ORDER: [usize; 9] = [0, 1, 2, 1, 0, 2, 2, 0, 0];
        for turn in 0..count {
            let vcpu = ORDER[(turn % ORDER.len() as u64) as usize];
            self.run(vcpu, self.check)?;
            // Each access to a debug register traps, so these have fewer turns.
            if turn % 10 < 3 {
                self.run(vcpu, self.check_debug)?;
            }
        }
        Ok(())
    }
}

/// HCR_EL2.IMO and FMO: the guest's accesses to the GIC's CPU interface reach the virtual one.
const VIRTUAL_INTERRUPTS: u64 = 1 << 3 | 1 << 4;
/// The guests' timers are masked.
const NO_LINES: TimerLines = TimerLines { virtual_timer: false, physical_timer: false };
/// As on QEMU's `virt`. None of them is taken here.
const SOURCES: Sources = Sources {
    virtual_timer: 27,
    physical_timer: 30,
    physical_timer_is_linked: false,
    own_timer: 26,
    maintenance: 25,
    uart: 33,
    port: None,
};

/// Gives the guests the physical timer. On a CPU without CNTPOFF_EL2 it traps; its registers are switched all the same.
fn open_physical_timer() {
    /// EL1PCTEN, EL1PCEN.
    const OPEN: u64 = 0b11;
    // SAFETY: the tests' guests are masked, and EL2 uses none of this timer's registers.
    unsafe { write_sysreg!(CNTHCTL_EL2, read_sysreg!(CNTHCTL_EL2) | OPEN) };
    sysreg::isb();
}

fn set(state: &mut State, register: u16, value: u64) -> Outcome {
    check!(state.set(register, value), "the state has no register {register:#x}");
    Ok(())
}

fn vcpus_that_take_turns_keep_every_register(mut machine: Machine) -> Outcome {
    let mut stage = Stage::new(&mut machine)?;
    log!("world switch: {} registers of a guest", stage.canaries.len());
    stage.switches(360)
}

/// In the full suite only.
fn a_hundred_thousand_switches_keep_every_register(mut machine: Machine) -> Outcome {
    Stage::new(&mut machine)?.switches(100_000)
}

/// A change of any register between two turns is seen, so a register that the switch loses would be seen too.
fn each_register_that_differs_is_noticed(mut machine: Machine) -> Outcome {
    let mut stage = Stage::new(&mut machine)?;
    let mut constant = Vec::new();
    for index in 0..stage.canaries.len() {
        let Canary { encoding: Some(register), is_debug, .. } = stage.canaries[index] else { continue };
        let program = if is_debug { stage.check_debug } else { stage.check };
        let before = stage.vcpus[0].state.clone();
        let value = before.get(register).unwrap_or(0);
        set(&mut stage.vcpus[0].state, register, !value)?;
        // The bits that keep the guest alive stay.
        if matches!(&*stage.canaries[index].name, "SCTLR_EL1" | "CPACR_EL1") {
            set(&mut stage.vcpus[0].state, register, value ^ (1 << 28 | 1 << 12))?;
        }
        match stage.turn(0, program)? {
            Some(found) => check_eq!(found, index, "the register that differs, not {}", stage.canaries[index].name),
            None => constant.push(index),
        }
        stage.vcpus[0].state = before;
        // The data page has changed with the registers: both are made anew.
        stage.run(0, stage.fill)?;
    }
    let names: Vec<_> = constant.iter().map(|index| &*stage.canaries[*index].name).collect();
    log!("world switch: constant on this CPU: {names:?}");
    // The host's tests cover these, over faked registers.
    check!(names.len() <= 8, "{} registers look alike: {names:?}", names.len());
    Ok(())
}

fn a_state_that_went_out_and_came_back_runs_on(mut machine: Machine) -> Outcome {
    let mut stage = Stage::new(&mut machine)?;
    for turn in 0..30 {
        let vcpu = turn % 3;
        let (has, mut records) = (stage.cpu.has(), Vec::<Record>::new());
        stage.vcpus[vcpu].state.records(has, |record| records.push(record));
        stage.vcpus[vcpu].state = State::from_records(has, records)?;
        stage.run(vcpu, stage.check)?;
        stage.run(vcpu, stage.check_debug)?;
    }
    Ok(())
}

/// Counted in the deterministic mode only.
fn a_switch_takes_at_most_700_instructions(mut machine: Machine) -> Outcome {
    const MOST: u64 = 700;
    let mut stage = Stage::new(&mut machine)?;
    let Some(mut counter) = stage.counter.take() else {
        log!("world switch: no counter of instructions, so nothing was counted");
        return Ok(());
    };
    for (what, monitor, uses_fp) in [
        ("of a vCPU without FP and breakpoints", 0, false),
        ("of a vCPU that uses FP", 0, true),
        ("of a vCPU that uses FP and breakpoints", MONITOR_EVENTS, true),
    ] {
        let (mut most, mut least) = (0, u64::MAX);
        for turn in 0..30 {
            let Vcpu { guest, number, state } = &mut stage.vcpus[turn % 3];
            set(state, MDSCR, monitor)?;
            let Guest { guest, last, .. } = &stage.guests[*guest];
            let (vtcr, vttbr, vcpu) = (guest.stage2.vtcr(), guest.stage2.vttbr(), *number);
            let seat = Seat { hcr: stage.hcr, vtcr, vttbr, vmpidr: 0, counter_offset: 0, vcpu, last };
            let _ = counter.since_last()?;
            // SAFETY: as in `turn`; the vCPU is not entered.
            let mut running = unsafe { stage.cpu.load(state, &seat, || (), invalidate) };
            if uses_fp {
                running.first_use_of_fp();
            }
            running.put();
            let spent = counter.since_last()?;
            (most, least) = (most.max(spent), least.min(spent));
        }
        log!("world switch: {least} to {most} instructions, {what}");
        check!(most <= MOST, "a switch {what} takes {most} instructions at EL2, more than {MOST}");
    }
    Ok(())
}

/// `Stage2::invalidate_for_other_vcpu` without the record that the tests' platform keeps of it.
fn invalidate() {
    // SAFETY: invalidating more of this CPU's TLB than needed changes no memory.
    unsafe { asm!("tlbi vmalle1", "dsb nsh", "isb", options(nostack, preserves_flags)) };
}

const MDSCR: u16 = encoding("S2_0_C0_C2_2");
/// MDSCR_EL1.MDE.
const MONITOR_EVENTS: u64 = 1 << 15;
