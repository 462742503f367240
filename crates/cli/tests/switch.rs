// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold switch`: bad arguments, a socket that is served already, and its end by a signal.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

fn twofold(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_twofold"));
    command.arg("switch").args(arguments);
    command
}

#[test]
fn bad_arguments_are_named() {
    for (arguments, expected) in [
        (&[][..], "--listen"),
        (&["--listen", ""], "give the path of a Unix socket, or ADDRESS:PORT"),
        (&["--listen", "/nowhere/switch"], "cannot listen at /nowhere/switch"),
        (&["--listen", "x", "--forward", "8022=10.0.3.15:22"], "is not of the form HOST:PORT=GUEST:PORT"),
        (&["--listen", "x", "--serve", "80"], "is not of the form PORT=HOST:PORT"),
        (&["--listen", "x", "--network", "10.0.3.2"], "is not of the form ADDRESS/BITS"),
        (&["--listen", "x", "--no-gateway", "--serve", "80=127.0.0.1:80"], "cannot be used with"),
    ] {
        let output = twofold(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(expected), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn it_listens_until_it_is_interrupted_and_no_second_one_can() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("switch");
    let path = path.to_str().unwrap();
    let arguments = ["--listen", path, "--forward", "127.0.0.1:0=10.0.3.15:22"];
    let mut child = twofold(&arguments).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("127.0.0.1:") && line.ends_with(" leads to 10.0.3.15:22\n"), "{line}");
    UnixStream::connect(path).expect("it listens");
    let second = twofold(&["--listen", path]).output().unwrap();
    assert!(String::from_utf8(second.stderr).unwrap().contains("cannot listen at"));
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success() && child.wait().unwrap().success());
    assert!(UnixStream::connect(path).is_err(), "the socket is removed");
}
