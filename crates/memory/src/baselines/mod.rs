// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory with one technique switched off, as the baseline that the technique is measured against (feature
//! `baselines`, in no release image).
//!
//! | technique | baseline | source |
//! |---|---|---|
//! | a split visits only tables with blocks ([`Split::Records`]) | it walks chunk by chunk; a clear has it walk word by word, as KVM does | Bras 2026 |
//! | the vCPU that maps cleans caches ([`Cmo::OnMap`]) | each vCPU that faults cleans, before it looks at the tables | Wang 2021: clean on map |
//! | the block is made, then the table freed ([`Coalesce::InstallFirst`]) | the table is freed first | Wang 2021: install before free |
//! | table pages are taken where a table is missing ([`Tables::WhenNeeded`]) | each fault first takes as many as it may need | Wang 2021: table pages when needed |
//!
//! Mapping, marking and locking are otherwise the same. A walk splits with no more table pages than KVM has for a
//! chunk, so a block of 1 GiB is split at once or level by level, as in KVM.

mod state;
mod techniques;

pub(crate) use state::Baselines;
pub use twofold_workload::policies::{Cmo, Coalesce, Policies, Split, Tables};
