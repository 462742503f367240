// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The oracle: a judge of dirty logs. It proves, for the writes of a run, that a log lost none of them.
//!
//! The judge keeps a copy of a guest's memory from what the log reports alone, as a migration does. A round has these
//! steps:
//!
//! * O1: the driver gets the log. The judge marks each page that the log reports ([`Judge::report`]).
//! * O2: the judge compares every page that the log did not report with its copy ([`Judge::compare`]).
//! * O3: the driver clears pages in the log.
//! * O4: the judge copies the pages that were cleared ([`Judge::copy`]).
//!
//! The driver may run O1, O3 and O4 while the guest writes, in any number of calls, but O3 before O4. It must hold all
//! writers from the last O1 before O2 until O2 ends. A log that starts with all pages dirty makes all copies worthless;
//! a log that starts empty is followed by a copy of every page ([`Judge::start`]).
//!
//! **Lost.** A page that differs in O2 is lost: it was written after its copy, and no log reports it. Each loss is
//! counted once, because the judge copies the page again.
//!
//! **What counts.** Every copied page is compared, but [`Tally::compared`] counts only those that the guest wrote, and
//! the log reported and cleared, earlier in the run. A page that was never written is no evidence.
//! [`Tally::redirtied`] counts the pages that the log reported again after that. A run proves something only if it has
//! enough of both, several starts, and blocks that were coalesced between logs ([`Tally::check`]).
//!
//! **Why the argument holds.** Let a page be in the state *copied*. O4 read it after O3 cleared it, so a write before
//! O3 is in the copy, and a write after O3 must be reported by the next O1. While all writers are held and after O1,
//! a copied page therefore equals its copy, unless the log lost a write. The converse has one gap: a lost write is not
//! seen if it stored what was there before, or if the page was reported again before O2. Negative controls show that
//! the judge sees losses: logs with a known defect must lose pages.
//!
//! | file | contents |
//! |---|---|
//! | [`judge`] | the copy, and the state of each page |
//! | [`tally`] | the counts of a run, their names, and the verdict |
//! | [`plan`] | the trackers, comparisons and seed of a run inside an image |
//! | [`random`], [`options`] | the driver's choices: seeded numbers; the options with which a log starts |
//!
//! `command`, with the feature of that name, is `cargo xtask oracle`: it starts the drivers, and the negative controls.
//!
//! Drivers: the feature `oracle` of the hypervisor (a live guest, one vCPU, at exits that are drawn at random) and
//! `twofold bench oracle` (four vCPUs and a device on the hosted machine, held for each comparison).
#![cfg_attr(not(feature = "command"), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

#[cfg(feature = "command")]
pub mod command;
pub mod judge;
pub mod options;
pub mod plan;
pub mod random;
pub mod tally;

pub use judge::{GuestPages, Judge, Lost, PAGE, Page};
pub use plan::Plan;
pub use random::Random;
pub use tally::{Found, Tally, Unproven};
