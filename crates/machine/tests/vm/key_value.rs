// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The key-value store: it goes on wherever its vCPU was, and finds each word that is not what was written last.

use std::sync::Arc;

use twofold_machine::fast::FastPlatform;
use twofold_machine::key_value::Server;
use twofold_machine::vm::{FastCpu, Left, Vcpu, Vm};
use twofold_memory::Pages;
use twofold_stage2::Ipa;
use twofold_workload::key_value::{Mix, RECORD, Table, WORDS};

use crate::programs::PAGE;
use crate::scenarios::{RAM, RAM_SIZE};
use crate::{machine, room};

const MIX: Mix = Mix { sets: 50, hot_keys: 20, hot_requests: 80 };
const BYTES: u64 = 64 * PAGE;

fn server() -> Server {
    Server::new(Table::new(RAM.raw(), BYTES, 3).unwrap(), MIX)
}

/// Serves this number of requests; returns whether a word differed.
fn serve(vm: &Vm<FastPlatform>, cpu: &FastCpu, vcpu: &mut Vcpu<Server>, requests: u64) -> bool {
    vcpu.program_mut().set_budget(requests);
    assert_eq!(vm.run(cpu, vcpu, |_| 0), Ok(Left::Ended));
    vcpu.program().broken().is_some()
}

#[test]
fn a_store_goes_on_from_any_instruction() {
    let machine = machine(1, 1);
    let room = room(&machine);
    let cpu = FastCpu { machine: Arc::clone(&machine), number: 0 };
    let vm = Vm::new(room.memory(0, 1, Pages::Small));
    // A write that faults leaves the guest at every page; a kick does so at any instruction.
    let mut vcpu = room.vcpu(server());
    let mut kicked = 0;
    let interrupts = Arc::clone(vcpu.interrupts());
    let all = 20_000;
    vcpu.program_mut().set_budget(all);
    std::thread::scope(|scope| {
        let kicker = scope.spawn(|| {
            (0..200).for_each(|_| {
                interrupts.kick();
                std::thread::yield_now();
            })
        });
        loop {
            match vm.run(&cpu, &mut vcpu, |_| 0) {
                Ok(Left::Ended) => break,
                Ok(Left::Kicked) => kicked += 1,
                other => panic!("{other:?}"),
            }
            // Another machine would go on from these bytes.
            let left = vcpu.program().budget();
            let mut moved = Server::from_bytes(&vcpu.program().to_bytes()).unwrap();
            assert_eq!(moved.served().count(), all - left);
            moved.set_budget(left);
            *vcpu.program_mut() = moved;
        }
        kicker.join().unwrap();
    });
    assert!(kicked > 0 && vcpu.program().broken().is_none(), "{:?}", vcpu.program().broken());
    assert_eq!((vcpu.program().served().count(), vcpu.program().left_to_insert()), (all, 0));
}

/// A page that holds what it held before, with whole records.
#[test]
fn an_old_page_is_found() {
    let machine = machine(1, 1);
    let room = room(&machine);
    let cpu = FastCpu { machine: Arc::clone(&machine), number: 0 };
    let vm = Vm::new(room.memory(0, 1, Pages::Small));
    let mut vcpu = room.vcpu(server());
    assert!(!serve(&vm, &cpu, &mut vcpu, 2000));
    let mut old = vec![0; PAGE as usize];
    vm.memory().read(RAM + 7 * PAGE, &mut old).unwrap();
    assert!(!serve(&vm, &cpu, &mut vcpu, 5000));
    vm.memory().write(RAM + 7 * PAGE, &old).unwrap();
    assert!(serve(&vm, &cpu, &mut vcpu, 20_000));
    let broken = *vcpu.program().broken().unwrap();
    assert_eq!(Ipa::new(broken.address).align_down(PAGE), RAM + 7 * PAGE);
    assert!(broken.found < broken.wanted, "a version before: {broken}");
    // It stays as it is.
    assert!(serve(&vm, &cpu, &mut vcpu, 1));
}

#[test]
fn a_record_that_is_gone_is_found() {
    let machine = machine(1, 1);
    let room = room(&machine);
    let cpu = FastCpu { machine: Arc::clone(&machine), number: 0 };
    let vm = Vm::new(room.memory(0, 1, Pages::Small));
    let mut vcpu = room.vcpu(server());
    assert!(!serve(&vm, &cpu, &mut vcpu, 2000));
    vm.memory().write(RAM + 9 * PAGE, &[0; PAGE as usize]).unwrap();
    assert!(serve(&vm, &cpu, &mut vcpu, 20_000));
    let broken = vcpu.program().broken().unwrap();
    assert_eq!((broken.found, Ipa::new(broken.address).align_down(PAGE)), (0, RAM + 9 * PAGE));
}

#[test]
fn what_is_no_state_is_refused() {
    let bytes = server().to_bytes();
    assert!(Server::from_bytes(&bytes).is_some());
    let changed = |word: usize, value: u64| {
        let mut bytes = bytes.clone();
        bytes[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes());
        Server::from_bytes(&bytes).is_none()
    };
    let records = BYTES / RECORD;
    assert!(changed(10, 4) && changed(11, records) && changed(12, WORDS) && changed(1, 0));
    assert!(Server::from_bytes(&bytes[1..]).is_none() && Server::from_bytes(&[]).is_none());
    const { assert!(BYTES <= RAM_SIZE) };
}
