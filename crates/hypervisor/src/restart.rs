// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest that begins anew after a reset: a task of the hypervisor, which belongs to the guest's own group in the
//! scheduler. So the guest pays for it, and no other one waits for it.
//!
//! What has ended for good is work of the same task ([`release`](crate::release)).
//!
//! [`twofold_vmm::restart`] gives the steps. Each call of [`Restart::work`] does a piece of one, of at most [`PIECE`]
//! bytes, so that the CPU can take interrupts and run something else between two pieces.

use alloc::vec::Vec;

use spin::Mutex;
use twofold_memory::{Error, HUGE_PAGE};
use twofold_stage2::Ipa;
use twofold_vmm::config::Config;
use twofold_vmm::load::Layout;
use twofold_vmm::restart::{self, Image, Step, Why};

use crate::schedule::cpu::Progress;

/// What a guest begins with.
pub struct Images {
    /// Kernel and initrd, or firmware; the size of RAM.
    pub config: Config<'static>,
    /// Where they go.
    pub layout: Layout,
    /// The device tree.
    pub device_tree: Vec<u8>,
}

/// The restarts of one guest.
pub(crate) struct Restart {
    images: Images,
    running: Mutex<Option<Running>>,
}

/// A restart that has begun.
struct Running {
    steps: Vec<Step>,
    /// The step that is next.
    next: usize,
    /// How much of it is done, in bytes.
    done: u64,
}

/// What a restart does to the guest.
pub(crate) trait Guest {
    /// Whether it is to begin anew.
    fn is_anew(&self) -> bool;
    /// Whether a vCPU is in its turn on a CPU.
    fn has_turns(&self) -> bool;
    /// Makes up to `most` bytes of RAM from this offset on read as zero.
    fn clear_ram(&self, offset: u64, most: u64) -> Result<Piece, Error>;
    /// Writes to RAM. Where a page has to come first, the caller repeats the whole call.
    fn write(&self, at: Ipa, bytes: &[u8]) -> Result<Piece, Error>;
    /// All devices are as after a reset.
    fn reset_devices(&self);
    /// No CPU has a translation of the guest's.
    fn invalidate(&self);
    /// All vCPUs are off, and the first one begins.
    fn begin_again(&self);
}

/// What a piece of a step has done.
pub(crate) enum Piece {
    /// This many bytes. The step goes on.
    Part(u64),
    /// Nothing: a page has to come first. It wakes the task.
    Awaited,
    /// The last of the step.
    Last,
}

/// Bytes that one piece copies: about 15,000 instructions, with the zeroing of pages around them.
const PIECE: usize = 16 << 10;

impl Restart {
    pub(crate) fn new(images: Images) -> Self {
        Self { images, running: Mutex::new(None) }
    }

    /// Bytes of RAM.
    pub(crate) fn ram_size(&self) -> u64 {
        self.images.config.memory
    }

    /// Begins. The guest's vCPUs are about to stop.
    pub(crate) fn begin(&self, why: Why) {
        let has_initrd = !self.images.config.initrd.is_empty();
        let steps = restart::steps(why, &self.images.layout, has_initrd).collect();
        *self.running.lock() = Some(Running { steps, next: 0, done: 0 });
    }

    /// Does the next piece.
    ///
    /// # Errors
    ///
    /// RAM cannot be written. The restart has ended.
    pub(crate) fn work(&self, vm: &impl Guest) -> Result<Progress, Error> {
        let mut guard = self.running.lock();
        let Some(running) = &mut *guard else { return Ok(Progress::Finished) };
        // A guest that was ended meanwhile does not begin. This is under the lock that `begin` takes after the guest's life
        // has changed, so it never drops a restart that is new.
        let Some(step) = running.steps.get(running.next).copied().filter(|_| vm.is_anew()) else {
            *guard = None;
            return Ok(Progress::Finished);
        };
        match self.piece(vm, step, running.done) {
            Ok(Piece::Part(more)) => running.done += more,
            Ok(Piece::Awaited) => return Ok(Progress::Finished),
            Ok(Piece::Last) => (running.next, running.done) = (running.next + 1, 0),
            Err(error) => {
                *guard = None;
                return Err(error);
            }
        }
        Ok(Progress::More)
    }

    /// Does a piece of a step of which `done` bytes are done.
    fn piece(&self, vm: &impl Guest, step: Step, done: u64) -> Result<Piece, Error> {
        let Images { config, layout: _, device_tree } = &self.images;
        match step {
            // R1: a vCPU that leaves its CPU finds that the guest has stopped, and so does one whose turn begins later.
            Step::StopVcpus if vm.has_turns() => return Ok(Piece::Part(0)),
            // R2: the devices do nothing by themselves.
            Step::StopVcpus | Step::StopDevices => {}
            Step::DiscardRam => return vm.clear_ram(done, HUGE_PAGE),
            Step::Load(image, at) => {
                let content = match image {
                    Image::Kernel => config.program(),
                    Image::Initrd => config.initrd,
                    Image::DeviceTree => device_tree,
                };
                return copy(vm, content, at, done);
            }
            Step::ResetDevices => vm.reset_devices(),
            Step::Invalidate => vm.invalidate(),
            Step::WakeFirstVcpu => vm.begin_again(),
        }
        Ok(Piece::Last)
    }
}

fn copy(vm: &impl Guest, content: &[u8], at: Ipa, done: u64) -> Result<Piece, Error> {
    let Some(rest) = content.get(done as usize..).filter(|rest| !rest.is_empty()) else { return Ok(Piece::Last) };
    vm.write(at + done, &rest[..rest.len().min(PIECE)])
}
