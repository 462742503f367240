// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `experiment=page-table`: create, the log on, update, the log off, adjust (source S4).
//!
//! * create: a write to each page or block that backs the memory.
//! * update, while a log runs that has protected everything: a write to each page; where blocks back the memory, to the first
//!   page of each, and a read of each page of its second half.
//! * adjust, after the log: a read of each page.
//!
//! What blocks were split can come back ahead of that (`rejoin`), or as pages are read.

use twofold_abi::vendor::WRITE_PROTECT;
use twofold_abi::virt::TEST_VA;
use twofold_pattern::pass::Pass;

use super::{Failure, Settings, access, phase};
use crate::vendor;

pub fn run(settings: &Settings) -> Result<(), Failure> {
    let Settings { bytes, block, .. } = *settings;
    let (blocks, pages) = (bytes / block, bytes / PAGE);
    access("create", &mut [Pass::writes(TEST_VA, blocks, block)])?;
    // Without manual protection, as there.
    phase("enable", || vendor::start_log(WRITE_PROTECT, false, settings.chunk))?;
    let first_pages = Pass { value: 2, ..Pass::writes(TEST_VA, blocks, block) };
    // Of pages there is no half.
    let half = Pass::reads(TEST_VA + block / 2, block / 2 / PAGE, PAGE);
    access("update", &mut [first_pages, Pass { outer_count: blocks, outer_stride: block, ..half }])?;
    phase("disable", vendor::stop_log)?;
    if settings.rejoin {
        phase("rejoin", vendor::rejoin)?;
    }
    access("adjust", &mut [Pass::reads(TEST_VA, pages, PAGE)])?;
    Ok(())
}

/// A page at stage 2.
const PAGE: u64 = 4096;
