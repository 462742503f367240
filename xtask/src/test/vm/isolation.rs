// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: a hostile guest beside one that keeps secrets and watches itself, with vCPUs that share CPUs.
//!
//! The machine's RAM is a file that is filled with a pattern before the start. So a frame that reaches a guest unzeroed
//! shows the pattern, and so does what EL2 has from memory that it never wrote. The hostile guest searches what it reads
//! for this pattern and for the other guest's secrets.
//!
//! Invariant: such a test passes only if both guests ended well, the other guest found nothing changed, its secrets were
//! in the machine's RAM, the pattern was there, and EL2's code is as it was built.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use twofold_abi::bundle::flags;
use twofold_abi::{canary, exit};
use twofold_launch::{Bundle, Devices, GuestSettings, Launch, Loaded, Machine, Outcome, bundle, machine};
use twofold_workspace::{build, output};

use super::machines::{Clock, Machines, ends, figure};
use crate::test::guests::seed;

/// The guest with secrets.
const WATCHES: &str = "watches";
/// The other one.
const HOSTILE: &str = "hostile";
/// vCPUs of the programs that have one that watches and four that work.
const WORKERS: u32 = 5;

/// All that one instruction can try, at random, for this time.
pub fn attack(machines: &Machines, milliseconds: u64) -> anyhow::Result<()> {
    let seed = seed();
    let hostile = machines.bare(HOSTILE, 2, &format!("hostile={milliseconds} seed={seed}"));
    let outcome = beside_a_watch(machines, hostile, milliseconds).with_context(|| format!("seed {seed}"))?;
    let figure = |what: &str| figure(&outcome, "[hostile] hostile: ", what).with_context(|| format!("seed {seed}"));
    let (acts, exceptions, pages) = (figure(" acts, nothing found")?, figure(" exceptions")?, figure(" pages of RAM")?);
    output::remark(&format!("{acts} acts, {exceptions} of them exceptions, {pages} pages looked at"));
    ensure!(exceptions > acts / 10, "seed {seed}: only {exceptions} of {acts} acts were exceptions");
    ensure!(exceptions < acts, "seed {seed}: all acts were exceptions");
    Ok(())
}

/// Every `step`th encoding of a system register, from the `part`th on.
pub fn system_registers(machines: &Machines, step: u64, part: u64) -> anyhow::Result<()> {
    let seed = seed();
    let hostile = machines.bare(HOSTILE, WORKERS, &format!("sysregs={step} part={part} seed={seed}"));
    let outcome = beside_a_watch(machines, hostile, WATCH).with_context(|| format!("seed {seed}"))?;
    let console = outcome.console.tail(usize::MAX);
    let reports = console.iter().filter(|line| line.contains(" executed, ")).count() as u32;
    ensure!(reports == WORKERS - 1, "seed {seed}: {reports} vCPUs reported:\n{}", console.join("\n"));
    Ok(())
}

/// A driver that breaks the rules of each virtio device, which then has to work.
pub fn virtio(machines: &Machines, rounds: u64) -> anyhow::Result<()> {
    let seed = seed();
    let hostile = machines.bare(HOSTILE, 1, &format!("storm={rounds} seed={seed}"));
    // A virtio console would mix the storm's bytes with the lines that are looked for.
    let devices = Devices { has_console: false, ..super::virtio::devices() };
    let hostile = GuestSettings { devices, ..hostile };
    let outcome = beside_a_watch(machines, hostile, WATCH).with_context(|| format!("seed {seed}"))?;
    let figure = |what: &str| figure(&outcome, "[hostile] storm: ", what).with_context(|| format!("seed {seed}"));
    let (live, used) = (figure(" devices were live")?, figure(" devices used buffers")?);
    let broken = figure(" devices needed a reset")?;
    output::remark(&format!("{live} devices were live, {used} used buffers, {broken} needed a reset"));
    // Most random queues are broken before a buffer is used. A storm that used none would not reach the data path.
    ensure!(live > rounds && used > rounds / 20 && broken > rounds / 4, "seed {seed}: the storm reaches too little");
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(console.contains("[hostile] guest check: ok"), "seed {seed}:\n{console}");
    Ok(())
}

/// Calls with random functions and arguments, CPU_ON of random vCPUs at random entries among them.
pub fn hypercalls(machines: &Machines, count: u64) -> anyhow::Result<()> {
    let seed = seed();
    let hostile = machines.bare(HOSTILE, WORKERS, &format!("hypercalls={count} seed={seed}"));
    let outcome = beside_a_watch(machines, hostile, WATCH).with_context(|| format!("seed {seed}"))?;
    let starts = figure(&outcome, "[hostile] hypercalls: ", " starts by the first vCPU")?;
    ensure!(starts >= u64::from(WORKERS) - 1, "seed {seed}: {starts} starts");
    Ok(())
}

/// A guest leaves secrets in all of its RAM and powers off. Another one then touches its own RAM for the first time: it gets
/// the same frames, and finds them zero.
pub fn frames_of_an_ended_guest(machines: &Machines) -> anyhow::Result<()> {
    let guests = vec![machines.bare("ends", 1, "secrets"), machines.bare("begins", 1, "fresh=300")];
    let (outcome, left) = filled(machines, guests, true)?;
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(outcome.status == Some(exit::POWER_OFF), "{:?}:\n{console}", outcome.status);
    let place = |line: &str| {
        let place = outcome.control.log.iter().position(|other| other.starts_with(line));
        place.with_context(|| format!("no `{line}` in {:?}", outcome.control.log))
    };
    ensure!(place(r#"guest "ends": power-off"#)? < place(r#"guest "ends": its memory is free"#)?);
    let written = figure(&outcome, "[ends] secrets: ", " words")?;
    let fresh = figure(&outcome, "[begins] fresh: ", " words")?;
    ensure!(fresh >= written, "{fresh} words were looked at, and {written} written");
    ensure!(console.contains("[begins] guest check: ok"), "{console}");
    // Frames that got another owner were zeroed.
    ensure!(
        left.secrets < written / 4,
        "{} of {written} secrets are left: the frames were not used again",
        left.secrets
    );
    Ok(())
}

/// A guest that needs more frames than it may have ends with the reason. The other one goes on.
pub fn limit(machines: &Machines) -> anyhow::Result<()> {
    let guests = [machines.bare("greedy", 1, "touch=50M"), machines.bare(WATCHES, 2, "watch=500")];
    let guests = guests.map(|guest| GuestSettings { flags: flags::TEST_SCARCE, ..guest });
    let outcome = machines.ended(guests.into(), Clock::Counted)?;
    let is_why = |error: &&String| {
        let why = error.strip_prefix(r#"the guest "greedy" cannot go on: "#);
        why.is_some_and(|why| why.contains("no memory is left to back the guest at "))
    };
    ensure!(outcome.control.errors.iter().any(|error| is_why(&error)), "{:?}", outcome.control.errors);
    let ended = r#"guest "greedy": error"#;
    ensure!(outcome.control.log.iter().any(|line| line == ended), "no `{ended}` in {:?}", outcome.control.log);
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(console.contains("[watches] guest check: ok"), "{console}");
    Ok(())
}

/// How long a guest watches beside one that ends by itself.
const WATCH: u64 = 10_000;

fn beside_a_watch(machines: &Machines, hostile: GuestSettings, milliseconds: u64) -> anyhow::Result<Outcome> {
    let watches = machines.bare(WATCHES, 2, &format!("watch={milliseconds}"));
    let (outcome, left) = filled(machines, vec![watches, hostile], false)?;
    ensure!(
        left.secrets >= SECRETS,
        "only {} words of RAM are secrets: the search for them shows nothing",
        left.secrets
    );
    let console = outcome.console.tail(usize::MAX);
    let all = || console.join("\n");
    ensure!(outcome.status == Some(exit::POWER_OFF), "{:?}, {:?}:\n{}", outcome.status, outcome.control.errors, all());
    let [first] = ends(&outcome)[..] else { anyhow::bail!("{:?}", outcome.control.log) };
    ensure!(first.ends_with(": power-off"), "{first}:\n{}", all());
    let ok = format!("[{WATCHES}] guest check: ok");
    ensure!(console.contains(&ok.as_str()), "no `{ok}`:\n{}", all());
    let ticks = figure(&outcome, "[watches] watch: ", " ticks")?;
    ensure!(ticks > 0, "no tick came");
    Ok(outcome)
}

/// Boots guests on two CPUs and RAM that is filled with the pattern, and looks at what is left there.
fn filled(machines: &Machines, guests: Vec<GuestSettings>, deterministic: bool) -> anyhow::Result<(Outcome, Left)> {
    let workspace = machines.workspace();
    let directory = tempfile::Builder::new().prefix("isolation-").tempdir_in(workspace.runs()?)?;
    let path = directory.path().join("memory");
    let machine = Machine {
        image: workspace.image(build::HYPERVISOR.name),
        loaded: Loaded::Guest {
            bundle: Bundle::write(&guests, &directory.path().join("guest.bundle"))?,
            memory: bundle::total_memory(&guests),
        },
        spare_memory: 0,
        append: None,
        cpu: machine::CPU_DEFAULT.to_owned(),
        cpus: 2,
        memory_file: Some(path.clone()),
        deterministic,
    };
    fill(&path, machine.memory())?;
    let launch = Launch {
        qemu: machines.qemu(),
        machine: &machine,
        directory: directory.path(),
        trace: None,
        // Against hangs.
        timeout: Some(Duration::from_secs(900)),
        stop: workspace.stop().clone(),
    };
    let outcome = launch.run(|_| ())?;
    let code = build::code(workspace, build::HYPERVISOR)?;
    let left = look(&path, &code)?;
    Ok((outcome, left))
}

const CHUNK: usize = 1 << 20;

/// Fills a file of this size with the pattern.
fn fill(path: &Path, size: u64) -> anyhow::Result<()> {
    let chunk = canary::MACHINE.to_le_bytes().repeat(CHUNK / 4);
    let mut file = File::create(path)?;
    for _ in 0..size.div_ceil(CHUNK as u64) {
        file.write_all(&chunk).context("cannot write the machine's memory")?;
    }
    Ok(())
}

/// What a machine leaves in its RAM.
struct Left {
    /// Words that are a guest's secrets.
    secrets: u64,
}

/// Looks at a machine's RAM after its end.
fn look(path: &Path, code: &[u8]) -> anyhow::Result<Left> {
    let mut file = File::open(path)?;
    let mut chunk = vec![0; CHUNK];
    let (mut untouched, mut secrets, mut of_image, mut at) = (0_u64, 0_u64, Vec::new(), 0);
    while file.read_exact(&mut chunk).is_ok() {
        for word in chunk.chunks_exact(8) {
            let half = |at: usize| u32::from_le_bytes([word[at], word[at + 1], word[at + 2], word[at + 3]]);
            untouched += u64::from((half(0), half(4)) == (canary::MACHINE, canary::MACHINE));
            secrets += u64::from(half(4) == canary::GUEST);
        }
        // The boot loader puts the image at a multiple of 2 MiB.
        if (at / CHUNK).is_multiple_of(2) && chunk[..HEADER] == code[..HEADER] {
            of_image.clear();
        }
        if of_image.len() < code.len() && (!of_image.is_empty() || chunk[..HEADER] == code[..HEADER]) {
            of_image.extend_from_slice(&chunk);
        }
        at += CHUNK;
    }
    ensure!(of_image.len() >= code.len(), "EL2's code is not in the machine's RAM");
    let changed = of_image.iter().zip(code).position(|(left, built)| left != built);
    ensure!(changed.is_none(), "EL2's code has changed at offset {:#x}", changed.unwrap_or_default());
    ensure!(untouched > 0, "no word of RAM is the pattern, so the search for it shows nothing");
    Ok(Left { secrets })
}

/// Bytes by which the image is recognized: more than its header.
const HEADER: usize = 256;
/// Words that two vCPUs keep, 1 MiB each.
const SECRETS: u64 = 2 << 17;
