// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `async-fault`: Debian with Redis, whose data need more memory than the machine gives the guest at a time. What
//! Redis has in the end has to be what it has in a guest without a store.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, ensure};
use libtest_mimic::{Failed, Trial};
use twofold_abi::bundle::flags;
use twofold_launch::swap::{Mode, Store, Swap};
use twofold_launch::{GuestSettings, Outcome};
use twofold_workspace::{Workspace, linux_module, output};

use super::super::devices::debian::Guests;
use super::super::devices::nbd::Server;
use super::super::harness::{self, Depth};
use super::super::vm::linux;
use super::swap_device::{self, Disk, Fault};

/// What the tests share.
struct Shared {
    workspace: Workspace,
    /// Fetched for the first test.
    guests: OnceLock<Result<Guests, String>>,
    /// The sums in a guest without a store.
    expected: OnceLock<Result<Sums, String>>,
}

type Test = (String, Box<dyn FnOnce(&Shared) -> anyhow::Result<()> + Send>);

/// The tests that belong to `depth`. Each takes a minute or more.
pub fn trials(workspace: &Workspace, depth: Depth) -> Vec<Trial> {
    let workspace = workspace.clone();
    let shared = Arc::new(Shared { workspace, guests: OnceLock::new(), expected: OnceLock::new() });
    let chosen = if depth == Depth::Full { tests() } else { Vec::new() };
    let trial = |(name, test): Test| {
        let shared = Arc::clone(&shared);
        harness::trial(&name, move || test(&shared).map_err(|error| Failed::from(format!("{error:#}"))))
    };
    chosen.into_iter().map(trial).collect()
}

fn tests() -> Vec<Test> {
    let mut tests: Vec<Test> = Vec::new();
    for cpus in [1, 2, 4] {
        for mode in [Mode::Off, Mode::Halt, Mode::Pv] {
            let plural = if cpus == 1 { "" } else { "s" };
            let name = format!("redis::{}_on_{cpus}_vcpu{plural}", mode.name());
            tests.push((name, Box::new(move |shared| alone(shared, swap(mode), cpus))));
        }
    }
    let mut push = |name: &str, test: fn(&Shared) -> anyhow::Result<()>| {
        tests.push((format!("redis::{name}"), Box::new(test)));
    };
    push("in_two_guests_off", |shared| two(shared, [Mode::Off, Mode::Off], 1));
    push("in_two_guests_halted_and_parked", |shared| two(shared, [Mode::Halt, Mode::Pv], 2));
    push("on_a_disk_that_fails_one_request_in_a_thousand", |shared| {
        on_a_disk(shared, Fault::Every(1000), swap_device::failed_reads)
    });
    push("on_a_disk_that_stands_still_for_a_second", |shared| {
        on_a_disk(shared, Fault::Pause(2 * FLOOR), swap_device::paused)
    });
    push("gains", gains);
    tests
}

/// Bytes of the guest's memory, and those that are in the machine's at a time.
const MEMORY: u64 = 256 << 20;
const RESIDENT: u64 = MEMORY / 4;
/// Redis's keys, and the bytes of their values.
const KEYS: u64 = 40_000;
const VALUE: u64 = 2000;
/// The keys that the benchmark sets. It sets 20 times as many, so it misses none: one run in a million would.
const SET: u64 = 500;
/// The pages of the values. At least this number of pages leaves, and at least this number comes.
const FLOOR: u64 = KEYS * VALUE / 4096;

/// Each value is another, so that no two pages are equal. The benchmark reads values all over memory, and sets some: all to
/// one value, whatever their order. The sums read all values again, and a file whose pages the kernel copies.
fn script() -> String {
    let sum = format!("sum = redis.sha1hex(sum .. redis.call('GET', {KEY}))");
    format!(
        "set -e
busybox seq 1 2500000 > /dev/shm/file
{}benchmark() {{
    redis-benchmark -q \"$@\" | tr '\\r' '\\n' | grep 'requests per second'
}}
benchmark -t get -r {KEYS} -n 10000
benchmark -t set -r {SET} -d {VALUE} -n {}
echo \"resident: $(redis-cli info memory | tr -d '\\r' | sed -n 's/^used_memory_rss://p')\"
echo \"keys: $(redis-cli dbsize)\"
echo \"digest: $(redis-cli debug digest)\"
echo \"values: $(redis-cli eval \"local sum = '' for key = 0, {last} do {sum} end return sum\" 0)\"
echo \"file: $(sha256sum < /dev/shm/file)\"
[ ! -d {COUNTERS} ] || echo \"parked: $(cat {COUNTERS}/parked)\"
",
        fill(),
        20 * SET,
        last = KEYS - 1
    )
}

/// The name of a key, in Redis's language. It is that of the benchmark's.
const KEY: &str = "string.format('key:%012d', key)";

/// Starts Redis, and fills it.
fn fill() -> String {
    let set = format!("redis.call('SET', {KEY}, string.rep(redis.sha1hex(key), {}))", VALUE / 40);
    format!(
        "redis-server --save '' --appendonly no --enable-debug-command local --daemonize yes > /run/redis.log
until redis-cli ping > /dev/null 2>&1; do
    sleep 0.2
done
redis-cli eval \"for key = 0, {} do {set} end\" 0 > /run/filled
",
        KEYS - 1
    )
}

/// The module's.
const COUNTERS: &str = "/sys/bus/platform/drivers/twofold-apf/async-page-fault";

/// What a guest's data are in the end: the number of keys, Redis's digest, a sum of all values in the order of their keys, and
/// that of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sums([String; 4]);

impl Sums {
    fn of(outcome: &Outcome, name: Option<&str>) -> anyhow::Result<Self> {
        let find = |word: &str| said(outcome, name, word);
        let sums = Self([find("keys")?, find("digest")?, find("values")?, find("file")?]);
        let [keys, digest, values, file] = &sums.0;
        let is_hex = |text: &str, digits| text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let are_sums = is_hex(digest, 40) && is_hex(values, 40) && is_hex(file.trim_end_matches(" -").trim_end(), 64);
        ensure!(*keys == KEYS.to_string() && are_sums, "{sums:?}");
        Ok(sums)
    }
}

/// What this guest has said after `WORD: `. A guest that is alone has no name.
fn said(outcome: &Outcome, name: Option<&str>, word: &str) -> anyhow::Result<String> {
    let prefix = name.map_or(format!("{word}: "), |name| format!("[{name}] {word}: "));
    let console = outcome.console.tail(usize::MAX);
    let found = console.iter().find_map(|line| line.trim_end().strip_prefix(&prefix));
    found.map(str::to_owned).with_context(|| format!("no `{prefix}` in:\n{}", console.join("\n")))
}

impl Shared {
    fn guests(&self) -> anyhow::Result<&Guests> {
        let make = || Guests::new(&self.workspace, false).map_err(|error| format!("{error:#}"));
        self.guests.get_or_init(make).as_ref().map_err(|why| anyhow::anyhow!("{why}"))
    }

    fn guest(&self, name: &str, cpus: u32, swap: Option<Swap>) -> anyhow::Result<GuestSettings> {
        self.guest_with(name, cpus, swap, &script())
    }

    fn guest_with(&self, name: &str, cpus: u32, swap: Option<Swap>, script: &str) -> anyhow::Result<GuestSettings> {
        let guests = self.guests()?;
        let debian = guests.debian()?;
        let guest = guests.guest(debian, name, guests.disk(debian, name)?, script)?;
        let is_pv = swap.as_ref().is_some_and(|swap| swap.mode == Mode::Pv);
        if let Some(initrd) = guest.initrd.as_ref().filter(|_| is_pv) {
            debian.initrd(initrd, Some(script), linux_module::files(&self.workspace)?)?;
        }
        let flags = guest.flags | flags::CONSOLES;
        Ok(GuestSettings { name: name.to_owned(), cpus, memory: MEMORY, swap, flags, ..guest })
    }

    /// The sums without a store.
    fn expected(&self) -> anyhow::Result<&Sums> {
        let run = || {
            let outcome = self.guests()?.run_on(1, vec![self.guest("plain", 1, None)?])?;
            Sums::of(&outcome, None)
        };
        let expected = self.expected.get_or_init(|| run().map_err(|error| format!("{error:#}")));
        expected.as_ref().map_err(|why| anyhow::anyhow!("without a store: {why}"))
    }
}

fn swap(mode: Mode) -> Swap {
    Swap { resident: RESIDENT, store: Store::Memory(Duration::from_micros(100)), mode }
}

/// A guest with more vCPUs than the two that a machine has CPUs has them in turns.
fn alone(shared: &Shared, swap: Swap, cpus: u32) -> anyhow::Result<()> {
    let expected = shared.expected()?;
    let mode = swap.mode;
    let outcome = shared.guests()?.run_on(cpus.min(2), vec![shared.guest("redis", cpus, Some(swap))?])?;
    is_right(&outcome, &[(None, mode)], expected)
}

/// Two guests at once, with as many vCPUs each.
fn two(shared: &Shared, modes: [Mode; 2], cpus: u32) -> anyhow::Result<()> {
    let expected = shared.expected()?;
    let both = [("one", modes[0]), ("two", modes[1])];
    let guests = both.map(|(name, mode)| shared.guest(name, cpus, Some(swap(mode))));
    let outcome = shared.guests()?.run_on(2, guests.into_iter().collect::<anyhow::Result<_>>()?)?;
    is_right(&outcome, &both.map(|(name, mode)| (Some(name), mode)), expected)
}

/// The pages are on a disk with a fault, which the guest does not notice. `has_failed` checks that there was one.
fn on_a_disk(
    shared: &Shared,
    fault: Fault,
    has_failed: impl Fn(&Server<Disk>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let (server, store) = swap_device::serve(directory.path(), MEMORY, fault)?;
    alone(shared, Swap { store, ..swap(Mode::Pv) }, 2)?;
    has_failed(&server)
}

/// Each of these guests has the sums of one without a store, and its data have left and come.
fn is_right(outcome: &Outcome, guests: &[(Option<&str>, Mode)], expected: &Sums) -> anyhow::Result<()> {
    for (name, mode) in guests {
        let sums = Sums::of(outcome, *name)?;
        ensure!(sums == *expected, "{name:?} has {sums:?}, and without a store it is {expected:?}");
        let resident: u64 = said(outcome, *name, "resident")?.parse()?;
        ensure!(resident > RESIDENT, "Redis has {resident} bytes in {name:?}: they fit");
        if *mode == Mode::Pv {
            let parked: u64 = said(outcome, *name, "parked")?.parse()?;
            ensure!(parked > FLOOR, "{parked} faults parked a task of {name:?}");
            output::remark(&format!("{parked} faults parked a task"));
        }
    }
    let stat = |key: &str| outcome.control.report.get(key).with_context(|| format!("no figure {key}"));
    let (written, read) = (stat("swap.pages_written")?, stat("swap.pages_read")?);
    output::remark(&format!("{written} pages were written to the store, and {read} read"));
    let floor = FLOOR * guests.len() as u64;
    ensure!(written > floor && read > floor, "{written} pages were written to the store, and {read} read");
    linux::no_complaints(outcome)
}

/// What the benchmark's requests, and a program that computes beside them, get by mode: alone there is nothing to run while
/// Redis waits for a page.
fn gains(shared: &Shared) -> anyhow::Result<()> {
    let run = |mode| Done::of(shared, Swap { store: Store::Memory(Duration::from_millis(1)), ..swap(mode) });
    let [off, halt, pv] = [run(Mode::Off)?, run(Mode::Halt)?, run(Mode::Pv)?];
    let beside = |mode: &Done| [mode.alone / off.alone, mode.beside / off.beside, mode.work / off.work];
    let all = format!("{off:?}, {halt:?}, {pv:?}: halt {:.3?}, pv {:.3?} of off", beside(&halt), beside(&pv));
    output::remark(&all);
    let [_, requests, work] = beside(&pv);
    ensure!(requests >= 1.5 && work >= 1.5, "{all}");
    Ok(())
}

/// What was done in a second of the guest.
#[derive(Debug)]
struct Done {
    /// Requests, with nothing beside them.
    alone: f64,
    /// Requests beside the other program.
    beside: f64,
    /// That program's rounds.
    work: f64,
}

impl Done {
    const REQUESTS: u32 = 3000;

    fn of(shared: &Shared, swap: Swap) -> anyhow::Result<Self> {
        let script = format!(
            "set -e
{}benchmark() {{
    start=$(date +%s%N)
    redis-benchmark -q -t get -r {KEYS} -n {} > /dev/null
    echo \"$1: $(( $(date +%s%N) - start ))\"
}}
benchmark before
benchmark alone
sh -c 'rounds=0; trap \"echo \\$rounds > /run/rounds; exit\" TERM; while :; do rounds=$((rounds + 1)); done' &
benchmark beside
kill $!
wait $! || true
echo \"rounds: $(cat /run/rounds)\"
",
            fill(),
            Self::REQUESTS
        );
        let outcome = shared.guests()?.run_counted(vec![shared.guest_with("redis", 1, Some(swap), &script)?])?;
        let number = |word| said(&outcome, None, word).and_then(|text| Ok(text.parse::<f64>()?));
        let [alone, beside] = [number("alone")? / 1e9, number("beside")? / 1e9];
        let requests = f64::from(Self::REQUESTS);
        Ok(Self { alone: requests / alone, beside: requests / beside, work: number("rounds")? / beside })
    }
}
