// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The launcher's end of the framed control channel (`docs/control.md`): a socket, of which QEMU inherits the other end.
//!
//! A pair of sockets has no name, so nothing is left to be removed, and nothing else can connect. Lines go to the control
//! log as they come, and a trace to its file.
//!
//! Invariants: the launcher reads until QEMU is gone, whatever comes and even if a file cannot be written, so the
//! hypervisor never waits for it. Only QEMU inherits its end, so the stream ends with QEMU.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, JoinHandle};

use twofold_abi::channel::{FrameReader, MessageError, ToLauncher};
use twofold_abi::control;

use crate::child;

/// Both ends, before QEMU starts.
#[derive(Debug)]
pub struct Channel {
    ours: UnixStream,
    theirs: OwnedFd,
}

/// Our end, while QEMU runs.
#[derive(Debug)]
pub struct Listener {
    stream: UnixStream,
    thread: JoinHandle<Result<(), SinkError>>,
}

/// What takes the messages of a session, in the thread that reads the channel. It must not wait for anything that waits for
/// the hypervisor.
pub trait Peer: Send {
    /// The machine is about to start. `stream` goes to the hypervisor.
    fn begin(&mut self, stream: UnixStream) -> io::Result<()>;

    /// Takes a message.
    fn take(&mut self, guest: Option<u16>, message: &ToLauncher<'_>) -> Next;

    /// The stream has ended.
    fn end(&mut self);
}

/// How the channel's reader goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// With the next frame.
    GoOn,
    /// As a launcher that comes late: somewhere, perhaps in the middle of a frame.
    Cut,
}

/// A file to write.
#[derive(Debug)]
pub struct Sink<W = File> {
    path: PathBuf,
    file: W,
    error: Option<io::Error>,
}

/// A file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {why}")]
pub struct SinkError {
    /// The file.
    pub path: PathBuf,
    /// The system's error.
    pub why: io::Error,
}

impl Channel {
    /// Makes both ends. Neither is inherited by any child.
    pub fn new() -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok(Self { ours, theirs: theirs.into() })
    }

    /// The number of QEMU's end, for its arguments.
    pub fn number(&self) -> RawFd {
        self.theirs.as_raw_fd()
    }

    /// Hands QEMU's end to the child of `command`. From the other one, lines go to `log`, and a trace to `trace`. The stream
    /// ends only after `command` is dropped. The messages of a session go to `peer`, if there is one.
    pub fn listen(
        self,
        command: &mut Command,
        log: Sink,
        trace: Option<Sink>,
        mut peer: Option<Box<dyn Peer>>,
    ) -> io::Result<Listener> {
        child::inherits(command, self.theirs);
        let stream = self.ours.try_clone()?;
        if let Some(peer) = &mut peer {
            peer.begin(self.ours.try_clone()?)?;
        }
        let thread = thread::spawn(move || {
            let done = read(stream, log, trace, peer.as_deref_mut());
            if let Some(mut peer) = peer {
                peer.end();
            }
            done
        });
        Ok(Listener { stream: self.ours, thread })
    }
}

impl Listener {
    /// Sends bytes to the hypervisor, few enough for the socket's buffer. They wait until it reads.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.stream).write_all(bytes)
    }

    /// Reads what is left after QEMU has gone.
    ///
    /// # Errors
    ///
    /// A file could not be written.
    pub fn end(self) -> Result<(), SinkError> {
        // If something else holds QEMU's end, what has come is still read, and then the stream ends.
        let _ = self.stream.shutdown(Shutdown::Read);
        match self.thread.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Sink {
    /// Creates the file, or truncates it.
    pub fn create(path: &Path) -> Result<Self, SinkError> {
        let path = path.to_owned();
        match File::create(&path) {
            Ok(file) => Ok(Self { path, file, error: None }),
            Err(why) => Err(SinkError { path, why }),
        }
    }
}

impl<W: Write> Sink<W> {
    /// Writes nothing more after an error.
    fn write(&mut self, bytes: &[u8]) {
        if self.error.is_none() {
            self.error = self.file.write_all(bytes).err();
        }
    }

    fn end(self) -> Result<(), SinkError> {
        let path = self.path;
        self.error.map_or(Ok(()), |why| Err(SinkError { path, why }))
    }
}

/// Writes what comes to `log` and `trace`, to the end of `stream`. A session's messages go to `peer`, if there is one.
fn read<W: Write>(
    mut stream: impl Read,
    mut log: Sink<W>,
    mut trace: Option<Sink<W>>,
    mut peer: Option<&mut (dyn Peer + '_)>,
) -> Result<(), SinkError> {
    let mut reader = FrameReader::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mut bytes = match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => &buffer[..count],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                log.write(refused(error).as_bytes());
                break;
            }
        };
        let mut is_cut = false;
        while let Some(frame) = if is_cut { None } else { reader.read(&mut bytes) } {
            let frame = match frame {
                Ok(frame) => frame,
                Err(error) => {
                    log.write(refused(error).as_bytes());
                    continue;
                }
            };
            match ToLauncher::read(&frame) {
                Ok(ToLauncher::Line(line)) => log.write(format!("{line}\n").as_bytes()),
                Ok(ToLauncher::Trace(bytes)) => trace.iter_mut().for_each(|trace| trace.write(bytes)),
                Ok(ToLauncher::Log(text)) => {
                    let text = text.replace(['\n', '\r'], " ");
                    log.write(format!("{} {text}\n", control::LOG).as_bytes());
                }
                Ok(message) if let Some(peer) = &mut peer => {
                    is_cut = peer.take(frame.guest, &message) == Next::Cut;
                }
                // For people.
                Ok(message) => log.write(format!("control channel: {message:?}\n").as_bytes()),
                // A kind may be newer than this launcher.
                Err(MessageError::Kind(_)) => {}
                Err(error) => log.write(refused(error).as_bytes()),
            }
        }
        if is_cut {
            reader = FrameReader::new();
            // Its first bytes are in the middle of what was there.
            let mut rest = &bytes[bytes.len() / 2..];
            while let Some(_older) = reader.read(&mut rest) {}
        }
    }
    log.end()?;
    trace.map_or(Ok(()), Sink::end)
}

/// A line for people: its first word is none of [`control`], so it counts for nothing.
fn refused(error: impl std::error::Error) -> String {
    format!("control channel: {error}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use twofold_abi::channel::FrameWriter;
    use twofold_abi::channel::wire::kind;

    fn frame(message: &ToLauncher<'_>) -> Vec<u8> {
        message.write(None, &mut FrameWriter::new()).unwrap().to_vec()
    }

    fn sink<W: Write>(file: W) -> Sink<W> {
        Sink { path: "a file".into(), file, error: None }
    }

    /// The log and the trace.
    fn files_of(bytes: &[u8]) -> [String; 2] {
        let mut files = [Vec::new(), Vec::new()];
        let [log, trace] = &mut files;
        read(bytes, sink(log), Some(sink(trace)), None).unwrap();
        files.map(|file| String::from_utf8(file).unwrap())
    }

    #[test]
    fn lines_and_traces_are_kept_in_order() {
        let long = format!("twofold:log {}", "x".repeat(1000));
        let messages = [
            ToLauncher::Line("twofold:stat a.b 1"),
            ToLauncher::Trace(b"a line of "),
            ToLauncher::Done(3),
            ToLauncher::Line(&long),
            ToLauncher::Trace(b"the trace\n"),
            ToLauncher::Log("two\nlines"),
            ToLauncher::Line("twofold:exit 0"),
        ];
        let mut bytes = vec![0];
        messages.iter().for_each(|message| bytes.extend(frame(message)));
        bytes.extend(FrameWriter::new().write(0xff, None, b"a kind to come", &[]).unwrap());
        let log =
            format!("twofold:stat a.b 1\ncontrol channel: Done(3)\n{long}\ntwofold:log two lines\ntwofold:exit 0\n");
        assert_eq!(files_of(&bytes), [log, "a line of the trace\n".to_owned()]);
    }

    #[test]
    fn what_is_cut_is_noted_and_counts_for_nothing() {
        let line = frame(&ToLauncher::Line("twofold:exit 17"));
        let cut = &line[..line.len() - 4];
        let forged =
            FrameWriter::new().write(kind::LINE, None, b"twofold:log a\ntwofold:exit 0", &[]).unwrap().to_vec();
        let [log, _] = files_of(&[&[0], cut, &[0], &forged, &line].concat());
        let lines: Vec<_> = log.lines().collect();
        assert!(lines[..2].iter().all(|line| line.starts_with("control channel: ")), "{log}");
        assert_eq!(lines[2..], ["twofold:exit 17"]);
        assert_eq!(crate::Control::parse(&log), crate::Control::parse("twofold:exit 17"));
    }

    #[test]
    fn a_full_disk_is_reported_after_all_was_read() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let bytes = [&[0][..], &frame(&ToLauncher::Line("twofold:end reset")).repeat(9)].concat();
        let mut left = &*bytes;
        let error = read(&mut left, sink(Full), None, None).unwrap_err();
        assert_eq!((error.path, error.why.kind()), ("a file".into(), io::ErrorKind::StorageFull));
        assert!(left.is_empty());
    }

    /// Something else holds QEMU's end, and the listener does not wait for it.
    #[test]
    fn an_end_that_stays_open_holds_nothing_up() {
        let channel = Channel::new().unwrap();
        let mut held = UnixStream::from(channel.theirs.try_clone().unwrap());
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let listener = channel.listen(&mut Command::new("true"), Sink::create(&log).unwrap(), None, None).unwrap();
        held.write_all(&[&[0][..], &frame(&ToLauncher::Line("twofold:end tests"))].concat()).unwrap();
        listener.end().unwrap();
        assert_eq!(std::fs::read_to_string(log).unwrap(), "twofold:end tests\n");
    }
}
