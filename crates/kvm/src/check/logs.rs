// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that KVM's logs hold exactly the pages that the passes write, and that no page is lost while vCPUs go on
//! writing.

use twofold_workload::pass::Pass;

use super::case::{Check, Stopped, ensure};
use super::guests::{MODE, PAGES, in_mode, modes, options, shared, writes, written};
use crate::bitmap::Bitmap;
use crate::guest::KvmGuest;
use crate::options::{Backing, Clearing, KvmOptions, Log};

pub(super) fn checks() -> Vec<Check> {
    let modes = modes().map(|mode| Check::new(format!("logs: mode {mode}"), move || rounds(&in_mode(mode))));
    let large = [Backing::AnonymousThp, Backing::AnonymousHugetlb2Mb, Backing::AnonymousHugetlb1Gb];
    let backings = large.map(|backing| Check::new(format!("logs: backing {backing}"), move || large_pages(backing)));
    let others = [
        Check::new("logs: read and thereby cleared", by_get),
        Check::new("logs: cleared manually", manual),
        Check::new("logs: all dirty to begin with", initially_set),
        Check::new("logs: a part is cleared", part),
        Check::new("logs: started and stopped", started_and_stopped),
        Check::new("logs: several slots", slots),
        Check::new("logs: two vCPUs, one region", overlap),
        Check::new("logs: every chunk that splits ahead", chunks),
        Check::new("logs: rings", rings),
        Check::new("logs: rings that are too small", full_rings),
        Check::new("logs: no page is lost, read and thereby cleared", none_lost_by_get),
        Check::new("logs: no page is lost, cleared manually", none_lost_manual),
        Check::new("logs: no page is lost, initially set", none_lost_initially_set),
        Check::new("logs: no page is lost, rings", none_lost_ring),
    ];
    modes.chain(backings).chain(others).collect()
}

fn by_get() -> Result<(), Stopped> {
    rounds(&with(options(1), Log::Bitmap(Clearing::ByGet)))
}

fn manual() -> Result<(), Stopped> {
    rounds(&with(options(1), Log::Bitmap(Clearing::Manual)))
}

fn initially_set() -> Result<(), Stopped> {
    let guest = KvmGuest::new(&with(options(1), Log::Bitmap(Clearing::ManualInitiallySet)))?;
    if guest.granted().log != Log::Bitmap(Clearing::ManualInitiallySet) {
        return Err(Stopped::Skip("KVM has no KVM_DIRTY_LOG_INITIALLY_SET here".to_owned()));
    }
    guest.enable_log(0)?;
    let mut log = Bitmap::new(guest.slot_pages());
    guest.get_log(0, &mut log)?;
    ensure(log == Bitmap::full(guest.slot_pages()), || format!("{} of {} at first", log.count(), log.pages()))?;
    rounds(&with(options(1), Log::Bitmap(Clearing::ManualInitiallySet)))
}

/// Pages stay dirty until they are cleared.
fn part() -> Result<(), Stopped> {
    let guest = KvmGuest::new(&with(options(1), Log::Bitmap(Clearing::Manual)))?;
    let pages = guest.slot_pages();
    guest.run(&[vec![writes(&guest, 0, 1)]])?;
    guest.enable_log(0)?;
    let passes = [vec![writes(&guest, 0, 2)]];
    guest.run(&passes)?;
    let mut expected = written(&guest, &passes).remove(0);
    let mut log = Bitmap::new(pages);
    guest.get_log(0, &mut log)?;
    ensure(log == expected, || differs(&log, &expected))?;

    // Every third page of the second and third word.
    let mut some = Bitmap::new(pages);
    (64..192).step_by(3).for_each(|page| some.set(page));
    guest.clear_log(0, 64..192, &some)?;
    let mut rest = Bitmap::new(pages);
    expected.iter().filter(|page| !some.has(*page)).for_each(|page| rest.set(page));
    guest.get_log(0, &mut log)?;
    ensure(log == rest, || differs(&log, &rest))?;

    // A page that was cleared is dirty again once it is written.
    guest.run(&[vec![Pass { inner_count: 128, ..writes(&guest, 0, 3) }]])?;
    (0..128).for_each(|page| rest.set(host_page(page, &guest)));
    expected = rest;
    guest.get_log(0, &mut log)?;
    ensure(log == expected, || differs(&log, &expected))
}

fn started_and_stopped() -> Result<(), Stopped> {
    let guest = KvmGuest::new(&with(options(1), Log::Bitmap(Clearing::Manual)))?;
    let mut log = Bitmap::new(guest.slot_pages());
    for value in 1..4 {
        // The log does not run yet.
        guest.run(&[vec![writes(&guest, 0, value)]])?;
        guest.enable_log(0)?;
        guest.get_log(0, &mut log)?;
        ensure(log.count() == 0, || format!("round {value}: {} pages before any was written", log.count()))?;
        let passes = [vec![Pass { write_percent: 40, random: 70 + value, ..writes(&guest, 0, value + 10) }]];
        guest.run(&passes)?;
        guest.get_log(0, &mut log)?;
        let expected = &written(&guest, &passes)[0];
        ensure(log == *expected, || format!("round {value}: {}", differs(&log, expected)))?;
        guest.disable_log(0)?;
    }
    Ok(())
}

fn slots() -> Result<(), Stopped> {
    rounds(&KvmOptions { slots: 3, ..with(options(2), Log::Bitmap(Clearing::ManualInitiallySet)) })?;
    rounds(&KvmOptions { slots: 3, ..with(options(2), Log::Bitmap(Clearing::ByGet)) })
}

fn overlap() -> Result<(), Stopped> {
    rounds(&with(shared(2), Log::Bitmap(Clearing::ManualInitiallySet)))
}

/// Checks that a block of the host's tables is logged by pages.
fn large_pages(backing: Backing) -> Result<(), Stopped> {
    rounds(&KvmOptions { backing, ..with(options(1), Log::Bitmap(Clearing::ByGet)) })?;
    rounds(&KvmOptions { backing, ..with(options(1), Log::Bitmap(Clearing::ManualInitiallySet)) })
}

/// arm64: checks each chunk that KVM supports.
fn chunks() -> Result<(), Stopped> {
    let supported = KvmGuest::new(&options(1))?.granted().chunks.clone();
    if supported.is_empty() {
        return Err(Stopped::Skip("KVM supports no eager-split chunk here".to_owned()));
    }
    for chunk in supported {
        for clearing in [Clearing::ByGet, Clearing::ManualInitiallySet] {
            for backing in [Backing::Anonymous, Backing::AnonymousThp] {
                let options = KvmOptions { chunk, backing, ..with(options(1), Log::Bitmap(clearing)) };
                rounds(&options)?;
            }
        }
    }
    Ok(())
}

fn rings() -> Result<(), Stopped> {
    rounds(&with(options(1), Log::Ring { entries: 4096 }))?;
    rounds(&KvmOptions { slots: 2, ..with(shared(2), Log::Ring { entries: 4096 }) })
}

/// The passes write more pages than a ring has entries. The vCPUs stop, empty it and continue, and no page is lost.
fn full_rings() -> Result<(), Stopped> {
    const ENTRIES: u64 = 1024;
    let size = 3 * ENTRIES * MODE.granule.size();
    let log = Log::Ring { entries: ENTRIES as u32 };
    let guest = KvmGuest::new(&with(KvmOptions::new(MODE, size), log))?;
    guest.enable_log(0)?;
    let passes = [vec![writes(&guest, 0, 1)]];
    let time = guest.run(&passes)?;
    // A page of the host may be larger than one of the guest.
    let expected = &written(&guest, &passes)[0];
    let stops = time.vcpus[0].ring_full;
    ensure(expected.count() <= ENTRIES || stops >= 2, || format!("the ring was full {stops} times"))?;
    guest.collect_ring()?;
    let log = guest.take_ring_log(0)?;
    ensure(log == *expected, || differs(&log, expected))
}

fn none_lost_by_get() -> Result<(), Stopped> {
    none_lost(Log::Bitmap(Clearing::ByGet))
}

fn none_lost_manual() -> Result<(), Stopped> {
    none_lost(Log::Bitmap(Clearing::Manual))
}

fn none_lost_initially_set() -> Result<(), Stopped> {
    none_lost(Log::Bitmap(Clearing::ManualInitiallySet))
}

fn none_lost_ring() -> Result<(), Stopped> {
    none_lost(Log::Ring { entries: 2048 })
}

fn with(options: KvmOptions, log: Log) -> KvmOptions {
    KvmOptions { log, ..options }
}

/// The phases of the experiment: everything is written, the log starts, and in each round the dirty pages must be those
/// written since the round before. The vCPUs continue their random sequences from round to round.
fn rounds(options: &KvmOptions) -> Result<(), Stopped> {
    let guest = KvmGuest::new(options)?;
    let vcpus = options.vcpus as usize;
    guest.run(&(0..vcpus).map(|vcpu| vec![writes(&guest, vcpu, 1)]).collect::<Vec<_>>())?;
    let log = Running::of(&guest)?;
    let random =
        |vcpu: usize| Pass { random_order: 1, write_percent: 25, random: 5 + vcpu as u64, ..writes(&guest, vcpu, 2) };
    let ordered = |vcpu: usize| Pass { inner_count: 97, ..writes(&guest, vcpu, 3) };
    let mut passes: Vec<_> = (0..vcpus).map(|vcpu| vec![random(vcpu), ordered(vcpu)]).collect();
    for round in 0..3 {
        let expected = written(&guest, &passes);
        guest.run(&passes)?;
        for (slot, (dirty, expected)) in log.dirty()?.iter().zip(&expected).enumerate() {
            ensure(dirty == expected, || format!("round {round}, slot {slot}: {}", differs(dirty, expected)))?;
        }
        passes = (0..vcpus).map(|vcpu| guest.passes_left(vcpu)).collect();
        // Fewer pages each time, so that a page that was not cleared would show.
        passes.iter_mut().for_each(|passes| passes[1].inner_count /= 2);
    }
    Ok(())
}

/// Keeps a copy of the guest's memory by the log alone, while vCPUs write without pause. If the copy differs from the
/// memory in the end, the log lost a write.
fn none_lost(kind: Log) -> Result<(), Stopped> {
    let guest = KvmGuest::new(&KvmOptions { slots: 2, ..with(shared(2), kind) })?;
    let log = Running::of(&guest)?;
    let mut copy = vec![vec![0; guest.slot_pages() as usize]; guest.slots()];
    let passes = |vcpu: usize| -> Vec<_> {
        let some = |value| Pass { random_order: 1, write_percent: 70, random: 31 + value, ..writes(&guest, 0, value) };
        (1..5).map(|value| some(value + 10 * vcpu as u64)).collect()
    };
    guest.start(&[passes(0), passes(1)])?;
    let mut rounds = 0;
    while guest.is_running() && (rounds < 20 || guest.accesses().iter().any(|done| *done < 8 * PAGES)) {
        log.copy(&mut copy)?;
        rounds += 1;
    }
    guest.stop()?;
    log.copy(&mut copy)?;
    for (slot, copied) in copy.iter().enumerate() {
        let lost = copied.iter().enumerate().find(|(page, value)| read_page(&guest, slot, *page as u64) != **value);
        if let Some((page, value)) = lost {
            let now = read_page(&guest, slot, page as u64);
            return Err(Stopped::Wrong(format!(
                "slot {slot}, page {page} is {now}, but was {value} when it was last in the log"
            )));
        }
    }
    Ok(())
}

/// A running log.
struct Running<'g> {
    guest: &'g KvmGuest,
}

impl<'g> Running<'g> {
    /// Starts the log of all slots, and clears the pages that are dirty by then.
    fn of(guest: &'g KvmGuest) -> Result<Self, Stopped> {
        for slot in 0..guest.slots() {
            guest.enable_log(slot)?;
        }
        let running = Self { guest };
        running.dirty()?;
        Ok(running)
    }

    /// Returns the dirty pages of each slot, and clears them.
    fn dirty(&self) -> Result<Vec<Bitmap>, Stopped> {
        let guest = self.guest;
        if let Log::Ring { .. } = guest.granted().log {
            guest.collect_ring()?;
            guest.reset_ring()?;
            return (0..guest.slots()).map(|slot| Ok(guest.take_ring_log(slot)?)).collect();
        }
        let mut all = Vec::new();
        for slot in 0..guest.slots() {
            let mut log = Bitmap::new(guest.slot_pages());
            guest.get_log(slot, &mut log)?;
            if guest.granted().log != Log::Bitmap(Clearing::ByGet) {
                guest.clear_log(slot, 0..guest.slot_pages(), &log)?;
            }
            all.push(log);
        }
        Ok(all)
    }

    /// Copies the first word of each dirty page.
    fn copy(&self, copy: &mut [Vec<u64>]) -> Result<(), Stopped> {
        for (slot, dirty) in self.dirty()?.iter().enumerate() {
            for page in dirty.iter() {
                copy[slot][page as usize] = read_page(self.guest, slot, page);
            }
        }
        Ok(())
    }
}

/// Returns the first word of a page.
fn read_page(guest: &KvmGuest, slot: usize, page: u64) -> u64 {
    let start = guest.layout.slot(slot).map_or(0, |slot| slot.start);
    guest.read_guest(start + page * guest.granted().page).unwrap_or(u64::MAX)
}

/// Returns the host page in which a guest page begins.
fn host_page(page: u64, guest: &KvmGuest) -> u64 {
    page * MODE.granule.size() / guest.granted().page
}

fn differs(log: &Bitmap, expected: &Bitmap) -> String {
    let missing: Vec<_> = expected.iter().filter(|page| !log.has(*page)).take(8).collect();
    let extra: Vec<_> = log.iter().filter(|page| !expected.has(*page)).take(8).collect();
    format!(
        "{} pages are in the log, {} were written; written and not in the log: {missing:?}; \
         in the log and not written: {extra:?}",
        log.count(),
        expected.count()
    )
}
