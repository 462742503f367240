// SPDX-License-Identifier: Apache-2.0 OR MIT
//! vCPUs. Each has a thread, which sleeps until its vCPU is started, and again after its guest has reported that it is
//! done.
//!
//! No thread polls. The selftests' threads do, which takes CPU time from the vCPUs and makes a phase longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use kvm_ioctls::{VcpuFd, VmFd};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::arch::{self, Exit};
use crate::calls;
use crate::error::KvmError;
use crate::measure::{Cost, measured};
use crate::ring::Rings;

/// A vCPU's thread.
pub(crate) struct Vcpu {
    go: Option<Sender<()>>,
    done: Receiver<Result<Stint, KvmError>>,
    /// Whether it was started and has not reported yet.
    busy: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A vCPU's work from its start to its report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stint {
    pub(crate) begin: Instant,
    pub(crate) end: Instant,
    pub(crate) cost: Cost,
    /// How often its ring was full.
    pub(crate) ring_full: u64,
}

impl Vcpu {
    /// Starts the thread, on a CPU or anywhere.
    pub(crate) fn spawn(
        number: usize,
        fd: VcpuFd,
        vm: Arc<VmFd>,
        rings: Option<Arc<Rings>>,
        cpu: Option<usize>,
    ) -> Result<Self, KvmError> {
        let (go, gone) = channel();
        let (tell, done) = channel();
        let busy = Arc::new(AtomicBool::new(false));
        let is_busy = busy.clone();
        let work = move || {
            let pinned = cpu.map_or(Ok(()), pin);
            let mut runner = Runner { number, fd, vm, rings, stopped: None };
            while let Ok(()) = gone.recv() {
                let stint = pinned.clone().and_then(|()| runner.run());
                is_busy.store(false, Ordering::Release);
                if tell.send(stint).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name(format!("vcpu {number}")).spawn(work);
        let thread = thread.map_err(|error| KvmError::Refused {
            what: "starting a vCPU's thread",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        })?;
        Ok(Self { go: Some(go), done, busy, thread: Some(thread) })
    }

    /// Starts the vCPU. Call [`wait`](Self::wait) before the next start.
    pub(crate) fn let_go(&self) {
        self.busy.store(true, Ordering::Release);
        if let Some(go) = &self.go {
            // If the thread has ended, `wait` reports it.
            let _ = go.send(());
        }
    }

    /// Returns whether its guest still runs.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    /// Waits until the vCPU is done.
    pub(crate) fn wait(&self, number: usize) -> Result<Stint, KvmError> {
        let gone = |_| KvmError::Guest { vcpu: number, what: "its thread ended".to_owned() };
        self.done.recv().map_err(gone)?
    }
}

impl Drop for Vcpu {
    fn drop(&mut self) {
        self.go = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Checks that threads can be pinned to these CPUs: pins the calling thread to each, and restores its affinity.
pub(crate) fn check_pins(cpus: &[usize]) -> Result<(), KvmError> {
    let refused = |errno| KvmError::Refused { what: "sched_getaffinity", errno };
    let before = sched_getaffinity(None).map_err(refused)?;
    let result = cpus.iter().try_for_each(|cpu| pin(*cpu));
    sched_setaffinity(None, &before).map_err(refused)?;
    result
}

/// Pins the calling thread.
pub(crate) fn pin(cpu: usize) -> Result<(), KvmError> {
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return Err(KvmError::Pin { cpu, errno: Errno::INVAL });
    }
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|errno| KvmError::Pin { cpu, errno })
}

struct Runner {
    number: usize,
    fd: VcpuFd,
    vm: Arc<VmFd>,
    rings: Option<Arc<Rings>>,
    /// Why the vCPU cannot continue. After an exception in the guest, it would never report that it is done.
    stopped: Option<KvmError>,
}

impl Runner {
    fn run(&mut self) -> Result<Stint, KvmError> {
        if let Some(error) = &self.stopped {
            return Err(error.clone());
        }
        let mut ring_full = 0;
        let begin = Instant::now();
        let (result, cost) = measured(|| self.until_done(&mut ring_full));
        self.stopped = result.clone().err();
        result.map(|()| Stint { begin, end: begin + cost.wall, cost, ring_full })
    }

    fn until_done(&mut self, ring_full: &mut u64) -> Result<(), KvmError> {
        loop {
            let exit = match self.fd.run() {
                Ok(exit) => arch::decode(&exit),
                Err(error) => match Errno::from_raw_os_error(error.errno()) {
                    Errno::INTR | Errno::AGAIN => continue,
                    errno => return Err(self.stopped(&format!("KVM_RUN: {errno}"))),
                },
            };
            match exit {
                Exit::Done => return Ok(()),
                Exit::RingFull => {
                    *ring_full += 1;
                    self.make_room()?;
                }
                Exit::Other(what) => return Err(self.stopped(&what)),
            }
        }
    }

    /// Empties the rings. The vCPU cannot continue until its ring has room.
    fn make_room(&self) -> Result<(), KvmError> {
        if let Some(rings) = &self.rings {
            rings.collect();
        }
        calls::reset_dirty_rings(&self.vm)
            .map_err(|errno| KvmError::Refused { what: "KVM_RESET_DIRTY_RINGS", errno })?;
        Ok(())
    }

    fn stopped(&self, what: &str) -> KvmError {
        KvmError::Guest { vcpu: self.number, what: format!("{what};{}", arch::whereabouts(&self.fd)) }
    }
}
