// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A run that other processes of its user can find: a Unix socket for each run, in a directory that only the user enters.
//!
//! The client sends one line, and the run answers with a line that begins with `ok` or `error`:
//!
//! | line | then |
//! |---|---|
//! | `guests` | the names, after `ok` |
//! | `console NAME` | the bytes of the guest's console, in both directions |
//! | `command NAME LINE` | what the monitor has to say to LINE, to the end of the stream |
//! | `sample` | a [`Sample`] as JSON, one line |
//! | `snapshot NAME FILE` | after `ok`, the bytes of the [snapshot](crate::snapshot) that FILE is then; FILE begins with `/` |
//! | `suspend NAME FILE` | the same, and then the guest ends |
//! | `migrate NAME ORDER` | ORDER is an [`Order`] as JSON; [`Report`]s follow `ok`, a line of JSON each |
//!
//! Invariants: the directory is the user's own, and no one else may enter it; a directory that is not so is refused. The
//! socket goes with the run. What a client sends is a bounded line, or bytes for a console, whose reader it waits for.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, process, thread};

use thiserror::Error;

use crate::hub::{Console, Hub};
use crate::migrate::order::{self, Order, Report};
use crate::monitor;
use crate::sample::{Known, Sample};
use crate::terminal::Guests;

/// A run that can be found. Its socket goes with this value.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
}

/// A run of another process.
#[derive(Clone, Debug)]
pub struct Remote {
    path: PathBuf,
    /// The names of its guests.
    pub names: Vec<String>,
}

/// Why a run cannot be found, or cannot be made so.
#[derive(Debug, Error)]
pub enum SocketError {
    /// The directory is not the user's own.
    #[error("{0} is not a directory of yours alone; remove it, or name another directory in XDG_RUNTIME_DIR")]
    Directory(PathBuf),
    /// The system refuses.
    #[error("cannot use {path}: {why}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// Nothing runs.
    #[error("nothing of yours runs; start it by `twofold run` (both look in {0})")]
    NoRun(PathBuf),
    /// No run has such a guest.
    #[error("no run has a guest {name}; there is {guests}")]
    NoGuest {
        /// The name.
        name: String,
        /// The guests that there are.
        guests: String,
    },
    /// Several runs fit.
    #[error("{0} runs have such a guest; end one of them, or give their guests names of their own (`--name`)")]
    Several(usize),
    /// The run refuses.
    #[error("{0}")]
    Refused(String),
}

impl Server {
    /// Makes this run one that can be found.
    ///
    /// # Errors
    ///
    /// [`SocketError`].
    pub fn start(hub: &Arc<Hub>, known: Vec<Known>) -> Result<Self, SocketError> {
        Self::start_in(&directory(), hub, known)
    }

    fn start_in(directory: &Path, hub: &Arc<Hub>, known: Vec<Known>) -> Result<Self, SocketError> {
        let unusable = |path: &Path| {
            let path = path.to_owned();
            move |why| SocketError::Unusable { path, why }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(unusable(directory))?;
        check(directory)?;
        let path = directory.join(format!("{}.sock", process::id()));
        // Of a process that had this number and was killed.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(unusable(&path))?;
        let (hub, known) = (Arc::clone(hub), Arc::new(known));
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let (hub, known) = (Arc::clone(&hub), Arc::clone(&known));
                // A client that goes ends its thread.
                thread::spawn(move || _ = answer(&stream, &hub, &known));
            }
        });
        Ok(Self { path })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Remote {
    /// Finds the run that has this guest, or without a name the only one.
    ///
    /// # Errors
    ///
    /// [`SocketError`].
    pub fn find(name: Option<&str>) -> Result<Self, SocketError> {
        Self::find_in(&directory(), name)
    }

    fn find_in(directory: &Path, name: Option<&str>) -> Result<Self, SocketError> {
        let none = || SocketError::NoRun(directory.to_owned());
        let entries = fs::read_dir(directory).map_err(|_| none())?;
        check(directory)?;
        let runs: Vec<_> = entries.flatten().filter_map(|entry| Self::at(entry.path())).collect();
        if runs.is_empty() {
            return Err(none());
        }
        let has = |run: &Self| name.is_none_or(|name| run.names.iter().any(|other| other == name));
        let guests: Vec<_> = runs.iter().flat_map(|run| run.names.clone()).collect();
        let mut fit: Vec<_> = runs.into_iter().filter(has).collect();
        match (fit.len(), fit.pop(), name) {
            (1, Some(run), _) => Ok(run),
            (0, _, Some(name)) => Err(SocketError::NoGuest { name: name.to_owned(), guests: guests.join(", ") }),
            (count, ..) => Err(SocketError::Several(count)),
        }
    }

    /// The run at this socket; `None`: it is none, or has ended.
    fn at(path: PathBuf) -> Option<Self> {
        path.extension().filter(|extension| *extension == "sock")?;
        match UnixStream::connect(&path) {
            Err(why) if why.kind() == io::ErrorKind::ConnectionRefused => {
                // Of a run that was killed.
                let _ = fs::remove_file(&path);
                None
            }
            _ => {
                let mut run = Self { path, names: Vec::new() };
                let (names, _) = run.ask("guests").ok()?;
                run.names = names.split(' ').map(str::to_owned).collect();
                Some(run)
            }
        }
    }

    /// Takes the figures.
    ///
    /// # Errors
    ///
    /// The run has ended.
    pub fn sample(&self) -> Result<Sample, SocketError> {
        let (json, _) = self.ask("sample")?;
        serde_json::from_str(&json).map_err(|why| self.unusable(why.into()))
    }

    /// Writes a snapshot of a guest into a file, and returns its size in bytes. With `ends` the guest ends then.
    ///
    /// # Errors
    ///
    /// The run has ended, or why there is no snapshot.
    pub fn snapshot(&self, guest: &str, file: &Path, ends: bool) -> Result<u64, SocketError> {
        let word = if ends { "suspend" } else { "snapshot" };
        let (size, _) = self.ask(&format!("{word} {guest} {}", file.display()))?;
        size.parse().map_err(|_| self.unusable(io::ErrorKind::InvalidData.into()))
    }

    /// Moves a guest to another machine, and calls `take` with what comes of it. If `take` returns false, or this process ends,
    /// the guest stays, unless it was offered before.
    ///
    /// # Errors
    ///
    /// The run has ended.
    pub fn migrate(
        &self,
        guest: &str,
        order: &Order,
        mut take: impl FnMut(&Report) -> bool,
    ) -> Result<Report, SocketError> {
        let unusable = |why: io::Error| self.unusable(why);
        let order = serde_json::to_string(order).map_err(|why| unusable(why.into()))?;
        let (_, reader) = self.ask(&format!("migrate {guest} {order}"))?;
        for line in reader.lines() {
            let report = serde_json::from_str(&line.map_err(unusable)?).map_err(|why| unusable(why.into()))?;
            if matches!(report, Report::Moved { .. } | Report::Stays(_)) {
                return Ok(report);
            }
            if !take(&report) {
                break;
            }
        }
        Err(self.unusable(io::ErrorKind::UnexpectedEof.into()))
    }

    /// Sends a line, and returns what follows `ok`, and the stream behind it.
    fn ask(&self, line: &str) -> Result<(String, BufReader<UnixStream>), SocketError> {
        let exchange = || -> io::Result<_> {
            let mut stream = UnixStream::connect(&self.path)?;
            stream.write_all(format!("{line}\n").as_bytes())?;
            let mut reader = BufReader::new(stream);
            let mut first = String::new();
            reader.read_line(&mut first)?;
            Ok((first, reader))
        };
        let (first, reader) = exchange().map_err(|why| self.unusable(why))?;
        let first = first.trim_end();
        match (first.strip_prefix("ok"), first.strip_prefix("error ")) {
            (Some(rest), _) => Ok((rest.trim_start().to_owned(), reader)),
            (_, Some(why)) => Err(SocketError::Refused(why.to_owned())),
            _ => Err(self.unusable(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    fn unusable(&self, why: io::Error) -> SocketError {
        SocketError::Unusable { path: self.path.clone(), why }
    }
}

impl Guests for Remote {
    fn open(&self, guest: &str) -> Result<Console, String> {
        let (_, reader) = self.ask(&format!("console {guest}")).map_err(|why| format!("{why}\n"))?;
        let input = reader.get_ref().try_clone().map_err(|why| format!("{why}\n"))?;
        Ok(Console { output: Box::new(reader), input: Box::new(input) })
    }

    fn command(&self, current: &str, line: &str) -> String {
        let answer = self.ask(&format!("command {current} {line}")).and_then(|(_, mut reader)| {
            let mut text = String::new();
            reader.read_to_string(&mut text).map(|_| text).map_err(|why| self.unusable(why))
        });
        answer.unwrap_or_else(|why| format!("{why}\n"))
    }

    fn can_leave(&self) -> bool {
        true
    }
}

/// The longest line of a client.
const LINE_MAX: u64 = 4096;

/// Answers a client, and serves it to its end.
fn answer(stream: &UnixStream, hub: &Arc<Hub>, known: &[Known]) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.by_ref().take(LINE_MAX).read_line(&mut line)?;
    let say = |text: &str| (&*stream).write_all(text.as_bytes());
    let (word, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
    let (name, command) = rest.split_once(' ').unwrap_or((rest, ""));
    match (word, hub.find(name)) {
        ("guests", _) => say(&format!("ok {}\n", hub.names().collect::<Vec<_>>().join(" "))),
        ("sample", _) => match Sample::take(hub.session(), known) {
            Ok(sample) => say(&format!("ok {}\n", serde_json::to_string(&sample)?)),
            Err(why) => say(&format!("error {why}\n")),
        },
        ("console" | "command" | "snapshot" | "suspend" | "migrate", None) => {
            say(&format!("error {}", monitor::no_guest(hub, name)))
        }
        ("snapshot", Some(guest)) => match monitor::snapshot(hub, guest, Path::new(command)) {
            Ok(size) => say(&format!("ok {size}\n")),
            Err(why) => say(&format!("error {why}\n")),
        },
        ("suspend", Some(guest)) => {
            let mut said = None;
            // Before this run may end with the guest.
            let mut ends = |size: u64| said = Some(say(&format!("ok {size}\n")));
            match (monitor::suspend(hub, guest, Path::new(command), &mut ends), said) {
                (_, Some(said)) => said,
                (Ok(size), None) => say(&format!("ok {size}\n")),
                (Err(why), None) => say(&format!("error {why}\n")),
            }
        }
        ("migrate", Some(guest)) => {
            say("ok\n")?;
            order::serve(hub, guest, command, stream)
        }
        ("command", Some(guest)) => {
            say("ok\n")?;
            say(&monitor::command(hub, guest, command))
        }
        ("console", Some(guest)) => {
            let Some(Console { mut output, mut input }) = Hub::open(hub, guest) else { return Ok(()) };
            say("ok\n")?;
            let theirs = stream.try_clone()?;
            thread::spawn(move || {
                let _ = io::copy(&mut output, &mut &theirs);
                let _ = theirs.shutdown(Shutdown::Both);
            });
            io::copy(&mut reader, &mut input)?;
            stream.shutdown(Shutdown::Both)
        }
        _ => say("error no such request; the versions of the two commands differ\n"),
    }
}

/// Where runs of this user are found.
fn directory() -> PathBuf {
    match env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path).join("twofold"),
        None => env::temp_dir().join(format!("twofold-{}", rustix::process::getuid().as_raw())),
    }
}

/// Refuses a directory that others may enter, or that is not there.
fn check(directory: &Path) -> Result<(), SocketError> {
    // Not by a link: another user's would lead elsewhere.
    let metadata = fs::symlink_metadata(directory);
    let metadata = metadata.map_err(|why| SocketError::Unusable { path: directory.to_owned(), why })?;
    let is_ours = metadata.uid() == rustix::process::getuid().as_raw();
    if !metadata.is_dir() || !is_ours || metadata.mode() & 0o077 != 0 {
        return Err(SocketError::Directory(directory.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Peer;
    use crate::session::Session;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_run_is_found_and_serves_consoles_and_commands() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("runs");
        let find = |name: Option<&str>| Remote::find_in(&directory, name);
        assert!(matches!(find(None), Err(SocketError::NoRun(_))));
        let session = crate::hub::tests::session(b"hello");
        let hub = Hub::new(Arc::clone(&session), &["web".to_owned()]);
        let threads = hub.spawn();
        let server = Server::start_in(&directory, &hub, Vec::new()).unwrap();
        // Of a run that was killed.
        drop(UnixListener::bind(directory.join("1.sock")).unwrap());
        let remote = find(Some("web")).unwrap();
        assert_eq!(find(None).unwrap().names, ["web"]);
        assert!(!directory.join("1.sock").exists());
        let error = find(Some("db")).unwrap_err().to_string();
        assert_eq!(error, "no run has a guest db; there is web");
        assert!(Guests::open(&remote, "db").err().unwrap().contains("there is no guest db; there is web"));
        let mut console = Guests::open(&remote, "web").unwrap();
        let mut bytes = [0; 5];
        console.output.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
        console.input.write_all(b"typed").unwrap();
        while session.act(|client, _| client.waiting(0)) != 5 {
            thread::yield_now();
        }
        assert!(remote.command("web", "halt").contains("no command \"halt\""));
        Arc::clone(&session).end();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(console.output.read(&mut bytes).unwrap(), 0);
        assert!(remote.sample().unwrap_err().to_string().contains("the hypervisor has ended"));
        drop(server);
        assert!(matches!(find(None), Err(SocketError::NoRun(_))));
    }

    #[test]
    fn a_directory_of_others_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let hub = Hub::new(Arc::<Session>::default(), &[]);
        let error = Server::start_in(parent.path(), &hub, Vec::new()).unwrap_err();
        assert!(matches!(error, SocketError::Directory(_)), "{error}");
        assert!(matches!(Remote::find_in(parent.path(), None), Err(SocketError::Directory(_))));
    }
}
