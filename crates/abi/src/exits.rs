// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest prints that measures what events cost (`exits=COUNT` on the command line of the bare-metal guest).
//!
//! The guest measures itself by its virtual counter, so the same image measures any hypervisor. A line is
//!
//! ```text
//! exits: NAME COUNT NANOSECONDS
//! ```
//!
//! with a name of [`EVENTS`], the number of events, and the time that they took in all. In an emulator that counts one
//! instruction a nanosecond these are instructions: those of the hypervisor, of its host, and the few of the guest
//! itself. An event that the guest's machine does not have (no clock, one vCPU) has no line.

/// What each line begins with.
pub const LINE: &str = "exits:";

/// An event, and what is measured of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The name in a line.
    pub name: &'static str,
    /// What it is, for a reader.
    pub what: &'static str,
    /// How many vCPUs it needs.
    pub vcpus: u32,
}

/// A call of the hypervisor that does nothing: PSCI_VERSION by HVC.
pub const HVC: Event = event("hvc", "HVC, and back", 1);
/// A read of GICD_TYPER.
pub const DISTRIBUTOR: Event = event("distributor", "read of the distributor", 1);
/// A read of the clock's data register (PL031 RTCDR).
pub const CLOCK: Event = event("clock", "read of the clock (PL031)", 1);
/// A write of the UART's data register.
pub const UART: Event = event("uart", "a byte out of the UART", 1);
/// An SGI to the sender itself: sent, taken, ended.
pub const SGI_SELF: Event = event("sgi_self", "SGI to itself: sent, taken, ended", 1);
/// The virtual timer is set to the past; its interrupt is taken and ended.
pub const TICK: Event = event("tick", "timer tick: fires, taken, ended", 1);
/// WFI, until the timer's moment: from that moment to the guest's next instruction.
pub const WAKE: Event = event("wake", "WFI: from the timer's moment to the guest", 1);
/// An SGI to another vCPU that is awake and has no CPU: until the sender goes on.
pub const SGI_OTHER: Event = event("sgi_other", "SGI to another vCPU: until the sender goes on", 2);
/// Two vCPUs on one CPU wake each other by SGI and sleep in WFI: one half of a round. That is an SGI to a vCPU that
/// sleeps, the [`SWITCH`], and the SGI taken and ended.
pub const SGI_WAKE: Event = event("sgi_wake", "SGI to a vCPU that sleeps, WFI, until it has taken it", 2);
/// The part of [`SGI_WAKE`] from the sender's WFI to the other vCPU's next instruction: the exit, the sender blocked and
/// put away, the other one chosen, loaded with its interrupt, and entered.
pub const SWITCH: Event = event("switch", "vCPU switch: from WFI to the next vCPU on the CPU", 2);

/// All of them, in the order of the lines.
pub const EVENTS: [Event; 10] = [HVC, DISTRIBUTOR, CLOCK, UART, SGI_SELF, TICK, WAKE, SGI_OTHER, SGI_WAKE, SWITCH];

const fn event(name: &'static str, what: &'static str, vcpus: u32) -> Event {
    Event { name, what, vcpus }
}
