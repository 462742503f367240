// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that do passes: their accesses, and how they leave and resume.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;

use twofold_machine::passes::{Load, Passes, Repeat};
use twofold_machine::program::{Abort, Ended, Exit, Instructions, Program, Stage1Registers};
use twofold_machine::vm::{FastCpu, Left, Vm};
use twofold_memory::Pages;
use twofold_workload::pass::{Access, Pass};

use crate::programs::PAGE;
use crate::scenarios::RAM;
use crate::{machine, room};

/// A CPU that records accesses, and returns an exit in place of every `leaves_each`-th.
#[derive(Default)]
struct Recorder {
    done: Vec<(Access, u64)>,
    leaves_each: u64,
    asked: u64,
    registers: Stage1Registers,
}

const LEFT: Exit = Exit::Abort(Abort { esr: 1, far: 2, hpfar: 3 });

impl Recorder {
    fn access(&mut self, va: u64, write: bool, value: u64) -> Result<u64, Exit> {
        self.asked += 1;
        if self.leaves_each != 0 && self.asked.is_multiple_of(self.leaves_each) {
            return Err(LEFT);
        }
        self.done.push((Access { va, write }, value));
        Ok(0)
    }
}

impl Instructions for Recorder {
    fn load(&mut self, va: u64) -> Result<u64, Exit> {
        self.access(va, false, 0)
    }

    fn store(&mut self, va: u64, value: u64) -> Result<(), Exit> {
        self.access(va, true, value).map(|_| ())
    }

    fn fetch(&mut self, _: u64) -> Result<u64, Exit> {
        Err(Exit::Kicked)
    }

    fn clean(&mut self, _: u64) -> Result<(), Exit> {
        Err(Exit::Kicked)
    }

    fn hypercall(&mut self, arguments: [u64; 4]) -> Result<u64, Exit> {
        Err(Exit::Hypercall(arguments))
    }

    fn wait_for_interrupt(&mut self) -> Result<(), Exit> {
        Err(Exit::WaitForInterrupt)
    }

    fn take_interrupts(&mut self) -> u64 {
        0
    }

    fn counter(&mut self) -> u64 {
        0
    }

    fn set_timer(&mut self, _: u64) {}

    fn stage1(&mut self) -> &mut Stage1Registers {
        &mut self.registers
    }

    fn invalidate_stage1(&mut self) {}
}

fn passes() -> [Pass; 4] {
    let some = Pass { write_percent: 40, value: 7, ..Pass::writes(0x1000, 50, 4096) };
    let random = Pass { random_order: 1, outer_count: 3, outer_stride: 1 << 20, random: 99, ..some };
    [some, Pass::writes(0, 0, 8), random, Pass { value: 9, ..Pass::writes(0x8000, 5, 8) }]
}

/// The accesses of the passes, in order.
fn expected(passes: &[Pass]) -> Vec<(Access, u64)> {
    let done = |pass: &Pass| {
        let value = pass.value;
        pass.accesses().map(move |access| (access, if access.write { value } else { 0 })).collect::<Vec<_>>()
    };
    passes.iter().flat_map(done).collect()
}

/// The passes in their state at the end.
fn over(passes: &[Pass]) -> Vec<Pass> {
    let end = |pass: &Pass| {
        let mut accesses = pass.accesses();
        accesses.by_ref().for_each(drop);
        Pass { random: accesses.random(), ..*pass }
    };
    passes.iter().map(end).collect()
}

#[test]
fn passes_are_done_as_they_say_however_often_they_are_left() {
    for leaves_each in [0, 2, 3, 7] {
        let mut program = Passes::new(passes());
        let mut cpu = Recorder { leaves_each, ..Recorder::default() };
        let mut lefts = 0;
        while program.run(&mut cpu) != Ok(Ended) {
            lefts += 1;
        }
        assert!(leaves_each == 0 || lefts > 20);
        assert_eq!(cpu.done, expected(&passes()));
        assert_eq!(program.passes(), over(&passes()));
        assert_eq!(program.run(&mut cpu), Ok(Ended));
        assert_eq!(cpu.done.len(), expected(&passes()).len(), "they are over");

        // The next run continues with the next random numbers.
        program.again();
        cpu.done.clear();
        while program.run(&mut cpu) != Ok(Ended) {}
        assert_eq!(cpu.done, expected(&over(&passes())));
    }
}

/// On a machine, the written pages are those of the pass.
#[test]
fn what_is_dirty_follows_from_the_pass() {
    let machine = machine(1, 1);
    let room = room(&machine);
    let vm = Vm::new(room.memory(0, 1, Pages::Small));
    let pass = Pass { write_percent: 30, random: 5, ..Pass::writes(RAM.raw(), 1000, PAGE) };
    let mut vcpu = room.vcpu(Passes::new([pass]));
    let cpu = FastCpu { machine: Arc::clone(&machine), number: 0 };
    assert_eq!(vm.run(&cpu, &mut vcpu, |_| 0), Ok(Left::Ended));
    let written: BTreeSet<_> = pass.accesses().filter(|access| access.write).map(|access| access.va).collect();
    for page in 0..1000 {
        let mut found = [0; 8];
        vm.memory().read(RAM + page * PAGE, &mut found).unwrap();
        let va = RAM.raw() + page * PAGE;
        assert_eq!(u64::from_ne_bytes(found) == pass.value, written.contains(&va), "{va:#x}");
    }
    vcpu.program_mut().again();
    assert_eq!(vm.run(&cpu, &mut vcpu, |_| 0), Ok(Left::Ended), "the second run");
    assert_eq!(vcpu.program().passes()[0].random, over(&over(&[pass]))[0].random);
}

#[test]
fn a_load_goes_on_until_it_is_stopped() {
    const VCPUS: usize = 2;
    let machine = machine(VCPUS, 1);
    let room = room(&machine);
    let vm = Vm::new(room.memory(0, 1, Pages::Small));
    let loads: [Load; VCPUS] = Default::default();
    let pass = |vcpu: usize| Pass::writes(RAM.raw() + vcpu as u64 * 100 * PAGE, 100, PAGE);
    let mut vcpus: Vec<_> =
        loads.iter().enumerate().map(|(vcpu, load)| room.vcpu(Repeat::new([pass(vcpu)], load))).collect();
    let mut last = [0; VCPUS];
    for _ in 0..3 {
        thread::scope(|scope| {
            scope.spawn(|| {
                // Until each vCPU has done all of its pass.
                while (0..VCPUS).any(|vcpu| loads[vcpu].done() < last[vcpu] + 250) {
                    thread::yield_now();
                }
                loads.iter().for_each(Load::stop);
            });
            let left = vm.run_all(&machine, &mut vcpus, |_, _| 0).unwrap();
            assert_eq!(left, [Ok(Left::Ended); VCPUS]);
        });
        last = [loads[0].done(), loads[1].done()];
        loads.iter().for_each(Load::start);
    }
    for page in 0..2 * 100 {
        let mut found = [0; 8];
        vm.memory().read(RAM + page * PAGE, &mut found).unwrap();
        assert_eq!(found, 1_u64.to_ne_bytes());
    }
}

/// Each completed access is counted once. A stop is between two accesses.
#[test]
fn a_load_counts_what_is_done() {
    let load = Load::default();
    let mut program = Repeat::new([Pass::writes(0, 10, 8), Pass::reads(0x1000, 3, 8)], &load);
    let mut cpu = Recorder { leaves_each: 5, ..Recorder::default() };
    for _ in 0..20 {
        assert_eq!(program.run(&mut cpu), Err(LEFT));
        assert_eq!(load.done(), cpu.done.len() as u64);
    }
    assert_eq!(load.done(), 80);
    load.stop();
    assert_eq!(program.run(&mut cpu), Ok(Ended));
    assert_eq!(load.done(), 80);
    let nothing = Load::default();
    nothing.stop();
    assert_eq!(Repeat::new([], &nothing).run(&mut cpu), Ok(Ended));
    let places = expected(&[Pass::writes(0, 10, 8), Pass::reads(0x1000, 3, 8)]);
    assert!(cpu.done.iter().eq(places.iter().cycle().take(80)));
}
