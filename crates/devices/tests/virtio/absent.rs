// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page that is absent at any one access of a device, or at accesses drawn at random, and back at the next poll: what
//! guest and far end see is the same as without.

use twofold_devices::RamError;
use twofold_devices::virtio::block::DataError;
use twofold_devices::virtio::{Net, Next, Rng};

use crate::balloon;
use crate::block::{ALL, STATUS_AT, Setup, request};
use crate::console::{Wire, console};
use crate::driver::{Board, DATA};
use crate::net::Cable;
use crate::ram::Ram;
use crate::random::{Random, with_seeds};
use crate::rng::Source;

/// Which accesses meet an absent page.
#[derive(Clone, Copy, Debug)]
enum Absent {
    Never,
    /// The one with this number.
    At(usize),
    /// Any, drawn with this seed.
    Any(u64),
}

impl Absent {
    fn begin(self, ram: &Ram) {
        match self {
            Self::Never => {}
            Self::At(access) => ram.absent_in.set(Some(access)),
            Self::Any(seed) => _ = ram.is_flaky.replace(Some(Random::new(seed))),
        }
    }

    /// From here on no page is absent. Returns whether the access came.
    fn end(self, ram: &Ram) -> bool {
        ram.is_flaky.take();
        ram.absent_in.take().is_none()
    }
}

/// Runs `run` without an absent page, then with one at each access in turn, and then with many, by random numbers. All
/// results are the same. `run` returns whether the access came.
fn at_each_access<T: PartialEq + std::fmt::Debug>(run: impl Fn(Absent) -> (T, bool)) {
    let (expected, _) = run(Absent::Never);
    let mut access = 0;
    loop {
        let (found, came) = run(Absent::At(access));
        assert_eq!(found, expected, "a page is absent at access {access}");
        if !came {
            break;
        }
        access += 1;
    }
    assert!(access > 10, "{access} accesses");
    with_seeds(100, |random| {
        let absent = Absent::Any(random.next());
        assert_eq!(run(absent).0, expected, "{absent:?}");
    });
}

/// Polls until nothing is left to do. A page that is absent is back at the next poll, or later.
fn settle(mut poll: impl FnMut() -> Next) -> usize {
    let mut absent = 0;
    loop {
        match poll() {
            Next::Idle => return absent,
            Next::Again => {}
            Next::Absent(_) => absent += 1,
            Next::Broken(fault) => panic!("{fault}"),
        }
    }
}

#[test]
fn a_disk_loses_nothing() {
    for indirect in [false, true] {
        for (kind, output, input) in [(1, vec![7; 1024], 0), (0, vec![], 1024), (8, vec![], 20), (99, vec![], 0)] {
            at_each_access(|absent| {
                let mut setup = Setup::new(ALL);
                setup.disk.data.fill(3);
                let mut buffers = request(&setup.board.ram, kind, 1, &output, input);
                // The header in two pieces.
                buffers.splice(0..1, [(DATA, 7, false), (DATA + 7, 9, false)]);
                setup.board.offer(&mut setup.queue, &buffers, indirect);
                absent.begin(&setup.board.ram);
                let Setup { board, disk, .. } = &mut setup;
                loop {
                    settle(|| board.device.poll(&board.ram, disk, &mut board.line));
                    if disk.pending.is_empty() {
                        break;
                    }
                    match disk.step(0, 512, &mut board.device, &board.ram) {
                        Ok(_) | Err(DataError::Ram(RamError::Absent(_))) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                let came = absent.end(&setup.board.ram);
                let used = setup.board.collect(&mut setup.queue);
                let memory = setup.board.ram.peek(DATA + 0x1000, 1024);
                let status = setup.board.ram.peek(STATUS_AT, 1);
                let event = setup.board.ram.peek16(setup.queue.device() + 4 + 8 * 16);
                let begun = setup.disk.begun;
                ((used, memory, status, event, begun, setup.board.line, setup.disk.data), came)
            });
        }
    }
}

#[test]
fn a_console_loses_nothing() {
    at_each_access(|absent| {
        let mut board = console();
        let [mut receive, mut transmit] = board.start(ALL, &[16, 16]).try_into().unwrap();
        board.ram.poke(DATA, &(0..=255).cycle().take(700).collect::<Vec<u8>>());
        board.offer(&mut transmit, &[(DATA, 300, false), (DATA + 300, 400, false)], false);
        board.offer(&mut receive, &[(DATA + 0x1000, 5, true), (DATA + 0x2000, 5, true)], true);
        board.offer(&mut receive, &[(DATA + 0x3000, 50, true)], true);
        let mut wire = Wire { input: b"more than ten bytes".to_vec(), ..Wire::new() };
        absent.begin(&board.ram);
        settle(|| board.device.poll(&board.ram, &mut wire, &mut board.line));
        let came = absent.end(&board.ram);
        let used = [board.collect(&mut receive), board.collect(&mut receive), board.collect(&mut transmit)];
        let memory =
            [board.ram.peek(DATA + 0x1000, 5), board.ram.peek(DATA + 0x2000, 5), board.ram.peek(DATA + 0x3000, 9)];
        ((used, memory, wire.output, wire.input, board.line), came)
    });
}

#[test]
fn a_network_card_loses_nothing() {
    at_each_access(|absent| {
        let mut board = Board::new(Net::new([2; 6]));
        let [mut receive, mut transmit] = board.start(ALL, &[16, 16]).try_into().unwrap();
        board.ram.poke(DATA + 12, &[9; 100]);
        board.offer(&mut transmit, &[(DATA, 50, false), (DATA + 50, 50, false)], false);
        board.offer(&mut transmit, &[(DATA, 90, false)], false);
        board.offer(&mut receive, &[(DATA + 0x1000, 12, true), (DATA + 0x2000, 1514, true)], true);
        let mut cable = Cable::new();
        cable.incoming.push_back(vec![5; 60]);
        absent.begin(&board.ram);
        settle(|| board.device.poll(&board.ram, &mut cable, &mut board.line));
        let came = absent.end(&board.ram);
        let used = [board.collect(&mut receive), board.collect(&mut transmit), board.collect(&mut transmit)];
        let memory = (board.ram.peek(DATA + 0x1000, 12), board.ram.peek(DATA + 0x2000, 60));
        ((used, memory, cable.sent, cable.incoming, board.line), came)
    });
}

#[test]
fn random_bytes_may_be_lost_and_buffers_are_not() {
    at_each_access(|absent| {
        let mut board = Board::new(Rng::new());
        let mut queue = board.start(ALL, &[16]).pop().unwrap();
        board.offer(&mut queue, &[(DATA, 16, true), (DATA + 0x1000, 16, true)], true);
        board.offer(&mut queue, &[(DATA + 0x2000, 16, true)], false);
        let mut source = Source::new();
        absent.begin(&board.ram);
        settle(|| board.device.poll(&board.ram, &mut source, &mut board.line));
        let came = absent.end(&board.ram);
        let used = [board.collect(&mut queue), board.collect(&mut queue)];
        ((used, board.line), came)
    });
}

#[test]
fn a_balloon_loses_nothing() {
    at_each_access(|absent| {
        let mut board = balloon::balloon();
        let [mut inflate, mut deflate, mut report] = balloon::start(&mut board, ALL);
        board.ram.poke(DATA, &balloon::numbers((0..200).map(|page| page * 4096)));
        board.offer(&mut inflate, &[(DATA, 301, false), (DATA + 301, 499, false)], false);
        board.offer(&mut deflate, &[(DATA + 8, 8, false)], true);
        board.offer(&mut report, &[(DATA + 0x1000, 0x3000, true), (DATA + 0x8000, 0x1000, true)], true);
        let mut taken = balloon::Taken::default();
        absent.begin(&board.ram);
        settle(|| board.device.poll(&board.ram, &mut taken, &mut board.line));
        let came = absent.end(&board.ram);
        let used = [board.collect(&mut inflate), board.collect(&mut deflate), board.collect(&mut report)];
        // The order among the queues may be another one.
        taken.moves.sort_unstable();
        ((used, taken.moves, taken.reported, board.line), came)
    });
}

/// A request whose status byte is away does not hold up another.
#[test]
fn a_page_that_is_away_holds_up_its_own_request_only() {
    let mut setup = Setup::new(ALL);
    let away = DATA + 0x8000;
    let mut buffers = request(&setup.board.ram, 4, 0, &[], 0);
    buffers[1].0 = away;
    let first = setup.board.offer(&mut setup.queue, &buffers, false).unwrap();
    let second = setup.ask(4, 0, &[], 0);
    assert_eq!(setup.poll(), Next::Idle);
    setup.board.ram.absent.borrow_mut().insert(away);
    setup.disk.finish(&mut setup.board.device, &setup.board.ram);
    assert_eq!(setup.poll(), Next::Absent(away));
    assert_eq!(setup.board.collect(&mut setup.queue), Some((second, 1)));
    setup.board.ram.bring_back(away);
    assert_eq!(setup.poll(), Next::Idle);
    assert_eq!(setup.board.collect(&mut setup.queue), Some((first, 1)));
}
