// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program to run, from the words of the command line.
//!
//! A word of this program with a wrong value is an error. An unknown word (`console=`, for instance) is skipped. If two
//! words name a program, the last one counts, as with Linux's arguments. With the word `stays`, a guest whose program has
//! ended does not power off, so that its memory can be read.

use crate::experiment::{Settings, WrongWord};
use crate::lock::Kind;
use crate::number::{hexadecimal, size};
use crate::{pace, replay, sysregs, tasks};

/// What the guest does.
#[derive(Clone, Copy)]
pub enum Program<'a> {
    /// `check`, and the default: the guest's own check.
    Check,
    /// `devices`: uses each device of the virtual machine.
    Devices,
    /// `echo=SIZE`: sends back `SIZE` bytes as they come.
    Echo { bytes: u64 },
    /// `emit=SIZE`: sends `SIZE` bytes.
    Emit { bytes: u64 },
    /// `touch=SIZE`: touches `SIZE` bytes of fresh RAM.
    Touch { bytes: u64 },
    /// `pmu`: tries to stop and reset the PMU's counters, then touches memory.
    Pmu,
    /// `features`: tries an instruction of each feature, hidden or announced.
    Features,
    /// `sysregs=STEP`: executes every `STEP`th encoding of the system-register space, on four vCPUs.
    Sysregs(sysregs::Settings),
    /// `hostile=MILLISECONDS`: tries until this time to reach what is not the guest's own.
    Hostile { milliseconds: u64, seed: u64 },
    /// `hypercalls=COUNT`: makes `COUNT` calls of any kind, on each of four vCPUs.
    Hypercalls { count: u64, seed: u64 },
    /// `restart=ROUNDS`: switches the second vCPU on and off again.
    Restart { rounds: u64 },
    /// `anew=MILLISECONDS`: a warm reset at this time, and then a cold one.
    Anew { milliseconds: u64 },
    /// `warm=COUNT`: warm resets in a row, while all vCPUs spin.
    Warm { count: u64 },
    /// `cold=COUNT`: cold resets in a row, one each 20 ms.
    Cold { count: u64 },
    /// `watch=MILLISECONDS`: checks until this time that nothing of the guest's changes by itself. With `moved`, the guest may
    /// be somewhere else meanwhile.
    Watch { milliseconds: u64, is_moved: bool },
    /// `secrets`: fills RAM with secrets.
    Secrets,
    /// `fresh=MILLISECONDS`: checks after this time that RAM is zero.
    Fresh { milliseconds: u64 },
    /// `loops=MILLISECONDS`: counts how often it can loop.
    Loops { milliseconds: u64 },
    /// `pace=MILLISECONDS`: says for ever what its time is. It waits in the way that `wait=` names. With the word `alone`, no
    /// other vCPU is started.
    Pace { milliseconds: u64, kind: pace::Kind, is_alone: bool },
    /// `lock=COUNT`: all vCPUs take one lock, `COUNT` times each, of the kind after `by=`.
    Lock { count: u64, kind: Kind },
    /// `stolen=MILLISECONDS`: compares stolen time with what each vCPU sees.
    Stolen { milliseconds: u64 },
    /// `bm=MILLISECONDS`: tasks of which some fault. `faulters=` and `workers=` are their numbers on each vCPU, `size=` the
    /// array's. With the word `absent`, all pages are in the store when they begin. `wrong=` has the kernel break the rules of asynchronous page faults.
    Tasks(tasks::Settings),
    /// `nowhere`: starts the second vCPU at an address without RAM.
    Nowhere,
    /// `together`: two vCPUs end the guest at the same time.
    Together,
    /// `refused=CALLS`: makes calls that are refused.
    Refused { calls: u64 },
    /// `experiment=NAME`, and the words of its settings.
    Experiment(Settings),
    /// `exits=COUNT`: measures what events cost, each `COUNT` times.
    Exits { count: u64 },
    /// `replay=EVENTS`: executes random events at the interrupt controller.
    Replay(replay::Settings),
    /// `virtio=FRAMES`: uses each virtio device, and exchanges this number of frames with another guest.
    Virtio { frames: u64 },
    /// `buffers=SIZE`: uses disks and cards with buffers all over `SIZE` bytes of RAM.
    Buffers { bytes: u64 },
    /// `balloon=SIZE`: gives up `SIZE` bytes of RAM.
    Balloon { bytes: u64 },
    /// `storm=ROUNDS`: breaks the rules of virtio devices, and then uses them as it should.
    Storm { rounds: u64, seed: u64 },
    /// `failing=ROUNDS`: writes and reads disks of which requests fail.
    Failing { rounds: u64 },
    /// `busy=ROUNDS`: has several requests of each disk in flight.
    Busy { rounds: u64 },
    /// `exchange`: sends frames to a peer outside until that has had enough.
    Exchange,
    /// `shrinking`: waits until disks become smaller.
    Shrinking,
    /// `ranges`: zeroes and discards sectors.
    Ranges,
    /// `hang`: does nothing for ever.
    Hang,
    /// `semihosting=PATH`: tries to create a file of the host's.
    Semihosting { path: &'a str },
    /// `wild=ADDRESS`: loads from an address with neither RAM nor a device.
    Wild { address: u64 },
}

/// Why [`Program::parse`] failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure<'a> {
    #[error("{key}= needs a size such as 64M, not {value:?}")]
    Size { key: &'a str, value: &'a str },
    #[error("{key}= needs a number from 1 on, not {value:?}")]
    Number { key: &'a str, value: &'a str },
    #[error("{0} needs a number, not {1:?}")]
    Tasks(&'static str, &'a str),
    #[error("wild= needs an address such as 0xb000000, not {0:?}")]
    Address(&'a str),
    #[error("by= needs the kind of the lock (ticket, swap or interrupt), not {0:?}")]
    Lock(&'a str),
    #[error("wrong= needs what is wrong (calls, deaf or area), not {0:?}")]
    Wrong(&'a str),
    #[error("wait= needs a way to wait (spin, interrupt or suspend), not {0:?}")]
    Wait(&'a str),
    #[error("{0}")]
    Experiment(WrongWord<'a>),
}

impl<'a> Program<'a> {
    /// Whether the guest stays when its program has ended.
    pub fn stays(arguments: &str) -> bool {
        arguments.split_ascii_whitespace().any(|word| word == "stays")
    }

    /// Reads the command line.
    pub fn parse(arguments: &'a str) -> Result<Self, Failure<'a>> {
        let mut program = Self::Check;
        for word in arguments.split_ascii_whitespace() {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            program = match key {
                "check" => Self::Check,
                "devices" => Self::Devices,
                "echo" => Self::Echo { bytes: size(value).ok_or(Failure::Size { key, value })? },
                "emit" => Self::Emit { bytes: size(value).ok_or(Failure::Size { key, value })? },
                "touch" => Self::Touch { bytes: size(value).ok_or(Failure::Size { key, value })? },
                "pmu" => Self::Pmu,
                "features" => Self::Features,
                "sysregs" => Self::Sysregs(sysregs::Settings {
                    step: number(key, value)?,
                    part: named(arguments, "part")?,
                    seed: seed(arguments)?,
                }),
                "hostile" => Self::Hostile { milliseconds: number(key, value)?, seed: seed(arguments)? },
                "hypercalls" => Self::Hypercalls { count: number(key, value)?, seed: seed(arguments)? },
                "restart" => Self::Restart { rounds: number(key, value)? },
                "anew" => Self::Anew { milliseconds: number(key, value)? },
                "warm" => Self::Warm { count: number(key, value)? },
                "cold" => Self::Cold { count: number(key, value)? },
                "watch" => Self::Watch {
                    milliseconds: number(key, value)?,
                    is_moved: arguments.split_ascii_whitespace().any(|word| word == "moved"),
                },
                "secrets" => Self::Secrets,
                "fresh" => Self::Fresh { milliseconds: number(key, value)? },
                "loops" => Self::Loops { milliseconds: number(key, value)? },
                "pace" => Self::Pace {
                    milliseconds: number(key, value)?,
                    kind: wait(arguments)?,
                    is_alone: arguments.split_ascii_whitespace().any(|word| word == "alone"),
                },
                "lock" => Self::Lock { count: number(key, value)?, kind: kind(arguments)? },
                "stolen" => Self::Stolen { milliseconds: number(key, value)? },
                "bm" => Self::Tasks(tasks::Settings {
                    milliseconds: number(key, value)?,
                    faulters: some_tasks(arguments, "faulters=")?,
                    workers: some_tasks(arguments, "workers=")?,
                    size: array(arguments)?,
                    seed: seed(arguments)?,
                    wrong: wrong(arguments)?,
                    absent: arguments.split_ascii_whitespace().any(|word| word == "absent"),
                }),
                "nowhere" => Self::Nowhere,
                "together" => Self::Together,
                "refused" => Self::Refused { calls: number(key, value)? },
                "experiment" => Self::Experiment(Settings::parse(arguments).map_err(Failure::Experiment)?),
                "exits" => Self::Exits { count: number(key, value)? },
                "replay" => Self::Replay(replay::Settings {
                    events: number(key, value)?,
                    from: named(arguments, "from")?,
                    every: named(arguments, "every")?,
                    seed: seed(arguments)?,
                }),
                "virtio" => Self::Virtio { frames: number(key, value)? },
                "buffers" => Self::Buffers { bytes: size(value).ok_or(Failure::Size { key, value })? },
                "balloon" => Self::Balloon { bytes: size(value).ok_or(Failure::Size { key, value })? },
                "storm" => Self::Storm { rounds: number(key, value)?, seed: seed(arguments)? },
                "busy" => Self::Busy { rounds: number(key, value)? },
                "exchange" => Self::Exchange,
                "failing" => Self::Failing { rounds: number(key, value)? },
                "shrinking" => Self::Shrinking,
                "ranges" => Self::Ranges,
                "hang" => Self::Hang,
                "semihosting" => Self::Semihosting { path: value },
                "wild" => Self::Wild { address: hexadecimal(value).ok_or(Failure::Address(value))? },
                _ => program,
            };
        }
        Ok(program)
    }
}

/// The lock that `by=` names.
fn kind(arguments: &str) -> Result<Kind, Failure<'_>> {
    let name = word(arguments, "by=").unwrap_or_default();
    Kind::named(name).ok_or(Failure::Lock(name))
}

/// The size of the array that `size=` names.
fn array(arguments: &str) -> Result<u64, Failure<'_>> {
    let value = word(arguments, "size=").unwrap_or_default();
    size(value).ok_or(Failure::Size { key: "size", value })
}

/// The number after this word, which may be 0; 1 without it.
fn some_tasks<'a>(arguments: &'a str, key: &'static str) -> Result<u64, Failure<'a>> {
    word(arguments, key).map_or(Ok(1), |value| value.parse().map_err(|_| Failure::Tasks(key, value)))
}

/// What `wrong=` names.
fn wrong(arguments: &str) -> Result<tasks::Wrong, Failure<'_>> {
    word(arguments, "wrong=")
        .map_or(Ok(tasks::Wrong::Nothing), |name| tasks::Wrong::named(name).ok_or(Failure::Wrong(name)))
}

/// The way to wait that `wait=` names.
fn wait(arguments: &str) -> Result<pace::Kind, Failure<'_>> {
    let name = word(arguments, "wait=").unwrap_or("spin");
    pace::Kind::named(name).ok_or(Failure::Wait(name))
}

fn word<'a>(arguments: &'a str, key: &str) -> Option<&'a str> {
    arguments.split_ascii_whitespace().find_map(|word| word.strip_prefix(key))
}

/// The value of `seed=NUMBER`, at any place in the line; 1 without it.
fn seed(arguments: &str) -> Result<u64, Failure<'_>> {
    named(arguments, "seed")
}

/// The number after a word and `=`, at any place in the line; 1 without it.
fn named<'a>(arguments: &'a str, key: &'static str) -> Result<u64, Failure<'a>> {
    let mut words = arguments.split_ascii_whitespace().filter_map(|word| word.split_once('='));
    words.find(|(name, _)| *name == key).map_or(Ok(1), |(_, value)| number(key, value))
}

fn number<'a>(key: &'a str, value: &'a str) -> Result<u64, Failure<'a>> {
    value.parse().ok().filter(|number| *number != 0).ok_or(Failure::Number { key, value })
}
