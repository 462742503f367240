// SPDX-License-Identifier: Apache-2.0 OR MIT
//! vCPUs on threads.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use twofold_machine::fast::CpusError;
use twofold_machine::interrupts::Line;
use twofold_machine::vm::{FastCpu, Left, Vm};
use twofold_memory::Pages;
use twofold_stage2::TableSource;

use crate::programs::{Op, PAGE, Script, Sum, WorkingSet};
use crate::scenarios::{MIB_2, RAM, RAM_SIZE, check_working_set};
use crate::{machine, room, together};

#[test]
fn four_vcpus_find_what_was_written_wherever_it_was_mapped() {
    const VCPUS: u64 = 4;
    const TOUCHED: u64 = 3001;
    for pages in [Pages::Small, Pages::Largest] {
        let machine = machine(VCPUS as usize, 1);
        let room = room(&machine);
        let vm = Vm::new(room.memory(0, 1, pages));
        let program = |vcpu| WorkingSet::new(RAM.raw(), TOUCHED, 9, (vcpu, VCPUS));
        let mut vcpus: Vec<_> = (0..VCPUS).map(|vcpu| room.vcpu(program(vcpu))).collect();
        let left = vm.run_all(&machine, &mut vcpus, |_, _| 0).unwrap();
        assert_eq!(left, [Ok(Left::Ended); VCPUS as usize]);
        check_working_set(&room, &vm, &vcpus);
        let mapped = vm.memory().counts().mapped;
        assert_eq!(mapped, if pages == Pages::Small { [0, 0, 0, TOUCHED] } else { [0, 0, 6, 0] }, "each leaf once");
    }
}

#[test]
fn pages_that_four_vcpus_touch_at_once_are_zeroed_once() {
    for pages in [Pages::Small, Pages::Largest] {
        let machine = machine(together::VCPUS as usize, 1);
        let room = room(&machine);
        let vm = Vm::new(room.memory(0, 1, pages));
        let before = together::Before::new(vm.memory());
        let mut vcpus: Vec<_> = (0..together::VCPUS).map(|vcpu| room.vcpu(together::program(vcpu))).collect();
        let meetings = together::Meetings::default();
        let left = vm.run_all(&machine, &mut vcpus, |_, [number, ..]| {
            meetings.meet(number, &room.platform);
            0
        });
        assert_eq!(left, Ok(vec![Ok(Left::Ended); together::VCPUS as usize]));
        before.check(vm.memory(), pages);
        before.check_destroyed(&vm.destroy());
    }
}

/// Table pages are taken and returned while RAM takes its frames: no page has two owners, and none is lost.
#[test]
fn frames_have_one_owner_at_a_time() {
    for _ in 0..20 {
        let machine = machine(1, 1);
        let room = room(&machine);
        let memory = room.memory(0, 1, Pages::Small);
        let free = memory.frames().free();
        let huge_pages = RAM_SIZE / MIB_2;
        let owned: Mutex<BTreeSet<_>> = Mutex::default();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut tables = memory.tables();
                    for _ in 0..300 {
                        let pages: Vec<_> = (0..8).map_while(|_| tables.take()).collect();
                        for page in &pages {
                            assert!(owned.lock().unwrap().insert(page.pa()), "{} has two owners", page.pa());
                        }
                        for page in pages {
                            owned.lock().unwrap().remove(&page.pa());
                            tables.give(page);
                        }
                    }
                });
            }
            for huge_page in (0..huge_pages).cycle().take(20 * huge_pages as usize) {
                memory.write(RAM + huge_page * MIB_2, &[1]).unwrap();
                thread::yield_now();
            }
        });
        assert_eq!(memory.frames().free() + huge_pages * MIB_2 / PAGE, free, "frames are lost");
    }
}

#[test]
fn what_is_unmapped_beside_faults_comes_back_as_it_was() {
    for pages in [Pages::Small, Pages::Largest] {
        let machine = machine(together::VCPUS as usize, 1);
        let room = room(&machine);
        let vm = Vm::new(room.memory(0, 1, pages));
        let mut vcpus: Vec<_> = (0..together::VCPUS).map(|vcpu| room.vcpu(together::working_set(vcpu))).collect();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    together::unmap(&vm);
                }
            });
            let left = vm.run_all(&machine, &mut vcpus, |_, _| 0);
            over.store(true, Ordering::Relaxed);
            assert_eq!(left, Ok(vec![Ok(Left::Ended); together::VCPUS as usize]));
        });
        let cpu = FastCpu { machine: Arc::clone(&machine), number: 0 };
        assert_eq!(vm.run(&cpu, &mut room.vcpu(together::check(&vcpus)), |_| 0), Ok(Left::Ended));
        assert_eq!(vm.memory().counts().frames_zeroed, together::zeroed(pages));
    }
}

/// The guest is kicked repeatedly, at any point, and moves to another CPU and another thread each time.
#[test]
fn a_guest_goes_on_where_it_was_on_another_cpu() {
    let machine = machine(3, 1);
    let room = room(&machine);
    let vm = Vm::new(room.memory(0, 1, Pages::Small));
    let cpu = |number| FastCpu { machine: Arc::clone(&machine), number };
    let mut vcpu = room.vcpu(Sum::new(RAM.raw(), 1_000_000, 20_000));
    let interrupts = Arc::clone(vcpu.interrupts());
    let (mut moves, mut left) = (0, Left::Kicked);
    while left == Left::Kicked {
        left = thread::scope(|scope| {
            let runs = scope.spawn(|| {
                vm.run(&cpu(moves % 3), &mut vcpu, |_| {
                    interrupts.kick();
                    0
                })
            });
            // At any point of the run.
            if moves < 50 {
                interrupts.kick();
            }
            runs.join().unwrap().unwrap()
        });
        moves += 1;
    }
    assert!(left == Left::Ended && moves > 50, "{left:?} after {moves}");
    assert_eq!(vm.run(&cpu(0), &mut room.vcpu(vcpu.program().check()), |_| 0), Ok(Left::Ended));
}

/// A vCPU that waits sleeps until another thread wakes it.
#[test]
fn a_vcpu_that_waits_is_woken_by_another_thread() {
    let machine = machine(2, 1);
    let room = room(&machine);
    let vm = Vm::new(room.memory(0, 1, Pages::Small));
    let waits = Script::new(&[Op::Call([1; 4], 0), Op::Wait(1 << 9), Op::Store(RAM.raw(), 9), Op::Wait(1 << 10)]);
    let mut vcpus = [room.vcpu(waits), room.vcpu(Script::new(&[Op::Call([2; 4], 0)]))];
    let waiter = Arc::clone(vcpus[0].interrupts());
    let line = |number| Line::new(number).unwrap();
    let left = vm.run_all(&machine, &mut vcpus, |_, [call, ..]| {
        if call == 2 {
            waiter.raise(line(9));
            while waiter.pending() != 0 {
                thread::yield_now();
            }
            waiter.raise(line(10));
        }
        0
    });
    assert_eq!(left, Ok(vec![Ok(Left::Ended); 2]));
}

#[test]
fn more_vcpus_than_cpus_are_refused() {
    let machine = machine(2, 1);
    let room = room(&machine);
    let vm = Vm::new(room.memory(0, 1, Pages::Small));
    for asked in [0, 3, 100] {
        let mut vcpus: Vec<_> = (0..asked).map(|_| room.vcpu(Script::new(&[]))).collect();
        let refused = vm.run_all(&machine, &mut vcpus, |_, _| 0).unwrap_err();
        assert_eq!(refused, CpusError { asked, available: 2, most: 2 });
    }
}
