// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The source of a guest that comes by post-copy, as a page store: [`twofold_migration::postcopy::Peer`], which has the protocol
//! and its argument (R1 to R3, A1 to A3, D1 to D4).
//!
//! The launcher has the link. It gets the questions by the command `wanted`, and gives the pages that come by `fill` and `zero`
//! (`vm::absent`). So a question wakes the task of the control channel, and that task is the one CPU that stores pages.
//!
//! Only RAM is absent. The other memslots are few pages, and EL2 writes to some of them by itself.

use alloc::boxed::Box;

use twofold_abi::virt::{self, memslot};
use twofold_migration::postcopy::Peer;
use twofold_migration::stream::Slot;
use twofold_stage2::MetadataMap;
use twofold_stage2::arm64::{Arm64, IdentityMap};

use crate::vm;

/// The source of a guest.
pub(crate) type Source = Peer<Arm64<IdentityMap>>;

/// The memslot of RAM is the only one that the source has pages of.
pub(crate) const RAM: usize = 0;

/// The source of a guest with this many bytes of RAM. It has nothing yet.
pub(super) fn new(memory: u64) -> Source {
    let slot =
        Slot { number: memslot::RAM.into(), read_only: false, first: virt::RAM_BASE / PAGE, pages: memory / PAGE };
    // SAFETY: EL2 maps all RAM one to one, and no table is made here.
    let platform = Arm64::new(unsafe { IdentityMap::new(MetadataMap::NONE) });
    Peer::new(platform, &[slot], Box::new(vm::wake_channel))
}

const PAGE: u64 = 4096;
