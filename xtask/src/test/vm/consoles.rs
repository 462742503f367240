// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: consoles of several guests on the control channel (`docs/control.md`, S6 to S8, C1 to C3).
//!
//! The guests run `crates/guest/src/echo.rs`, which sleeps until its UART interrupts. So a byte or an interrupt that is lost
//! is a hang, and a byte that is doubled or out of order is a difference.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, ensure};
use twofold_abi::bundle::flags;
use twofold_abi::channel::{Command, FrameWriter, ToHypervisor};
use twofold_abi::exits::UART;
use twofold_launch::session::{Client, Session};
use twofold_launch::{GuestSettings, exits};

use super::machines::{Clock, Machines};
use crate::test::guests::seed;

/// What a guest writes after it has echoed all.
const LAST: &[u8] = b"\nguest check: ok\n";
const NAMES: [&str; 2] = ["one", "two"];

/// Both guests are sent this number of bytes at once, and send them back.
pub fn echo(machines: &Machines, count: usize) -> anyhow::Result<()> {
    let seed = seed();
    let consoles = Arc::<Session>::default();
    let drive = |consoles: &Session| {
        thread::scope(|scope| {
            for guest in 0..2 {
                scope.spawn(move || give(consoles, guest, seed, count));
            }
            let readers = [0, 1].map(|guest| scope.spawn(move || read(consoles, guest)));
            Ok(readers.map(|reader| reader.join().unwrap_or_default()))
        })
    };
    let (outcome, echoed) = machines.with_consoles(guests(machines, count), &consoles, drive)?;
    for (guest, echoed) in (0..).zip(echoed) {
        is_echo(guest, seed, count, &echoed)?;
    }
    no_refusals(&consoles)?;
    // The machine's UART has nothing of the guests.
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(!console.contains("guest check"), "{console}");
    Ok(())
}

/// Nothing reads the first guest's console, and nothing is granted for it. The other guest echoes all and powers off, and
/// commands are answered meanwhile. Then the first one goes on from where it was held up.
pub fn unread(machines: &Machines) -> anyhow::Result<()> {
    const COUNT: usize = 64 << 10;
    let seed = seed();
    let consoles = Arc::new(Session::new(Client::new(HashMap::new(), vec![0])));
    let drive = |consoles: &Session| {
        thread::scope(|scope| {
            let ask = || consoles.act(|client, reply| client.ask(None, Command::Statistics, reply));
            let answered = |number| consoles.wait(|client| client.count_answered() >= number);
            ensure!(consoles.wait(|client| client.next_input(0).is_some() && client.next_input(1).is_some()));
            scope.spawn(move || give(consoles, 0, seed, COUNT));
            scope.spawn(move || give(consoles, 1, seed, COUNT));
            // The first guest is held up: its input is no longer taken.
            let second = scope.spawn(move || take(consoles, 1, COUNT + LAST.len()));
            let mut asked = 0;
            while !second.is_finished() {
                asked = ask();
                ensure!(answered(asked), "the machine ended before command {asked} was answered");
            }
            let second = second.join().unwrap_or_default();
            is_echo(1, seed, COUNT, &second)?;
            ensure!(asked > 10, "{asked} commands while the other guest echoed");
            let held = consoles.act(|client, _| (client.end(0).taken, client.next_input(0)));
            ensure!(held.0 == 0, "{held:?}");
            ensure!(answered(ask()), "the machine ended while a guest was held up");
            consoles.act(|client, reply| client.want(0, reply));
            let first = scope.spawn(move || read(consoles, 0));
            is_echo(0, seed, COUNT, &first.join().unwrap_or_default())
        })
    };
    let (outcome, ()) = machines.with_consoles(guests(machines, COUNT), &consoles, drive)?;
    // A line came on the channel while the first guest was held up.
    let ended = outcome.control.log.iter().any(|line| line == r#"guest "two": power-off"#);
    ensure!(ended, "{:?}", outcome.control.log);
    Ok(())
}

/// The launcher goes again and again, in the middle of a frame in both directions, and another one comes in its place.
pub fn back(machines: &Machines, count: usize, times: usize) -> anyhow::Result<()> {
    let seed = seed();
    let consoles = Arc::<Session>::default();
    let drive = |consoles: &Session| {
        thread::scope(|scope| {
            for guest in 0..2 {
                scope.spawn(move || give(consoles, guest, seed, count));
            }
            let readers = [0, 1].map(|guest| scope.spawn(move || read(consoles, guest)));
            for time in 1..times {
                // At a place that the seed draws, so that frames are cut anywhere.
                let place = (count * time / times) as u64 + u64::from(byte(9, seed, time as u64));
                let guest = (time % 2) as u16;
                ensure!(consoles.wait(|client| client.end(guest).taken >= place.min(count as u64)));
                let mut writer = FrameWriter::new();
                let frame = ToHypervisor::Input(&[b'!'; 100]).write(Some(guest), &mut writer)?;
                // Without its last two bytes at least: the next session's 0 would end it.
                let cut = usize::from(byte(8, seed, time as u64)) % (frame.len() - 1);
                consoles.come_back(Vec::new(), &frame[..cut]);
            }
            Ok(readers.map(|reader| reader.join().unwrap_or_default()))
        })
    };
    let (_, echoed) = machines.with_consoles(guests(machines, count), &consoles, drive)?;
    for (guest, echoed) in (0..).zip(echoed) {
        is_echo(guest, seed, count, &echoed)?;
    }
    Ok(())
}

/// Guests that check themselves: their lines come by the channel as they would by the machine's UART.
pub fn lines(machines: &Machines) -> anyhow::Result<()> {
    let guests = NAMES.map(|name| on_channel(machines.bare(name, 1, "check")));
    let outcome = machines.checked(guests.into(), Clock::Real)?;
    let console = outcome.console.tail(usize::MAX).join("\n");
    for name in NAMES {
        ensure!(console.contains(&format!("[{name}] guest check: ok")), "{console}");
    }
    Ok(())
}

/// A byte out of the UART costs EL2 at most what `twofold bench exits` allows, with all that the byte causes later: the task
/// that sends it, its switches, and the launcher's credit.
pub fn cost(machines: &Machines) -> anyhow::Result<()> {
    const BYTES: u64 = 64 << 10;
    let instructions = |bytes: u64| {
        let guest = on_channel(machines.bare("one", 1, &format!("emit={bytes}")));
        let flags = guest.flags | flags::COUNT;
        let outcome = machines.checked(vec![GuestSettings { flags, ..guest }], Clock::Counted)?;
        let report = &outcome.control.report;
        let get = |key: &str| report.get(key).with_context(|| format!("EL2 does not report {key}"));
        Ok::<_, anyhow::Error>([get("el2_instructions.total")?, get("el2_instructions.uart")?])
    };
    let (few, many) = (instructions(64)?, instructions(BYTES)?);
    let [each, exits] = [0, 1].map(|index| (many[index] - few[index]) as f64 / (BYTES - 64) as f64);
    let most = exits::most(UART).context("a byte has no target")? as f64;
    let found = format!("{each:.1} instructions at EL2 for a byte, {exits:.1} of them in exits for the UART");
    ensure!(each <= most, "{found}; {most} at most");
    println!("{found}");
    Ok(())
}

fn guests(machines: &Machines, count: usize) -> Vec<GuestSettings> {
    NAMES.map(|name| on_channel(machines.bare(name, 1, &format!("echo={count}")))).into()
}

fn on_channel(guest: GuestSettings) -> GuestSettings {
    GuestSettings { flags: guest.flags | flags::CONSOLES, ..guest }
}

/// Byte `number` for a guest.
fn byte(guest: u16, seed: u64, number: u64) -> u8 {
    let mixed = (number ^ seed.rotate_left(20) ^ u64::from(guest) << 60).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_be_bytes()[0]
}

/// Gives a guest its bytes, from wherever it has them in each session.
fn give(consoles: &Session, guest: u16, seed: u64, count: usize) {
    const PIECE: u64 = 1000;
    let is_wanted = |client: &mut Client| {
        client.next_input(guest).is_some_and(|next| next == client.end(guest).given && next < count as u64)
    };
    loop {
        let is_done = consoles.act(|client, reply| {
            // Again, because the session may be another one since the last look.
            if is_wanted(client)
                && let Some(from) = client.next_input(guest)
            {
                let end = (from + PIECE).min(count as u64);
                let bytes: Vec<u8> = (from..end).map(|number| byte(guest, seed, number)).collect();
                client.write(guest, &bytes, reply);
            }
            client.end(guest).taken >= count as u64
        });
        if is_done || !consoles.wait(|client| is_wanted(client) || client.end(guest).taken >= count as u64) {
            return;
        }
    }
}

/// Reads a guest's output to the end of the machine.
fn read(consoles: &Session, guest: u16) -> Vec<u8> {
    take(consoles, guest, usize::MAX)
}

/// Reads this number of bytes of a guest's output.
fn take(consoles: &Session, guest: u16, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < count {
        let bytes = consoles.read(guest, 777.min(count - all.len()));
        if bytes.is_empty() {
            break;
        }
        all.extend(bytes);
    }
    all
}

fn is_echo(guest: u16, seed: u64, count: usize, echoed: &[u8]) -> anyhow::Result<()> {
    let expected = (0..count as u64).map(|number| byte(guest, seed, number)).chain(LAST.iter().copied());
    let differs = expected.clone().zip(echoed).position(|(expected, found)| expected != *found);
    let length = echoed.len();
    ensure!(differs.is_none(), "seed {seed}, guest {guest}: byte {differs:?} of {length} differs");
    ensure!(length == count + LAST.len(), "seed {seed}, guest {guest}: {length} bytes for {count}");
    Ok(())
}

fn no_refusals(consoles: &Session) -> anyhow::Result<()> {
    consoles.act(|client, _| {
        ensure!(client.refusals().is_empty(), "{:?}", client.refusals());
        Ok(())
    })
}
