// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtual machines on the strict machine: whatever their guests do, no rule is broken.

#[path = "../vm/modes.rs"]
mod modes;
#[path = "../vm/programs.rs"]
pub mod programs;
#[path = "../vm/scenarios.rs"]
pub mod scenarios;
#[path = "../vm/together.rs"]
mod together;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use twofold_machine::arena::{ArenaOptions, Backing};
use twofold_machine::fast::CpusError;
use twofold_machine::interrupts::{Interrupts, Line};
use twofold_machine::program::{self, Instructions};
use twofold_machine::strict::{Bbm, Breach, CpuHandle, Hosted, Machine, Options, Program, Rule};
use twofold_machine::vm::{Left, RunAllError, Vcpu, Vm};
use twofold_memory::{GuestFault, Pages};
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::platform::{Domain, Platform};
use twofold_stage2::{Features, Pa};

use self::programs::{Op, Script, Sum, WorkingSet};
use self::scenarios::{MIB_2, PART, RAM, Room, check_working_set};
use crate::world::{MODERN, PAGE, PLAIN};

const SEEDS: [u64; 3] = [1, 2, 3];

/// A machine with memory for `parts` virtual machines.
pub fn machine((features, bbm): (Features, Bbm), cpus: usize, seed: u64, parts: u64) -> Machine {
    let memory = ArenaOptions::new(parts * PART, Backing::Anonymous);
    let options = Options { cpus, seed, events_between_switches: 24, features, bbm, memory, trace: None };
    Machine::new(options).unwrap_or_else(|error| panic!("{error}"))
}

pub fn room(machine: &Machine, features: Features) -> Room<'_, Hosted> {
    Room { arena: machine.arena(), platform: machine.platform(), features, interrupts: Interrupts::without_time }
}

/// On CPUs with all features and on CPUs with few, with each seed.
fn on_each_machine(cpus: usize, parts: u64, body: impl Fn(&Machine, &Room<'_, Hosted>) -> Result<(), Breach>) {
    for (name, features) in [("MODERN", MODERN), ("PLAIN", PLAIN)] {
        for seed in SEEDS {
            let machine = machine((features, Bbm::default()), cpus, seed, parts);
            body(&machine, &room(&machine, features)).unwrap_or_else(|breach| panic!("{name}: {breach}"));
        }
    }
}

fn alone(parts: u64, scenario: impl Fn(&Room<'_, Hosted>, &CpuHandle, u64) + Sync) {
    on_each_machine(1, parts, |machine, room| machine.alone(|cpu| scenario(room, cpu, 0)));
}

/// Runs each vCPU to its end.
fn run_all<P: program::Program>(vm: &Vm<Hosted>, machine: &Machine, vcpus: &mut [Vcpu<P>]) -> Result<(), Breach> {
    run_all_with(vm, machine, vcpus, |_, _| 0)
}

/// The same, with answers to their hypercalls.
fn run_all_with<P: program::Program>(
    vm: &Vm<Hosted>,
    machine: &Machine,
    vcpus: &mut [Vcpu<P>],
    call: impl Fn(usize, [u64; 4]) -> u64 + Sync,
) -> Result<(), Breach> {
    let left = match vm.run_all(machine, vcpus, call) {
        Ok(left) => left,
        Err(RunAllError::Breach(breach)) => return Err(breach),
        Err(RunAllError::Vcpus(error)) => panic!("{error}"),
    };
    assert!(left.iter().all(|left| *left == Ok(Left::Ended)), "{left:?}");
    Ok(())
}

#[test]
fn what_is_not_there_or_not_allowed_is_an_external_abort() {
    alone(2, scenarios::slots);
}

#[test]
fn a_vcpu_that_takes_no_abort_is_left_with_it() {
    alone(1, scenarios::own_faults);
}

#[test]
fn what_was_written_is_executed() {
    alone(2, scenarios::code);
}

#[test]
fn calls_are_answered() {
    alone(1, scenarios::hypercalls);
}

#[test]
fn interrupts_wake_a_vcpu_that_waits() {
    alone(1, scenarios::interrupts);
}

#[test]
fn a_guest_has_tables_of_its_own() {
    alone(2, scenarios::stage1);
}

#[test]
fn guests_of_each_mode_find_what_they_wrote() {
    alone(modes::PARTS, modes::what_is_written_is_found);
}

#[test]
fn what_stage_2_takes_is_gone_whatever_granule_stage_1_has() {
    alone(modes::PARTS, modes::what_is_taken_is_gone);
}

#[test]
fn a_vcpus_registers_go_along() {
    alone(1, scenarios::registers_go_along);
}

#[test]
fn updates_of_a_guests_tables_are_recorded() {
    alone(1, scenarios::stage1_updates_are_recorded);
}

#[test]
fn updates_of_a_guests_tables_fault_as_writes() {
    alone(1, scenarios::stage1_updates_fault_as_writes);
}

#[test]
fn a_guest_goes_on_when_there_are_frames_again() {
    alone(9, scenarios::out_of_frames);
}

/// Several CPUs load a guest's memory at once, into the same pages of 2 MiB. Each word arrives, and each frame is
/// taken once.
#[test]
fn judge_loaders_work_beside_each_other() -> Result<(), Breach> {
    const CPUS: usize = 4;
    const PAGES: u64 = 8;
    for seed in 1..=20 {
        let machine = machine((MODERN, Bbm::default()), CPUS, seed, 1);
        let memory = machine.alone(|_| room(&machine, MODERN).memory(0, 1, Pages::Small))?;
        let (tables, free) = machine.alone(|_| (memory.counts().tables_allocated, memory.frames().free()))?;
        let word = |page: u64, cpu: u64| RAM + page * PAGE + cpu * 8;
        let loads = |cpu: &CpuHandle| {
            let number = cpu.number() as u64;
            (0..PAGES).for_each(|page| memory.write(word(page, number), &(page << 8 | number).to_le_bytes()).unwrap());
        };
        machine.run((0..CPUS).map(|_| -> Program<'_> { Box::new(loads) }).collect())?;
        machine.alone(|_| {
            for page in 0..PAGES {
                let fault = GuestFault { ipa: word(page, 0), kind: FaultKind::Translation, access: AccessKind::Read };
                assert!(memory.fault(&fault).is_ok());
                let frame = memory.stage2().look_up(fault.ipa).unwrap().descriptor.address();
                for cpu in 0..CPUS as u64 {
                    assert_eq!(
                        machine.arena().load(frame + cpu * 8),
                        Some(page << 8 | cpu),
                        "seed {seed}, page {page}"
                    );
                }
            }
            let tables = memory.counts().tables_allocated - tables;
            assert_eq!((memory.counts().frames_zeroed, memory.frames().free() + 512 + tables), (PAGES, free));
        })?;
    }
    Ok(())
}

/// Four vCPUs on four CPUs, each of which touches all of a working set.
fn working_set(machine: &Machine, room: &Room<'_, Hosted>, part: u64, pages: Pages) -> Result<(), Breach> {
    const VCPUS: u64 = 4;
    const TOUCHED: u64 = 61;
    let vm = machine.alone(|_| Vm::new(room.memory(part, 1 + part as u16, pages)))?;
    let program = |vcpu| WorkingSet::new(RAM.raw() + MIB_2 - 16 * PAGE, TOUCHED, 3, (vcpu, VCPUS));
    let mut vcpus: Vec<_> = (0..VCPUS).map(|vcpu| room.vcpu(program(vcpu))).collect();
    run_all(&vm, machine, &mut vcpus)?;
    check_working_set(room, &vm, &vcpus);
    let mapped = if pages == Pages::Small { [0, 0, 0, TOUCHED] } else { [0, 0, 2, 0] };
    assert_eq!(vm.memory().counts().mapped, mapped, "each leaf once");
    machine.alone(|_| vm.destroy()).map(|_| ())
}

#[test]
fn four_vcpus_find_what_was_written_wherever_it_was_mapped() {
    on_each_machine(4, 2, |machine, room| {
        working_set(machine, room, 0, Pages::Small)?;
        working_set(machine, room, 1, Pages::Largest)
    });
}

/// Four vCPUs touch the same pages at once.
fn at_once(machine: &Machine, room: &Room<'_, Hosted>, part: u64, pages: Pages) -> Result<(), Breach> {
    let vm = machine.alone(|_| Vm::new(room.memory(part, 1 + part as u16, pages)))?;
    let before = together::Before::new(vm.memory());
    let mut vcpus: Vec<_> = (0..together::VCPUS).map(|vcpu| room.vcpu(together::program(vcpu))).collect();
    let meetings = together::Meetings::default();
    run_all_with(&vm, machine, &mut vcpus, |_, [number, ..]| {
        meetings.meet(number, &room.platform);
        0
    })?;
    before.check(vm.memory(), pages);
    machine.alone(|_| before.check_destroyed(&vm.destroy()))
}

#[test]
fn pages_that_four_vcpus_touch_at_once_are_zeroed_once() {
    on_each_machine(4, 2, |machine, room| {
        at_once(machine, room, 0, Pages::Small)?;
        at_once(machine, room, 1, Pages::Largest)
    });
}

/// Four vCPUs use pages that a fifth CPU unmaps, a few times.
fn unmapped_beside(machine: &Machine, room: &Room<'_, Hosted>, part: u64, pages: Pages) -> Result<(), Breach> {
    let vm = machine.alone(|_| Vm::new(room.memory(part, 1 + part as u16, pages)))?;
    let mut vcpus: Vec<_> = (0..together::VCPUS).map(|vcpu| room.vcpu(together::working_set(vcpu))).collect();
    let run = |vcpu| {
        let vm = &vm;
        move |cpu: &CpuHandle| assert_eq!(vm.run(cpu, vcpu, |_| 0), Ok(Left::Ended))
    };
    let mut programs: Vec<Program<'_>> = vcpus.iter_mut().map(|vcpu| Box::new(run(vcpu)) as Program<'_>).collect();
    programs.push(Box::new(|cpu| {
        for _ in 0..10 {
            together::unmap(&vm);
            (0..cpu.draw(200)).for_each(|_| cpu.pause());
        }
    }));
    machine.run(programs)?;
    machine.alone(|cpu| {
        assert_eq!(vm.run(cpu, &mut room.vcpu(together::check(&vcpus)), |_| 0), Ok(Left::Ended));
        assert_eq!(vm.memory().counts().frames_zeroed, together::zeroed(pages));
        vm.destroy();
    })
}

#[test]
fn what_is_unmapped_beside_faults_comes_back_as_it_was() {
    on_each_machine(5, 2, |machine, room| {
        unmapped_beside(machine, room, 0, Pages::Small)?;
        unmapped_beside(machine, room, 1, Pages::Largest)
    });
}

/// Two vCPUs run on three CPUs, so that each follows the other there, and are kicked at any point.
fn moved(machine: &Machine, room: &Room<'_, Hosted>, part: u64, end: u64) -> Result<u64, Breach> {
    let vm = machine.alone(|_| Vm::new(room.memory(part, 1 + part as u16, Pages::Small)))?;
    let vcpus = [RAM.raw(), RAM.raw() + 8].map(|total| room.vcpu(Sum::new(total, end, 50)));
    let interrupts = vcpus.each_ref().map(|vcpu| Arc::clone(vcpu.interrupts()));
    let (waiting, ended, moves) = (Mutex::new(Vec::from(vcpus)), Mutex::new(Vec::new()), AtomicU64::new(0));
    let over = || ended.lock().unwrap().len() == 2;
    let run = |cpu: &CpuHandle| {
        while !over() {
            let Some(mut vcpu) = take(&waiting, cpu) else {
                cpu.pause();
                continue;
            };
            match vm.run(cpu, &mut vcpu, |_| 0).unwrap() {
                Left::Ended => ended.lock().unwrap().push(vcpu),
                Left::Kicked => waiting.lock().unwrap().push(vcpu),
                Left::Fault(abort) => panic!("{abort:?}"),
            }
            moves.fetch_add(1, Ordering::Relaxed);
        }
    };
    let kick = |cpu: &CpuHandle| {
        while !over() {
            interrupts[cpu.draw(2) as usize].kick();
            (0..cpu.draw(20)).for_each(|_| cpu.pause());
        }
    };
    machine.run(vec![Box::new(run), Box::new(run), Box::new(run), Box::new(kick)])?;
    machine.alone(|cpu| {
        for vcpu in ended.into_inner().unwrap() {
            assert_eq!(vm.run(cpu, &mut room.vcpu(vcpu.program().check()), |_| 0), Ok(Left::Ended));
        }
        vm.destroy();
    })?;
    Ok(moves.into_inner())
}

/// A random one of the waiting vCPUs.
fn take<P>(waiting: &Mutex<Vec<Vcpu<P>>>, cpu: &CpuHandle) -> Option<Vcpu<P>> {
    let mut waiting = waiting.lock().unwrap();
    let count = waiting.len() as u64;
    (count > 0).then(|| waiting.swap_remove(cpu.draw(count) as usize))
}

#[test]
fn guests_go_on_where_they_were_on_another_cpu() {
    on_each_machine(4, 1, |machine, room| {
        let moves = moved(machine, room, 0, 1000)?;
        assert!(moves > 10, "{moves}");
        Ok(())
    });
}

/// The CPU clears `VTTBR_EL2`, so that the guest's tables may be freed.
#[test]
fn a_cpu_that_has_left_a_guest_does_not_walk_its_tables() {
    alone(1, |room, cpu, part| {
        let vm = Vm::new(room.memory(part, 1, Pages::Small));
        assert_eq!(vm.run(cpu, &mut room.vcpu(Script::new(&[Op::Store(RAM.raw(), 1)])), |_| 0), Ok(Left::Ended));
        assert_eq!(room.platform.vttbr(), 0);
        vm.destroy();
    });
}

/// Another CPU's interrupts and timers wake a waiting vCPU, and no other event does.
#[test]
fn a_vcpu_that_waits_is_woken_by_another_cpu() {
    on_each_machine(2, 1, |machine, room| {
        let vm = machine.alone(|_| Vm::new(room.memory(0, 1, Pages::Small)))?;
        let mut waiter = room.vcpu(Script::new(&[Op::Wait(1 << 9), Op::Store(RAM.raw(), 9), Op::Wait(1 << 10)]));
        let mut sleeper = room.vcpu(Script::new(&[Op::Timer(50), Op::Wait(1 << 27), Op::Call([0; 4], 0)]));
        let interrupts = Arc::clone(waiter.interrupts());
        let line = |number| Line::new(number).unwrap();
        let wake = |cpu: &CpuHandle| {
            interrupts.raise(line(9));
            while interrupts.pending() != 0 {
                cpu.pause();
            }
            interrupts.raise(line(10));
        };
        let programs: Vec<Program<'_>> = vec![
            Box::new(|cpu| assert_eq!(vm.run(cpu, &mut waiter, |_| 0), Ok(Left::Ended))),
            Box::new(|cpu| {
                let left = vm.run(cpu, &mut sleeper, |_| {
                    wake(cpu);
                    0
                });
                assert_eq!(left, Ok(Left::Ended));
            }),
        ];
        machine.run(programs)
    });
}

/// No CPU wakes either vCPU, so the machine reports that none makes progress.
#[test]
fn a_wait_without_end_is_reported() {
    let machine = machine((MODERN, Bbm::default()), 2, 1, 1);
    let room = room(&machine, MODERN);
    let vm = machine.alone(|_| Vm::new(room.memory(0, 1, Pages::Small))).unwrap();
    let mut vcpus = [0, 1].map(|_| room.vcpu(Script::new(&[Op::Wait(1)])));
    let RunAllError::Breach(breach) = vm.run_all(&machine, &mut vcpus, |_, _| 0).unwrap_err() else { panic!() };
    assert_eq!(breach.rule, Rule::Livelock);
}

#[test]
fn more_vcpus_than_cpus_are_refused() {
    let machine = machine((MODERN, Bbm::default()), 2, 1, 1);
    let room = room(&machine, MODERN);
    let vm = machine.alone(|_| Vm::new(room.memory(0, 1, Pages::Small))).unwrap();
    for asked in [0, 3, 100] {
        let mut vcpus: Vec<_> = (0..asked).map(|_| room.vcpu(Script::new(&[]))).collect();
        let RunAllError::Vcpus(refused) = vm.run_all(&machine, &mut vcpus, |_, _| 0).unwrap_err() else { panic!() };
        assert_eq!(refused, CpusError { asked, available: 2, most: 2 });
    }
}

/// Each of two CPUs runs a vCPU of each virtual machine in turn. Each call uses other words.
fn in_turns(machine: &Machine, room: &Room<'_, Hosted>, vms: &[Vm<Hosted>], time: u64) -> Result<(), Breach> {
    let run = |cpu: &CpuHandle| {
        let sum = || Sum::new(RAM.raw() + (2 * time + cpu.number() as u64) * 8, 60, 20);
        let mut vcpus: Vec<_> = vms.iter().map(|vm| (vm, room.vcpu(sum()), Left::Kicked)).collect();
        while vcpus.iter().any(|(.., left)| *left == Left::Kicked) {
            for (vm, vcpu, left) in vcpus.iter_mut().filter(|(.., left)| *left == Left::Kicked) {
                let interrupts = Arc::clone(vcpu.interrupts());
                *left = vm
                    .run(cpu, vcpu, |_| {
                        interrupts.kick();
                        0
                    })
                    .unwrap();
            }
        }
        for (vm, vcpu, left) in vcpus {
            assert_eq!(left, Left::Ended);
            assert_eq!(vm.run(cpu, &mut room.vcpu(vcpu.program().check()), |_| 0), Ok(Left::Ended));
        }
    };
    machine.run(vec![Box::new(run), Box::new(run)])
}

/// Two virtual machines at a time. The older one ends, and a new one gets its VMID.
fn generations(features: Features, seed: u64, end: impl Fn(Vm<Hosted>) + Sync) -> Result<(), Breach> {
    const GENERATIONS: u64 = 5;
    let machine = machine((features, Bbm::default()), 2, seed, 2 + GENERATIONS);
    let room = room(&machine, features);
    let vm = |part| machine.alone(|_| Vm::new(room.memory(part, 2 + part as u16 % 2, Pages::Small)));
    let mut vms = vec![vm(0)?, vm(1)?];
    for generation in 0..GENERATIONS {
        in_turns(&machine, &room, &vms, generation)?;
        let oldest = vms.remove(0);
        machine.alone(|_| end(oldest))?;
        vms.push(vm(2 + generation)?);
    }
    in_turns(&machine, &room, &vms, GENERATIONS)
}

#[test]
fn a_vmid_is_used_again_when_its_guest_is_destroyed() {
    for features in [MODERN, PLAIN].map(|features| features.with_vmid_bits(2)) {
        for seed in SEEDS {
            let ended = generations(features, seed, |vm| {
                vm.destroy();
            });
            ended.unwrap_or_else(|breach| panic!("{breach}"));
        }
    }
}

#[test]
fn a_vmid_that_is_used_again_without_that_is_reported() {
    for features in [MODERN, PLAIN].map(|features| features.with_vmid_bits(2)) {
        let breach = generations(features, 1, std::mem::forget).unwrap_err();
        assert_eq!(breach.rule, Rule::VmidReused, "{breach}");
    }
}

/// A block becomes a table without a break, as CPUs with FEAT_BBM allow; some raise conflict aborts for it.
fn resize(machine: &Machine, cpu: &CpuHandle, vm: &Vm<Hosted>, table: Pa) {
    let (memory, platform) = (vm.memory(), machine.platform());
    let block = memory.stage2().look_up(RAM).unwrap().descriptor.raw();
    let root = Pa::new(memory.stage2().vttbr() & 0xffff_ffff_f000);
    let level_2 = Pa::new(cpu.read_entry(root + 8, Ordering::Acquire) & 0xffff_ffff_f000);
    cpu.take_page(table);
    for index in 0..512 {
        cpu.write_entry(table + index * 8, (block | 0b11) + index * PAGE, Ordering::Relaxed);
    }
    cpu.lock(level_2);
    cpu.write_entry(level_2, table.raw() | 0b11, Ordering::Release);
    cpu.unlock(level_2);
    platform.dsb(Domain::IshSt);
}

#[test]
fn a_tlb_conflict_is_resolved() {
    for seed in SEEDS {
        let machine = machine((MODERN, Bbm::Level2), 1, seed, 2);
        let room = room(&machine, MODERN);
        let ended = machine.alone(|cpu| {
            let vm = Vm::new(room.memory(0, 1, Pages::Largest));
            let operations: Vec<_> = (0..40).map(|page| Op::Store(RAM.raw() + page * PAGE, page)).collect();
            assert_eq!(vm.run(cpu, &mut room.vcpu(Script::new(&operations)), |_| 0), Ok(Left::Ended));
            resize(&machine, cpu, &vm, machine.arena().base() + PART);
            // Conflicts occur, and continue until one is handled.
            let mut vcpu = room.vcpu(Script::new(&[]));
            assert_eq!(vm.run(cpu, &mut vcpu, |_| 0), Ok(Left::Ended));
            let (vttbr, vtcr) = {
                let memory = vm.memory();
                (memory.stage2().vttbr(), memory.stage2().vtcr())
            };
            let mut guest = cpu.enter(vttbr, vtcr, vcpu.number());
            let conflicts = (0..40).filter(|page| guest.load(RAM.raw() + page * PAGE).is_err()).count();
            assert!(conflicts > 1, "{conflicts}");
            cpu.load(0);
            let operations: Vec<_> = (0..40).map(|page| Op::Load(RAM.raw() + page * PAGE, page)).collect();
            assert_eq!(vm.run(cpu, &mut room.vcpu(Script::new(&operations)), |_| 0), Ok(Left::Ended));
            // The test changed the tables by hand, so they cannot be destroyed.
            std::mem::forget(vm);
        });
        ended.unwrap_or_else(|breach| panic!("{breach}"));
    }
}

/// A short mix of the tests above.
#[test]
fn judge_virtual_machine() {
    for features in [MODERN, PLAIN] {
        let machine = machine((features, Bbm::default()), 4, 1, 7);
        let room = room(&machine, features);
        let ended = (|| {
            working_set(&machine, &room, 0, Pages::Small)?;
            working_set(&machine, &room, 1, Pages::Largest)?;
            moved(&machine, &room, 2, 200)?;
            machine.alone(|cpu| {
                scenarios::stage1(&room, cpu, 3);
                scenarios::stage1_updates_fault_as_writes(&room, cpu, 5);
                scenarios::stage1_updates_are_recorded(&room, cpu, 6);
            })
        })();
        ended.unwrap_or_else(|breach: Breach| panic!("{breach}"));
        let ended = generations(features.with_vmid_bits(2), 1, |vm| {
            vm.destroy();
        });
        ended.unwrap_or_else(|breach| panic!("{breach}"));
    }
}
