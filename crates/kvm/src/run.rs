// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs of the vCPUs: once through their passes, or repeatedly until they are stopped.

use std::mem::offset_of;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use twofold_workload::pass::{Mailbox, PASSES, Pass};
use zerocopy::IntoBytes;

use crate::error::KvmError;
use crate::guest::KvmGuest;
use crate::layout::FIXED;
use crate::measure::Cost;
use crate::vcpu::{Stint, Vcpu};

/// The times of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunTime {
    /// From the moment at which the first vCPU entered KVM to the moment at which the last was done.
    pub wall: Duration,
    /// The times of each vCPU.
    pub vcpus: Vec<VcpuTime>,
}

/// The times of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuTime {
    /// The thread's cost: the guest, exits, and the host's kernel on its behalf. Instructions are only the kernel's.
    pub cost: Cost,
    /// Accesses that it did.
    pub accesses: u64,
    /// How often the vCPU stopped to empty its full ring.
    pub ring_full: u64,
}

impl KvmGuest {
    /// Runs each vCPU once through its passes, in order. A vCPU without passes does nothing.
    ///
    /// # Errors
    ///
    /// An error is returned if there are more passes than fit, accesses outside of the test region, a vCPU that
    /// stopped, or a run that has not ended.
    pub fn run(&self, passes: &[Vec<Pass>]) -> Result<RunTime, KvmError> {
        self.check_all(passes)?;
        self.run_unchecked(passes)
    }

    /// As [`run`](Self::run), but does not check the passes. An access outside of the test region is an exception in
    /// the guest.
    pub(crate) fn run_unchecked(&self, passes: &[Vec<Pass>]) -> Result<RunTime, KvmError> {
        let vcpus = self.let_go(passes, false)?;
        self.wait(&vcpus)
    }

    /// Starts each vCPU. It repeats its passes until [`stop`](Self::stop). Meanwhile logs may be started, read, cleared
    /// and stopped.
    ///
    /// # Errors
    ///
    /// The same as [`run`](Self::run).
    pub fn start(&self, passes: &[Vec<Pass>]) -> Result<(), KvmError> {
        self.check_all(passes)?;
        let vcpus = self.let_go(passes, true)?;
        self.goes_on.store(true, Ordering::Relaxed);
        drop(vcpus);
        Ok(())
    }

    /// Returns whether all vCPUs that have passes still run. If one does not, it stopped unexpectedly, and
    /// [`stop`](Self::stop) returns the reason.
    pub fn is_running(&self) -> bool {
        let Ok(vcpus) = self.vcpus.lock() else { return false };
        let has_passes = |vcpu| !self.passes_left(vcpu).is_empty();
        vcpus.iter().enumerate().all(|(number, vcpu)| vcpu.is_busy() || !has_passes(number))
    }

    /// Stops the vCPUs after [`start`](Self::start); returns the times of the run.
    ///
    /// # Errors
    ///
    /// An error is returned if a vCPU had stopped before, or the vCPUs were not started.
    pub fn stop(&self) -> Result<RunTime, KvmError> {
        let vcpus = self.vcpus.lock().map_err(|_| KvmError::Running)?;
        if !self.goes_on.swap(false, Ordering::Relaxed) {
            return Err(KvmError::Options("the guest was not started, so there is nothing to stop".to_owned()));
        }
        for vcpu in 0..vcpus.len() {
            if let Some(stop) = self.field(vcpu, offset_of!(Mailbox, stop)) {
                stop.store(1, Ordering::Release);
            }
        }
        self.wait(&vcpus)
    }

    /// Returns the passes that a vCPU did last, with the generators' states that it left. A run with these passes
    /// continues from there.
    pub fn passes_left(&self, vcpu: usize) -> Vec<Pass> {
        let count = self.field(vcpu, offset_of!(Mailbox, count)).map_or(0, |count| count.load(Ordering::Acquire));
        (0..count.min(PASSES as u64) as usize).filter_map(|index| self.pass(vcpu, index)).collect()
    }

    /// Returns how many accesses each vCPU did in its last run. A running vCPU updates the number after each 64
    /// accesses, and after each group.
    pub fn accesses(&self) -> Vec<u64> {
        let done = |vcpu| Some(self.field(vcpu, offset_of!(Mailbox, done))?.load(Ordering::Relaxed));
        (0..).map_while(done).collect()
    }

    fn let_go(&self, passes: &[Vec<Pass>], repeat: bool) -> Result<MutexGuard<'_, Vec<Vcpu>>, KvmError> {
        let vcpus = self.vcpus.try_lock().map_err(|_| KvmError::Running)?;
        // This changes only while the vCPUs are locked.
        if self.goes_on.load(Ordering::Relaxed) {
            return Err(KvmError::Running);
        }
        if passes.len() != vcpus.len() {
            let why = format!("passes for {} vCPUs were given, but the guest has {}", passes.len(), vcpus.len());
            return Err(KvmError::Options(why));
        }
        for (vcpu, passes) in passes.iter().enumerate() {
            self.write_mailbox(vcpu, passes, repeat)?;
        }
        vcpus.iter().for_each(Vcpu::let_go);
        Ok(vcpus)
    }

    fn wait(&self, vcpus: &[Vcpu]) -> Result<RunTime, KvmError> {
        // Wait for all of them, even if the first returns an error.
        let stints: Vec<_> = vcpus.iter().enumerate().map(|(number, vcpu)| vcpu.wait(number)).collect();
        let stints = stints.into_iter().collect::<Result<Vec<Stint>, _>>()?;
        let begin = stints.iter().map(|stint| stint.begin).min();
        let end = stints.iter().map(|stint| stint.end).max();
        let wall = begin.zip(end).map_or(Duration::ZERO, |(begin, end)| end - begin);
        let vcpus = stints.iter().zip(self.accesses());
        let vcpus = vcpus.map(|(stint, accesses)| VcpuTime { cost: stint.cost, accesses, ring_full: stint.ring_full });
        Ok(RunTime { wall, vcpus: vcpus.collect() })
    }

    fn check_all(&self, passes: &[Vec<Pass>]) -> Result<(), KvmError> {
        passes.iter().flatten().try_for_each(|pass| self.check(pass))
    }

    /// Checks that all accesses of a pass are in the test region, because the guest cannot handle an exception of its
    /// own.
    fn check(&self, pass: &Pass) -> Result<(), KvmError> {
        let outside = || KvmError::Nowhere(format!("a pass leaves the test region: {pass:x?}"));
        let last = |count: u64, stride: u64| count.saturating_sub(1).checked_mul(stride);
        let offset = last(pass.outer_count, pass.outer_stride)
            .zip(last(pass.inner_count, pass.inner_stride))
            .and_then(|(outer, inner)| outer.checked_add(inner)?.checked_add(7));
        let end = offset.and_then(|offset| pass.start.checked_add(offset)).ok_or_else(outside)?;
        let aligned = (pass.start | pass.outer_stride | pass.inner_stride).is_multiple_of(8);
        if !aligned || self.gpa(pass.start).is_none() || self.gpa(end).is_none() {
            return Err(outside());
        }
        if !(1..(1 << 31) - 1).contains(&pass.random) {
            return Err(KvmError::Options(format!("a generator's state must be 1 to 2^31 - 2, not {}", pass.random)));
        }
        Ok(())
    }

    fn write_mailbox(&self, vcpu: usize, passes: &[Pass], repeat: bool) -> Result<(), KvmError> {
        if passes.len() > PASSES {
            return Err(KvmError::Options(format!("{} passes were given, but only {PASSES} fit", passes.len())));
        }
        // A vCPU without passes has nothing to repeat.
        let repeat = repeat && !passes.is_empty();
        let mut mailbox = Mailbox { count: passes.len() as u64, repeat: repeat.into(), ..Mailbox::default() };
        mailbox.passes[..passes.len()].copy_from_slice(passes);
        for (index, bytes) in mailbox.as_bytes().chunks_exact(8).enumerate() {
            let word = self.field(vcpu, index * 8).ok_or(KvmError::Running)?;
            word.store(u64::from_le_bytes(bytes.try_into().unwrap_or_default()), Ordering::Relaxed);
        }
        Ok(())
    }

    fn pass(&self, vcpu: usize, index: usize) -> Option<Pass> {
        let mut pass = Pass::default();
        let start = offset_of!(Mailbox, passes) + index * size_of::<Pass>();
        for (word, bytes) in pass.as_mut_bytes().chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&self.field(vcpu, start + word * 8)?.load(Ordering::Relaxed).to_le_bytes());
        }
        Some(pass)
    }

    /// Returns a word of a vCPU's mailbox; `None` if there is no such vCPU.
    fn field(&self, vcpu: usize, offset: usize) -> Option<&AtomicU64> {
        self.layout.region(vcpu)?;
        self.fixed.word(self.layout.mailbox(vcpu) - FIXED + offset as u64)
    }
}

/// Stops the vCPUs. If they repeated their passes for ever, their threads would never end.
impl Drop for KvmGuest {
    fn drop(&mut self) {
        if self.goes_on.load(Ordering::Relaxed) {
            let _ = self.stop();
        }
    }
}
