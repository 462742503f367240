// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same guests with the swap code: pages are written to a store in virtual time and read again, under a limit that
//! is asserted at each fault and each arrival.

use std::sync::Arc;

use twofold_machine::tasks::{Ended, Nanos, Paged, Pager, Privilege, Request, Swapped, TaskMachine, VirtualStore};
use twofold_machine::vm::Cpu;
use twofold_memory::async_fault::{AbsentPage, Arrival, Mode};
use twofold_memory::swap::{FRAMES_PER_VCPU, SwapOptions};
use twofold_memory::{Error, GuestFault, GuestMemory};
use twofold_stage2::Platform;

use super::guest::{Guest, Tasks, Touches};
use super::leaving::PAGE;

/// Pages of the array: more than the least limit of two vCPUs.
pub const PAGES: u64 = 80;
const LIMIT: u64 = 2 * FRAMES_PER_VCPU;

/// A pager that asserts the limit.
struct Limited<'m, H: Platform>(Swapped<'m, H>);

impl<H: Platform> Limited<'_, H> {
    fn check(&self) {
        let used = self.memory().frame_use();
        assert!(used.data <= LIMIT, "{used:?}");
    }
}

impl<H: Platform> Pager for Limited<'_, H> {
    type Memory = GuestMemory<H>;

    fn memory(&self) -> &GuestMemory<H> {
        self.0.memory()
    }

    fn fault(&mut self, now: Nanos, fault: &GuestFault) -> Result<Paged, Error> {
        let paged = self.0.fault(now, fault);
        self.check();
        paged
    }

    fn ask(&mut self, now: Nanos, request: Request, absent: &AbsentPage) -> Option<Arrival> {
        let arrival = self.0.ask(now, request, absent);
        self.check();
        arrival
    }

    fn cancel(&mut self, request: Request) {
        self.0.cancel(request);
    }

    fn next(&self) -> Option<Nanos> {
        self.0.next()
    }

    fn arrive(&mut self) -> Option<(Request, Arrival)> {
        let arrived = self.0.arrive();
        self.check();
        arrived
    }
}

/// Four tasks on two vCPUs add to pages in different orders, and every sum is right in the end.
pub fn pages_leave_and_come<C: Cpu>(
    mut guest: Guest<C::Host>,
    cpus: &[C],
    (mode, flags): (Mode, Option<u64>),
    latency: Nanos,
) {
    let store = Arc::new(VirtualStore::new());
    let options = SwapOptions { vcpus: 2, others: 1, headroom: 4 };
    guest.memory.attach_store(Box::new(Arc::clone(&store)), Box::new(Arc::clone(&store)), &options).unwrap();
    guest.memory.set_limit(LIMIT).unwrap();
    store.set_latency(latency);
    let task = |first: u64| {
        let privilege = |at: u64| if at.is_multiple_of(4) { Privilege::Kernel } else { Privilege::User };
        let pages = (0..2 * PAGES).map(|at| ((first + at * 7) % PAGES, privilege(at)));
        Box::new(Touches::new(&guest.layout, pages.collect())) as Box<_>
    };
    let tasks: Tasks = vec![vec![task(0), task(31)], vec![task(11), task(57)]];
    let pager = Limited(Swapped::new(&guest.memory, Arc::clone(&store)));
    let mut machine = TaskMachine::new(cpus, &guest.memory, pager, mode, guest.vcpus(tasks, flags)).unwrap();
    assert_eq!(machine.run(Nanos::millis(60_000)), Ok(Ended::Tasks), "{mode:?}");
    let counts = machine.counts();
    drop(machine);
    assert!(counts.vcpus.pages > 0 && store.counts().writes > PAGES / 2, "{mode:?}: {counts:?}, {:?}", store.counts());
    // A page that is there as soon as it is asked for is not announced.
    assert_eq!(counts.kernels.parked > 0, mode == Mode::Pv && latency > Nanos::ZERO, "{counts:?}");

    store.set_latency(Nanos::ZERO);
    let mut pager = Swapped::new(&guest.memory, store);
    for page in 0..PAGES {
        let mut word = [0; 8];
        pager.read(guest.layout.array.start + page * PAGE, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), 8, "{mode:?}: page {page}");
    }
    drop(pager);
    drop(guest.memory.destroy(drop));
}
