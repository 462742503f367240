// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Experiments under the hypervisor: a log reports exactly the written pages, equal runs have equal figures, and each
//! technique has its expected gain.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use twofold_abi::bundle::flags;
use twofold_abi::vendor::{TRACKERS, WRITE_PROTECT};
use twofold_launch::experiment::{DirtyLog, PageTable, Phase, Platform, Program};
use twofold_launch::{Counted, Experiment, ExperimentError, GuestSettings, Pages, machine};
use twofold_workload::mode::{Mode, S0_MODES};
use twofold_workload::pass::Pass;
use twofold_workload::policies::{Cmo, Coalesce, Policies, Split, Tables};
use twofold_workspace::{build, install};

use super::suite::Suite;

/// A log reports the written pages and no others, in each mode of Bras 2026, with 16 KiB granules, and with each
/// tracker. The expected number is computed from the same passes on the host.
pub fn report_what_was_written(suite: &Suite) -> anyhow::Result<()> {
    let modes = S0_MODES.into_iter().chain(["p40v48-16k", "p36v47-16k"]);
    let log = |tracker| DirtyLog { tracker, write_percent: 30, random_order: true, seed: 7, ..DirtyLog::default() };
    for name in modes {
        check_pages(suite, log(WRITE_PROTECT), name, 1)?;
    }
    for tracker in 0..TRACKERS.len() {
        check_pages(suite, log(tracker), "p40v48-4k", 1)?;
        check_pages(suite, DirtyLog { iterations: 3, chunk: 0, ..log(tracker) }, "p36v48-4k", 4)?;
    }
    let all_dirty = DirtyLog { all_dirty: true, ..log(TRACKERS.len() - 1) };
    check_pages(suite, all_dirty, "p40v48-4k", 1)
}

fn check_pages(suite: &Suite, log: DirtyLog, mode: &str, slots: u32) -> anyhow::Result<()> {
    let (all_dirty, granule) = (log.all_dirty, mode_of(mode)?.granule.size());
    let (iterations, seed, percent) = (log.iterations, log.seed, log.write_percent);
    let what = format!("{log:?} in {mode}");
    let experiment = Experiment { slots, ..experiment(Program::DirtyLog(log), mode, Pages::Auto)? };
    let counted = run(suite, &experiment, machine::CPU_DEFAULT)?;
    // The guest's generator continues from one iteration to the next.
    let populate = Pass { random: seed.into(), ..Pass::writes(0, BYTES / granule, granule) };
    let mut accesses = populate.accesses();
    accesses.by_ref().for_each(drop);
    ensure!(counted.times("get").len() == iterations as usize, "{what}: {counted:?}");
    for (iteration, get) in counted.times("get").iter().enumerate() {
        let (write_percent, random) = (percent.into(), accesses.random());
        accesses = Pass { write_percent, random_order: 1, random, ..populate }.accesses();
        let writes = accesses.by_ref().filter(|access| access.write);
        let written = writes.map(|access| access.va / PAGE).collect::<BTreeSet<_>>().len() as u64;
        let expected = if all_dirty && iteration == 0 { BYTES / PAGE } else { written };
        let reported = get.get("pages");
        ensure!(reported == expected, "{what}: get {} reports {reported} pages, not {expected}", iteration + 1);
    }
    Ok(())
}

/// The combined tracker costs at most 10 % of write-protect in the dirty phase. It costs at most 60 % in dirty, get and
/// clear together, because a cost that only moves is not saved.
pub fn combined_is_worth_it(suite: &Suite) -> anyhow::Result<()> {
    let spent = |tracker: &str| -> anyhow::Result<[u64; 2]> {
        let tracker = TRACKERS.iter().position(|name| *name == tracker).context("a tracker")?;
        let program = Program::DirtyLog(DirtyLog { tracker, ..DirtyLog::default() });
        let counted = run(suite, &experiment(program, "p40v48-4k", Pages::Small)?, machine::CPU_DEFAULT)?;
        // The first iteration may differ from the others.
        let last = |name| counted.times(name).last().map_or(0, |phase| phase.get("instructions"));
        Ok([last("dirty"), last("dirty") + last("get") + last("clear")])
    };
    let ([before, before_all], [after, after_all]) = (spent("write_protect")?, spent("combined")?);
    ensure!(after > 0 && after * 10 <= before, "dirty: {after} instructions, beside {before}");
    ensure!(after_all * 10 <= before_all * 6, "dirty, get and clear: {after_all} instructions, beside {before_all}");
    Ok(())
}

/// No exit of an experiment keeps interrupts masked for more than `most` instructions, except for the calls by which its
/// guest measures itself: with each tracker, and where EL2 cleans the blocks that it maps.
pub fn masked(suite: &Suite, most: u64) -> anyhow::Result<()> {
    let log = |tracker| Program::DirtyLog(DirtyLog { tracker, ..DirtyLog::default() });
    let mut experiments = Vec::new();
    for tracker in 0..TRACKERS.len() {
        experiments.push(experiment(log(tracker), "p40v48-4k", Pages::Small)?);
        experiments.push(experiment(log(tracker), "p40v48-4k", Pages::Auto)?);
    }
    let blocks = Program::PageTable(PageTable { block: BLOCK, chunk: 0, coalesce: true });
    experiments.push(Experiment { forced_write_back: false, ..experiment(blocks, "p40v48-4k", Pages::Auto)? });
    for experiment in experiments {
        let counted = run(suite, &experiment, machine::CPU_DEFAULT)?;
        let stretches: Vec<_> = counted.report.under("longest_masked").collect();
        ensure!(stretches.iter().any(|(_, instructions)| *instructions > 300), "{experiment:?}: {stretches:?}");
        for (key, instructions) in stretches {
            let is_call = ["hvc", "phase"].contains(&key);
            ensure!(is_call || instructions <= most, "{experiment:?}: {key} masks for {instructions} instructions");
        }
    }
    Ok(())
}

/// Equal experiments have equal figures.
pub fn repeat(suite: &Suite) -> anyhow::Result<()> {
    let log = Program::DirtyLog(DirtyLog { tracker: TRACKERS.len() - 1, ..DirtyLog::default() });
    let programs = [log, Program::PageTable(PageTable { block: 2 << 20, chunk: 0, coalesce: true })];
    for program in programs {
        let experiment = experiment(program, "p36v48-64k", Pages::Auto)?;
        let [first, second] = [(); 2].map(|()| run(suite, &experiment, machine::CPU_DEFAULT));
        let (first, second) = (first?, second?);
        ensure!(first == second, "two runs differ:\n{first:#?}\n{second:#?}");
    }
    Ok(())
}

/// Blocks are mapped, split by writes, and coalesced again. Caches are cleaned when memory is first mapped, and not
/// again (Wang 2021).
pub fn page_table(suite: &Suite) -> anyhow::Result<()> {
    let blocks = BYTES / BLOCK;
    let program = Program::PageTable(PageTable { block: BLOCK, chunk: 0, coalesce: true });
    let experiment = Experiment { forced_write_back: false, ..experiment(program, "p40v48-4k", Pages::Auto)? };
    let counted = run(suite, &experiment, machine::CPU_DEFAULT)?;
    let phase = |name: &str| -> anyhow::Result<&Phase> {
        match counted.times(name) {
            [phase] => Ok(phase),
            times => bail!("{name}: {times:?}"),
        }
    };
    let expected = [
        ("create", "mapped.blocks_2m", blocks),
        ("create", "faults.first_touch", blocks),
        ("create", "cache.lines_cleaned", BYTES / LINE),
        ("update", "faults.write", blocks),
        ("update", "tables.allocated", blocks),
        ("update", "cache.lines_cleaned", 0),
        ("coalesce", "blocks", blocks),
        ("coalesce", "tables.freed", blocks),
    ];
    for (name, key, expected) in expected {
        let found = phase(name)?.get(key);
        ensure!(found == expected, "{name}: {key} is {found}, not {expected}:\n{counted:#?}");
    }
    ensure!(phase("coalesce")?.sum("tlbi") == 2 * blocks, "coalesce: {:?}", phase("coalesce")?);
    // An interrupt of EL2's timer may fall into this phase: the guest prints before it, and the console sends its bytes
    // later. An exit for each page, or for each block, would cost more.
    let adjust = phase("adjust")?;
    let is_quiet = adjust.get("instructions") < blocks * 350 && adjust.get("faults.translation") == 0;
    ensure!(is_quiet, "reads after the log leave the guest: {adjust:?}");
    let program = Program::PageTable(PageTable { block: PAGE, chunk: 0, coalesce: false });
    let counted = run(suite, &self::experiment(program, "p40v48-4k", Pages::Small)?, machine::CPU_DEFAULT)?;
    let figure = |name, key| counted.times(name).iter().map(|phase| phase.get(key)).sum::<u64>();
    let (created, updated) = (figure("create", "mapped.pages_4k"), figure("update", "faults.write"));
    ensure!((created, updated) == (BYTES / PAGE, BYTES / PAGE), "{created} pages, {updated} write faults");
    ensure!(figure("create", "cache.lines_cleaned") == 0, "lines are cleaned where write-back is forced");
    Ok(())
}

/// Preallocated backing is mapped by the largest possible blocks; the log splits one of 1 GiB.
pub fn given(suite: &Suite) -> anyhow::Result<()> {
    const GIB: u64 = 1 << 30;
    let program = Program::PageTable(PageTable { block: GIB, chunk: 0, coalesce: true });
    let huge = Experiment { bytes: GIB, given: Some(1), ..experiment(program, "p40v48-4k", Pages::Auto)? };
    let counted = run(suite, &huge, machine::CPU_DEFAULT)?;
    let figure = |name, key| counted.times(name).iter().map(|phase| phase.get(key)).sum::<u64>();
    let expected = [
        ("create", "mapped.blocks_1g", 1),
        ("create", "faults.translation", 1),
        ("create", "memory.frames_zeroed", 0),
        ("update", "faults.write", 1),
        ("coalesce", "blocks", 1),
        ("adjust", "faults.translation", 0),
    ];
    for (name, key, expected) in expected {
        let found = figure(name, key);
        ensure!(found == expected, "{name}: {key} is {found}, not {expected}:\n{counted:#?}");
    }
    ensure!(figure("update", "tables.allocated") == figure("coalesce", "tables.freed"), "{counted:#?}");
    Ok(())
}

/// Each baseline does what its name says, and the plain image has no baselines.
pub fn baselines(suite: &Suite) -> anyhow::Result<()> {
    let on = Policies::default();
    let image = build::MEASURING_HYPERVISOR.image(&suite.workspace);
    let count = |program: &Program, policies| {
        let experiment = experiment(program.clone(), "p40v48-4k", Pages::Auto)?;
        run_on(suite, &image, &Experiment { policies, forced_write_back: false, ..experiment }, machine::CPU_DEFAULT)
    };
    let sum = |counted: &Counted, name: &str, what: &str| -> u64 {
        counted.times(name).iter().map(|phase| phase.get(what) + phase.sum(what)).sum()
    };
    let log = Program::DirtyLog(DirtyLog::default());
    let visits =
        |split| -> anyhow::Result<u64> { Ok(sum(&count(&log, Policies { split, ..on })?, "enable", "split.visits")) };
    let (ours, skip, every) = (visits(Split::Records)?, visits(Split::SkipLeaves)?, visits(Split::EveryLevel)?);
    ensure!(ours == 0 && skip >= BYTES / BLOCK && every >= skip + BYTES / PAGE, "visits: {ours}, {skip}, {every}");
    let tables = Program::PageTable(PageTable { block: BLOCK, chunk: 0, coalesce: true });
    let (ours, first) = (count(&tables, on)?, count(&tables, Policies { coalesce: Coalesce::FreeFirst, ..on })?);
    let freed = |counted| sum(counted, "coalesce", "tables.freed");
    ensure!(freed(&ours) == BYTES / BLOCK && freed(&first) == freed(&ours), "{ours:#?}\n{first:#?}");
    let on_abort = Policies { cmo: Cmo::OnAbort, ..on };
    let more = count(&tables, Policies { tables: Tables::Always, ..on_abort })?;
    let lines = |counted| sum(counted, "create", "cache.lines_cleaned");
    ensure!(lines(&ours) == BYTES / LINE && lines(&more) >= lines(&ours), "{ours:#?}\n{more:#?}");
    let plain = Experiment { policies: on_abort, ..experiment(tables, "p40v48-4k", Pages::Auto)? };
    let Err(error) = run(suite, &plain, machine::CPU_DEFAULT) else { bail!("the plain image has baselines") };
    ensure!(format!("{error:#}").contains("feature `baselines`"), "{error:#}");
    Ok(())
}

/// If a CPU lacks a feature that an experiment needs, the guest or the hypervisor reports which.
pub fn refused(suite: &Suite) -> anyhow::Result<()> {
    let small = |mode, tracker| {
        let program = Program::DirtyLog(DirtyLog { tracker, ..DirtyLog::default() });
        experiment(program, mode, Pages::Small)
    };
    let combined = TRACKERS.len() - 2;
    for (experiment, words) in [
        (small("p40v48-16k", WRITE_PROTECT)?, ["no Kib16 granule", "ID_AA64MMFR0_EL1"]),
        (small("p40v48-4k", combined)?, ["this CPU records no writes", "FEAT_HAFDBS"]),
    ] {
        let Err(error) = run(suite, &experiment, "cortex-a57") else { bail!("{experiment:?} went well") };
        let text = format!("{error:#}");
        let is_it = matches!(error.downcast_ref(), Some(ExperimentError::Unsupported(_)));
        ensure!(is_it && words.iter().all(|word| text.contains(word)), "no {words:?} in:\n{text}");
    }
    Ok(())
}

/// A guest that may not measure itself gets "not supported" for these calls.
pub fn not_allowed(suite: &Suite) -> anyhow::Result<()> {
    let experiment = experiment(Program::DirtyLog(DirtyLog::default()), "p40v48-4k", Pages::Auto)?;
    let guest = experiment.guest(&suite.workspace.image(build::GUEST.name))?;
    let boot = |flags| suite.boot(GuestSettings { flags, ..guest.clone() });
    let Err(error) = boot(0) else { bail!("the guest measured itself") };
    let text = format!("{error:#}");
    ensure!(text.contains("the hypervisor answered PHASE with -1"), "no word of the call in:\n{text}");
    let outcome = boot(flags::MEASURE)?;
    let pages = outcome.control.report.get("phase.get.2.pages");
    ensure!(pages == Some(BYTES / PAGE), "phase.get.2.pages is {pages:?}");
    Ok(())
}

const BYTES: u64 = 16 << 20;
const PAGE: u64 = 4 << 10;
const BLOCK: u64 = 2 << 20;
/// The size of a data cache line of QEMU's CPU, in bytes.
const LINE: u64 = 64;

fn experiment(program: Program, mode: &str, pages: Pages) -> anyhow::Result<Experiment> {
    let mode = mode_of(mode)?;
    Ok(Experiment {
        program,
        bytes: BYTES,
        slots: 1,
        mode,
        ipa_bits: None,
        pages,
        given: None,
        policies: Policies::default(),
        forced_write_back: true,
    })
}

fn mode_of(name: &str) -> anyhow::Result<Mode> {
    Mode::find(name).with_context(|| format!("no mode {name}"))
}

fn run(suite: &Suite, experiment: &Experiment, cpu: &str) -> anyhow::Result<Counted> {
    run_on(suite, &suite.workspace.image(build::HYPERVISOR.name), experiment, cpu)
}

fn run_on(suite: &Suite, image: &Path, experiment: &Experiment, cpu: &str) -> anyhow::Result<Counted> {
    let platform = Platform {
        qemu: &install::qemu()?,
        image,
        guest: &suite.workspace.image(build::GUEST.name),
        cpu,
        timeout: Some(LIMIT),
        stop: suite.workspace.stop().clone(),
    };
    experiment.run(&platform).with_context(|| format!("{experiment:?} on {cpu}"))
}

/// The limit against hangs.
const LIMIT: Duration = Duration::from_secs(120);
