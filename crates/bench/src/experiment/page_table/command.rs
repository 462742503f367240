// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench page-table`: variants in turns, run by run.

use std::process::ExitCode;

use anyhow::{Context, ensure};
use twofold_memory::dirty::Tracker;
use twofold_workload::mode::Mode;

use super::{Between, Stage, Stages, check};
use crate::arguments::{self, PageTableOptions};
use crate::experiment::hypervisor::{self, Hypervisor};
use crate::experiment::machine::{MachineTarget, Machines};
use crate::experiment::progress::Progress;
use crate::experiment::record::{Variant, Who};
use crate::experiment::setup::{Cmo, Coalesce, Policies, Setup, Split, Tables};
use crate::experiment::target::{Taken, Targets};
use crate::experiment::{self, outcome};
use crate::readable;
use crate::results::{Platform, Results};
use crate::stop::Stop;

/// `twofold bench page-table`.
///
/// # Errors
///
/// Nothing was measured: options contradict each other, a file cannot be written, memory does not fit, or the platform
/// is not available. A check failed: a stage left wrong leaves or contents.
pub fn command(options: &PageTableOptions) -> anyhow::Result<ExitCode> {
    let setups = setups(options)?;
    outcome::check(&options.output)?;
    let mut place = match options.on {
        Platform::Machine => Place::Machine(Machines::new()),
        Platform::Hypervisor => return counted(options, &setups),
        Platform::Kvm => Place::Other(experiment::on(options.on)?),
    };
    let stop = Stop::on_signal()?;
    let mut results = Results::begin();
    results.notes = notes(&setups, options.on);
    if let Place::Other(targets) = &place {
        targets.describe(&mut results);
    }
    measure(&mut place, &setups, options.runs, &mut results, &stop)?;
    outcome::show(&results, &options.output)
}

/// Counts each variant once on the hypervisor, because all runs are identical.
fn counted(options: &PageTableOptions, setups: &[Setup]) -> anyhow::Result<ExitCode> {
    let stop = Stop::on_signal()?;
    let mut results = Results::begin();
    let progress = Progress::new(setups.len() as u64)?;
    let hypervisor = Hypervisor::find(options.images.as_deref(), &stop, |what| progress.doing(what))?;
    hypervisor.describe(&mut results);
    for setup in setups {
        progress.doing(shown(setup));
        // The hypervisor coalesces blocks ahead of the guest's accesses.
        let counted = hypervisor.page_table(setup, true);
        if stop.is_requested() {
            results.interrupted = true;
            break;
        }
        let variant = Variant::new("page-table", Platform::Hypervisor, setup);
        hypervisor::record(&counted.with_context(|| shown(setup))?, &variant, &mut results);
        progress.done();
    }
    drop(progress);
    outcome::show(&results, &options.output)
}

/// The platform that makes the guests.
enum Place {
    /// A guest's tables and memory can be inspected.
    Machine(Machines),
    /// They cannot.
    Other(Box<dyn Targets>),
}

impl Place {
    /// Runs all stages of a guest, checked or not.
    fn once(&mut self, setup: &Setup, is_checked: bool) -> anyhow::Result<Vec<(Stage, Taken)>> {
        let stages = Stages::new(setup)?;
        match self {
            // Sparse memory holds the last value written to any alias, so it is not checked.
            Self::Machine(machines) => {
                stages.run(&mut machines.guest(setup)?, |target: &mut MachineTarget, between| match between {
                    Between::LogStarted => stages.unmap_what_is_huge(target),
                    Between::After(stage) if is_checked && !setup.sparse => check(&stages, stage, target),
                    Between::After(_) => Ok(()),
                })
            }
            Self::Other(targets) => stages.run(&mut *targets.make(setup)?, |_, _| Ok(())),
        }
    }
}

/// Runs each variant once in each run. The first run is checked, and not counted.
fn measure(place: &mut Place, setups: &[Setup], runs: u32, results: &mut Results, stop: &Stop) -> anyhow::Result<()> {
    let progress = Progress::new(u64::from(runs + 1) * setups.len() as u64)?;
    for run in 0..=runs {
        for setup in setups {
            if stop.is_requested() {
                results.interrupted = true;
                return Ok(());
            }
            progress.doing(if run == 0 { "checked run".to_owned() } else { format!("run {run} of {runs}") });
            let taken = place.once(setup, run == 0).with_context(|| shown(setup))?;
            for (stage, taken) in taken.iter().filter(|_| run > 0) {
                Variant::new("page-table", results_platform(place), setup).add(
                    results,
                    stage.name(),
                    Who::Guest,
                    taken,
                );
            }
            progress.done();
        }
    }
    Ok(())
}

fn results_platform(place: &Place) -> Platform {
    match place {
        Place::Machine(machines) => machines.platform(),
        Place::Other(targets) => targets.platform(),
    }
}

/// The variants that take turns; baselines come first.
fn setups(options: &PageTableOptions) -> anyhow::Result<Vec<Setup>> {
    check_platform(options)?;
    let cleans = options.policy.iter().any(|choice| choice.key() == "cmo");
    let page = options.backing.page();
    let region = options.bytes.0.checked_next_multiple_of(page).filter(|region| *region > 0);
    let first = Setup {
        vcpus: options.vcpus,
        // Rounded up to whole pages of the backing, as the selftest does.
        region: region.with_context(|| format!("-b {} is not a valid memory size", options.bytes.0))?,
        overlap: true,
        backing: options.backing,
        tracker: Tracker::WriteProtect,
        chunk: 0,
        forced_write_back: !cleans,
        offset: options.offset.map(|offset| offset.0),
        sparse: options.sparse,
        exit_cost: options.exit_cost,
        ..Setup::new(options.mode.map_or_else(|| usual_mode(options.on), Ok)?)
    };
    first.check_pages()?;
    let policies = arguments::policies(&options.policy)?;
    let mut setups: Vec<_> = policies.into_iter().map(|policies| Setup { policies, ..first.clone() }).collect();
    setups.sort_by_key(|setup| std::cmp::Reverse(befores(setup.policies)));
    Ok(setups)
}

/// Refuses options that the platform does not support.
fn check_platform(options: &PageTableOptions) -> anyhow::Result<()> {
    let on = options.on;
    ensure!(options.vcpus > 0, "-v 0: a guest needs at least one vCPU");
    if on != Platform::Machine {
        ensure!(options.exit_cost == 0, "--exit-cost is for the machine: on {on} exits have their real cost");
        ensure!(!options.sparse, "--sparse is for the machine");
    }
    ensure!(
        on != Platform::Kvm || options.policy.is_empty(),
        "--policy is Twofold's: KVM has only the policies of its kernel"
    );
    ensure!(on != Platform::Hypervisor || options.vcpus == 1, "the hypervisor runs one vCPU: -v 1");
    Ok(())
}

/// The number of baselines in a variant.
fn befores(Policies { split, cmo, coalesce, tables }: Policies) -> usize {
    let befores =
        [split == Split::EveryLevel, cmo == Cmo::OnAbort, coalesce == Coalesce::FreeFirst, tables == Tables::Always];
    befores.into_iter().filter(|is| *is).count()
}

fn notes(setups: &[Setup], on: Platform) -> Vec<String> {
    let Some(first) = setups.first() else { return Vec::new() };
    let mut notes = vec!["time is that of the slowest vCPU; CPU time is that of all vCPUs together".to_owned()];
    if first.backing.page() == 4 << 10 {
        notes.push("with pages of 4 KiB nothing is coalesced, and `adjust` has no faults".to_owned());
    } else if on == Platform::Machine {
        notes.push(
            "memory is unmapped when the log starts, so that `update` has the same faults as in KVM (--help)"
                .to_owned(),
        );
    }
    if !first.forced_write_back {
        notes.push("the CPU is one without forced write-back; caches are really cleaned".to_owned());
    }
    if first.exit_cost > 0 {
        notes.push(format!("modelled: {} ns for each fault's exit (--exit-cost)", first.exit_cost));
    }
    if first.sparse {
        notes.push("sparse memory: one small piece, mapped repeatedly; its contents were not checked".to_owned());
    }
    notes
}

/// The variant's settings for an error message, in the words of the command line.
fn shown(setup: &Setup) -> String {
    let configuration = setup.configuration();
    let words = ["vcpus", "bytes", "cmo", "coalesce", "split", "tables"];
    let words = words.into_iter().filter_map(|key| Some(readable::setting(key, configuration.get(key)?)));
    words.collect::<Vec<_>>().join(", ")
}

/// The mode of Wang 2021, by its present name.
fn usual_mode(on: Platform) -> anyhow::Result<Mode> {
    if on == Platform::Kvm && cfg!(target_arch = "x86_64") {
        return Ok(twofold_kvm::KvmOptions::native_mode());
    }
    Mode::find("p40v48-4k").context("there is no such guest mode")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: PageTableOptions,
    }

    fn setups_of(line: &str) -> anyhow::Result<Vec<Setup>> {
        let words = ["page-table"].into_iter().chain(line.split_whitespace());
        setups(&Line::try_parse_from(words)?.options)
    }

    #[test]
    fn s4_by_its_commands() {
        let both = setups_of("-m 6 -s anonymous_thp -b 20G -v 40 --policy cmo=on-map,on-abort").unwrap();
        assert_eq!(both.iter().map(|setup| setup.policies.cmo).collect::<Vec<_>>(), [Cmo::OnAbort, Cmo::OnMap]);
        assert!(both.iter().all(|setup| setup.overlap && setup.region == 20 << 30 && !setup.forced_write_back));
        let one = setups_of("-s anonymous_hugetlb_1gb -b 1M --policy coalesce=free-first").unwrap();
        assert_eq!((one.len(), one[0].region, one[0].forced_write_back), (1, 1 << 30, true));
        assert!(one.iter().chain(&both).all(|setup| Stages::new(setup).is_ok()));
    }

    #[test]
    fn a_variant_is_named_in_the_words_of_the_command_line() {
        let setup = &setups_of("-v 200 --policy coalesce=free-first").unwrap()[0];
        let wanted = "200 vCPUs, 1 GiB, cmo on-map, coalesce free-first, split records, tables when-needed";
        assert_eq!(shown(setup), wanted);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for line in [
            "-v 0",
            "-b 0",
            "-m p40",
            "--on kvm --policy cmo=on-map",
            "--on kvm --exit-cost 5",
            "--on hypervisor -v 2",
            "--policy cmo=on-map --policy cmo=on-abort",
            "--runs 0",
            "-p 0x1001",
        ] {
            assert!(setups_of(line).is_err(), "{line}");
        }
    }

    #[test]
    fn runs_are_of_both_variants_and_the_first_is_none_of_them() {
        let setups = setups_of("-s anonymous_thp -b 8M -v 2 --policy coalesce=free-first,install-first").unwrap();
        let mut results = Results::begin();
        measure(&mut Place::Machine(Machines::new()), &setups, 2, &mut results, &Stop::never()).unwrap();
        let times = |stage: &str| {
            let is = |one: &&crate::results::Measurement| {
                one.phase == stage && one.quantity == crate::results::Quantity::CpuTime
            };
            results.measurements.iter().filter(is).map(|one| one.runs.len()).collect::<Vec<_>>()
        };
        assert_eq!(Stage::ALL.map(|stage| times(stage.name())), [vec![2, 2], vec![2, 2], vec![2, 2]]);
    }
}
