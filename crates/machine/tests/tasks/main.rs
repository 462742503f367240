// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guest tasks in virtual time: what `bm` does in each mode, and that no task is lost, whatever the store does.

mod fast;
mod guest;
mod leaving;
mod swapped;

use twofold_machine::tasks::bm::Worker;
use twofold_machine::tasks::{
    Access, Costs, Counts, Ended, MachineError, Nanos, Privilege, SLICE, Step, Task, TaskMachine,
};
use twofold_memory::async_fault::{Arrival, Mode};

use fast::{Did, after, bm, fast, work};
use guest::{KERNEL, Tasks, Touches, run};

const MS_10: Nanos = Nanos::millis(10);

#[test]
fn pv_does_nearly_twice_the_work_of_off_and_halt_twice_its_pages() {
    let [off, halt, pv] = [Mode::Off, Mode::Halt, Mode::Pv].map(|mode| bm(mode, MS_10, 1));
    println!("off {off:?}\nhalt {halt:?}\npv {pv:?}");
    let (done, pages) = (|did: Did| did.work as f64, |did: Did| did.counts.vcpus.pages as f64);
    // Two vCPUs have 2 s, and a unit of work takes 10 us: half of 200,000.
    assert!((95_000.0..=100_100.0).contains(&done(off)), "{off:?}");
    assert!(done(pv) >= 1.8 * done(off), "{pv:?} beside {off:?}");
    assert!(done(pv) < 2.05 * done(off), "more than there is");
    let [per_work, before] = [halt, off].map(|did| pages(did) / done(did));
    assert!(per_work >= 1.5 * before, "{halt:?} beside {off:?}");
    assert!(pages(pv) > pages(halt) && pv.counts.kernels.parked > 150);
    assert_eq!((off.counts.vcpus.announced, halt.counts.vcpus.announced), (0, 0));
}

#[test]
fn equal_runs_are_equal_and_other_seeds_differ() {
    for mode in [Mode::Off, Mode::Halt, Mode::Pv] {
        let [one, again, other] = [3, 3, 4].map(|seed| bm(mode, Nanos::micros(100), seed));
        assert_eq!(one, again);
        assert_ne!(one, other);
    }
}

/// One vCPU with a task that touches a page in this way, and a worker. Returns what was counted when the first has
/// ended.
fn touch(privilege: Privilege, flags: u64) -> (twofold_machine::tasks::Counts, u64) {
    let (guest, cpus) = fast(4, 1);
    let touches = Touches::new(&guest.layout, vec![(0, privilege), (1, privilege)]);
    let done = touches.done.clone();
    let tasks: Tasks = vec![vec![Box::new(touches), Box::new(Worker::new(&guest.layout, 0))]];
    let pager = guest.pager(4, after(MS_10));
    let vcpus = guest.vcpus(tasks, Some(flags));
    let mut machine = TaskMachine::new(&cpus, &guest.memory, pager, Mode::Pv, vcpus).unwrap();
    (0..4).for_each(|page| machine.pager().leave(guest.layout.array.start.raw() + page * leaving::PAGE));
    assert_eq!(machine.run(Nanos::millis(100)), Ok(Ended::Time));
    assert_eq!(done.get(), 2, "{privilege:?}");
    let counts = machine.counts();
    drop(machine);
    (counts, work(&guest, 1))
}

#[test]
fn a_users_fault_is_announced_and_its_task_parked() {
    let (counts, work) = touch(Privilege::User, 0);
    assert_eq!((counts.vcpus.announced, counts.kernels.parked, counts.kernels.declined), (2, 2, 0));
    assert_eq!((counts.vcpus.halts, counts.kernels.woken), (0, 2));
    assert!(work > 9_900, "{work}");
}

#[test]
fn the_kernels_fault_is_announced_only_if_it_asks_for_that() {
    let (counts, _) = touch(Privilege::Kernel, 0);
    assert_eq!((counts.vcpus.announced, counts.vcpus.halts > 0), (0, true));
    let (counts, _) = touch(Privilege::Kernel, KERNEL);
    assert_eq!((counts.vcpus.announced, counts.kernels.parked, counts.vcpus.halts), (2, 2, 0));
}

#[test]
fn a_kernel_that_may_not_sleep_declines_and_halts() {
    let (counts, _) = touch(Privilege::Atomic, KERNEL);
    assert_eq!((counts.vcpus.announced, counts.kernels.parked, counts.kernels.declined), (2, 0, 2));
    assert!(counts.vcpus.halts >= 2, "{counts:?}");
    assert_eq!(counts.kernels.woken, 0);
    // With interrupts masked, nothing is announced, and no timer ends the halt.
    let (counts, _) = touch(Privilege::Masked, KERNEL);
    assert_eq!((counts.vcpus.announced, counts.vcpus.halts), (0, 2));
}

/// Computes until just before its slice ends, and then touches an absent page.
struct LateTouch {
    at: u64,
    steps: u32,
}

impl Task for LateTouch {
    fn step(&mut self) -> Option<Step> {
        self.steps += 1;
        let (access, cost) = match self.steps {
            1 => (Access::No, SLICE - Costs::STATED.switch - Nanos::micros(1)),
            2 => (Access::Add { at: self.at, value: 1 }, Nanos::ZERO),
            _ => return None,
        };
        Some(Step { pc: 0x1000 + u64::from(self.steps), privilege: Privilege::User, access, cost })
    }
}

#[test]
fn a_timer_that_comes_with_an_announcement_parks_no_other_task() {
    let (guest, cpus) = fast(4, 1);
    let page = guest.layout.array.start;
    let late = LateTouch { at: page.raw(), steps: 0 };
    let tasks: Tasks = vec![vec![Box::new(late), Box::new(Worker::new(&guest.layout, 0))]];
    let (pager, vcpus) = (guest.pager(4, after(MS_10)), guest.vcpus(tasks, Some(0)));
    let mut machine = TaskMachine::new(&cpus, &guest.memory, pager, Mode::Pv, vcpus).unwrap();
    machine.pager().leave(page.raw());
    // The fault's price takes the clock over the end of the slice. The timer is taken first, and switches to the worker,
    // which the PPI interrupts.
    assert_eq!(machine.run(Nanos::millis(100)), Ok(Ended::Time));
    let Counts { vcpus, kernels, .. } = machine.counts();
    assert_eq!((vcpus.announced, kernels.declined, kernels.parked, kernels.woken), (1, 1, 0, 0));
    // The task repeats its access when it gets the vCPU again, and halts on the page that is on its way.
    assert!(vcpus.halts > 0, "{vcpus:?}");
    drop(machine);
    assert_eq!(guest.word(page), 1);
}

/// Random numbers (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Tasks on two vCPUs with random accesses to few pages, more than tokens at times.
fn tasks(layout: &twofold_machine::tasks::bm::Layout, random: &mut Random) -> (Tasks, u64) {
    let kinds = [Privilege::User, Privilege::User, Privilege::Kernel, Privilege::Atomic, Privilege::Masked];
    let mut accesses = 0;
    let mut task = |random: &mut Random| -> Box<dyn Task> {
        let count = 1 + random.below(8);
        accesses += count;
        let pages = (0..count).map(|_| (random.below(layout.pages()), kinds[random.below(5) as usize]));
        Box::new(Touches::new(layout, pages.collect()))
    };
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let count = if random.below(5) == 0 { 80 } else { 1 + random.below(6) };
        tasks.push((0..count).map(|_| task(random)).collect());
    }
    (tasks, accesses)
}

#[test]
fn no_task_is_lost_whatever_the_order_of_arrivals() {
    let first = std::env::var("TASKS_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in first.map_or(1..=60, |seed: u64| seed..=seed) {
        println!("TASKS_SEED={seed}");
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (guest, cpus) = fast(40, 2);
        let (tasks, accesses) = tasks(&guest.layout, &mut random);
        let limit = 3 + random.below(30) as usize;
        let (mode, flags) = match random.below(8) {
            0 => (Mode::Off, None),
            1 => (Mode::Halt, None),
            kernel => (Mode::Pv, Some(kernel & KERNEL)),
        };
        let mut delays = Random(seed);
        let pager = guest.pager(
            limit,
            // Some at once, some later than others that were asked for after them.
            Box::new(move |_| Some((Nanos::micros(delays.below(4) * delays.below(10_000)), Arrival::Present))),
        );
        let mut machine = TaskMachine::new(&cpus, &guest.memory, pager, mode, guest.vcpus(tasks, flags)).unwrap();
        if mode == Mode::Pv {
            // The areas' page is absent, too.
            machine.pager().leave(guest.layout.own.start.raw());
        }
        assert_eq!(run(&mut machine, &guest.layout), Ok(Ended::Tasks), "TASKS_SEED={seed}");
        let counts = machine.counts();
        assert_eq!(counts.kernels.woken, counts.kernels.parked, "TASKS_SEED={seed}");
        drop(machine);
        let word = |page| guest.word(guest.layout.array.start + page * leaving::PAGE);
        assert_eq!((0..40).map(word).sum::<u64>(), accesses, "TASKS_SEED={seed}");
    }
}

#[test]
fn a_store_that_never_answers_is_found() {
    let (guest, cpus) = fast(4, 1);
    let touches = Touches::new(&guest.layout, vec![(0, Privilege::User), (1, Privilege::User)]);
    // The second request is lost.
    let pager = guest.pager(4, Box::new(|asked| (asked == 1).then_some((MS_10, Arrival::Present))));
    let vcpus = guest.vcpus(vec![vec![Box::new(touches)]], Some(0));
    let mut machine = TaskMachine::new(&cpus, &guest.memory, pager, Mode::Pv, vcpus).unwrap();
    assert_eq!(run(&mut machine, &guest.layout), Err(MachineError::Stuck { vcpu: 0, parked: 1 }));
}

#[test]
fn a_store_that_fails_stops_the_guest_until_it_works_again() {
    for (mode, flags) in [(Mode::Off, None), (Mode::Halt, None), (Mode::Pv, Some(0))] {
        let (guest, cpus) = fast(4, 1);
        let touches = Touches::new(&guest.layout, vec![(0, Privilege::User), (1, Privilege::User)]);
        let fails = |asked| Some((MS_10, if asked == 2 { Arrival::Failed } else { Arrival::Present }));
        let vcpus = guest.vcpus(vec![vec![Box::new(touches)]], flags);
        let pager = guest.pager(4, Box::new(fails));
        let mut machine = TaskMachine::new(&cpus, &guest.memory, pager, mode, vcpus).unwrap();
        let page = guest.layout.array.start + leaving::PAGE;
        assert_eq!(run(&mut machine, &guest.layout), Err(MachineError::Stopped { vcpu: 0, page }), "{mode:?}");
        machine.retry_failed();
        assert_eq!(machine.run(Nanos::millis(1000)), Ok(Ended::Tasks), "{mode:?}");
        assert_eq!(guest.word(page), 1);
    }
}

#[test]
fn pages_are_written_out_and_read_again() {
    for modes in [(Mode::Off, None), (Mode::Halt, None), (Mode::Pv, Some(0)), (Mode::Pv, Some(KERNEL))] {
        for latency in [Nanos::ZERO, Nanos::micros(70)] {
            let (guest, cpus) = fast(swapped::PAGES, 2);
            swapped::pages_leave_and_come(guest, &cpus, modes, latency);
        }
    }
}

#[test]
fn a_kernel_that_enables_what_is_not_offered_is_an_error() {
    let (guest, cpus) = fast(4, 1);
    let machine = |cpus, vcpus, mode| TaskMachine::new(cpus, &guest.memory, guest.pager(4, after(MS_10)), mode, vcpus);
    let enabled = guest.vcpus(vec![vec![]], Some(0));
    let outcome = machine(&cpus, enabled, Mode::Halt).unwrap().run(MS_10);
    assert_eq!(outcome, Err(MachineError::Call { vcpu: 0, answer: -1 }));
    assert_eq!(machine(&cpus, vec![], Mode::Off).err(), Some(MachineError::Empty));
    assert_eq!(machine(&[], guest.vcpus(vec![vec![]], None), Mode::Off).err(), Some(MachineError::Empty));
}

#[test]
fn a_task_that_touches_no_memory_is_an_error() {
    let (guest, cpus) = fast(4, 1);
    let touches = Touches::new(&guest.layout, vec![(1 << 30, Privilege::User)]);
    let vcpus = guest.vcpus(vec![vec![Box::new(touches)]], None);
    let pager = guest.pager(4, after(MS_10));
    let mut machine = TaskMachine::new(&cpus, &guest.memory, pager, Mode::Off, vcpus).unwrap();
    assert!(matches!(machine.run(MS_10), Err(MachineError::NoMemory { vcpu: 0, .. })));
}
