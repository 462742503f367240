// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bare-metal image as a guest under this host's KVM: the machine that it needs, and what it prints.
//!
//! The machine has the memory map of QEMU's `virt`: RAM at 1 GiB, KVM's own GICv3, timer and PSCI, and two devices in
//! this process, as under any VMM: a UART that only sends, and a clock. A vCPU is a thread, and all of them share the CPU
//! on which [`boot`] was called, because the guest measures switches between them.
//!
//! Invariant: the console that is returned is that of a guest that switched itself off.

use std::fmt::Write;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use kvm_ioctls::{VcpuExit, VcpuFd};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

use crate::arch;
use crate::error::KvmError;
use crate::guest;

/// Boots `image`, an arm64 Image, with a command line, and returns its console once it has switched itself off.
///
/// A vCPU that the guest leaves on stays in the kernel, and its thread with it, until the process ends: KVM stops it
/// when the guest is off.
///
/// # Errors
///
/// The host has no KVM for this guest, or the guest did something other than switching itself off.
pub fn boot(image: &[u8], command_line: &str, vcpus: u32) -> Result<String, KvmError> {
    stay_on_this_cpu()?;
    let machine = arch::BareMachine::new(&guest::open()?, image, command_line, vcpus)?;
    let console = Arc::new(Mutex::new(String::new()));
    let (sender, ends) = channel();
    let memory = Arc::new(machine.memory);
    for (number, vcpu) in machine.vcpus.into_iter().enumerate() {
        let runner = Runner { number, vcpu, console: console.clone(), sender: sender.clone() };
        // The guest's memory lives as long as a vCPU that may use it.
        let memory = memory.clone();
        let work = move || {
            runner.run();
            drop(memory);
        };
        let spawned = thread::Builder::new().name(format!("vcpu {number}")).spawn(work);
        spawned.map_err(|error| KvmError::Refused {
            what: "starting a vCPU's thread",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        })?;
    }
    drop(sender);
    let end = ends.recv().unwrap_or_else(|_| Err("all its vCPUs are gone".to_owned()));
    let console = std::mem::take(&mut *console.lock().expect("a vCPU's thread does not panic"));
    match end {
        Ok(()) => Ok(console),
        Err(what) => Err(KvmError::Guest { vcpu: 0, what: format!("{what}; it printed: {console}") }),
    }
}

/// Keeps this thread, and those that it starts from now on, on the CPU that executes it.
fn stay_on_this_cpu() -> Result<(), KvmError> {
    let mut cpus = CpuSet::new();
    cpus.set(sched_getcpu());
    let what = "keeping the vCPUs on one CPU";
    sched_setaffinity(None, &cpus).map_err(|errno| KvmError::Refused { what, errno })
}

/// The UART, by its registers: Arm DDI 0183.
const UART: u64 = 0x0900_0000;
/// The clock, by its registers: Arm DDI 0224.
const CLOCK: u64 = 0x0901_0000;
const PAGE: u64 = 0x1000;

struct Runner {
    number: usize,
    vcpu: VcpuFd,
    console: Arc<Mutex<String>>,
    sender: Sender<Result<(), String>>,
}

impl Runner {
    /// Runs the vCPU until the guest ends.
    fn run(mut self) {
        let end = loop {
            match self.vcpu.run() {
                Ok(VcpuExit::MmioWrite(UART, [byte, ..])) => {
                    let _ = self.console.lock().expect("no holder panics").write_char((*byte).into());
                }
                Ok(VcpuExit::MmioWrite(at, _)) if is_device(at) => {}
                Ok(VcpuExit::MmioRead(CLOCK, data)) => fill(data, seconds()),
                // The flags of an empty UART are 0, and nothing else is read.
                Ok(VcpuExit::MmioRead(at, data)) if is_device(at) => fill(data, 0),
                Ok(VcpuExit::SystemEvent(kvm_bindings::KVM_SYSTEM_EVENT_SHUTDOWN, _)) => break Ok(()),
                Ok(other) => break Err(format!("vCPU {} stopped: {other:x?}", self.number)),
                Err(error) if matches!(Errno::from_raw_os_error(error.errno()), Errno::INTR | Errno::AGAIN) => {}
                Err(error) => break Err(format!("vCPU {}: KVM_RUN: {error}", self.number)),
            }
        };
        // The first end counts. The receiver may be gone.
        let _ = self.sender.send(end);
    }
}

fn is_device(at: u64) -> bool {
    [UART, CLOCK].iter().any(|device| (*device..device + PAGE).contains(&at))
}

fn fill(data: &mut [u8], value: u32) {
    let bytes = value.to_le_bytes();
    data.iter_mut().zip(bytes.into_iter().chain(std::iter::repeat(0))).for_each(|(to, from)| *to = from);
}

fn seconds() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as u32)
}
