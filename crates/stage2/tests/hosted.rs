// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hosted platform, and what only it can show briefly: leaves of a range, and code that relies on a change too early.

use std::error::Error;

use twofold_stage2::fault::FaultKind;
use twofold_stage2::hosted::{Hosted, Instruction, Tables, Vcpu};
use twofold_stage2::platform::Tlbi;
use twofold_stage2::{Access, Attributes, Geometry, Ipa, Kib4, Lent, Level, Stage2, Unwatched, Vmid};

const PAGE: u64 = 4096;
const BLOCK: u64 = 2 << 20;
const RAM: Ipa = Ipa::new(1 << 30);

struct Guest {
    stage2: Stage2<Hosted>,
    lent: Lent,
    tables: Tables,
}

impl Guest {
    fn new() -> Result<Self, Box<dyn Error>> {
        let (platform, memory) = Hosted::new(4 * BLOCK);
        let features = Hosted::features();
        let geometry = Geometry::new(Kib4, 40, &features)?;
        let (tables, root, ram) = platform.cut(memory, &geometry).ok_or("memory")?;
        let stage2 = Stage2::new(platform, features, geometry, Vmid::new(1), root)?;
        let range = RAM.range(ram.size());
        Ok(Self { lent: stage2.lend(ram, RAM, range), stage2, tables })
    }

    fn map(&mut self, ipa: Ipa, level: Level, access: Access) -> Result<(), Box<dyn Error>> {
        let grant = self.stage2.grant(&self.lent, ipa, Kib4.span(level)).ok_or("not lent")?;
        let _ = grant.map(level, &Attributes::ram(access), &mut self.tables)?;
        Ok(())
    }

    fn end(mut self) {
        let pages = self.tables.0.len();
        let (root, freed) = self.stage2.destroy(&mut self.tables, Unwatched);
        assert_eq!(self.tables.0.len(), pages + freed.tables() as usize);
        assert!(root.reclaim(self.lent).is_ok());
    }
}

#[test]
fn leaves_are_listed_by_address() -> Result<(), Box<dyn Error>> {
    let mut guest = Guest::new()?;
    guest.map(RAM + BLOCK, Level::L3, Access::READ)?;
    guest.map(RAM + BLOCK + 5 * PAGE, Level::L3, Access::READ_WRITE)?;
    guest.map(RAM, Level::L2, Access::ALL)?;
    let listed = |range| -> Result<Vec<_>, twofold_stage2::Error> {
        Ok(guest.stage2.leaves(range)?.map(|leaf| (leaf.ipa - RAM, leaf.size(), leaf.pa(), leaf.to_string())).collect())
    };
    let at = guest.lent.run().pa();
    let name = |from: u64, size: u64, access| {
        format!("{}..{} -> {} {access} accessed", RAM + from, RAM + from + size, at + from)
    };
    let block = (0, BLOCK, at, name(0, BLOCK, "rwx"));
    let first = (BLOCK, PAGE, at + BLOCK, name(BLOCK, PAGE, "r--"));
    let second = (BLOCK + 5 * PAGE, PAGE, at + BLOCK + 5 * PAGE, name(BLOCK + 5 * PAGE, PAGE, "rw-"));
    assert_eq!(listed(Ipa::new(0)..guest.stage2.geometry().end())?, [block.clone(), first.clone(), second.clone()]);
    // A block that reaches into the range is listed, and what ends before it is not.
    assert_eq!(listed(RAM + PAGE..RAM + BLOCK)?, [block]);
    assert_eq!(listed(RAM + BLOCK..RAM + BLOCK + PAGE)?, [first]);
    assert_eq!(listed(RAM + BLOCK + PAGE..RAM + 2 * BLOCK)?, [second]);
    assert_eq!(listed(RAM + 2 * BLOCK..RAM + 3 * BLOCK)?, []);
    assert!(listed(RAM..RAM).is_err() && listed(RAM..RAM + 1).is_err());
    guest.end();
    Ok(())
}

/// The vCPU keeps what it has translated, as a CPU may.
#[test]
fn a_write_is_allowed_until_the_flush_is_complete() -> Result<(), Box<dyn Error>> {
    let mut guest = Guest::new()?;
    guest.map(RAM, Level::L3, Access::READ_WRITE)?;
    let platform = guest.stage2.platform().clone();
    let mut vcpu = Vcpu::new(&guest.stage2);
    vcpu.store(RAM, 1)?;
    platform.take_instructions();
    let pending = guest.stage2.write_protect(RAM.range(PAGE))?;
    vcpu.store(RAM, 2)?;
    assert_eq!(platform.take_instructions(), []);
    let _ = pending.complete();
    let invalidates =
        |one: &Instruction| matches!(one, Instruction::Tlbi(Tlbi::Ipas2Le1Is, operand) if *operand == RAM.raw() >> 12);
    assert_eq!(platform.take_instructions().iter().filter(|one| invalidates(one)).count(), 1);
    let taken = vcpu.store(RAM, 3).unwrap_err();
    assert_eq!((taken.fault.kind, taken.fault.level), (FaultKind::Permission, Level::L3));
    assert_eq!(vcpu.load(RAM)?, 2);
    guest.end();
    Ok(())
}

/// Two machines of one process have no physical address in common.
#[test]
fn a_machine_does_not_take_another_one_s_memory() {
    let (_one, first) = Hosted::new(BLOCK);
    let (other, second) = Hosted::new(BLOCK);
    assert!(first.pa() + first.size() <= second.pa() || second.pa() + second.size() <= first.pa());
    let pa = first.pa();
    assert!(std::panic::catch_unwind(move || other.load(pa)).is_err());
}

/// Ten guests on three VMIDs: each finds its own memory, and no two CPUs use one VMID for two guests.
#[test]
fn more_guests_than_vmids() -> Result<(), Box<dyn Error>> {
    let features = Hosted::features();
    let geometry = Geometry::new(Kib4, 40, &features)?;
    let (platform, mut memory) = Hosted::new(21 * BLOCK);
    assert_eq!(platform.share_vmids(0), Err(twofold_stage2::Error::NoSharedVmids));
    platform.share_vmids(3)?;
    let mut guests = Vec::new();
    for _ in 0..10 {
        let (own, rest) = memory.split_at(2 * BLOCK).map_err(|_| "memory")?;
        memory = rest;
        let (mut tables, root, ram) = platform.cut(own, &geometry).ok_or("memory")?;
        let stage2 = Stage2::sharing_vmids(platform.clone(), features, geometry, root)?;
        let lent = stage2.lend(ram, RAM, RAM.range(BLOCK));
        let grant = stage2.grant(&lent, RAM, PAGE).ok_or("not lent")?;
        let _ = grant.map(Level::L3, &Attributes::ram(Access::READ_WRITE), &mut tables)?;
        guests.push(Guest { stage2, lent, tables });
    }
    for round in 0..3 {
        for (number, pair) in guests.windows(2).enumerate() {
            let [one, other] = [0, 1].map(|which| pair[which].stage2.use_vmid());
            let (one, other) = (one?, other?);
            assert_ne!(one.vttbr() >> 48, other.vttbr() >> 48);
            assert!([&one, &other].iter().all(|in_use| (1..=3).contains(&(in_use.vttbr() >> 48))));
            let mut vcpu = Vcpu::new(&pair[0].stage2);
            if round > 0 {
                assert_eq!(vcpu.load(RAM)?, number as u64);
            }
            vcpu.store(RAM, number as u64)?;
            pair[0].stage2.release_vmid(one);
            pair[1].stage2.release_vmid(other);
        }
    }
    guests.into_iter().for_each(Guest::end);
    Ok(())
}

/// A second panic, from the tables that the failing test drops, would end all tests of the process.
#[test]
fn a_test_that_fails_drops_its_tables() {
    let failed = std::panic::catch_unwind(|| {
        let _guest = Guest::new().unwrap();
        panic!("this test's own failure");
    });
    assert!(failed.unwrap_err().downcast_ref::<&str>().is_some_and(|text| text.contains("own failure")));
    // Outside a failure it is one.
    assert!(std::panic::catch_unwind(|| drop(Guest::new().unwrap())).is_err() || !cfg!(debug_assertions));
}
