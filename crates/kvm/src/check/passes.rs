// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that the guest does its passes: what it wrote, the state it left, the number of accesses.

use std::collections::HashMap;
use std::time::Duration;
use std::{slice, thread};

use rustix::thread::sched_getaffinity;
use twofold_workload::pass::Pass;

use super::case::{Check, Stopped, ensure};
use super::guests::{MODE, PAGES, in_mode, modes, options, shared, writes};
use crate::guest::KvmGuest;
use crate::measure::counts_instructions;
use crate::options::{Backing, KvmOptions};

pub(super) fn checks() -> Vec<Check> {
    let modes = modes().map(|mode| Check::new(format!("passes: mode {mode}"), move || in_order(&in_mode(mode))));
    let of = |backing| KvmOptions { backing, ..options(1) };
    let backings =
        Backing::ALL.map(|backing| Check::new(format!("passes: backing {backing}"), move || in_order(&of(backing))));
    let others = [
        Check::new("passes: a share is written, the others read", share),
        Check::new("passes: random order", random_order),
        Check::new("passes: groups of places", groups),
        Check::new("passes: several in one run", several),
        Check::new("passes: two vCPUs, a region each", two_vcpus),
        Check::new("passes: two vCPUs, one region", overlap),
        Check::new("passes: a run continues the run before", going_on),
        Check::new("passes: continuous, until stopped", continuous),
        Check::new("passes: a vCPU without passes", none),
        Check::new("passes: pinned vCPUs", pinned),
        Check::new("passes: the cost of a run", took),
    ];
    modes.chain(backings).chain(others).collect()
}

fn in_order(options: &KvmOptions) -> Result<(), Stopped> {
    let guest = KvmGuest::new(options)?;
    let region = guest.region(0);
    let size = PAGES * options.mode.granule.size();
    ensure(region.end - region.start == size, || format!("a region of {region:x?}"))?;
    compare(&guest, &[vec![Pass { value: 0x1234_5678_9abc_def0, ..writes(&guest, 0, 0) }]])
}

fn share() -> Result<(), Stopped> {
    let guest = KvmGuest::new(&options(1))?;
    let pass = Pass { write_percent: 25, random: 1, ..writes(&guest, 0, 7) };
    let written = pass.accesses().filter(|access| access.write).count();
    ensure(written > 100 && written < 300, || format!("{written} writes"))?;
    compare(&guest, &[vec![pass]])
}

fn random_order() -> Result<(), Stopped> {
    let guest = KvmGuest::new(&options(1))?;
    compare(&guest, &[vec![Pass { random_order: 1, write_percent: 60, random: 99, ..writes(&guest, 0, 7) }]])
}

/// Five groups, 130 pages apart, of 70 places two pages apart, in both orders. The first is not at the region's start.
fn groups() -> Result<(), Stopped> {
    let guest = KvmGuest::new(&options(1))?;
    let page = MODE.granule.size();
    for random_order in [0, 1] {
        let pass = Pass {
            start: guest.region(0).start + 3 * page + 8,
            outer_count: 5,
            outer_stride: 130 * page,
            inner_count: 70,
            inner_stride: 2 * page,
            value: 5 + random_order,
            random: 3,
            write_percent: 80,
            random_order,
        };
        compare(&guest, &[vec![pass]])?;
    }
    Ok(())
}

fn several() -> Result<(), Stopped> {
    let guest = KvmGuest::new(&options(1))?;
    let base = writes(&guest, 0, 1);
    let reads = Pass { write_percent: 0, random: 5, ..base };
    let half = Pass { value: 2, inner_count: base.inner_count / 2, inner_stride: 2 * base.inner_stride, ..base };
    let some = Pass { value: 3, write_percent: 10, random_order: 1, random: 17, ..base };
    compare(&guest, &[vec![base, reads, half, some]])
}

fn two_vcpus() -> Result<(), Stopped> {
    let guest = KvmGuest::new(&options(2))?;
    let of = |vcpu| Pass { write_percent: 50, random: 11 + vcpu as u64, ..writes(&guest, vcpu, 40 + vcpu as u64) };
    ensure(guest.region(0).end == guest.region(1).start, || "the regions are not adjacent".to_owned())?;
    compare(&guest, &[vec![of(0)], vec![of(1)]])
}

/// Both vCPUs write the same value to the same region, so the order of their writes does not matter.
fn overlap() -> Result<(), Stopped> {
    let guest = KvmGuest::new(&shared(2))?;
    ensure(guest.region(0) == guest.region(1), || "the vCPUs do not share one region".to_owned())?;
    let of = |random| Pass { random_order: 1, write_percent: 30, random, ..writes(&guest, 0, 9) };
    compare(&guest, &[vec![of(21)], vec![of(22)]])
}

fn going_on() -> Result<(), Stopped> {
    let guest = KvmGuest::new(&options(1))?;
    let mut passes = vec![Pass { random_order: 1, write_percent: 50, random: 123, ..writes(&guest, 0, 1) }];
    for value in 1..4 {
        passes[0].value = value;
        compare(&guest, &[passes.clone()])?;
        passes = guest.passes_left(0);
    }
    Ok(())
}

fn continuous() -> Result<(), Stopped> {
    let guest = KvmGuest::new(&options(1))?;
    let half = Pass { write_percent: 50, random: 9, inner_count: 333, ..writes(&guest, 0, 4) };
    let passes = vec![Pass { random_order: 1, ..writes(&guest, 0, 3) }, half];
    guest.start(slice::from_ref(&passes))?;
    // The loop ends only if the guest goes on beyond its two passes.
    while guest.is_running() && guest.accesses()[0] < 6 * PAGES {
        thread::sleep(Duration::from_millis(1));
    }
    let time = guest.stop()?;
    let done = time.vcpus[0].accesses;
    ensure(done >= 6 * PAGES, || format!("{time:?}"))?;
    // The guest stops at any access, and leaves the generator's state of that access.
    let (left, expected) = (guest.passes_left(0), over_and_over(passes, done));
    ensure(left == expected, || format!("after {done} accesses {left:x?}\ninstead of {expected:x?}"))?;
    // Afterwards the guest can run again, once through its passes.
    let time = guest.run(&[vec![writes(&guest, 0, 5)]])?;
    ensure(time.vcpus[0].accesses == PAGES, || format!("{time:?}"))
}

fn none() -> Result<(), Stopped> {
    let guest = KvmGuest::new(&options(2))?;
    compare(&guest, &[vec![], vec![writes(&guest, 1, 6)]])?;
    guest.start(&[vec![], vec![writes(&guest, 1, 7)]])?;
    ensure(guest.is_running(), || "the second vCPU does not run".to_owned())?;
    let time = guest.stop()?;
    ensure(time.vcpus[0].accesses == 0, || format!("{time:?}"))
}

fn pinned() -> Result<(), Stopped> {
    let refused = |errno| Stopped::Skip(format!("sched_getaffinity: {errno}"));
    let allowed = sched_getaffinity(None).map_err(refused)?;
    let cpu = (0..1024).find(|cpu| allowed.is_set(*cpu)).unwrap_or(0);
    let guest = KvmGuest::new(&KvmOptions { cpus: vec![cpu, cpu], ..options(2) })?;
    compare(&guest, &[vec![writes(&guest, 0, 1)], vec![writes(&guest, 1, 1)]])
}

fn took() -> Result<(), Stopped> {
    let guest = KvmGuest::new(&options(1))?;
    let time = guest.run(&[vec![writes(&guest, 0, 1)]])?;
    let vcpu = time.vcpus[0];
    ensure(vcpu.accesses == PAGES, || format!("{} accesses", vcpu.accesses))?;
    ensure(time.wall == vcpu.cost.wall && !vcpu.cost.cpu.is_zero(), || format!("{time:?}"))?;
    // Each page faults, and a fault takes more than a hundred instructions in the kernel.
    let enough = vcpu.cost.instructions.is_none_or(|count| count > 100 * PAGES);
    let counted = vcpu.cost.instructions.is_some() == counts_instructions();
    ensure(enough && counted, || format!("{:?} instructions of the kernel", vcpu.cost.instructions))
}

/// Returns the passes as they are left after `count` accesses.
fn over_and_over(mut passes: Vec<Pass>, mut count: u64) -> Vec<Pass> {
    for index in (0..passes.len()).cycle() {
        let mut accesses = passes[index].accesses();
        let done = accesses.by_ref().take(count as usize).count() as u64;
        passes[index].random = accesses.random();
        count -= done;
        if count == 0 {
            return passes;
        }
    }
    passes
}

/// Runs the passes, and compares the memory, the generators' states and the number of accesses with what the passes
/// define.
fn compare(guest: &KvmGuest, passes: &[Vec<Pass>]) -> Result<(), Stopped> {
    let before: Vec<_> = passes.iter().flatten().flat_map(Pass::accesses).map(|access| access.va).collect();
    let mut memory: HashMap<_, _> = before.iter().map(|va| (*va, word(guest, *va))).collect();
    let time = guest.run(passes)?;
    for (vcpu, passes) in passes.iter().enumerate() {
        let mut expected = Vec::new();
        let mut count = 0;
        for pass in passes {
            let mut accesses = pass.accesses();
            for access in accesses.by_ref() {
                count += 1;
                if access.write {
                    memory.insert(access.va, Some(pass.value));
                }
            }
            expected.push(Pass { random: accesses.random(), ..*pass });
        }
        let left = guest.passes_left(vcpu);
        ensure(left == expected, || format!("vCPU {vcpu} left {left:x?}\ninstead of {expected:x?}"))?;
        let done = time.vcpus[vcpu].accesses;
        ensure(done == count, || format!("vCPU {vcpu} did {done} accesses instead of {count}"))?;
    }
    let differs = memory.into_iter().find(|(va, value)| value.is_none() || word(guest, *va) != *value);
    differs.map_or(Ok(()), |(va, value)| {
        Err(Stopped::Wrong(format!("at {va:#x} there is {:x?} instead of {value:x?}", word(guest, va))))
    })
}

fn word(guest: &KvmGuest, va: u64) -> Option<u64> {
    guest.read_guest(guest.gpa(va)?)
}
