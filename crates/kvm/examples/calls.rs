// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What KVM's own `dirty_log_perf_test` does, by its options. Each of KVM's calls is a line, as `peers/kvm` has them, so that
//! the two can be compared call by call: `cargo xtask peers kvm` does.
//!
//! `calls -b SIZE -i ROUNDS -m MODE -s BACKING -v VCPUS [-g] [-a] [-w PERCENT] [-r SEED]`. TWOFOLD_CHUNK is the eager-split
//! chunk in bytes.

use std::env;
use std::error::Error;

use twofold_kvm::{Backing, Bitmap, Clearing, Cost, KvmGuest, KvmOptions, Log};
use twofold_pattern::mode::Mode;
use twofold_pattern::pass::Pass;

fn main() -> Result<(), Box<dyn Error>> {
    let experiment = Experiment::read(env::args().skip(1))?;
    let guest = KvmGuest::new(&experiment.options)?;
    let page = guest.mode().granule.size();
    let mut passes = Vec::new();
    for vcpu in 0..experiment.options.vcpus {
        let region = guest.region(vcpu as usize);
        let pages = (region.end - region.start) / page;
        // Each vCPU draws its own numbers; the first pass does not depend on them.
        let random = (experiment.seed + u64::from(vcpu)).max(1);
        passes.push(vec![Pass { random, ..Pass::writes(region.start, pages, page) }]);
    }

    // Lines are written when all is done: what is counted has no console in it.
    let mut lines = Vec::new();
    run(&guest, &mut passes, &mut lines)?;
    lines.push(format!("log slot=1 pages={} on=1 {}", guest.slot_pages(), instructions(guest.enable_log(0)?)?));
    for (number, pass) in passes.iter_mut().flatten().enumerate() {
        match experiment.seed + number as u64 {
            // From 0 nothing but 0 is drawn: each access writes, and with `-a` to the first page.
            0 if experiment.is_random => pass.inner_stride = 0,
            0 => {}
            _ => {
                pass.write_percent = experiment.write_percent;
                pass.random_order = experiment.is_random.into();
            }
        }
    }
    let mut log = Bitmap::new(guest.slot_pages());
    for _ in 0..experiment.rounds {
        run(&guest, &mut passes, &mut lines)?;
        let got = guest.get_log(0, &mut log)?;
        lines.push(format!("get {} {}", told(&log), instructions(got)?));
        if experiment.options.log != Log::Bitmap(Clearing::ByGet) {
            let cleared = guest.clear_log(0, 0..log.pages(), &log)?;
            lines.push(format!("clear {} {}", told(&log), instructions(cleared)?));
        }
    }
    lines.push(format!("log slot=1 pages={} on=0 {}", guest.slot_pages(), instructions(guest.disable_log(0)?)?));
    lines.iter().for_each(|line| println!("count: call={line}"));
    Ok(())
}

struct Experiment {
    options: KvmOptions,
    rounds: u64,
    write_percent: u64,
    is_random: bool,
    seed: u64,
}

impl Experiment {
    fn read(arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options = KvmOptions::new(KvmOptions::native_mode(), 64 << 20);
        options.chunk = env::var("TWOFOLD_CHUNK").map_or(Ok(0), |chunk| chunk.parse())?;
        let mut experiment = Self { options, rounds: 2, write_percent: 100, is_random: false, seed: 1 };
        let mut arguments = arguments;
        while let Some(option) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{option} needs a value"));
            match option.as_str() {
                "-a" => experiment.is_random = true,
                "-b" => experiment.options.region = twofold_kvm::Region::Each(size(&value()?)?),
                "-g" => experiment.options.log = Log::Bitmap(Clearing::ByGet),
                "-i" => experiment.rounds = value()?.parse()?,
                "-m" => experiment.options.mode = Mode::find(&value()?).ok_or("there is no such mode")?,
                "-r" => experiment.seed = value()?.parse()?,
                "-s" => experiment.options.backing = Backing::find(&value()?).ok_or("there is no such backing")?,
                "-v" => experiment.options.vcpus = value()?.parse()?,
                "-w" => experiment.write_percent = value()?.parse()?,
                _ => return Err(format!("{option} is not known here").into()),
            }
        }
        Ok(experiment)
    }
}

/// A line for each vCPU. The generators go on where they were: what is next is drawn on.
fn run(guest: &KvmGuest, passes: &mut [Vec<Pass>], lines: &mut Vec<String>) -> Result<(), Box<dyn Error>> {
    let time = guest.run(passes)?;
    for (number, vcpu) in time.vcpus.into_iter().enumerate() {
        lines.push(format!("run {}", instructions(vcpu.cost)?));
        for (pass, left) in passes[number].iter_mut().zip(guest.passes_left(number)) {
            pass.random = left.random;
        }
    }
    Ok(())
}

/// # Errors
///
/// There is no counter: QEMU has one only with `-icount`.
fn instructions(cost: Cost) -> Result<String, Box<dyn Error>> {
    let instructions = cost.instructions.ok_or("nothing counts the kernel's instructions here")?;
    Ok(format!("instructions={instructions}"))
}

fn told(log: &Bitmap) -> String {
    let bytes = log.words().iter().flat_map(|word| word.to_le_bytes());
    let sum = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("slot=1 pages={} dirty={} sum={sum:016x}", log.pages(), log.count())
}

fn size(text: &str) -> Result<u64, Box<dyn Error>> {
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if text.ends_with('K') => (digits, 10),
        Some(digits) if text.ends_with('M') => (digits, 20),
        Some(digits) => (digits, 30),
        None => (text, 0),
    };
    Ok(digits.parse::<u64>()?.checked_shl(shift).ok_or("too large")?)
}
