// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sealed links: what arrives is what was sent, or an error.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;

use embedded_io::{ErrorKind, ErrorType, Read, Write};
use twofold_migration::sealed::{Key, SealError, SealedReader, SealedWriter, accept, initiate};

const KEY: Key = Key::new([7; 32]);

/// A socket with the traits of `embedded_io`.
struct Socket(UnixStream);

impl ErrorType for Socket {
    type Error = ErrorKind;
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, ErrorKind> {
        self.0.read(bytes).map_err(|_| ErrorKind::Other)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        self.0.write(bytes).map_err(|_| ErrorKind::Other)
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

type Ends = (SealedReader<Socket>, SealedWriter<Socket>);

/// Both sides of a link after the handshake; the target's with this key.
fn ends(key: Key) -> (Result<Ends, SealError>, Result<Ends, SealError>) {
    let (here, there) = UnixStream::pair().unwrap();
    let pair = |end: UnixStream| (Socket(end.try_clone().unwrap()), Socket(end));
    let target = thread::spawn(move || {
        let (from, to) = pair(there);
        accept((from, to), &key)
    });
    let source = initiate(pair(here), &KEY);
    (source, target.join().unwrap())
}

/// The bytes of each frame.
type Frames = Vec<Vec<u8>>;

/// The bytes on the link for some writes, each flushed, and a reader of any bytes with the same keys.
fn recorded(writes: &[&[u8]]) -> (Frames, impl Fn(&[u8]) -> Result<Vec<u8>, ErrorKind> + use<>) {
    let (here, there) = UnixStream::pair().unwrap();
    let (mut tap, from) = UnixStream::pair().unwrap();
    let target = thread::spawn(move || {
        let (mut out, sink) = (there.try_clone().unwrap(), there);
        // The handshake goes through the tap byte by byte, so that what follows it can be replaced.
        let mut first = [0; 48];
        (&mut &sink).read_exact(&mut first).unwrap();
        tap.write_all(&first).unwrap();
        let accepted = accept((Socket(from), Socket(out.try_clone().unwrap())), &KEY).unwrap();
        out.flush().unwrap();
        (accepted.0, tap, sink)
    });
    let (_, mut writer) = initiate((Socket(here.try_clone().unwrap()), Socket(here)), &KEY).unwrap();
    let (reader, tap, mut sink) = target.join().unwrap();
    let frames = writes
        .iter()
        .map(|bytes| {
            writer.write_all(bytes).unwrap();
            writer.flush().unwrap();
            let mut frame = vec![0; 2];
            sink.read_exact(&mut frame).unwrap();
            let size = usize::from(u16::from_le_bytes([frame[0], frame[1]]));
            frame.resize(2 + size, 0);
            sink.read_exact(&mut frame[2..]).unwrap();
            frame
        })
        .collect();
    let state = std::sync::Mutex::new(Some((reader, tap)));
    let read = move |bytes: &[u8]| {
        let (mut reader, mut tap) = state.lock().unwrap().take().expect("a reader is for one link");
        let bytes = bytes.to_vec();
        let sends = thread::spawn(move || tap.write_all(&bytes));
        let mut found = Vec::new();
        let mut part = [0; 1000];
        let result = loop {
            match reader.read(&mut part) {
                Ok(0) => break Ok(()),
                Ok(count) => found.extend_from_slice(&part[..count]),
                Err(error) => break Err(error),
            }
        };
        if result.is_err() {
            assert!(reader.read(&mut part).is_err(), "after an error nothing more comes");
        }
        let _ = sends.join();
        result.map(|()| found)
    };
    (frames, read)
}

#[test]
fn what_is_sent_arrives_in_both_directions() {
    let (source, target) = ends(KEY);
    let ((mut answers, mut stream), (mut from, mut to)) = (source.unwrap(), target.unwrap());
    let sent: Vec<u8> = (0..1_000_000_u32).map(|at| (at.wrapping_mul(7919) >> 5) as u8).collect();
    let copy = sent.clone();
    let sends = thread::spawn(move || {
        let mut left = &copy[..];
        // All sizes: below, at and above a frame.
        for size in [1, 32, 4096, 7935, 7936, 7937, 200_000].into_iter().cycle() {
            let (now, later) = left.split_at(left.len().min(size));
            stream.write_all(now).unwrap();
            left = later;
            if left.is_empty() {
                break;
            }
        }
        stream.flush().unwrap();
        let mut answer = [0; 5];
        answers.read_exact(&mut answer).unwrap();
        answer
    });
    let mut found = vec![0; sent.len()];
    from.read_exact(&mut found).unwrap();
    assert!(found == sent);
    to.write_all(b"taken").unwrap();
    to.flush().unwrap();
    assert_eq!(&sends.join().unwrap(), b"taken");
    assert_eq!(from.read(&mut [0; 9]), Ok(0), "the link has ended");
}

#[test]
fn another_key_is_refused_by_both_sides() {
    let (source, target) = ends(Key::new([8; 32]));
    assert_eq!(target.err(), Some(SealError::Key));
    assert_eq!(source.err(), Some(SealError::Cut), "the target has gone");
    assert_eq!(format!("{KEY:?}"), "Key");
}

#[test]
fn frames_that_are_changed_repeated_left_out_or_moved_are_refused() {
    let writes: [&[u8]; 3] = [b"one", b"two", b"three"];
    let (frames, read) = recorded(&writes);
    assert_eq!(read(&frames.concat()), Ok(b"onetwothree".to_vec()));
    assert!(frames.iter().zip(writes).all(|(frame, plain)| !frame.windows(3).any(|part| part == &plain[..3])));
    let changed = |change: fn(&mut Frames)| {
        let (mut frames, read) = recorded(&[b"one", b"two", b"three"]);
        change(&mut frames);
        read(&frames.concat())
    };
    let refused = Err(ErrorKind::InvalidData);
    assert_eq!(changed(|frames| frames[1][5] ^= 1), refused);
    assert_eq!(changed(|frames| frames[1][0] -= 1), refused);
    assert_eq!(changed(|frames| frames.swap(0, 1)), refused);
    assert_eq!(changed(|frames| frames[1] = frames[0].clone()), refused);
    assert_eq!(changed(|frames| drop(frames.remove(0))), refused);
    assert_eq!(changed(|frames| frames[0] = vec![0, 0]), refused);
    assert_eq!(changed(|frames| frames[2].truncate(5)), Err(ErrorKind::ConnectionReset));
    // The stream's own end is what says that it is complete.
    assert_eq!(changed(|frames| drop(frames.pop())), Ok(b"onetwo".to_vec()));
}

#[test]
fn a_connection_reveals_nothing_to_one_with_the_same_key() {
    let (frames, _) = recorded(&[b"one"]);
    let (_, read) = recorded(&[b"one"]);
    assert_eq!(read(&frames.concat()), Err(ErrorKind::InvalidData));
}
