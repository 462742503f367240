// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One CPU: a page is mapped, used and unmapped.

use twofold_machine::program::{Exit, Instructions};
use twofold_stage2::fault::{Fault, FaultKind};
use twofold_stage2::{Access, Attributes, Ipa, Level, Mapped, Unwatched};

use crate::window::ByAddress as _;
use crate::world::{MODERN, PAGE, PLAIN, World};

fn fault(exit: Exit) -> FaultKind {
    match exit {
        Exit::Abort(abort) => Fault::from_syndrome(abort.esr).unwrap().kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_page_is_mapped_used_and_unmapped() {
    for features in [MODERN, PLAIN] {
        let world = World::new(features, 2, 1, 64 << 20);
        let ended = world.machine.alone(|cpu| {
            let tables = world.tables(0, 3, 40);
            cpu.load(tables.vttbr());
            let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), 0);
            assert_eq!(fault(guest.load(0x4000_0000).unwrap_err()), FaultKind::Translation);
            let attributes = Attributes::ram(Access::READ_WRITE);
            let mapped = tables.map(Ipa::new(0x4000_0000), world.frame(0), Level::L3, &attributes, &mut &world.pages);
            assert_eq!(mapped, Ok(Mapped::New));
            guest.store(0x4000_0008, 7).unwrap();
            assert_eq!(guest.load(0x4000_0008), Ok(7));
            let range = Ipa::new(0x4000_0000)..Ipa::new(0x4000_0000 + PAGE);
            let pending = tables.unmap(range, &mut &world.pages, Unwatched).unwrap();
            pending.complete().free(&mut &world.pages);
            cpu.reuse(world.frame(0), PAGE);
            assert_eq!(fault(guest.load(0x4000_0008).unwrap_err()), FaultKind::Translation);
            cpu.load(0);
            tables.destroy(&mut &world.pages, Unwatched);
        });
        ended.unwrap_or_else(|breach| panic!("{breach}"));
        assert_eq!(world.pages.out(), 0);
    }
}
