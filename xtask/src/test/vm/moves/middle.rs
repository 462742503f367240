// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Between source and target, with the key of both: it reads the records, and holds them where a test wants.
//!
//! Invariant: what is held has not left. It leaves, or both links are cut, when the test says so.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, ensure};
use embedded_io::{Read, Write};
use twofold_launch::migrate::link;
use twofold_migration::stream::wire::{Header, Preamble, kind, message, round};
use zerocopy::{FromBytes, IntoBytes};

/// Where a record is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Before the stopped guest's round. The source has stopped the guest, and not offered it.
    Stopped,
    /// Before the end of the stream. The source has offered the guest, or is about to.
    End,
    /// Before the target's answer that it has taken the guest, which may run there already.
    Taken,
}

/// Two links.
pub struct Middle {
    /// Where the source connects.
    pub address: SocketAddr,
    reached: Receiver<At>,
    goes_on: Sender<bool>,
    ends: Receiver<Arc<[TcpStream; 2]>>,
}

impl Middle {
    /// Stands between a source and the target at this address.
    pub fn between(to: &str, key: &Path, holds: &[At]) -> anyhow::Result<Self> {
        Self::with(to, key, holds, None)
    }

    /// The same, and sends the target `begin` in place of the stream's preamble and hello.
    pub fn beginning(to: &str, key: &Path, begin: Vec<u8>) -> anyhow::Result<Self> {
        Self::with(to, key, &[], Some(begin))
    }

    fn with(to: &str, key: &Path, holds: &[At], begin: Option<Vec<u8>>) -> anyhow::Result<Self> {
        let (key, to, holds) = (link::key(key)?, to.to_owned(), holds.to_vec());
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (reaches, reached) = mpsc::channel();
        let (goes_on, may_go_on) = mpsc::channel();
        let (give_ends, ends) = mpsc::channel();
        thread::spawn(move || -> anyhow::Result<()> {
            let (source, _) = listener.accept()?;
            let target = TcpStream::connect(&to)?;
            let ends = Arc::new([source.try_clone()?, target.try_clone()?]);
            // Whether a test wants them or not.
            let _ = give_ends.send(Arc::clone(&ends));
            let (from_source, to_source) = link::accept(source, &key)?;
            let (from_target, to_target) = link::initiate(target, &key)?;
            let gate = Arc::new(Gate { holds, reaches, may_go_on: Mutex::new(may_go_on) });
            let (their_gate, their_ends) = (Arc::clone(&gate), Arc::clone(&ends));
            let answers = thread::spawn(move || carry(from_target, to_source, &their_gate, &their_ends, None));
            carry(from_source, to_target, &gate, &ends, begin.as_deref());
            let _ = answers.join();
            Ok(())
        });
        Ok(Self { address, reached, goes_on, ends })
    }

    /// Waits until the stream is held here.
    pub fn wait(&self, at: At) -> anyhow::Result<()> {
        let reached = self.reached.recv().with_context(|| format!("the link ended before {at:?}"))?;
        ensure!(reached == at, "held at {reached:?}, not {at:?}");
        Ok(())
    }

    /// Lets go on what is held.
    pub fn go_on(&self) {
        // If both links are cut, it does not matter.
        let _ = self.goes_on.send(true);
    }

    /// Cuts both links in place of what is held.
    pub fn cut(&self) {
        let _ = self.goes_on.send(false);
    }

    /// Cuts both links at whatever is under way.
    pub fn end(&self) {
        self.ends.iter().take(1).for_each(|ends| end(&ends));
    }
}

fn end(ends: &[TcpStream; 2]) {
    for end in ends {
        // It may have ended.
        let _ = end.shutdown(Shutdown::Both);
    }
}

struct Gate {
    holds: Vec<At>,
    reaches: Sender<At>,
    may_go_on: Mutex<Receiver<bool>>,
}

impl Gate {
    /// Holds a record, if it is one that is held. False: it does not go on.
    fn passes(&self, header: &Header) -> bool {
        let at = match (header.kind, header.form) {
            (kind::ROUND, round::STOPPED) => At::Stopped,
            (kind::END, _) => At::End,
            (kind::MESSAGE, message::TAKEN) => At::Taken,
            _ => return true,
        };
        if !self.holds.contains(&at) {
            return true;
        }
        let may_go_on = self.may_go_on.lock().unwrap_or_else(PoisonError::into_inner);
        self.reaches.send(at).is_ok() && may_go_on.recv().unwrap_or(false)
    }
}

/// Carries records in one direction to the end, and then ends both links.
fn carry(mut from: link::Reader, mut to: link::Writer, gate: &Gate, ends: &[TcpStream; 2], begin: Option<&[u8]>) {
    let _ = records(&mut from, &mut to, gate, begin);
    end(ends);
}

fn records(from: &mut link::Reader, to: &mut link::Writer, gate: &Gate, begin: Option<&[u8]>) -> anyhow::Result<()> {
    let failed = |why| anyhow::anyhow!("{why:?}");
    if let Some(begin) = begin {
        to.write_all(begin).map_err(failed)?;
        to.flush().map_err(failed)?;
        // What the source sends is lost.
        while from.read(&mut [0; 4096]).map_err(failed)? > 0 {}
        return Ok(());
    }
    let mut preamble = [0; size_of::<Preamble>()];
    from.read_exact(&mut preamble).map_err(|why| anyhow::anyhow!("{why:?}"))?;
    to.write_all(&preamble).map_err(failed)?;
    let (mut head, mut payload) = ([0; size_of::<Header>()], Vec::new());
    loop {
        from.read_exact(&mut head).map_err(|why| anyhow::anyhow!("{why:?}"))?;
        let header = Header::read_from_bytes(&head).map_err(|_| anyhow::anyhow!("a header of another size"))?;
        payload.resize(header.payload(), 0);
        from.read_exact(&mut payload).map_err(|why| anyhow::anyhow!("{why:?}"))?;
        if !gate.passes(&header) {
            return Ok(());
        }
        to.write_all(header.as_bytes()).map_err(failed)?;
        to.write_all(&payload).map_err(failed)?;
        if header.kind != kind::PAGE {
            to.flush().map_err(failed)?;
        }
    }
}
