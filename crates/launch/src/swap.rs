// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest with more memory than the machine gives it at a time: its pages leave to a store, and come back.
//!
//! Invariant: a [`Swap`] that passes [`check`](Swap::check) is accepted by the hypervisor.

use std::time::Duration;

use thiserror::Error;
use twofold_abi::bundle;
use zerocopy::FromZeros;

use crate::guest::{PAGE_SIZE, size};

/// The store of a guest's pages, and how many stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The most bytes of the guest's memory that are in the machine's at a time.
    pub resident: u64,
    /// How long a transfer takes. The store is in the machine's memory.
    pub delay: Duration,
    /// What a vCPU does while a page is absent.
    pub mode: Mode,
}

/// What a vCPU does while a page is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It waits for the page.
    #[default]
    Off,
    /// It waits for the page, or for an interrupt that it can take.
    Halt,
    /// The guest runs another task meanwhile, if it knows how.
    Pv,
}

/// Why a store is not possible.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SwapError {
    /// The limit.
    #[error(
        "`--resident {}` is not possible; give a multiple of 4K, {} at least ({PAGES_PER_CPU} pages for each vCPU), and at \
         most the guest's memory",
        size(*resident), size(*least)
    )]
    Resident {
        /// The limit, in bytes.
        resident: u64,
        /// The least, in bytes.
        least: u64,
    },
    /// The delay.
    #[error("`--swap`: a transfer of {} us is not possible; give a minute at most, in whole microseconds", .0.as_micros())]
    Delay(Duration),
}

/// As in the hypervisor: what one instruction may need at once.
const PAGES_PER_CPU: u64 = 16;

impl Swap {
    /// Checks the store of a guest with this memory and these vCPUs.
    pub fn check(&self, memory: u64, cpus: u32) -> Result<(), SwapError> {
        let least = PAGES_PER_CPU * PAGE_SIZE * u64::from(cpus);
        let resident = self.resident;
        if !resident.is_multiple_of(PAGE_SIZE) || !(least..=memory).contains(&resident) {
            return Err(SwapError::Resident { resident, least });
        }
        let is_whole = self.delay.subsec_nanos().is_multiple_of(1000);
        if !is_whole || self.delay.as_micros() > bundle::swap::DELAY_MAX.into() {
            return Err(SwapError::Delay(self.delay));
        }
        Ok(())
    }

    /// Bytes of the machine's memory that the store of a guest with this memory takes: a place for each page, and what
    /// the hypervisor keeps of each.
    pub(crate) fn machine_memory(&self, memory: u64) -> u64 {
        const STATES: u64 = 32;
        const ROUNDING: u64 = 8 << 20;
        memory.saturating_add(memory / STATES).saturating_add(ROUNDING)
    }
}

impl Mode {
    /// The name on a command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Halt => "halt",
            Self::Pv => "pv",
        }
    }
}

/// What the bundle has of a store that was checked.
pub(crate) fn record(swap: Option<Swap>) -> bundle::Swap {
    let Some(Swap { resident, delay, mode }) = swap else { return FromZeros::new_zeroed() };
    let mode = match mode {
        Mode::Off => bundle::swap::OFF,
        Mode::Halt => bundle::swap::HALT,
        Mode::Pv => bundle::swap::PV,
    };
    bundle::Swap {
        store: bundle::swap::MEMORY.into(),
        mode: mode.into(),
        resident: resident.into(),
        delay: (delay.as_micros() as u32).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Swap = Swap { resident: 64 << 20, delay: Duration::from_millis(10), mode: Mode::Halt };

    #[test]
    fn what_is_not_possible_is_refused_with_the_figure() {
        assert_eq!(GOOD.check(256 << 20, 2), Ok(()));
        let refused = |swap: Swap| swap.check(256 << 20, 2).unwrap_err().to_string();
        let resident = |resident| refused(Swap { resident, ..GOOD });
        assert!(
            resident(124 << 10).contains("`--resident 124K` is not possible; give a multiple of 4K, 128K at least")
        );
        assert!(resident(257 << 20).contains("`--resident 257M`"));
        assert!(resident((64 << 20) + 1).contains("`--resident 67108865`"));
        let late = refused(Swap { delay: Duration::from_secs(61), ..GOOD });
        assert!(late.contains("`--swap`: a transfer of 61000000 us"), "{late}");
        assert!(refused(Swap { delay: Duration::from_nanos(1), ..GOOD }).contains("whole microseconds"));
    }

    #[test]
    fn the_record_has_each_setting() {
        let record = record(Some(GOOD));
        let numbers = [record.store, record.mode, record.delay].map(|number| number.get());
        assert_eq!((numbers, record.resident.get()), ([bundle::swap::MEMORY, bundle::swap::HALT, 10_000], 64 << 20));
        assert_eq!(super::record(None).store.get(), bundle::swap::NONE);
    }
}
