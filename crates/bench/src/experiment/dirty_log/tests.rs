// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Logs report exactly the guest's writes, for every workload, mode and tracker; on the hosted machine.

use twofold_memory::dirty::Tracker;
use twofold_workload::mode::{MODES, Mode};
use twofold_workload::pass::Pass;
use twofold_workload::policies::{Policies, Policy};

use super::judge::Expected;
use super::load::LAST_SEED;
use super::{Check, Load, Run};
use crate::experiment::machine::Machines;
use crate::experiment::setup::{Backing, Setup};
use crate::experiment::target::{REGION, Targets};
use crate::results::Quantity;
use crate::stop::Stop;

const MIB: u64 = 1 << 20;

fn setup(mode: &str) -> Setup {
    Setup { region: 16 * MIB, ..Setup::new(Mode::find(mode).unwrap()) }
}

/// A checked run, in memory that earlier guests have used.
fn run(machines: &mut Machines, setup: &Setup, load: &Load) -> Run {
    let mut target = machines.make(setup).unwrap_or_else(|error| panic!("{setup:?}: {error:#}"));
    let run = Run::measure(&mut *target, setup, load, Check::Exactly, &Stop::never());
    run.unwrap_or_else(|error| panic!("{setup:?}, {load:?}: {error:#}")).unwrap()
}

/// Writes to a quarter of the places, in random order.
const SCATTERED: Load = Load { iterations: 3, write_percent: 25, random_order: true, ..Load::DEFAULT };

#[test]
fn every_mode_with_every_tracker() {
    let mut machines = Machines::new();
    let mut modes = 0;
    for mode in MODES {
        let setup = setup(mode.name);
        if machines.make(&setup).is_err() {
            assert!(mode.pa_bits == Some(52) || mode.va_bits == 64, "{mode} is one that the machine has");
            continue;
        }
        modes += 1;
        for tracker in Tracker::ALL {
            run(&mut machines, &Setup { tracker, ..setup.clone() }, &SCATTERED);
        }
    }
    assert_eq!(modes, 11);
}

#[test]
fn two_vcpus_apart_and_in_one_region_and_several_slots() {
    let mut machines = Machines::new();
    for (overlap, slots) in [(false, 1), (true, 1), (false, 3), (true, 4)] {
        for tracker in Tracker::ALL {
            for backing in [Backing::Anonymous, Backing::AnonymousThp] {
                let region = 12 * MIB;
                let setup = Setup { vcpus: 2, region, overlap, slots, tracker, backing, ..setup("p40v48-4k") };
                run(&mut machines, &setup, &SCATTERED);
            }
        }
    }
}

#[test]
fn memory_only_where_it_is_used() {
    // In the middle of a block, so that no block fits.
    let setup = Setup { offset: Some((5 << 30) + 64 * 1024), backing: Backing::AnonymousThp, ..setup("p40v48-64k") };
    let run = run(&mut Machines::new(), &setup, &SCATTERED);
    assert!(run.populate[&Quantity::TranslationFaults] > 256.0, "{run:?}");
}

#[test]
fn every_backing_and_chunk() {
    let mut machines = Machines::new();
    for backing in [Backing::Anonymous, Backing::AnonymousThp, Backing::Shmem] {
        for chunk in [0, 4096, 1 << 30] {
            for tracker in Tracker::ALL {
                run(&mut machines, &Setup { backing, chunk, tracker, ..setup("p36v48-4k") }, &SCATTERED);
            }
        }
    }
}

/// In sparse memory, which is smaller than its size.
#[test]
fn blocks_of_1_gib() {
    let mut machines = Machines::new();
    let wide = setup("p40v48-64k");
    for tracker in Tracker::ALL {
        for chunk in [0, 2 * MIB] {
            let setup = Setup {
                region: 1 << 30,
                backing: Backing::AnonymousHugetlb1G,
                sparse: true,
                tracker,
                chunk,
                ..wide.clone()
            };
            let run = run(&mut machines, &setup, &SCATTERED);
            assert_eq!(run.populate[&Quantity::Faults], 2.0, "one is for the guest's own tables: {setup:?}");
        }
    }
}

#[test]
fn every_policy() {
    let mut machines = Machines::new();
    let here = Setup { vcpus: 2, region: 8 * MIB, backing: Backing::AnonymousThp, ..setup("p40v48-4k") };
    let setups = Policy::ALL.map(|policy| Setup {
        policies: Policies::default().with(policy),
        forced_write_back: policy.key() != "cmo",
        ..here.clone()
    });
    for setup in setups {
        for tracker in Tracker::ALL {
            run(&mut machines, &Setup { tracker, ..setup.clone() }, &SCATTERED);
        }
    }
}

#[test]
fn the_guest_may_run_on_while_logging_ends() {
    let load = Load { run_while_disabling: true, ..Load::DEFAULT };
    run(&mut Machines::new(), &Setup { vcpus: 2, ..setup("p40v48-4k") }, &load);
}

/// The same faults as `dirty_log_perf_test` with and without `-g`.
#[test]
fn faults_come_where_pages_are_protected() {
    let mut machines = Machines::new();
    let pages = (16 * MIB / 4096) as f64;
    let setup = setup("p40v48-4k");
    let faults = |run: &Run| run.iterations.iter().map(|round| round.dirty[&Quantity::Faults]).collect::<Vec<_>>();
    let manual = run(&mut machines, &setup, &Load::DEFAULT);
    assert_eq!(faults(&manual), [0.0, pages], "nothing is protected before it is cleared");
    assert_eq!(manual.iterations[0].get[&Quantity::Pages], pages);
    let at_once = run(&mut machines, &Setup { tracker: Tracker::WriteProtect, ..setup.clone() }, &Load::DEFAULT);
    assert_eq!(faults(&at_once), [pages, pages], "all is protected when logging is enabled");
    assert!(at_once.iterations.iter().all(|round| round.clear.is_none()));
    let hardware = run(&mut machines, &Setup { tracker: Tracker::Hardware, ..setup.clone() }, &Load::DEFAULT);
    assert_eq!(faults(&hardware), [0.0, 0.0]);
    // A guest page of 64 KiB is 16 pages of the log, and the first of them is touched.
    let wide = run(&mut machines, &Setup { mode: Mode::find("p40v48-64k").unwrap(), ..setup }, &Load::DEFAULT);
    assert_eq!(wide.iterations[1].get[&Quantity::Pages], pages / 16.0);
}

#[test]
fn an_exit_costs_what_it_is_said_to() {
    let mut machines = Machines::new();
    let setup = Setup { exit_cost: 1_000_000_000, ..setup("p40v48-4k") };
    let run = run(&mut machines, &setup, &Load::DEFAULT);
    let dirty = &run.iterations[1].dirty;
    let least = dirty[&Quantity::Faults] * 1e9;
    assert!(dirty[&Quantity::Time] >= least && dirty[&Quantity::CpuTime] >= least, "{dirty:?}");
}

/// In Linux 6.12's test, the first vCPU's generator starts at 0 and stays there: it writes its first page repeatedly.
#[test]
fn a_generator_that_stands_still() {
    let load = Load { seed: 0, ..SCATTERED };
    let setup = Setup { vcpus: 2, tracker: Tracker::WriteProtect, ..setup("p40v48-4k") };
    let stands = load.passes(&setup).map(|mut passes| {
        load.rounds(&mut passes);
        passes
    });
    let passes = stands.unwrap();
    assert!(passes[0][0].accesses().all(|access| access.write && access.va == REGION));
    // The second vCPU has the accesses of a first vCPU with the seed 1.
    let mut next = Load { seed: 1, ..load }.passes(&setup).unwrap();
    Load { seed: 1, ..load }.rounds(&mut next);
    let drawn = |passes: &[Pass], from: u64| passes[0].accesses().map(move |access| (access.va - from, access.write));
    assert!(drawn(&passes[1], passes[1][0].start).eq(drawn(&next[0], REGION)));
    let run = run(&mut Machines::new(), &setup, &load);
    let second = run.iterations[2].get[&Quantity::Pages] - 1.0;
    assert!((1.0..4096.0).contains(&second), "{second} pages of the second vCPU's");
    let reads = Load { write_percent: 0, ..load };
    let mut none = reads.passes(&setup).unwrap();
    reads.rounds(&mut none);
    assert!(none.iter().flatten().flat_map(Pass::accesses).all(|access| !access.write));
}

#[test]
fn a_checked_run_tells_which_pages_were_dirty() {
    let (mut machines, setup) = (Machines::new(), setup("p40v48-4k"));
    let checked = run(&mut machines, &setup, &SCATTERED);
    for round in &checked.iterations {
        let reported = round.reported.unwrap();
        assert_eq!((reported.pages, reported.dirty as f64), (4096, round.get[&Quantity::Pages]));
    }
    let [first, second, third] = [0, 1, 2].map(|number| checked.iterations[number].reported.unwrap());
    assert!(first != second && second.sum != third.sum, "each round writes other pages");
    let again = run(&mut machines, &Setup { tracker: Tracker::Combined, ..setup.clone() }, &SCATTERED);
    assert_eq!(again.iterations[2].reported, Some(third), "another tracker reports the same pages");
    let mut target = machines.make(&setup).unwrap();
    let timed = Run::measure(&mut *target, &setup, &SCATTERED, Check::No, &Stop::never()).unwrap().unwrap();
    assert!(timed.iterations.iter().all(|round| round.reported.is_none()));
}

#[test]
fn a_log_that_tells_too_little_or_too_much_is_wrong() {
    let setup = setup("p40v48-4k");
    let passes = Load::DEFAULT.passes(&setup).unwrap();
    let all: Vec<u64> = (0..16 * MIB / 4096).collect();
    let expected = Expected::of(&setup, &passes, false, 4096);
    expected.check(&all).unwrap();
    let lost = expected.check(&all[1..]).unwrap_err().to_string();
    assert!(lost.contains("1 pages were written") && lost.contains("page 0"), "{lost}");
    assert!(expected.check(&[&all[..], &[1 << 40]].concat()).is_err());
    let none = Expected::of(&setup, &[], false, 4096);
    assert!(none.check(&[7]).unwrap_err().to_string().contains("1 were not"));
}

#[test]
fn loads_that_make_no_sense() {
    let setup = setup("p40v48-4k");
    for load in [
        Load { iterations: 1, ..Load::DEFAULT },
        Load { write_percent: 101, ..Load::DEFAULT },
        Load { seed: LAST_SEED + 1, ..Load::DEFAULT },
    ] {
        assert!(load.passes(&setup).is_err(), "{load:?}");
    }
    for seed in [0, LAST_SEED] {
        assert!(Load { seed, ..Load::DEFAULT }.passes(&setup).is_ok());
    }
}
