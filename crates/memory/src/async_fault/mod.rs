// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asynchronous page faults: what a vCPU does while a page that it needs is on its way from a store.
//!
//! A state machine for each vCPU ([`VcpuFaults`]). Faults, arrivals and the guest's calls go in; what the vCPU does
//! comes out ([`Next`]), with requests to the store and an interrupt ([`Host`]). It has no CPU, no thread and no lock,
//! so a hypervisor and a hosted machine use the same one. `docs/async-page-fault.md` is the guest's side to the bit.
//!
//! # Modes
//!
//! | [`Mode`] | while a page is absent |
//! |---|---|
//! | `Off` | the vCPU waits for the page |
//! | `Halt` | the vCPU waits for the page, or for an interrupt that it can take now ([`interrupts`]) |
//! | `Pv` | the guest gets a token, parks its task and runs another. Where that is not possible, as `Halt` |
//!
//! # Which CPU does what
//!
//! A vCPU's [`VcpuFaults`] belongs to the CPU that runs it: all its methods take `&mut self`. Its [`Arrivals`] are
//! shared with the store, which completes requests from any CPU. That is the one place where CPUs meet, and that file
//! has its protocol.
//!
//! # A fault on an absent page ([`VcpuFaults::fault`])
//!
//! * F1: if a request for this page is on its way, go on at F4. It was announced once, or could not be.
//! * F2: choose a slot. If 64 are in use, take the spare one, and cancel the request that is there.
//! * F3: open the slot, and give its ticket to the store.
//! * F4: take what has arrived. If this page has, let the guest repeat the access.
//! * F5: if the request is not new, halt on it.
//! * F6: if the guest cannot take the announcement as its next step, halt. It can if it has enabled announcements, was
//!   in user mode or has asked for the kernel's faults too, and would take the PPI now; if the slot is not the spare
//!   one; and if its area is in memory and it has consumed the announcement before.
//! * F7: write token, level, PC and sequence number into the area, and raise the PPI. The vCPU runs on.
//!
//! # Before each entry ([`VcpuFaults::before_entry`])
//!
//! * E1: take what has arrived. Repeat these faults on the guest's behalf, so that the guest finds the pages mapped.
//! * E2: if the guest has acknowledged the last token and one is ready, write it into the area and raise the PPI.
//!   Wake-all comes before any token.
//! * E3: if a page that the guest needs has failed, stop.
//! * E4: if the vCPU is halted, its page has not arrived, and it cannot take an interrupt now, wait.
//!
//! # Why
//!
//! *No token is lost.* A token's request stays in its slot from F7 until the guest acknowledges it, or until everything
//! of the vCPU is cancelled. Its page arrives or fails (the invariant of [`Arrivals`]); the kick leads to E1; E2 writes
//! the token unless one is not acknowledged, and the acknowledgement does the same for the next. If the area is absent,
//! its page is asked for, and that arrival leads to E2. If the page fails, E3 stops the guest until
//! [`VcpuFaults::retry_failed`] asks again.
//!
//! *No token is delivered twice.* E2 writes only if none is unacknowledged, and the acknowledgement empties the slot.
//!
//! *No vCPU spins.* A halt ends by E1, or by an interrupt that the guest takes next (E4). A guest that repeats an access
//! in vain is halted by F5.
//!
//! *No page is asked for twice by one vCPU at a time* (F1). Two vCPUs may ask for the same page: the store answers each
//! ticket.
//!
//! *A guest harms only itself.* It can withhold acknowledgements, write into its area, and announce areas that are not
//! its own. It then runs out of its 64 slots or reads nonsense. What EL2 keeps is of a fixed size.
//!
//! # What the embedder does
//!
//! * It calls `before_entry` each time before it enters the guest, and after each kick ([`Completion::Kick`]).
//! * It enters the guest on [`Next::Enter`] only. While a vCPU waits, nothing of it is architectural: the guest's PC is
//!   still at the access, so a migration needs no trace of it.
//! * When the page store says that it works again, it calls `retry_failed` for the vCPUs that stopped.

mod area;
mod arrivals;
mod calls;
pub mod interrupts;
#[cfg(all(test, loom))]
mod loom;
mod requests;
mod snapshot;
mod vcpu;

pub use area::{Absent, AreaMemory};
pub(crate) use arrivals::SLOTS;
pub use arrivals::{Arrival, Arrivals, Completion, Ticket};
pub use requests::AbsentPage;
pub use snapshot::{Refused, Snapshot};
pub use vcpu::{Context, Host, Mode, Next, VcpuFaults, Wait};
