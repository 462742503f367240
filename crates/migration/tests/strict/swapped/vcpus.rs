// SPDX-License-Identifier: Apache-2.0 OR MIT
//! vCPUs that halt on absent pages, or are announced them. What the guest's kernel does with tokens is done here, on the
//! vCPU's own CPU: it consumes what is announced and acknowledges what is ready.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use twofold_abi::async_fault::{ACKNOWLEDGE, ENABLE, NO_TOKEN, SUCCESS, WAKE_ALL, area};
use twofold_machine::interrupts::Interrupts;
use twofold_machine::strict::{CpuHandle, Hosted};
use twofold_machine::vm::{RunError, Vcpu, Vm};
use twofold_memory::async_fault::interrupts::{CpuInterface, Group, Interrupt};
use twofold_memory::async_fault::{AbsentPage, Arrivals, Context, Host, Mode, Next, Ticket, VcpuFaults};
use twofold_memory::swap::Waiter;
use twofold_memory::{Error, GuestFault, GuestMemory};
use twofold_stage2::Ipa;

use crate::guest::{address_of, word_pages};
use crate::program::Work;
use crate::store::Reports;

type Memory = GuestMemory<Hosted>;

struct VcpuHost<'a> {
    vcpu: u32,
    memory: &'a Memory,
}

impl Host for VcpuHost<'_> {
    type Memory = Memory;

    fn memory(&self) -> &Memory {
        self.memory
    }

    fn start(&mut self, ticket: Ticket, absent: &AbsentPage) {
        self.memory.bring(absent.page, Waiter::Vcpu { vcpu: self.vcpu, ticket }).unwrap();
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.memory.forget(Waiter::Vcpu { vcpu: self.vcpu, ticket });
    }

    fn map(&mut self, fault: &GuestFault) {
        let _ = self.memory.fault(fault).unwrap();
    }

    fn raise(&mut self) {}
    fn lower(&mut self) {}

    fn can_take_interrupt(&mut self) -> bool {
        false
    }
}

/// A vCPU, its faults, and what its guest knows of tokens.
pub struct Seat {
    pub vcpu: Vcpu<Work>,
    pub faults: VcpuFaults<Memory>,
    number: u32,
    /// Tokens that were announced, and are not ready yet.
    pub out: BTreeSet<u32>,
    /// Tokens whose tasks a wake-all has woken.
    woken: BTreeSet<u32>,
    pub announced: u64,
    pub wake_alls: u64,
    /// Faults on absent pages.
    pub waited: u64,
}

impl Seat {
    pub fn new(number: u32, vcpu: Vcpu<Work>, mode: Mode) -> Self {
        let (out, woken, faults) = (BTreeSet::new(), BTreeSet::new(), VcpuFaults::new(mode));
        Self { vcpu, faults, number, out, woken, announced: 0, wake_alls: 0, waited: 0 }
    }

    /// The vCPU's area, in a page that no other CPU maps: it would be mapped while its content is written.
    fn area(&self) -> Ipa {
        Ipa::new(address_of(word_pages() + u64::from(self.number)) + 1024)
    }

    /// The guest enables announcements.
    pub fn enable(&mut self, memory: &Memory, arrivals: &Arrivals) {
        let (mut host, area) = (VcpuHost { vcpu: self.number, memory }, self.area().raw());
        assert_eq!(self.faults.call(arrivals, &mut host, [ENABLE.into(), area, 0]), Some(SUCCESS));
    }

    /// The vCPU goes on, until it needs a page or is kicked.
    fn turn(&mut self, cpu: &CpuHandle, vm: &Vm<Hosted>, arrivals: &Arrivals) {
        let mut host = VcpuHost { vcpu: self.number, memory: vm.memory() };
        match self.faults.before_entry(arrivals, &mut host) {
            Next::Enter => {}
            Next::Wait(_) => return,
            // The store has failed once. It is mended at once.
            Next::Stop { .. } => return self.faults.retry_failed(arrivals, &mut host),
        }
        if let Err(Error::Absent { page, .. }) = self.take_tokens(vm.memory(), arrivals) {
            return vm.memory().bring(page, Waiter::Other(self.number.into())).unwrap();
        }
        self.vcpu.program_mut().budget = u64::MAX;
        let left = vm.run(cpu, &mut self.vcpu, |_| 0);
        self.vcpu.program_mut().budget = 0;
        let fault = match left {
            Ok(_) => return,
            Err(RunError::Memory { fault, error: Error::Absent { .. } }) => fault,
            other => panic!("{other:?}"),
        };
        self.waited += 1;
        let interface = CpuInterface { enabled: [false, true], mask: 0xf0, running: 0xff, binary_point: [0, 1] };
        let ppi = Interrupt { group: Group::One, enabled: true, pending: false, active: false, priority: 0xa0 };
        let context = Context { pc: 0, pstate: 0, interface, ppi };
        // What follows is asked before the next entry.
        let _ = self.faults.fault(arrivals, &mut host, &AbsentPage::of(&fault), &context);
    }

    /// The guest's kernel goes on after its last instruction: a page that was announced just before is ready by now. So
    /// tokens that are out after this are lost. All pages are in memory.
    pub fn take_all_tokens(&mut self, memory: &Memory, arrivals: &Arrivals) {
        // One token may be announced and one ready, each behind the other.
        for _ in 0..3 {
            let mut host = VcpuHost { vcpu: self.number, memory };
            assert_eq!(self.faults.before_entry(arrivals, &mut host), Next::Enter);
            self.take_tokens(memory, arrivals).unwrap();
        }
    }

    /// What the guest's kernel does at its interrupt. The area may have left, too.
    pub fn take_tokens(&mut self, memory: &Memory, arrivals: &Arrivals) -> Result<(), Error> {
        let at = self.area();
        let read = |offset: usize| {
            let mut token = [0; 4];
            memory.read(at + offset as u64, &mut token)?;
            Ok::<_, Error>(u32::from_le_bytes(token))
        };
        let announced = read(area::NOT_PRESENT)?;
        if announced != NO_TOKEN {
            memory.write(at + area::NOT_PRESENT as u64, &[0; 4])?;
            assert!(self.out.insert(announced), "token {announced} is announced twice");
            self.announced += 1;
        }
        let ready = read(area::READY)?;
        if ready != NO_TOKEN {
            memory.write(at + area::READY as u64, &[0; 4])?;
            if ready == WAKE_ALL {
                self.woken.append(&mut self.out);
                self.wake_alls += 1;
            } else {
                // The target may have announced one before its wake-all was read: no task waits for it any more (A6).
                let is_known = self.out.remove(&ready) || self.woken.remove(&ready);
                assert!(is_known, "token {ready} is ready, and was not announced");
            }
            let mut host = VcpuHost { vcpu: self.number, memory };
            let acknowledged = self.faults.call(arrivals, &mut host, [ACKNOWLEDGE.into(), ready.into(), 0]);
            assert_eq!(acknowledged, Some(SUCCESS), "token {ready}");
        }
        Ok(())
    }
}

/// The vCPUs of a guest, and how they are stopped.
pub struct Seats<'m> {
    pub vm: &'m Vm<Hosted>,
    pub seats: Vec<Mutex<Seat>>,
    reports: Arc<Reports>,
    interrupts: Vec<Arc<Interrupts>>,
    runs: AtomicBool,
    pub over: AtomicBool,
    inside: AtomicU64,
    /// Tokens that are out, of all vCPUs.
    out: Vec<AtomicU64>,
}

impl<'m> Seats<'m> {
    pub fn new(vm: &'m Vm<Hosted>, seats: Vec<Seat>, reports: &Arc<Reports>) -> Self {
        let interrupts = seats.iter().map(|seat| Arc::clone(seat.vcpu.interrupts())).collect();
        let out = seats.iter().map(|seat| AtomicU64::new(seat.out.len() as u64)).collect();
        let seats = seats.into_iter().map(Mutex::new).collect();
        let (runs, over, inside) = (AtomicBool::new(true), AtomicBool::new(false), AtomicU64::new(0));
        Self { vm, seats, reports: Arc::clone(reports), interrupts, runs, over, inside, out }
    }

    /// Runs a vCPU on a CPU whenever it is to run.
    pub fn run(&self, cpu: &CpuHandle, number: usize) {
        while !self.over.load(Ordering::Relaxed) {
            self.inside.fetch_add(1, Ordering::SeqCst);
            if self.runs.load(Ordering::SeqCst) {
                let mut seat = self.seats[number].lock().unwrap();
                seat.turn(cpu, self.vm, &self.reports.arrivals[number]);
                self.out[number].store(seat.out.len() as u64, Ordering::SeqCst);
                drop(seat);
                check_limit(self.vm.memory());
            }
            self.inside.fetch_sub(1, Ordering::SeqCst);
            cpu.pause();
        }
    }

    /// Makes the vCPUs leave the guest, so that they do what their kernel does.
    pub fn kick(&self) {
        self.interrupts.iter().for_each(|interrupts| interrupts.kick());
    }

    /// Stops all vCPUs, from another CPU.
    pub fn stop(&self, cpu: &CpuHandle) {
        self.runs.store(false, Ordering::SeqCst);
        while self.inside.load(Ordering::SeqCst) > 0 {
            self.kick();
            cpu.pause();
        }
        // What the other CPUs have done is known here: they have left the guest.
        cpu.meet();
    }

    /// Tokens that are out.
    pub fn out(&self) -> u64 {
        self.out.iter().map(|out| out.load(Ordering::SeqCst)).sum()
    }

    pub fn into_seats(self) -> Vec<Seat> {
        self.seats.into_iter().map(|seat| seat.into_inner().unwrap()).collect()
    }
}

/// The frames never exceed the limit.
pub fn check_limit(memory: &Memory) {
    let used = memory.frame_use();
    assert!(used.data <= used.limit, "{used:?}");
}
