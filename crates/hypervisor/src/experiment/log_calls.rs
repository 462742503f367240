// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The calls by which a guest controls the dirty log of its own test memory ([`twofold_abi::vendor`]). A call covers
//! all its slots, one after the other.

use alloc::vec::Vec;

use twofold_abi::vendor;
use twofold_memory::dirty::{DirtyLog, DirtyPages, LogError, LogOptions, Tracker};

use super::observed_guest::ObservedGuest;
use super::platform::EnginePlatform;
use crate::granule::GuestGranule;

/// The state between the calls.
pub struct LogCalls {
    /// The pages that the last get returned, slot by slot.
    reported: Vec<DirtyPages>,
    pages_reported: u64,
    blocks_coalesced: u64,
}

impl LogCalls {
    /// For `slots` slots of test memory.
    pub fn new(slots: usize) -> Self {
        let mut reported = Vec::new();
        reported.resize_with(slots, DirtyPages::new);
        Self { reported, pages_reported: 0, blocks_coalesced: 0 }
    }

    /// Answers the call with these arguments (x0 to x3). Returns `None` if it is not a log call.
    pub fn call(&mut self, guest: &impl ObservedGuest, arguments: [u64; 4]) -> Option<i64> {
        let [function, tracker, all, chunk] = arguments;
        let function = u32::try_from(function).ok().filter(|function| CALLS.contains(function))?;
        if self.reported.is_empty() {
            return Some(vendor::NOT_SUPPORTED);
        }
        let result = match function {
            vendor::LOG_START => start(guest, [tracker, all, chunk]),
            vendor::LOG_GET => self.get(guest),
            vendor::LOG_CLEAR => self.clear(guest),
            vendor::LOG_STOP => logs(guest).try_for_each(|log| log?.stop()).map(|()| vendor::SUCCESS),
            _ => self.coalesce(guest),
        };
        Some(result.unwrap_or_else(|error| {
            guest.refused(format_args!("the guest's call {function:#x} for its dirty log: {error}"));
            if error == LogError::NoDirtyState { vendor::NOT_SUPPORTED } else { vendor::INVALID_PARAMETER }
        }))
    }

    /// Pages that the logs have reported so far.
    pub fn pages_reported(&self) -> u64 {
        self.pages_reported
    }

    /// Blocks that were coalesced so far.
    pub fn blocks_coalesced(&self) -> u64 {
        self.blocks_coalesced
    }

    fn get(&mut self, guest: &impl ObservedGuest) -> Result<i64, LogError> {
        let mut pages = 0;
        for (log, reported) in logs(guest).zip(&mut self.reported) {
            log?.get(reported)?;
            pages += reported.count();
        }
        self.pages_reported += pages;
        Ok(pages as i64)
    }

    fn clear(&self, guest: &impl ObservedGuest) -> Result<i64, LogError> {
        logs(guest).zip(&self.reported).try_for_each(|(log, reported)| log?.clear_these(reported))?;
        Ok(vendor::SUCCESS)
    }

    fn coalesce(&mut self, guest: &impl ObservedGuest) -> Result<i64, LogError> {
        let mut blocks = 0;
        for log in logs(guest) {
            blocks += log?.coalesce_range(0, u64::MAX)?.blocks;
        }
        self.blocks_coalesced += blocks;
        Ok(blocks as i64)
    }
}

const CALLS: [u32; 5] = [vendor::LOG_START, vendor::LOG_GET, vendor::LOG_CLEAR, vendor::LOG_STOP, vendor::LOG_COALESCE];

fn start(guest: &impl ObservedGuest, [tracker, all, chunk]: [u64; 3]) -> Result<i64, LogError> {
    let Some(tracker) = Tracker::ALL.into_iter().nth(tracker as usize) else {
        return Ok(vendor::INVALID_PARAMETER);
    };
    let options = LogOptions { all_dirty: all != 0, chunk, ..LogOptions::new(tracker) };
    logs(guest).try_for_each(|log| log?.start(&options))?;
    Ok(vendor::SUCCESS)
}

/// The logs of all slots.
fn logs(
    guest: &impl ObservedGuest,
) -> impl Iterator<Item = Result<DirtyLog<'_, EnginePlatform, GuestGranule>, LogError>> {
    guest.test_slots().iter().map(|slot| guest.memory().dirty_log(*slot))
}

const _: () = assert!(vendor::TRACKERS.len() == Tracker::ALL.len(), "each tracker has a name in figures");
