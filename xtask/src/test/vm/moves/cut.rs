// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Links that are cut while a guest moves.

use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::ensure;
use twofold_migration::precopy::Sent;
use twofold_workspace::output;

use super::course::{Links, course};
use crate::test::guests::seed;
use crate::test::vm::machines::Machines;

/// The link of each move is cut after a random number of bytes, in a random direction, often near the offer: exactly one side
/// runs the guest then, and all of it.
pub fn links(machines: &Machines, cuts: u64) -> anyhow::Result<()> {
    let guest = machines.bare("guest", 2, &format!("watch={} moved", 10_000 * (cuts + 1)));
    let cutter = Cutter { random: seed(), left: cuts, bytes: 1 << 20, kept: 0, moved: 0 };
    output::remark(&format!("seed {}", cutter.random));
    let cutter = Mutex::new(cutter);
    let outcome = course(machines, &guest, "watch: begins", 1, Some(&cutter))?;
    let console = outcome.console.tail(usize::MAX).join("\n");
    ensure!(console.contains("nothing changed"), "{console}");
    let Cutter { left, kept, moved, .. } = lock(&cutter).clone();
    ensure!(left == 0, "{left} cuts were not made: the guest ended before");
    ensure!(kept > 0, "the guest moved each time, so no link was cut in time");
    output::remark(&format!("{kept} times the guest stayed, and {moved} times it moved although the link was cut"));
    Ok(())
}

/// Where links are cut.
#[derive(Clone)]
struct Cutter {
    random: u64,
    /// Links that are still to be cut.
    left: u64,
    /// The bytes of a whole stream, as far as one is known.
    bytes: u64,
    /// How often the guest stayed, and how often it moved.
    kept: u64,
    moved: u64,
}

/// Where a link is cut.
struct Cut {
    /// Whether it is cut by the bytes from the target to the source.
    by_answers: bool,
    after: u64,
}

impl Links for Mutex<Cutter> {
    fn has_more(&self) -> bool {
        lock(self).left > 0
    }

    fn next(&self, to: SocketAddr) -> anyhow::Result<Option<SocketAddr>> {
        lock(self).next().map(|cut| cut.between(to)).transpose()
    }

    fn ended(&self, sent: Option<&Sent>) {
        let mut cutter = lock(self);
        match sent {
            Some(sent) => (cutter.bytes, cutter.moved) = (sent.bytes, cutter.moved + 1),
            None => cutter.kept += 1,
        }
    }
}

impl Cutter {
    fn next(&mut self) -> Option<Cut> {
        self.left = self.left.checked_sub(1)?;
        let mut below = |most: u64| {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.random >> 33) % most
        };
        Some(match below(4) {
            // Handshake, acceptance, and that the guest was taken.
            0 => Cut { by_answers: true, after: below(320) },
            // The state, and the offer.
            1 | 2 => Cut { by_answers: false, after: self.bytes.saturating_sub(below(2048)) },
            _ => Cut { by_answers: false, after: below(self.bytes) },
        })
    }
}

impl Cut {
    /// Stands between a source and the target at this address; returns where the source connects.
    fn between(self, target: SocketAddr) -> anyhow::Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        thread::spawn(move || -> std::io::Result<()> {
            let (source, _) = listener.accept()?;
            let target = TcpStream::connect(target)?;
            let (up, down) = ((source.try_clone()?, target.try_clone()?), (target, source));
            let whole = u64::MAX;
            let limits = if self.by_answers { (whole, self.after) } else { (self.after, whole) };
            let answers = thread::spawn(move || carry(down, limits.1));
            carry(up, limits.0);
            let _ = answers.join();
            Ok(())
        });
        Ok(address)
    }
}

/// Carries at most `most` bytes in one direction, and then ends the connection in both.
pub fn carry((from, to): (TcpStream, TcpStream), most: u64) {
    let _ = std::io::copy(&mut (&from).take(most), &mut &to);
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
