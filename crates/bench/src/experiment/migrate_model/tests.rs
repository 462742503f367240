// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The whole way, for a small guest: charges add up, equal seeds give equal figures, and the report shows them.

use twofold_memory::dirty::Tracker;

use super::measure;
use super::migration::{Moved, migrate};
use super::plan::{Guest, Hot, Plan};
use super::prices::{Picos, Prices};
use super::{break_even, judge};
use crate::experiment::progress::Progress;
use crate::report::{Detail, text};
use crate::results::{Kind, Results};
use crate::stop::Stop;

/// A small guest on a slow link, so that a page takes as long as a few faults.
const SMALL: &str = "--memory 4M --link 200M --runs 4 --no-sweep";

fn guest(load: u64) -> Guest {
    Guest { load, ..Plan::of_line(SMALL).unwrap().guest }
}

fn results(line: &str) -> Results {
    let plan = Plan::of_line(line).unwrap();
    measure::results(&plan, &Progress::new(plan.steps()).unwrap(), &Stop::never()).unwrap()
}

#[test]
fn what_is_charged_adds_up_to_the_clocks() {
    for (tracker, hot) in
        Tracker::ALL.into_iter().flat_map(|tracker| [(tracker, Hot::Scattered), (tracker, Hot::Together)])
    {
        let guest = Guest { vcpus: 2, hot, ..guest(80) };
        let moved = migrate(&guest, tracker, 3).unwrap();
        let Moved { spent, sent, migration, downtime, vcpus, clocks, finished, alone, .. } = moved;
        let prices = Prices::STATED;
        assert_eq!(spent.link, guest.byte() * sent.bytes, "{tracker:?}");
        assert_eq!(spent.start + spent.get + spent.clear, prices.of(&spent.events), "{tracker:?}");
        assert_eq!(spent.stop, prices.stop + prices.state);
        assert_eq!((spent.wait, migration), (Picos::ZERO, spent.sum()));
        assert!(downtime > spent.stop && downtime < migration);
        for (did, clock) in vcpus.iter().zip(&clocks) {
            assert_eq!(*clock, did.computing + did.throttled + did.faulting + did.recording, "{tracker:?}");
            // The last write may still be computed or faulting.
            let begun = did.computing.get() / guest.step().get();
            assert_eq!(did.computing, guest.step() * begun);
            assert!((did.writes..=did.writes + 1).contains(&begun) && did.faults + did.records <= begun);
            assert_eq!(did.recording, prices.record * did.records);
            let local = prices.local_tlbi * did.events.local_tlbis + prices.local_dsb * did.events.local_dsbs;
            assert!(did.faulting >= prices.fault * did.faults + local, "{tracker:?}: {did:?}");
            // A vCPU stands still where the migration's clock was then, or after the exit that it was in.
            let stopped = migration - downtime + prices.stop;
            let slack = guest.step() * 5 + Picos::nanos(1_000_000);
            assert!(*clock + slack > stopped && *clock < stopped + slack, "{tracker:?}: {did:?}");
        }
        assert!(finished >= alone && (tracker == Tracker::Hardware) == vcpus.iter().all(|did| did.faults == 0));
        assert_eq!(vcpus.iter().any(|did| did.records > 0), tracker.needs_dirty_state(), "{tracker:?}");
    }
}

#[test]
fn the_guest_writes_at_its_rate_and_each_page_is_sent() {
    let guest = guest(20);
    let moved = migrate(&guest, Tracker::Hardware, 1).unwrap();
    let did = moved.vcpus[0];
    assert!(moved.sent.pages >= guest.bytes / 4096 && moved.sent.rounds == moved.rounds.len() as u64);
    assert_eq!(moved.rounds[0].0, guest.bytes / 4096);
    // In a round, as many writes as the load says.
    let whole = (moved.migration - moved.downtime).get() / guest.step().get();
    assert!(did.writes <= whole + 1 && did.writes * 100 > whole * 95, "{} of {whole}", did.writes);
    assert!(moved.downtime.as_nanos() <= guest.downtime.as_nanos() as f64 && moved.throttle == 0);
}

#[test]
fn equal_options_have_equal_figures_and_another_seed_has_others() {
    let line = "--memory 4M --link 200M --runs 1 --no-sweep";
    let [one, again, other] = ["", "", " --seed 9"].map(|seed| results(&format!("{line}{seed}")).measurements);
    assert_eq!(one, again);
    assert_ne!(one, other);
}

#[test]
fn all_is_marked_modelled_and_a_file_shows_what_the_run_showed() {
    let results = results(&format!("{SMALL} -v"));
    assert!(results.measurements.iter().all(|one| one.kind == Kind::Modelled && one.runs.len() == 4));
    assert_eq!(results.measurements.len(), 5 * 2 * 6);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.json");
    results.write(&path).unwrap();
    let read = Results::read(&path).unwrap();
    for detail in [Detail::Summary, Detail::All] {
        assert_eq!(text(&read, detail), text(&results, detail));
    }
    let shown = text(&read, Detail::Summary);
    for wanted in
        ["guest's work at 80 %", "migration at 20 %", "downtime at 80 %", "write-protect", "adaptive", "modelled"]
    {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    crate::report::write_html(&directory.path().join("model.html"), &read).unwrap();
}

/// Only the guest that was fixed beforehand is judged.
#[test]
fn another_guest_is_not_judged() {
    let plan = Plan::of_line(SMALL).unwrap();
    assert_eq!(judge::rows(&plan, &results("--memory 4M --link 200M --runs 1 --no-sweep")), []);
    assert_eq!(judge::missing_rows("no").len(), 9);
    let results = results(SMALL);
    assert!(judge::rows_of(&results).iter().all(|row| row.gain.is_some() || row.after.is_some()));
}

#[test]
fn the_table_of_loads_has_a_row_for_each() {
    let mut plan = Plan::of_line(SMALL).unwrap();
    plan.sweep = vec![10, 50, 100];
    let rows = break_even::rows(&plan, &Progress::new(1).unwrap(), &Stop::never()).unwrap();
    let shown = break_even::shown(&rows);
    assert!(
        shown.starts_with("modelled") && ["10 %", "50 %", "100 %"].iter().all(|load| shown.contains(load)),
        "{shown}"
    );
    let sentences = break_even::sentences(&rows);
    assert_eq!(sentences.len(), 6);
    assert!(sentences[3].starts_with("break-even of adaptive with write-protect: "), "{sentences:?}");
}
