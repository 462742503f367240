// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a call is made, and what the embedder has to do after it.

use super::interface::{CpuInterface, NoInterface};
use super::intid::{VcpuId, VcpuSet};

/// The CPU on which a call is made: does it have one of the guest's vCPUs loaded, and which?
///
/// The vGIC reads and writes list registers of this CPU alone.
#[derive(Debug)]
pub struct Here<'a, I: CpuInterface>(Option<(VcpuId, &'a mut I)>);

impl Here<'static, NoInterface> {
    /// No vCPU of this guest is loaded on this CPU.
    #[must_use]
    pub const fn without_vcpu() -> Self {
        Self(None)
    }
}

impl<'a, I: CpuInterface> Here<'a, I> {
    /// `vcpu` is loaded on this CPU, whose interface this is.
    pub const fn loaded(vcpu: VcpuId, interface: &'a mut I) -> Self {
        Self(Some((vcpu, interface)))
    }

    /// The interface, if `vcpu` is loaded here.
    pub(super) fn of(&mut self, vcpu: VcpuId) -> Option<&mut I> {
        match &mut self.0 {
            Some((here, interface)) if *here == vcpu => Some(interface),
            _ => None,
        }
    }

    /// The vCPU that is loaded here, and the interface.
    pub(super) fn both(&mut self) -> Option<(VcpuId, &mut I)> {
        self.0.as_mut().map(|(vcpu, interface)| (*vcpu, &mut **interface))
    }

    pub(super) fn peek(&self, vcpu: VcpuId) -> Option<&I> {
        match &self.0 {
            Some((here, interface)) if *here == vcpu => Some(interface),
            _ => None,
        }
    }
}

/// What a call leaves to the embedder, after it has given the guest's lock back.
#[must_use = "a vCPU that is not kicked does not see its interrupt"]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// vCPUs with new work. One that is loaded on another CPU has to call [`Vgic::sync`](super::Vgic::sync) there
    /// soon, so that CPU is interrupted. One that is not loaded may now be able to take an interrupt
    /// ([`Vgic::has_deliverable`](super::Vgic::has_deliverable)), so it is woken if it waits.
    pub kick: VcpuSet,
    /// PPIs of the vCPU that is loaded here, a bit for each INTID, whose *physical* interrupt the embedder has to
    /// deactivate (`ICC_DIR_EL1`): the guest's ended without the hardware's help.
    pub deactivate: u32,
}

impl Effects {
    /// Nothing is left to do.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.kick.is_empty() && self.deactivate == 0
    }

    /// Both.
    pub fn and(self, other: Self) -> Self {
        let mut both = self;
        for vcpu in other.kick.iter() {
            both.kick.insert(vcpu);
        }
        both.deactivate |= other.deactivate;
        both
    }
}

/// What a read of a register returned.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// The value, and what is left to do.
    Value(u64),
    /// The state is in list registers of other CPUs, or depends on lines that only they see. The embedder lets each of
    /// these vCPUs [`sync`](super::Vgic::sync) where it is loaded, after a report of its
    /// [linked PPIs](super::Vgic::set_ppi), and then [retries](super::Vgic::retry).
    Elsewhere(Retry),
}

/// A read that waits for other CPUs.
#[must_use = "the guest waits for the value"]
#[derive(Debug, PartialEq, Eq)]
pub struct Retry {
    pub(super) vcpus: VcpuSet,
    pub(super) request: u64,
    pub(super) frame: super::Frame,
    pub(super) width: crate::Width,
}

impl Retry {
    /// The vCPUs whose CPUs have to call [`Vgic::sync`](super::Vgic::sync) first. One that is no longer loaded needs
    /// nothing.
    #[must_use]
    pub const fn vcpus(&self) -> VcpuSet {
        self.vcpus
    }
}
