// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Letting vCPUs go: once through their passes, or over and over until they are stopped.

use std::mem::offset_of;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use twofold_pattern::pass::{Mailbox, PASSES, Pass};
use zerocopy::IntoBytes;

use crate::error::KvmError;
use crate::guest::KvmGuest;
use crate::layout::FIXED;
use crate::measure::Cost;
use crate::vcpu::{Stint, Vcpu};

/// What a run took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunTime {
    /// From the moment that the first vCPU entered KVM to the moment that the last was done.
    pub wall: Duration,
    /// What each vCPU took.
    pub vcpus: Vec<VcpuTime>,
}

/// What a vCPU took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuTime {
    /// Its thread's: the guest, exits, and the host's kernel on its behalf. Instructions are the kernel's alone.
    pub cost: Cost,
    /// Accesses that it did.
    pub accesses: u64,
    /// How often it stopped because its ring was full, and emptied it.
    pub ring_full: u64,
}

impl KvmGuest {
    /// Each vCPU does its passes, in order, once. A vCPU without passes does nothing.
    ///
    /// # Errors
    ///
    /// More passes than fit, accesses outside of the test region, a vCPU that stopped, or the guest runs already.
    pub fn run(&self, passes: &[Vec<Pass>]) -> Result<RunTime, KvmError> {
        self.check_all(passes)?;
        self.run_unchecked(passes)
    }

    /// The same, wherever the passes go: outside of the test region they are the guest's own fault.
    pub(crate) fn run_unchecked(&self, passes: &[Vec<Pass>]) -> Result<RunTime, KvmError> {
        let vcpus = self.let_go(passes, false)?;
        self.wait(&vcpus)
    }

    /// Each vCPU does its passes over and over, until [`stop`](Self::stop). Meanwhile logs may be started, read, cleared and
    /// stopped.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn start(&self, passes: &[Vec<Pass>]) -> Result<(), KvmError> {
        self.check_all(passes)?;
        let vcpus = self.let_go(passes, true)?;
        self.goes_on.store(true, Ordering::Relaxed);
        drop(vcpus);
        Ok(())
    }

    /// Whether all vCPUs that have passes still run. One that does not has stopped where it should not: [`stop`](Self::stop)
    /// says why.
    pub fn is_running(&self) -> bool {
        let Ok(vcpus) = self.vcpus.lock() else { return false };
        let has_passes = |vcpu| !self.passes_left(vcpu).is_empty();
        vcpus.iter().enumerate().all(|(number, vcpu)| vcpu.is_busy() || !has_passes(number))
    }

    /// Stops them after [`start`](Self::start), and what they took.
    ///
    /// # Errors
    ///
    /// A vCPU had stopped before; they were not started.
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

    /// The passes that a vCPU did last, with the generator's state that it left in each: they go on from here.
    pub fn passes_left(&self, vcpu: usize) -> Vec<Pass> {
        let count = self.field(vcpu, offset_of!(Mailbox, count)).map_or(0, |count| count.load(Ordering::Acquire));
        (0..count.min(PASSES as u64) as usize).filter_map(|index| self.pass(vcpu, index)).collect()
    }

    /// Accesses that each vCPU did since it was last let go; one that runs says so after each 64th, or after a group.
    pub fn accesses(&self) -> Vec<u64> {
        let done = |vcpu| Some(self.field(vcpu, offset_of!(Mailbox, done))?.load(Ordering::Relaxed));
        (0..).map_while(done).collect()
    }

    fn let_go(&self, passes: &[Vec<Pass>], repeat: bool) -> Result<MutexGuard<'_, Vec<Vcpu>>, KvmError> {
        let vcpus = self.vcpus.try_lock().map_err(|_| KvmError::Running)?;
        // Changed with the vCPUs locked alone.
        if self.goes_on.load(Ordering::Relaxed) {
            return Err(KvmError::Running);
        }
        if passes.len() != vcpus.len() {
            let why = format!("passes for {} vCPUs were given, and the guest has {}", passes.len(), vcpus.len());
            return Err(KvmError::Options(why));
        }
        for (vcpu, passes) in passes.iter().enumerate() {
            self.write_mailbox(vcpu, passes, repeat)?;
        }
        vcpus.iter().for_each(Vcpu::let_go);
        Ok(vcpus)
    }

    fn wait(&self, vcpus: &[Vcpu]) -> Result<RunTime, KvmError> {
        // All are waited for, whatever the first says.
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

    /// Whether all that a pass may access is in the test region: a guest has nobody to tell of a fault of its own.
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
            return Err(KvmError::Options(format!("a generator's state is 1 to 2^31 - 2, and not {}", pass.random)));
        }
        Ok(())
    }

    fn write_mailbox(&self, vcpu: usize, passes: &[Pass], repeat: bool) -> Result<(), KvmError> {
        if passes.len() > PASSES {
            return Err(KvmError::Options(format!("{} passes were given, and {PASSES} fit", passes.len())));
        }
        // A vCPU without passes has nothing to do over and over.
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

    /// A word of a vCPU's mailbox; `None` where there is no such vCPU.
    fn field(&self, vcpu: usize, offset: usize) -> Option<&AtomicU64> {
        self.layout.region(vcpu)?;
        self.fixed.word(self.layout.mailbox(vcpu) - FIXED + offset as u64)
    }
}

/// vCPUs that go on and on would never let their threads end.
impl Drop for KvmGuest {
    fn drop(&mut self) {
        if self.goes_on.load(Ordering::Relaxed) {
            let _ = self.stop();
        }
    }
}
