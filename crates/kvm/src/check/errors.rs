// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that impossible requests are refused, each with the right error.

use std::thread;
use std::time::Duration;

use twofold_workload::pass::Pass;

use super::case::{Check, Stopped, ensure};
use super::guests::{MODE, PAGES, modes, options, writes};
use crate::bitmap::Bitmap;
use crate::error::KvmError;
use crate::guest::KvmGuest;
use crate::options::{Backing, Clearing, KvmOptions, Log};
use crate::system::System;

pub(super) fn checks() -> Vec<Check> {
    vec![
        Check::new("errors: impossible options", no_guest),
        Check::new("errors: more memory than there is", too_much),
        Check::new("errors: a chunk that is not supported", chunk),
        Check::new("errors: passes that leave the region", passes),
        Check::new("errors: a guest that is already running", running),
        Check::new("errors: an exception in the guest", fault),
        Check::new("errors: logs of slots and pages that do not exist", logs),
    ]
}

fn no_guest() -> Result<(), Stopped> {
    available()?;
    refused(&options(0), |error| matches!(error, KvmError::Options(_)))?;
    refused(&KvmOptions { slots: 0, ..options(1) }, |error| matches!(error, KvmError::Options(_)))?;
    refused(&KvmOptions { cpus: vec![0], ..options(3) }, |error| matches!(error, KvmError::Options(_)))?;
    refused(&KvmOptions { cpus: vec![100_000], ..options(1) }, |error| {
        matches!(error, KvmError::Pin { cpu: 100_000, .. })
    })?;
    refused(&options(1 << 20), |error| matches!(error, KvmError::TooMany { what: "vCPUs", .. }))?;
    refused(&KvmOptions { slots: 1 << 24, ..options(1) }, |error| matches!(error, KvmError::TooMany { .. }))?;
    let odd = KvmOptions { log: Log::Ring { entries: 3000 }, ..options(1) };
    refused(&odd, |error| matches!(error, KvmError::Options(_) | KvmError::Missing { .. }))?;
    let other = twofold_workload::mode::MODES.into_iter().filter(|mode| !modes().any(|ours| ours == *mode));
    for mode in other {
        refused(&KvmOptions { mode, ..options(1) }, |error| matches!(error, KvmError::Mode { .. }))?;
    }
    Ok(())
}

fn too_much() -> Result<(), Stopped> {
    available()?;
    let free = System::this().available().ok_or_else(|| Stopped::Skip("no /proc/meminfo".to_owned()))?;
    let large = |error: &KvmError| matches!(error, KvmError::NoMemory { .. } | KvmError::TooLarge { .. });
    refused(&KvmOptions::new(MODE, 2 * free), large)?;
    refused(&KvmOptions::new(MODE, 1 << 60), |error| matches!(error, KvmError::TooLarge { .. }))?;
    let pages = System::this().free_huge_pages(2 << 20) + 1;
    let huge = KvmOptions { backing: Backing::AnonymousHugetlb2Mb, ..KvmOptions::new(MODE, pages << 21) };
    refused(&huge, |error| matches!(error, KvmError::NoHugePages { needed, .. } if *needed == pages) || large(error))
}

fn chunk() -> Result<(), Stopped> {
    let odd = KvmOptions { chunk: 3 << 20, ..options(1) };
    let x86 = |error: &KvmError| matches!(error, KvmError::ChunkOnX86 { .. });
    let arm = |error: &KvmError| matches!(error, KvmError::Chunk { .. } | KvmError::Missing { .. });
    available()?;
    refused(&odd, if cfg!(target_arch = "x86_64") { x86 } else { arm })
}

fn passes() -> Result<(), Stopped> {
    let guest = KvmGuest::new(&options(1))?;
    let good = writes(&guest, 0, 1);
    let far = |pass: Pass| -> Result<(), Stopped> {
        let error = guest.run(&[vec![pass]]).err();
        ensure(matches!(error, Some(KvmError::Nowhere(_))), || format!("{pass:x?}: {error:?}"))
    };
    far(Pass { start: good.start - 8, ..good })?;
    far(Pass { start: good.start + 4, ..good })?;
    far(Pass { inner_count: good.inner_count + 1, ..good })?;
    far(Pass { outer_count: 2, outer_stride: 1 << 40, ..good })?;
    far(Pass { inner_stride: u64::MAX / 8 * 8, ..good })?;
    let other = [
        guest.run(&[vec![good; 5]]),
        guest.run(&[vec![good], vec![good]]),
        guest.run(&[vec![Pass { random: 0, ..good }]]),
        guest.run(&[vec![Pass { random: (1 << 31) - 1, ..good }]]),
    ];
    let refused = other.iter().all(|result| matches!(result, Err(KvmError::Options(_))));
    ensure(refused, || format!("{other:?}"))?;
    guest.run(&[vec![good]])?;
    Ok(())
}

/// The run returns an error with the address, and so does each later run. The other vCPU still completes its passes.
fn fault() -> Result<(), Stopped> {
    let guest = KvmGuest::new(&options(2))?;
    let wild = Pass { start: 0x7000_0000_0000, ..writes(&guest, 0, 1) };
    let passes = [vec![wild], vec![writes(&guest, 1, 2)]];
    for _ in 0..2 {
        let error = guest.run_unchecked(&passes).err();
        let is_reported = matches!(&error, Some(KvmError::Guest { vcpu: 0, what }) if what.contains("700000000000"));
        ensure(is_reported, || format!("{error:?}"))?;
        ensure(guest.accesses()[1] == PAGES, || format!("{:?} accesses", guest.accesses()))?;
    }
    guest.start(&[vec![writes(&guest, 0, 3)], vec![writes(&guest, 1, 3)]])?;
    while guest.is_running() {
        thread::sleep(Duration::from_millis(1));
    }
    let error = guest.stop().err();
    ensure(matches!(error, Some(KvmError::Guest { vcpu: 0, .. })), || format!("{error:?}"))
}

fn running() -> Result<(), Stopped> {
    let guest = KvmGuest::new(&options(1))?;
    let passes = [vec![writes(&guest, 0, 1)]];
    guest.start(&passes)?;
    let second = guest.run(&passes).err();
    ensure(second == Some(KvmError::Running), || format!("{second:?}"))?;
    guest.stop()?;
    guest.run(&passes)?;
    Ok(())
}

fn logs() -> Result<(), Stopped> {
    let guest = KvmGuest::new(&KvmOptions { log: Log::Bitmap(Clearing::Manual), ..options(1) })?;
    let mut bitmap = Bitmap::new(guest.slot_pages());
    let off = guest.get_log(0, &mut bitmap).err();
    ensure(matches!(off, Some(KvmError::Refused { what: "KVM_GET_DIRTY_LOG", .. })), || format!("{off:?}"))?;
    guest.enable_log(0)?;
    let nowhere = [
        guest.enable_log(1),
        guest.get_log(1, &mut bitmap),
        guest.get_log(0, &mut Bitmap::new(1)),
        guest.clear_log(0, 0..65, &bitmap),
        guest.clear_log(0, 1..64, &bitmap),
        guest.clear_log(0, 64..64, &bitmap),
        guest.clear_log(0, 0..guest.slot_pages() + 64, &bitmap),
    ];
    ensure(nowhere.iter().all(|result| matches!(result, Err(KvmError::Nowhere(_)))), || format!("{nowhere:?}"))?;
    let rings = guest.collect_ring().err();
    ensure(matches!(rings, Some(KvmError::Options(_))), || format!("{rings:?}"))?;
    guest.clear_log(0, 64..128, &bitmap)?;
    guest.clear_log(0, 640..guest.slot_pages(), &bitmap)?;
    Ok(())
}

fn available() -> Result<(), Stopped> {
    Ok(crate::guest::available()?)
}

fn refused(options: &KvmOptions, is: impl Fn(&KvmError) -> bool) -> Result<(), Stopped> {
    match KvmGuest::new(options) {
        Err(error) => ensure(is(&error), || format!("{options:?}: {error:?}: {error}")),
        Ok(_) => Err(Stopped::Wrong(format!("{options:?}: a guest was made, and an error was expected"))),
    }
}
