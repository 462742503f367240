// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Our numbers and layouts are those of the crate `virtio-spec`, which has them from the specification.

use twofold_devices::virtio::{Balloon, Block, Console, Net, console, layout, net};
use virtio_spec::{DeviceStatus, F, Id, blk, virtq};

use crate::block::ALL;
use crate::disk::config;
use crate::driver::{self, Board, Queue};
use crate::ram::Ram;

fn offered<M: twofold_devices::virtio::Model>(mut board: Board<M>) -> u64 {
    let mut all = 0;
    for half in 0..2 {
        board.set(0x14, half);
        all |= u64::from(board.get(0x10)) << (32 * half);
    }
    all
}

#[test]
fn features() {
    let common = F::VERSION_1 | F::INDIRECT_DESC | F::EVENT_IDX;
    assert_eq!(u128::from(layout::feature::VERSION_1), F::VERSION_1.bits().to_ne());
    assert_eq!(u128::from(layout::feature::INDIRECT_DESC), F::INDIRECT_DESC.bits().to_ne());
    assert_eq!(u128::from(layout::feature::EVENT_IDX), F::EVENT_IDX.bits().to_ne());
    let disk = blk::F::SEG_MAX | blk::F::BLK_SIZE | blk::F::FLUSH;
    let changes = blk::F::DISCARD | blk::F::WRITE_ZEROES;
    for (is_read_only, features) in [(false, disk | changes), (true, disk | blk::F::RO)] {
        let features = features.bits().to_ne() | common.bits().to_ne();
        assert_eq!(u128::from(offered(Board::new(Block::new(config(is_read_only))))), features);
    }
    let card = virtio_spec::net::F::MAC | virtio_spec::net::F::STATUS | virtio_spec::net::F::MTU;
    let card = card.bits().to_ne() | common.bits().to_ne();
    assert_eq!(u128::from(offered(Board::new(Net::new([2; 6])))), card);
    let screen = virtio_spec::console::F::SIZE.bits().to_ne();
    assert_eq!(u128::from(console::feature::SIZE), screen);
    assert_eq!(u128::from(offered(Board::new(Console::new(1, 1)))), screen | common.bits().to_ne());
    let balloon = virtio_spec::balloon::F::MUST_TELL_HOST
        | virtio_spec::balloon::F::DEFLATE_ON_OOM
        | virtio_spec::balloon::F::PAGE_REPORTING;
    assert_eq!(u128::from(offered(Board::new(Balloon::new()))), balloon.bits().to_ne() | common.bits().to_ne());
    assert_eq!(u128::from(net::feature::MAC), virtio_spec::net::F::MAC.bits().to_ne());
    // And those of the tests' driver.
    let all = F::EVENT_IDX.bits().to_ne() | F::INDIRECT_DESC.bits().to_ne();
    assert_eq!(u128::from(ALL), all | (blk::F::FLUSH | changes).bits().to_ne());
}

#[test]
fn kinds_status_and_requests() {
    let device = |id: Id| u32::from(u8::from(id));
    assert_eq!(Board::new(Net::new([2; 6])).get(8), device(Id::Net));
    assert_eq!(Board::new(Block::new(config(false))).get(8), device(Id::Block));
    assert_eq!(Board::new(Console::new(1, 1)).get(8), device(Id::Console));
    assert_eq!(Board::new(twofold_devices::virtio::Rng::new()).get(8), device(Id::Rng));
    assert_eq!(Board::new(Balloon::new()).get(8), device(Id::Balloon));
    let needs = DeviceStatus::DEVICE_NEEDS_RESET.bits();
    assert_eq!(driver::NEEDS_RESET, needs.into());
    let flow = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER | DeviceStatus::FEATURES_OK;
    assert_eq!((flow.bits(), (flow | DeviceStatus::DRIVER_OK).bits()), (11, 15));
    let kinds = [blk::T::In, blk::T::Out, blk::T::Flush, blk::T::GetId, blk::T::Discard, blk::T::WriteZeroes];
    assert_eq!(kinds.map(u32::from), [0, 1, 4, 8, 11, 13]);
    assert_eq!([blk::S::Ok, blk::S::Ioerr, blk::S::Unsupp].map(u8::from), [0, 1, 2]);
}

/// The tests' driver writes what the specification's structures are.
#[test]
fn descriptors_and_rings() {
    assert_eq!(
        [driver::NEXT, driver::WRITE, driver::TABLE],
        [virtq::DescF::NEXT.bits().to_ne(), virtq::DescF::WRITE.bits().to_ne(), virtq::DescF::INDIRECT.bits().to_ne(),]
    );
    assert_eq!((size_of::<virtq::Desc>(), size_of::<virtq::UsedElem>()), (16, 8));
    let offsets = (std::mem::offset_of!(virtq::Desc, len), std::mem::offset_of!(virtq::Desc, flags));
    assert_eq!((offsets, std::mem::offset_of!(virtq::Desc, next)), ((8, 12), 14));
    for size in [1_u16, 16, 64] {
        assert_eq!(virtq::Avail::layout(size, true).size(), 4 + 2 * usize::from(size) + 2);
        assert!(virtq::Used::layout(size, true).size() >= 4 + 8 * usize::from(size) + 2);
    }
    let ram = Ram::new();
    Queue::write_descriptor(&ram, crate::ram::BASE, (0x1122, 0x33, false), 5, 7);
    assert_eq!(ram.peek(crate::ram::BASE, 16), [0x22, 0x11, 0, 0, 0, 0, 0, 0, 0x33, 0, 0, 0, 5, 0, 7, 0]);
    assert_eq!(size_of::<virtio_spec::net::Hdr>(), 12);
}
