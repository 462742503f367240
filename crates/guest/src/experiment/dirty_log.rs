// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `experiment=dirty-log`: populate, enable, for each iteration dirty, get and clear, then disable.
//!
//! A pass touches each page of the guest's granule: with a granule of 64 KiB, one of 16 pages at stage 2. The generator
//! decides which pages are written, and in which order. It runs through all iterations in one sequence.

use core::slice;

use twofold_abi::vendor::WRITE_PROTECT;
use twofold_abi::virt::TEST_VA;
use twofold_workload::pass::Pass;

use super::failure::Failure;
use super::phase::{access, phase};
use super::settings::Settings;
use crate::vendor;

pub fn run(settings: &Settings) -> Result<(), Failure> {
    let granule = settings.mode.granule.size();
    let mut pass = Pass { random: settings.seed, ..Pass::writes(TEST_VA, settings.bytes / granule, granule) };
    access("populate", slice::from_mut(&mut pass))?;
    pass.write_percent = settings.write_percent;
    pass.random_order = settings.random_order;
    phase("enable", || vendor::start_log(settings.tracker, settings.all_dirty, settings.chunk))?;
    for iteration in 1..=settings.iterations {
        pass.value = iteration;
        access("dirty", slice::from_mut(&mut pass))?;
        let reported = phase("get", vendor::get_log)?;
        let pages = settings.bytes / 4096;
        if reported > pages {
            return Err(Failure::TooMany { reported, pages });
        }
        if settings.tracker != WRITE_PROTECT {
            phase("clear", vendor::clear_log)?;
        }
    }
    phase("disable", vendor::stop_log)?;
    Ok(())
}
