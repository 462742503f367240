// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `experiment=page-table`: create, the log on, update, the log off, adjust (Wang 2021).
//!
//! * create: a write to each page or block that backs the memory.
//! * update, while a log runs that has write-protected everything: a write to each page. Where blocks back the memory:
//!   a write to the first page of each block, and a read of each page of its second half.
//! * adjust, after the log: a read of each page.
//!
//! The split blocks can be coalesced before that phase (`coalesce`), or as pages are read.

use twofold_abi::vendor::WRITE_PROTECT;
use twofold_abi::virt::TEST_VA;
use twofold_workload::pass::Pass;

use super::failure::Failure;
use super::phase::{access, phase};
use super::settings::Settings;
use crate::vendor;

pub fn run(settings: &Settings) -> Result<(), Failure> {
    let Settings { bytes, block, .. } = *settings;
    let (blocks, pages) = (bytes / block, bytes / PAGE);
    access("create", &mut [Pass::writes(TEST_VA, blocks, block)])?;
    // Without manual protection, as in `kvm_page_table_test`.
    phase("enable", || vendor::start_log(WRITE_PROTECT, false, settings.chunk))?;
    let first_pages = Pass { value: 2, ..Pass::writes(TEST_VA, blocks, block) };
    // A page has no second half: the count is 0.
    let half = Pass::reads(TEST_VA + block / 2, block / 2 / PAGE, PAGE);
    access("update", &mut [first_pages, Pass { outer_count: blocks, outer_stride: block, ..half }])?;
    phase("disable", vendor::stop_log)?;
    if settings.coalesce {
        phase("coalesce", vendor::coalesce)?;
    }
    access("adjust", &mut [Pass::reads(TEST_VA, pages, PAGE)])?;
    Ok(())
}

/// A page at stage 2.
const PAGE: u64 = 4096;
