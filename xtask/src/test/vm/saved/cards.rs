// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests with a network card that move, and a peer that stays: both are at a switch outside of QEMU.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

use anyhow::{Context, anyhow, ensure};
use twofold_launch::devices::{Devices, Network};
use twofold_launch::{GuestSettings, Outcome};
use twofold_switch::framing::{Incoming, Outgoing};
use twofold_switch::{Address, Serve, Server, Settings};
use twofold_workspace::output;

use super::super::machines::{Clock, Machines};
use super::{Event, moved, passed};

/// Frames, or pieces of TCP, that go there and back between two moves at least.
const BETWEEN: u64 = 40;

/// A bare-metal guest sends frames with numbers, and gets each back once at most, in order.
pub fn frames(machines: &Machines, moves: u64) -> anyhow::Result<()> {
    let switch = Switch::start(Vec::new())?;
    let peer = Peer::start(&switch.path)?;
    let guest = GuestSettings { devices: switch.devices(), ..machines.bare("guest", 1, "exchange") };
    let outcome = moved(machines, &guest, ("exchange: card", 200), moves, Clock::Real, |event| {
        let Event::Runs { has_more } = event else { return Ok(()) };
        peer.heard.wait_for(BETWEEN)?;
        peer.has_had_enough.store(!has_more, Ordering::Release);
        Ok(())
    })?;
    passed(&outcome, "came back")?;
    output::remark(&line(&outcome, "came back"));
    drop(switch);
    let announced = peer.end()?;
    ensure!(announced == moves, "the card announced itself {announced} times, and moved {moves} times");
    Ok(())
}

/// Debian's Linux sends back what comes by a connection of TCP, which stays the same one.
pub fn tcp(machines: &Machines, moves: u64) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?;
    let switch = Switch::start(vec![Serve { port: 7, host: at }])?;
    let commands = ["ip link set eth0 up && ip address add 10.0.3.15/24 dev eth0", "nc 10.0.3.2 7 -e /bin/cat"];
    let guest = machines.networked("moved-tcp", 2, &commands.map(str::to_owned))?;
    let guest = GuestSettings { devices: switch.devices(), ..guest };
    let (heard, has_had_enough) = (Arc::<Heard>::default(), Arc::<AtomicBool>::default());
    let server = {
        let (heard, has_had_enough) = (Arc::clone(&heard), Arc::clone(&has_had_enough));
        thread::spawn(move || {
            let talked = talk(&listener, &heard, &has_had_enough);
            heard.end();
            talked
        })
    };
    let outcome = moved(machines, &guest, ("twofold: begin 1", 1000), moves, Clock::Real, |event| {
        let Event::Runs { has_more } = event else { return Ok(()) };
        heard.wait_for(BETWEEN)?;
        has_had_enough.store(!has_more, Ordering::Release);
        Ok(())
    });
    let talked = server.join().map_err(|_| anyhow!("the server has panicked"))?;
    let (outcome, bytes) = (outcome?, talked?);
    output::remark(&format!("{bytes} bytes there and back by one connection"));
    passed(&outcome, "twofold: end 1 0")
}

/// Sends pieces by the first connection, and checks that each comes back, until it is to end. Returns the bytes.
fn talk(listener: &TcpListener, heard: &Heard, has_had_enough: &AtomicBool) -> anyhow::Result<u64> {
    let (mut stream, _) = listener.accept()?;
    let mut bytes = 0;
    for number in 0_u64.. {
        let piece: Vec<u8> = (0..4096_u64).flat_map(|at| (number * 4096 + at).to_le_bytes()).take(20_000).collect();
        let mut back = vec![0; piece.len()];
        // The window of the way there and back may be smaller than the piece.
        let mut to = stream.try_clone()?;
        thread::scope(|scope| -> anyhow::Result<()> {
            let sent = scope.spawn(|| to.write_all(&piece));
            stream.read_exact(&mut back).context("the connection was dropped")?;
            sent.join().map_err(|_| anyhow!("the sender has panicked"))??;
            Ok(())
        })?;
        ensure!(back == piece, "piece {number} came back changed");
        bytes += piece.len() as u64;
        heard.one();
        if has_had_enough.load(Ordering::Acquire) {
            break;
        }
    }
    stream.shutdown(Shutdown::Write)?;
    ensure!(stream.read(&mut [0])? == 0, "more came back than was sent");
    Ok(bytes)
}

/// A switch in a thread, which ends with this value.
struct Switch {
    path: PathBuf,
    _stop: UnixStream,
    _directory: tempfile::TempDir,
}

impl Switch {
    fn start(serves: Vec<Serve>) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("switch");
        let gateway = (!serves.is_empty()).then(Default::default);
        let listen = vec![Address::Unix(path.clone())];
        let server = Server::new(&Settings { listen, gateway, forwards: Vec::new(), serves })?;
        let (stop, stopped) = UnixStream::pair()?;
        thread::spawn(move || server.run(&stopped));
        Ok(Self { path, _stop: stop, _directory: directory })
    }

    fn devices(&self) -> Devices {
        Devices { nets: vec![Network::Switch(self.path.clone())], ..Devices::default() }
    }
}

/// How much has come, and whether there is more to come.
#[derive(Default)]
struct Heard {
    count: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl Heard {
    fn one(&self) {
        self.count.lock().expect("nothing panics with it").0 += 1;
        self.changed.notify_all();
    }

    fn end(&self) {
        self.count.lock().expect("nothing panics with it").1 = true;
        self.changed.notify_all();
    }

    /// Waits until this much more has come.
    fn wait_for(&self, more: u64) -> anyhow::Result<()> {
        let mut count = self.count.lock().expect("nothing panics with it");
        let until = count.0 + more;
        while count.0 < until {
            ensure!(!count.1, "the peer has ended");
            count = self.changed.wait(count).expect("nothing panics with it");
        }
        Ok(())
    }
}

/// Sends back each frame of the guest's program, until it has had enough.
struct Peer {
    heard: Arc<Heard>,
    has_had_enough: Arc<AtomicBool>,
    announced: Arc<AtomicU64>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Peer {
    fn start(path: &Path) -> anyhow::Result<Self> {
        let mut stream = UnixStream::connect(path)?;
        let (heard, announced) = (Arc::<Heard>::default(), Arc::<AtomicU64>::default());
        let has_had_enough = Arc::<AtomicBool>::default();
        let thread = {
            let (heard, has_had_enough, announced) =
                (Arc::clone(&heard), Arc::clone(&has_had_enough), Arc::clone(&announced));
            thread::spawn(move || {
                let answered = answer(&mut stream, &heard, &has_had_enough, &announced);
                heard.end();
                answered
            })
        };
        Ok(Self { heard, has_had_enough, announced, thread })
    }

    /// The switch has ended. Returns how often the card has announced itself.
    fn end(self) -> anyhow::Result<u64> {
        self.thread.join().map_err(|_| anyhow!("the peer has panicked"))??;
        Ok(self.announced.load(Ordering::Acquire))
    }
}

/// Addresses of the peer, and of the guest's first card.
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 9];
const CARD: [u8; 6] = [2, b't', b'f', 0, 0, 0];

/// Answers frames until the switch ends.
fn answer(
    stream: &mut UnixStream,
    heard: &Heard,
    has_had_enough: &AtomicBool,
    announced: &AtomicU64,
) -> anyhow::Result<()> {
    let (mut incoming, mut bytes, mut last) = (Incoming::default(), [0; 4096], 0);
    loop {
        let count = stream.read(&mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        incoming.add(&bytes[..count]);
        while let Some(frame) = incoming.frame()? {
            match frame.get(12..14) {
                Some([0x88, 0xb5]) if frame.len() >= 22 => {
                    let number = u64::from_be_bytes(frame[14..22].try_into()?);
                    ensure!(number > last, "frame {number} came after frame {last}");
                    last = number;
                    let is_last = has_had_enough.load(Ordering::Acquire);
                    let mut back = if is_last { [&frame[..14], &[0xff; 8]].concat() } else { frame.to_vec() };
                    back[..6].copy_from_slice(&CARD);
                    back[6..12].copy_from_slice(&PEER);
                    let mut outgoing = Outgoing::default();
                    outgoing.set(&back);
                    stream.write_all(outgoing.rest())?;
                    heard.one();
                }
                Some([0x80, 0x35]) => {
                    let is_card = frame[6..12] == CARD && frame[22..28] == CARD && frame[32..38] == CARD;
                    ensure!(is_card && frame[..6] == [0xff; 6], "an announcement of another card: {frame:x?}");
                    announced.fetch_add(1, Ordering::AcqRel);
                }
                other => ensure!(other.is_none(), "a frame of type {other:x?}"),
            }
        }
    }
}

/// The line of the console with these words.
fn line(outcome: &Outcome, words: &str) -> String {
    outcome.console.tail(usize::MAX).into_iter().find(|line| line.contains(words)).unwrap_or_default().to_owned()
}
