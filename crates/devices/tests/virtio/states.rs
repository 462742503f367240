// SPDX-License-Identifier: Apache-2.0 OR MIT
//! States: what is refused, and that any other bytes are the state of the device that they make. That a saved and
//! restored device goes on alike is part of the random tests of each model.

use twofold_devices::StateError;
use twofold_devices::virtio::{Balloon, Block, Console, Model, Net, Next, Rng, Virtio};

use crate::balloon::balloon;
use crate::block::{ALL, Setup};
use crate::console::{Wire, console};
use crate::disk::config;
use crate::driver::{Board, DATA};
use crate::random::with_seeds;

/// A disk with a request in work, one that waits, and one that is done and not given back.
fn busy_disk() -> Vec<u8> {
    let mut setup = Setup::new(ALL);
    setup.ask(1, 3, &[1; 512], 0);
    assert_eq!(setup.poll(), Next::Idle);
    setup.disk.room = 1;
    setup.ask(0, 5, &[], 512);
    assert_eq!(setup.poll(), Next::Idle);
    setup.board.ram.absent.borrow_mut().insert(setup.queue.device());
    setup.disk.finish(&mut setup.board.device, &setup.board.ram);
    assert!(matches!(setup.poll(), Next::Absent(_)));
    setup.board.state()
}

fn refused(state: &[u8]) -> StateError {
    Block::new(config(false)).with_state(state).map(drop).unwrap_err()
}

#[test]
fn states_that_no_disk_has_are_refused() {
    let state = busy_disk();
    let (row, queues) = (32, 3 * 40);
    let model = row + queues;
    let first = model + 16 + 16;
    assert_eq!(Block::new(config(false)).with_state(&state).map(|disk| disk.interrupt()), Ok(false));
    let wanted = state.len();
    let longer = [&state[..], &[0]].concat();
    assert_eq!(refused(&longer), StateError::Length { found: wanted + 1, wanted });
    for length in 0..wanted {
        assert!(matches!(refused(&state[..length]), StateError::Length { found, .. } if found == length));
    }
    let impossible = StateError::Impossible;
    for (offset, value, error) in [
        (0, 2, StateError::Version(2)),
        (2, 3, impossible("another kind of device")),
        (4, 0x1f, impossible("reserved bits of Status")),
        (4, 0x07, impossible("DRIVER_OK without FEATURES_OK")),
        (4, 0x4f, impossible("a queue's indices disagree with the chains that are taken")),
        (5, 4, impossible("reserved bits of InterruptStatus")),
        (6, 1, impossible("a reserved byte")),
        (8, 1, impossible("features that are not offered")),
        (12, 0, impossible("features that are not offered")),
        (row, 3, impossible("a queue with an impossible size or address")),
        (row, 128, impossible("a queue with an impossible size or address")),
        (row + 2, 0x11, impossible("reserved bits of a queue")),
        (row + 2, 0x04, impossible("work of a queue that is not ready")),
        (row + 2, 0x0d, impossible("a queue's indices disagree with the chains that are taken")),
        (row + 3, 1, impossible("reserved bits of a queue")),
        (row + 4, 9, impossible("a queue's indices disagree with the chains that are taken")),
        (row + 10, 1, impossible("an owed chain that is none")),
        (row + 16, 8, impossible("a queue with an impossible size or address")),
        (row + 24, 1, impossible("a queue with an impossible size or address")),
        (row + 32, 2, impossible("a queue with an impossible size or address")),
        (row + 40, 1, impossible("a queue that the device lacks")),
        (model + 16, 3, impossible("a request that neither waits nor is done")),
        (first, 200, impossible("a request from the future")),
        (first + 8, 9, impossible("a request that is done, and has more to do")),
        (first + 9, 1, impossible("a request that is done, and has more to do")),
        (first + 10, 3, impossible("a status that the device does not give")),
        (first + 11, 1, impossible("a request that is done, and has more to do")),
        (first + 8, 6, impossible("a serial number of another length")),
        (first + 24, 64, impossible("a chain's first descriptor that no queue has")),
        (first + 26, 0, impossible("a request without a header")),
        (first + 26, 3, impossible("a request without a status byte")),
        (first + 27, 65, impossible("a chain that no driver can make")),
    ] {
        let mut state = state.clone();
        assert_ne!(state[offset], value, "{offset}");
        state[offset] = value;
        assert_eq!(refused(&state), error, "{value} at {offset}");
    }
    // The second request waits: it reads one sector.
    let second = first + 28 + 3 * 12;
    assert_eq!(state[model + 16..model + 18], [2, 1]);
    for (offset, value, error) in [
        (second + 8, 0, impossible("an operation that is none")),
        (second + 8, 2, impossible("an operation that its chain does not fit")),
        (second + 8, 3, impossible("an operation with more than it has")),
        (second + 9, 1, impossible("an operation with more than it has")),
        (second + 10, 1, impossible("an operation with more than it has")),
        (second + 12, 2, impossible("an operation that its chain does not fit")),
    ] {
        let mut state = state.clone();
        state[offset] = value;
        assert_eq!(refused(&state), error, "{value} at {offset}");
    }
}

#[test]
fn states_of_the_others() {
    let mut board = console();
    let [_, mut transmit] = board.start(0, &[16, 16]).try_into().unwrap();
    board.offer(&mut transmit, &[(DATA, 100, false)], false);
    let mut wire = Wire { room: 30, ..Wire::new() };
    assert_eq!(board.device.poll(&board.ram, &mut wire, &mut board.line), Next::Idle);
    let state = board.state();
    let model = 32 + 3 * 40;
    assert_eq!(state.len(), model + 4 + 4 + 12);
    for (offset, value, error) in [
        (model, 100, "a chain is being sent that has left"),
        (model + 7, 0, "a chain without segments that is not empty"),
        (model + 16, 0, "a chain that no driver can make"),
    ] {
        let mut state = state.clone();
        state[offset] = value;
        assert_eq!(Console::new(80, 25).with_state(&state).unwrap_err(), StateError::Impossible(error));
    }
    let mut state = Board::new(Net::new([2; 6])).state();
    *state.last_mut().unwrap() = 2;
    let error = StateError::Impossible("a link that is neither up nor down");
    assert_eq!(Net::new([2; 6]).with_state(&state).unwrap_err(), error);
    assert_eq!(Rng::new().with_state(&state).unwrap_err(), StateError::Impossible("another kind of device"));
}

#[test]
fn a_room_that_is_too_small_is_refused() {
    let device = Rng::new();
    for length in 0..Rng::STATE_MAX {
        assert!(device.state(&mut vec![0; length]).is_err());
    }
    assert_eq!(device.state(&mut [0; Rng::STATE_MAX]).unwrap().len(), Rng::STATE_MAX);
}

/// Bytes of a state, changed anywhere: refused, or the state of the device that they make.
#[test]
fn any_bytes_are_refused_or_kept() {
    fn check<M: Model + Clone + std::fmt::Debug>(device: Virtio<M>, state: &[u8]) {
        let (mut room, mut in_place) = (vec![0; Virtio::<M>::STATE_MAX], device.clone());
        let fresh = device.state(&mut room).unwrap().to_vec();
        let restored = in_place.restore(state);
        if let Ok(device) = device.with_state(state) {
            assert_eq!(device.state(&mut room).unwrap(), state);
        }
        // In place, a device that refuses is as after a reset.
        let expected = if restored.is_ok() { state } else { &fresh };
        let found = in_place.state(&mut room).unwrap();
        // The serial numbers of a disk's requests only rise, and the configuration keeps its generation.
        assert!(found == expected || restored.is_err(), "{restored:?}");
        assert!(restored.is_ok() || !in_place.interrupt() && found[..28] == fresh[..28], "{restored:?}");
    }
    let disk = busy_disk();
    let (console_state, net) = (console().state(), Board::new(Net::new([2; 6])).state());
    let balloon = balloon().state();
    with_seeds(3000, |random| {
        let states = [&disk, &console_state, &net, &balloon];
        let mut state = states[random.below(4) as usize].clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(state.len() as u64) as usize;
            state[at] = if random.one_in(2) { random.next() as u8 } else { state[at] ^ 1 << random.below(8) };
        }
        check(Block::new(config(false)), &state);
        check(Console::new(80, 25), &state);
        check(Net::new([2; 6]), &state);
        check(Rng::new(), &state);
        check(Balloon::new(), &state);
    });
}
