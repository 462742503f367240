// SPDX-License-Identifier: Apache-2.0 OR MIT
//! vCPU threads with TLBs of their own add to words in pages that leave to a file and come back, while a write-out task
//! chooses pages by their age: no addition is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use twofold_machine::fast::FastVcpu;
use twofold_machine::file_store::FileStoreOptions;
use twofold_machine::interrupts::Interrupts;
use twofold_machine::program::{Ended, Exit, Instructions, Program};
use twofold_memory::{Answer, GuestFault};
use twofold_stage2::Ipa;
use twofold_stage2::fault::Fault;

use crate::world::{PAGE, RAM, Random, World};

const VCPUS: u64 = 2;
const PAGES: u64 = 256;
/// An eighth of the pages, and no fewer than the vCPUs need.
const LIMIT: u64 = 32;
const ADDS: u64 = 6000;

/// Adds 1 to the vCPU's own word of each of these pages, in their order.
struct Adds {
    vcpu: u64,
    pages: Vec<u64>,
    at: usize,
}

impl Adds {
    fn new(vcpu: u64, seed: u64) -> Self {
        let mut random = Random(seed << 8 | vcpu);
        // Most are to few pages, and some go over all.
        let page = |at: u64, random: &mut Random| match at % 4 {
            0 => at / 4 % PAGES,
            1 => random.below(PAGES),
            _ => random.below(12) * 17,
        };
        Self { vcpu, pages: (0..ADDS).map(|at| page(at, &mut random)).collect(), at: 0 }
    }
}

impl Program for Adds {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        while let Some(page) = self.pages.get(self.at) {
            let at = RAM.raw() + page * PAGE + self.vcpu * 8;
            let value = cpu.load(at)?;
            cpu.store(at, value + 1)?;
            self.at += 1;
        }
        Ok(Ended)
    }
}

fn run_vcpu(world: &World, number: u64, program: &mut Adds) {
    let memory = &world.memory;
    let registers = (memory.stage2().vttbr(), memory.stage2().vtcr());
    let mut vcpu = FastVcpu::new(&world.machine, number as usize, registers, Arc::new(Interrupts::new())).unwrap();
    loop {
        let abort = match vcpu.run(program) {
            Ok(Ended) => return,
            Err(Exit::Abort(abort)) => abort,
            Err(exit) => panic!("{exit:?}"),
        };
        let Fault { kind, access, .. } = Fault::from_syndrome(abort.esr).unwrap();
        // HPFAR_EL2 has no address for a permission fault. Stage 1 is off, so FAR_EL2 has the same.
        let ipa = Ipa::new(abort.far);
        match memory.fault(&GuestFault { ipa, kind, access }).unwrap() {
            Answer::Retry(_) => {}
            Answer::Absent => world.bring_for(number, ipa).unwrap(),
            answer => panic!("{answer:?}"),
        }
        let used = memory.frame_use();
        assert!(used.data <= used.limit, "{used:?}");
    }
}

#[test]
fn vcpus_lose_no_write_to_pages_that_come_and_go() {
    for (seed, compress, threads) in [(1, false, 1), (2, true, 2)] {
        let options = FileStoreOptions { compress, ..FileStoreOptions::new(2 * PAGES) };
        let world = World::new(PAGES, tempfile::tempfile().unwrap(), &options);
        world.memory.set_limit(LIMIT).unwrap();
        let mut programs: Vec<_> = (0..VCPUS).map(|vcpu| Adds::new(vcpu, seed)).collect();
        let is_over = AtomicBool::new(false);
        world.run(threads, || {
            std::thread::scope(|scope| {
                scope.spawn(|| world.write_out_task(&is_over));
                let (world, mut vcpus) = (&world, Vec::new());
                for (number, program) in (0..VCPUS).zip(&mut programs) {
                    vcpus.push(scope.spawn(move || run_vcpu(world, number, program)));
                }
                let ended: Vec<_> = vcpus.into_iter().map(|vcpu| vcpu.join()).collect();
                is_over.store(true, Ordering::Release);
                world.wake();
                assert!(ended.iter().all(Result::is_ok), "seed {seed}");
            });
            world.memory.set_limit(2 * PAGES).unwrap();
            for page in 0..PAGES {
                let bytes = world.read(page).unwrap();
                for Adds { vcpu, pages, .. } in &programs {
                    let at = *vcpu as usize * 8;
                    let word = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                    let expected = pages.iter().filter(|other| **other == page).count() as u64;
                    assert_eq!(word, expected, "seed {seed}, vCPU {vcpu}, page {page}");
                }
            }
        });
        let counts = world.store.counts();
        println!("seed {seed}: {counts:?}");
        assert!(counts.pages_read > ADDS / 4 && counts.pages_written > PAGES && counts.errors == 0, "{counts:?}");
    }
}
