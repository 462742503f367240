// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interrupt controller: the machine's own, and the virtual interface that a guest has.
//!
//! | file | contents |
//! |---|---|
//! | [`physical`] | the machine's GICv3, which EL2 owns |
//! | [`guest`] | a guest's interrupt controller: the model, its lock, and how another CPU is kicked |
//! | [`interface`] | the list registers and the control of the virtual interface of a CPU |
//! | [`sources`] | the machine's interrupts that EL2 takes |
//!
//! EL2 takes every physical interrupt (HCR_EL2.IMO and FMO). It runs with interrupts masked, so one that comes while it
//! runs stays pending and is an exit right after the next entry.

pub mod guest;
pub mod interface;
pub mod physical;
pub mod sources;
