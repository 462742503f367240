// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A plain form of the dirty log's experiment, for this host's KVM: `dirty_log BYTES [MODE [BACKING [CHUNK]]]`. It has
//! one vCPU, manual clearing, and two rounds that write every page. `twofold bench dirty-log --on kvm` is the full
//! experiment.

use std::env;
use std::error::Error;

use twofold_kvm::{Backing, Bitmap, Cost, KvmGuest, KvmOptions};
use twofold_workload::mode::Mode;
use twofold_workload::pass::Pass;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let argument = |index: usize, default: &'static str| arguments.get(index).map_or(default, String::as_str);
    let bytes = argument(0, "67108864").parse()?;
    let mode = Mode::find(argument(1, "pxxv48-4k")).ok_or("no such mode")?;
    let backing = Backing::find(argument(2, "anonymous")).ok_or("no such backing")?;
    let chunk = argument(3, "0").parse()?;
    let guest = KvmGuest::new(&KvmOptions { backing, chunk, ..KvmOptions::new(mode, bytes) })?;

    let page = mode.granule.size();
    let pages = bytes / page;
    let show = |what: &str, cost: Cost| {
        let instructions = cost.instructions.map_or("-".to_owned(), |count| (count / pages).to_string());
        println!("{what:10} {:>12.3?} {instructions:>8} instructions a page", cost.wall);
    };
    let passes = [vec![Pass::writes(guest.region(0).start, pages, page)]];
    let dirty = || guest.run(&passes).map(|time| time.vcpus[0].cost);
    show("populate", dirty()?);
    show("enable", guest.enable_log(0)?);
    let mut log = Bitmap::new(guest.slot_pages());
    for _ in 0..2 {
        show("dirty", dirty()?);
        show("get", guest.get_log(0, &mut log)?);
        println!("{:10} {:>12} pages", "", log.count());
        show("clear", guest.clear_log(0, 0..log.pages(), &log)?);
    }
    show("disable", guest.disable_log(0)?);
    Ok(())
}
