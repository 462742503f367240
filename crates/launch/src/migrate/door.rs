// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a target waits for links.
//!
//! Anybody can connect, and say nothing. So each connection has its handshake in a thread of its own, and the first one that
//! ends it is the link: a client without the key keeps no guest waiting.
//!
//! Invariant: at most [`AT_ONCE`] handshakes are under way. What connects meanwhile waits in the system's queue. A handshake in
//! which nothing comes for [`SILENCE`](link::SILENCE) ends.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use twofold_migration::sealed::Key;

use super::link::{self, LinkError};

/// A place at which links come.
pub(super) struct Door {
    listener: TcpListener,
    key: Key,
    inside: Mutex<Inside>,
}

/// What the handshakes have come to.
struct Inside {
    ended: Receiver<Ended>,
    ends: Sender<Ended>,
    under_way: usize,
}

type Ended = Result<(link::Reader, link::Writer), LinkError>;

/// The most handshakes that are under way.
const AT_ONCE: usize = 16;

/// How long whatever waits at a door does nothing between two looks.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

impl Door {
    /// A door at this address, such as `0.0.0.0:PORT`, for those that have the key.
    ///
    /// # Errors
    ///
    /// The address is in use, or not this machine's.
    pub(super) fn bind(address: &str, key: Key) -> io::Result<Arc<Self>> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let (ends, ended) = channel();
        Ok(Arc::new(Self { listener, key, inside: Mutex::new(Inside { ended, ends, under_way: 0 }) }))
    }

    /// Where it is.
    ///
    /// # Errors
    ///
    /// The system does not know.
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits for the next link. An error says why a connection has become none.
    pub(super) fn wait(&self) -> Ended {
        loop {
            match self.look() {
                Some(ended) => return ended,
                None => thread::sleep(PAUSE),
            }
        }
    }

    /// As [`wait`](Self::wait), if a handshake has ended; `None`: look again after a [`PAUSE`]. Begins the handshakes of what has
    /// connected.
    pub(super) fn look(&self) -> Option<Ended> {
        let mut inside = self.inside();
        while inside.under_way < AT_ONCE {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    inside.under_way += 1;
                    self.begin(stream, inside.ends.clone());
                }
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => break,
                Err(why) => {
                    // The system has no connection for now: whatever asks again at once would spin.
                    thread::sleep(PAUSE);
                    return Some(Err(why.into()));
                }
            }
        }
        let ended = inside.ended.try_recv().ok()?;
        inside.under_way -= 1;
        Some(ended)
    }

    fn begin(&self, stream: TcpStream, ends: Sender<Ended>) {
        let key = self.key.clone();
        thread::spawn(move || {
            // It waits for the other side, which the listener does not.
            let link = stream.set_nonblocking(false).map_err(LinkError::from).and_then(|()| link::accept(stream, &key));
            // If no side waits any more, the link ends here.
            let _ = ends.send(link);
        });
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        // Whatever panicked left a number and a channel, which are whole.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_say_nothing_keep_no_link_waiting() {
        let key = || Key::new([7; 32]);
        let door = Door::bind("127.0.0.1:0", key()).unwrap();
        let to = door.address().unwrap().to_string();
        let silent: Vec<_> = (1..AT_ONCE).map(|_| TcpStream::connect(&to).unwrap()).collect();
        let source = thread::spawn(move || link::connect(&to, &key()).is_ok());
        // A handshake with a silent client ends by an error.
        assert!(door.wait().is_ok());
        assert!(source.join().unwrap());
        drop(silent);
        let after = (1..AT_ONCE).map(|_| door.wait().is_err()).filter(|is_error| *is_error).count();
        assert_eq!(after, AT_ONCE - 1);
        assert!(door.look().is_none());
    }
}
