// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest whose vCPUs are threads of this process: they serve requests at a rate, and stop and go on together.
//!
//! Stopping: G1: forbid running, under the gate's lock; G2: kick each vCPU, and wake those that wait for a page; G3: wait
//! until none is inside. A thread counts itself inside under the same lock and only while running is allowed, so after G3
//! no vCPU is in the guest and none enters.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use twofold_machine::fast::{FastMachine, FastPlatform};
use twofold_machine::interrupts::Interrupts;
use twofold_machine::key_value::{Served, Server};
use twofold_machine::vm::{FastCpu, Left, RunError, Vcpu, Vm, WriteFaults};
use twofold_memory::{Error, GuestMemory, SlotId};
use twofold_migration::stream;

use super::arrivals::Arrivals;
use super::pace::Pace;
use super::place::Made;
use super::settings::{PAGE, Settings};
use crate::experiment::host_clock::Moment;

/// A guest with its vCPUs, each on a thread.
pub struct Guest {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads share.
struct Inner {
    machine: Arc<FastMachine>,
    vm: Vm<FastPlatform>,
    slots: Vec<(SlotId, stream::Slot)>,
    arrivals: Arc<Arrivals>,
    vcpus: Vec<Mutex<Vcpu<Server>>>,
    interrupts: Vec<Arc<Interrupts>>,
    served: Vec<Arc<Served>>,
    /// Requests a second to each vCPU; 0: as many as it can serve.
    rate: u64,
    /// How much each vCPU is slowed down, in per mille.
    slowed: Vec<AtomicU16>,
    write_faults: Vec<Arc<WriteFaults>>,
    gate: Mutex<Gate>,
    bell: Condvar,
}

#[derive(Default)]
struct Gate {
    /// Whether vCPUs may run, and how often they were started.
    runs: bool,
    starts: u64,
    /// How many are in the guest.
    inside: usize,
    /// How many have entered since the last start, and when the last of them did.
    entered: usize,
    all_entered: Option<Moment>,
    /// Whether the threads are to end.
    over: bool,
    /// Why a vCPU cannot go on.
    failed: Option<String>,
}

impl Guest {
    /// A guest whose tables are filled.
    ///
    /// # Errors
    ///
    /// The tables do not fit, or a vCPU cannot go on.
    pub fn boot(settings: &Settings, made: Made) -> anyhow::Result<Self> {
        let server = |vcpu| settings.table(vcpu).map(|table| Server::new(table, settings.mix()));
        let servers: Option<Vec<_>> = (0..settings.vcpus).map(server).collect();
        let guest = Self::new(settings, made, servers.context("the guest's memory is too small for its vCPUs")?)?;
        let inner = &guest.inner;
        let filled: Vec<_> = thread::scope(|scope| {
            let fill = |number| scope.spawn(move || inner.fill(number));
            let threads: Vec<_> = (0..inner.vcpus.len()).map(fill).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| bail!("a vCPU's thread ended"))).collect()
        });
        filled.into_iter().collect::<anyhow::Result<()>>()?;
        Ok(guest)
    }

    /// A guest with these programs. It stands still.
    ///
    /// # Errors
    ///
    /// A thread cannot be started.
    pub fn new(settings: &Settings, made: Made, servers: Vec<Server>) -> anyhow::Result<Self> {
        let Made { machine, vm, slots, arrivals } = made;
        let vcpus: Vec<_> = servers.into_iter().map(|server| Vcpu::new(server, Arc::new(Interrupts::new()))).collect();
        let inner = Arc::new(Inner {
            machine,
            vm,
            slots,
            arrivals,
            interrupts: vcpus.iter().map(|vcpu| Arc::clone(vcpu.interrupts())).collect(),
            served: vcpus.iter().map(|vcpu| Arc::clone(vcpu.program().served())).collect(),
            rate: settings.rate.div_ceil(vcpus.len().max(1) as u64),
            slowed: vcpus.iter().map(|_| AtomicU16::new(0)).collect(),
            write_faults: vcpus.iter().map(|vcpu| Arc::clone(vcpu.write_faults())).collect(),
            vcpus: vcpus.into_iter().map(Mutex::new).collect(),
            gate: Mutex::default(),
            bell: Condvar::new(),
        });
        let mut guest = Self { inner, threads: Vec::new() };
        for number in 0..guest.inner.vcpus.len() {
            let inner = Arc::clone(&guest.inner);
            let thread = thread::Builder::new().name(format!("vcpu {number}"));
            let thread = thread.spawn(move || inner.run(number)).context("cannot start a thread for a vCPU")?;
            guest.threads.push(thread);
        }
        Ok(guest)
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemory<FastPlatform> {
        self.inner.vm.memory()
    }

    /// The memslots.
    pub fn slots(&self) -> &[(SlotId, stream::Slot)] {
        &self.inner.slots
    }

    /// Lets all vCPUs run.
    pub fn start(&self) {
        self.inner.arrivals.leave(false);
        let mut gate = self.inner.lock();
        (gate.runs, gate.entered, gate.all_entered) = (true, 0, None);
        gate.starts += 1;
        drop(gate);
        self.inner.bell.notify_all();
    }

    /// Waits until all vCPUs have entered the guest since the last start; returns when the last of them did.
    ///
    /// # Errors
    ///
    /// A vCPU cannot go on.
    pub fn entered(&self) -> anyhow::Result<Moment> {
        let mut gate = self.inner.lock();
        loop {
            if let Some(why) = &gate.failed {
                bail!("{why}");
            }
            if let Some(moment) = gate.all_entered {
                return Ok(moment);
            }
            gate = self.inner.wait(gate);
        }
    }

    /// Stops all vCPUs: G1 to G3.
    pub fn stop(&self) {
        let inner = &self.inner;
        inner.lock().runs = false;
        inner.interrupts.iter().for_each(|interrupts| interrupts.kick());
        inner.arrivals.leave(true);
        inner.bell.notify_all();
        let mut gate = inner.lock();
        while gate.inside > 0 {
            gate = inner.wait(gate);
        }
    }

    /// Slows vCPUs down, in per mille: each by a number of its own, or all by one.
    pub fn slow(&self, slowed: &[u16]) {
        for (vcpu, number) in self.inner.slowed.iter().enumerate() {
            let slowed = slowed.get(vcpu).or(slowed.first()).copied().unwrap_or(0);
            // Relaxed: the number orders nothing.
            number.store(slowed, Ordering::Relaxed);
        }
    }

    /// The write faults of each vCPU since the guest is here.
    pub fn write_faults(&self) -> impl Iterator<Item = u64> {
        self.inner.write_faults.iter().map(|faults| faults.count())
    }

    /// The requests that all vCPUs have served, wherever they were.
    pub fn served(&self) -> u64 {
        self.inner.served.iter().map(|served| served.count()).sum()
    }

    /// The count of each vCPU's requests, for other threads.
    pub fn counts(&self) -> Vec<Arc<Served>> {
        self.inner.served.clone()
    }

    /// The state of each vCPU of a guest that stands still.
    pub fn vcpus(&self) -> Vec<Vec<u8>> {
        let bytes = |vcpu: &Mutex<Vcpu<Server>>| lock(vcpu).program().to_bytes();
        self.inner.vcpus.iter().map(bytes).collect()
    }

    /// How often a vCPU has waited for an absent page.
    pub fn waited(&self) -> u64 {
        self.inner.arrivals.waited()
    }

    /// Checks that all vCPUs can go on.
    ///
    /// # Errors
    ///
    /// A word of the store differs, or a vCPU cannot go on for another reason.
    pub fn check(&self) -> anyhow::Result<()> {
        match &self.inner.lock().failed {
            Some(why) => bail!("{why}"),
            None => Ok(()),
        }
    }

    /// Ends the guest.
    ///
    /// # Errors
    ///
    /// A thread has panicked.
    pub fn end(mut self) -> anyhow::Result<Vm<FastPlatform>> {
        self.end_threads()?;
        let inner = Arc::clone(&self.inner);
        drop(self);
        Ok(Arc::into_inner(inner).context("the guest is still in use")?.vm)
    }

    fn end_threads(&mut self) -> anyhow::Result<()> {
        self.stop();
        self.inner.lock().over = true;
        self.inner.bell.notify_all();
        self.threads.drain(..).try_for_each(|thread| thread.join().ok().context("a vCPU's thread has panicked"))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // A panic's message was printed already.
        let _ = self.end_threads();
    }
}

impl Inner {
    /// Inserts all keys of a vCPU's table.
    fn fill(&self, number: usize) -> anyhow::Result<()> {
        let cpu = FastCpu { machine: Arc::clone(&self.machine), number };
        let mut vcpu = lock(&self.vcpus[number]);
        let keys = vcpu.program().left_to_insert();
        vcpu.program_mut().set_budget(keys);
        let left = self.vm.run(&cpu, &mut vcpu, |_| 0)?;
        match vcpu.program().broken() {
            None if left == Left::Ended => Ok(()),
            Some(broken) => bail!("vCPU {number}: {broken}"),
            None => bail!("vCPU {number} left its guest while its table was filled: {left:?}"),
        }
    }

    /// A vCPU's thread.
    fn run(&self, number: usize) {
        let cpu = FastCpu { machine: Arc::clone(&self.machine), number };
        let mut pace = Pace::new(self.rate);
        let mut gate = self.lock();
        // The last start since which this vCPU has entered.
        let mut entered = 0;
        loop {
            if gate.over {
                return;
            }
            let early = pace.early();
            if !gate.runs || gate.failed.is_some() || !early.is_zero() {
                gate = if gate.runs && gate.failed.is_none() { self.wait_for(gate, early) } else { self.wait(gate) };
                continue;
            }
            gate.inside += 1;
            if entered != gate.starts {
                entered = gate.starts;
                pace.resume();
                gate.entered += 1;
                if gate.entered == self.vcpus.len() {
                    gate.all_entered = Some(Moment::now());
                    self.bell.notify_all();
                }
            }
            drop(gate);
            let failed = self.serve(&cpu, &mut pace).err();
            gate = self.lock();
            gate.inside -= 1;
            if gate.failed.is_none() {
                gate.failed = failed.map(|error| format!("vCPU {number}: {error:#}"));
            }
            if !gate.runs || gate.failed.is_some() {
                self.bell.notify_all();
            }
        }
    }

    /// Serves some requests.
    fn serve(&self, cpu: &FastCpu, pace: &mut Pace) -> anyhow::Result<()> {
        let mut vcpu = lock(&self.vcpus[cpu.number]);
        let requests = pace.requests();
        vcpu.program_mut().set_budget(requests);
        let begin = Instant::now();
        match self.vm.run(cpu, &mut vcpu, |_| 0) {
            Ok(Left::Ended | Left::Kicked) => {}
            Ok(Left::Fault(abort)) => bail!("the guest takes no abort: {abort:?}"),
            Err(RunError::Memory { fault, error: Error::Absent { .. } }) => {
                self.arrivals.wait(self.vm.memory(), cpu.number, fault.ipa.align_down(PAGE))?;
            }
            Err(error) => return Err(error.into()),
        }
        if let Some(broken) = vcpu.program().broken() {
            bail!("{broken}");
        }
        let done = requests - vcpu.program().budget();
        pace.served(done, begin.elapsed(), self.slowed[cpu.number].load(Ordering::Relaxed));
        Ok(())
    }

    /// The state is valid at any time, so a poisoned lock is harmless.
    fn lock(&self) -> MutexGuard<'_, Gate> {
        lock(&self.gate)
    }

    fn wait<'g>(&self, gate: MutexGuard<'g, Gate>) -> MutexGuard<'g, Gate> {
        self.bell.wait(gate).unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for<'g>(&self, gate: MutexGuard<'g, Gate>, time: Duration) -> MutexGuard<'g, Gate> {
        self.bell.wait_timeout(gate, time).unwrap_or_else(PoisonError::into_inner).0
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
