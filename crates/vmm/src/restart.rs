// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a guest begins, for the first time or after a reset: what is stopped, discarded and loaded, and in which order.
//!
//! The module gives the steps, and the embedder carries each one out, completely, before the next. A reset is a start
//! with something to stop first. The order, and why:
//!
//! - R1 stop the vCPUs, so that none executes while its memory changes;
//! - R2 stop the devices, and wait for what they have begun: a write that arrives later would damage a new image;
//! - R3 discard RAM, so that nothing of the old life is seen in the new one. A warm reset leaves this step out;
//! - R4 load the images. They go through the guest's own memory, so that a dirty log or a migration sees the writes;
//! - R5 reset the devices, and the interrupt controller with its pending interrupts: nothing can raise one now;
//! - R6 invalidate the guest's translations and instruction caches: a vCPU that begins has its MMU off, and must not use
//!   what an earlier one has left in a TLB;
//! - R7 restart the power states ([`Power::restart`](crate::power::Power::restart)) and wake the first vCPU. This step is
//!   last, because the vCPU runs at once.

use twofold_stage2::Ipa;

use crate::load::Layout;

/// Why a guest begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// For the first time: its RAM is untouched, and nothing runs.
    New,
    /// After a cold reset.
    ColdReset,
    /// After a warm reset: RAM keeps its content, except where the images are.
    WarmReset,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// R1.
    StopVcpus,
    /// R2.
    StopDevices,
    /// R3. RAM reads as zero afterwards.
    DiscardRam,
    /// R4, once for each image, at this address.
    Load(Image, Ipa),
    /// R5.
    ResetDevices,
    /// R6.
    Invalidate,
    /// R7.
    WakeFirstVcpu,
}

/// What is loaded into a guest's RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// The kernel or the firmware.
    Kernel,
    /// The initial RAM disk.
    Initrd,
    /// The device tree.
    DeviceTree,
}

/// The steps by which a guest with this layout begins.
pub fn steps(why: Why, layout: &Layout, has_initrd: bool) -> impl Iterator<Item = Step> + use<> {
    let images =
        [(Image::Kernel, layout.kernel), (Image::Initrd, layout.initrd), (Image::DeviceTree, layout.device_tree)];
    let images = images.into_iter().filter(move |(image, _)| has_initrd || *image != Image::Initrd);
    let stop = [Step::StopVcpus, Step::StopDevices].into_iter().filter(move |_| why != Why::New);
    let discard = (why == Why::ColdReset).then_some(Step::DiscardRam);
    let loaded = images.map(|(image, at)| Step::Load(image, at));
    stop.chain(discard).chain(loaded).chain([Step::ResetDevices, Step::Invalidate, Step::WakeFirstVcpu])
}
