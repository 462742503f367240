// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest with more memory than the machine gives it at a time: its pages leave to a store, and come back.
//!
//! Invariant: a [`Swap`] that passes [`check`](Swap::check) is accepted by the hypervisor.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;
use twofold_abi::bundle;
use zerocopy::FromZeros;

use crate::devices::Backing;
use crate::guest::{PAGE_SIZE, size};

/// The store of a guest's pages, and how many stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The most bytes of the guest's memory that are in the machine's at a time; 0, which is refused: none was given.
    pub resident: u64,
    /// Where the others go.
    pub store: Store,
    /// What a vCPU does while a page is absent.
    pub mode: Mode,
}

/// Where pages go. As text: `memory`, `memory:` with a time such as `10ms` or `100us`, `nbd:` with a server's socket, or the
/// path of a file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Store {
    /// The machine's memory. Each transfer takes this long.
    Memory(Duration),
    /// A raw image. What it holds is overwritten.
    File(PathBuf),
    /// What an NBD server at this Unix socket serves.
    Server(PathBuf),
}

impl FromStr for Store {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const TIME: &str = "give `memory`, or `memory:` and a time such as 10ms or 100us; or a file, or nbd:SOCKET";
        if text == "memory" {
            return Ok(Self::Memory(Duration::ZERO));
        }
        if let Some(path) = text.strip_prefix("nbd:") {
            return if path.is_empty() { Err(TIME) } else { Ok(Self::Server(path.into())) };
        }
        let Some(time) = text.strip_prefix("memory:") else {
            return if text.is_empty() { Err(TIME) } else { Ok(Self::File(text.into())) };
        };
        let unit =
            [("ms", 1000), ("us", 1)].into_iter().find_map(|(name, unit)| Some((time.strip_suffix(name)?, unit)));
        let (digits, unit) = unit.ok_or(TIME)?;
        let number: u64 = digits.parse().map_err(|_| TIME)?;
        Ok(Self::Memory(Duration::from_micros(number.checked_mul(unit).ok_or(TIME)?)))
    }
}

impl TryFrom<String> for Store {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl FromStr for Mode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = [Self::Off, Self::Halt, Self::Pv].into_iter();
        all.find(|mode| mode.name() == text).ok_or("give off, halt or pv")
    }
}

impl Store {
    /// The disk of the machine that it is on.
    pub(crate) fn backing(&self) -> Option<Backing> {
        match self {
            Self::Memory(_) => None,
            Self::File(path) => Some(Backing::File(path.clone())),
            Self::Server(path) => Some(Backing::Server(path.clone())),
        }
    }
}

/// The serial number of the disk for the pages of this guest, by its place among the guests.
pub(crate) fn serial(guest: usize) -> String {
    format!("{SERIAL}{guest}")
}

/// Whether the disk with this serial number is for pages.
pub(crate) fn is_store(serial: &str) -> bool {
    serial.starts_with(SERIAL)
}

const SERIAL: &str = "twofold-swap-";

/// What a vCPU does while a page is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It waits for the page.
    #[default]
    Off,
    /// It waits for the page, or for an interrupt that it can take.
    Halt,
    /// The guest runs another task meanwhile, if it knows how (docs/async-page-fault.md).
    Pv,
}

/// Why a store is not possible.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SwapError {
    /// There is no limit, so no page would leave.
    #[error(
        "`--swap` and `--async-fault` are for a guest with a limit; give `--resident` too: a multiple of 4K, {} at least \
         ({PAGES_PER_CPU} pages for each vCPU), and at most the guest's memory, {}",
        size(*least), size(*memory)
    )]
    NoLimit {
        /// The least, in bytes.
        least: u64,
        /// The guest's memory.
        memory: u64,
    },
    /// The limit.
    #[error(
        "`--resident {}` is not possible; give a multiple of 4K, {} at least ({PAGES_PER_CPU} pages for each vCPU), and at \
         most the guest's memory, {}",
        size(*resident), size(*least), size(*memory)
    )]
    Resident {
        /// The limit, in bytes.
        resident: u64,
        /// The least, in bytes.
        least: u64,
        /// The guest's memory.
        memory: u64,
    },
    /// The file.
    #[error("`--swap {}` has {} bytes, and the guest's pages need {}; give a larger one (`truncate -s {}`)", path.display(), has, needs, size(*needs))]
    Small {
        /// The file.
        path: PathBuf,
        /// What it has.
        has: u64,
        /// A place for each page.
        needs: u64,
    },
    /// The file cannot be read.
    #[error("`--swap {}`: {why}; give a raw image, `memory`, or nbd:SOCKET", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The delay.
    #[error("`--swap`: a transfer of {} us is not possible; give a minute at most, in whole microseconds", .0.as_micros())]
    Delay(Duration),
}

/// Bytes of a disk for the pages of a guest with this memory: whole huge pages, and one for its stolen time.
fn disk_size(memory: u64) -> u64 {
    const HUGE_PAGE: u64 = 2 << 20;
    memory.next_multiple_of(HUGE_PAGE).saturating_add(HUGE_PAGE)
}

/// As in the hypervisor: what one instruction may need at once.
const PAGES_PER_CPU: u64 = 16;

impl Swap {
    /// Checks the store of a guest with this memory and these vCPUs.
    pub fn check(&self, memory: u64, cpus: u32) -> Result<(), SwapError> {
        let least = PAGES_PER_CPU * PAGE_SIZE * u64::from(cpus);
        let resident = self.resident;
        if resident == 0 {
            return Err(SwapError::NoLimit { least, memory });
        }
        if !resident.is_multiple_of(PAGE_SIZE) || !(least..=memory).contains(&resident) {
            return Err(SwapError::Resident { resident, least, memory });
        }
        match &self.store {
            Store::Memory(delay) => {
                let is_whole = delay.subsec_nanos().is_multiple_of(1000);
                if !is_whole || delay.as_micros() > bundle::swap::DELAY_MAX.into() {
                    return Err(SwapError::Delay(*delay));
                }
            }
            Store::File(path) => {
                let failed = |why: String| SwapError::File { path: path.clone(), why };
                let data = std::fs::metadata(path).map_err(|why| failed(why.to_string()))?;
                if !data.is_file() {
                    return Err(failed("it is no file".to_owned()));
                }
                let (has, needs) = (data.len(), disk_size(memory));
                if has < needs {
                    return Err(SwapError::Small { path: path.clone(), has, needs });
                }
            }
            // The hypervisor looks at its size.
            Store::Server(_) => {}
        }
        Ok(())
    }

    /// Bytes of the machine's memory that a guest with this memory takes, with its store, and with what the hypervisor keeps of
    /// each page. A store in memory has a place for each page, beside the page.
    pub(crate) fn machine_memory(&self, memory: u64) -> u64 {
        let is_in_memory = matches!(self.store, Store::Memory(_));
        machine_memory(if is_in_memory { None } else { Some(self.resident) }, memory)
    }
}

/// The same of a guest's record in a bundle. `postcopy`: it comes by post-copy, so the hypervisor keeps the same of each page.
pub(crate) fn machine_memory_of(record: &bundle::Swap, memory: u64, postcopy: bool) -> u64 {
    match record.store.get() {
        bundle::swap::NONE if postcopy => machine_memory(Some(memory), memory),
        bundle::swap::NONE => memory,
        bundle::swap::MEMORY => machine_memory(None, memory),
        _ => machine_memory(Some(record.resident.get()), memory),
    }
}

/// The same, by how much stays in memory if the rest is elsewhere.
pub(crate) fn machine_memory(resident: Option<u64>, memory: u64) -> u64 {
    const STATES: u64 = 32;
    const ROUNDING: u64 = 8 << 20;
    let pages = resident.unwrap_or(memory.saturating_mul(2));
    pages.saturating_add(memory / STATES).saturating_add(ROUNDING)
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

/// What the bundle has of a store that was checked, of the guest at this place among the guests.
pub(crate) fn record(swap: Option<&Swap>, guest: usize) -> bundle::Swap {
    let Some(Swap { resident, store, mode }) = swap else { return FromZeros::new_zeroed() };
    let mode = match mode {
        Mode::Off => bundle::swap::OFF,
        Mode::Halt => bundle::swap::HALT,
        Mode::Pv => bundle::swap::PV,
    };
    let mut disk = [0; bundle::disk::ID_MAX];
    let (store, delay) = match store {
        Store::Memory(delay) => (bundle::swap::MEMORY, delay.as_micros() as u32),
        Store::File(_) | Store::Server(_) => {
            let serial = serial(guest);
            disk[..serial.len()].copy_from_slice(serial.as_bytes());
            (bundle::swap::DISK, 0)
        }
    };
    bundle::Swap { store: store.into(), mode: mode.into(), resident: (*resident).into(), delay: delay.into(), disk }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Swap = Swap { resident: 64 << 20, store: Store::Memory(Duration::from_millis(10)), mode: Mode::Halt };

    #[test]
    fn what_is_not_possible_is_refused_with_the_figure() {
        assert_eq!(GOOD.check(256 << 20, 2), Ok(()));
        let refused = |swap: Swap| swap.check(256 << 20, 2).unwrap_err().to_string();
        let resident = |resident| refused(Swap { resident, ..GOOD });
        assert!(
            resident(124 << 10).contains("`--resident 124K` is not possible; give a multiple of 4K, 128K at least")
        );
        let large = resident(257 << 20);
        assert!(large.contains("`--resident 257M`") && large.ends_with("the guest's memory, 256M"), "{large}");
        let none = resident(0);
        assert!(none.contains("give `--resident` too: a multiple of 4K, 128K at least"), "{none}");
        assert!(resident((64 << 20) + 1).contains("`--resident 67108865`"));
        let late = refused(Swap { store: Store::Memory(Duration::from_secs(61)), ..GOOD });
        assert!(late.contains("`--swap`: a transfer of 61000000 us"), "{late}");
        assert!(refused(Swap { store: Store::Memory(Duration::from_nanos(1)), ..GOOD }).contains("whole microseconds"));
    }

    #[test]
    fn the_record_has_each_setting() {
        let record = record(Some(&GOOD), 0);
        let numbers = [record.store, record.mode, record.delay].map(|number| number.get());
        assert_eq!((numbers, record.resident.get()), ([bundle::swap::MEMORY, bundle::swap::HALT, 10_000], 64 << 20));
        assert_eq!(super::record(None, 0).store.get(), bundle::swap::NONE);
    }

    #[test]
    fn a_disk_has_a_place_for_each_page() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("swap.img");
        let swap = Swap { store: Store::File(path.clone()), ..GOOD };
        let check = || swap.check(256 << 20, 1).map_err(|error| error.to_string());
        assert!(check().unwrap_err().contains("swap.img`: No such file"), "{:?}", check());
        let file = std::fs::File::create(&path).unwrap();
        file.set_len((258 << 20) - 512).unwrap();
        let small = check().unwrap_err();
        assert!(small.contains("270532096") && small.contains("truncate -s 258M"), "{small}");
        file.set_len(258 << 20).unwrap();
        assert_eq!(check(), Ok(()));
        let record = super::record(Some(&swap), 3);
        assert_eq!((record.store.get(), &record.disk), (bundle::swap::DISK, b"twofold-swap-3\0\0\0\0\0\0"));
    }

    #[test]
    fn a_store_is_read_from_text() {
        let store = |text: &str| text.parse::<Store>();
        assert_eq!(store("memory"), Ok(Store::Memory(Duration::ZERO)));
        assert_eq!(store("memory:10ms"), Ok(Store::Memory(Duration::from_millis(10))));
        assert_eq!(store("memory:100us"), Ok(Store::Memory(Duration::from_micros(100))));
        assert_eq!(store("nbd:/run/s"), Ok(Store::Server("/run/s".into())));
        assert_eq!(store("memory.img"), Ok(Store::File("memory.img".into())));
        assert_eq!("halt".parse(), Ok(Mode::Halt));
        assert_eq!("on".parse::<Mode>(), Err("give off, halt or pv"));
        for wrong in ["", "nbd:", "memory:", "memory:10", "memory:ms", "memory:1s", "memory:18446744073709551615ms"] {
            assert!(store(wrong).unwrap_err().starts_with("give `memory`"), "{wrong}");
        }
    }
}
