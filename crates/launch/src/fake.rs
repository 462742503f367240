// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A stand-in for QEMU, for tests: a shell script. It speaks on the control channel as the hypervisor does.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

/// The script, in a directory of its own.
pub struct Fake {
    pub directory: tempfile::TempDir,
    pub program: PathBuf,
}

impl Fake {
    /// A program that runs `script`; `say LINE` sends a line on the control channel.
    pub fn new(script: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("qemu");
        fs::write(&program, format!("#!/usr/bin/env bash\n[ \"$1\" = --probe ] && exit 0\n{SAY}\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        // A thread that forked while the file was open for writing keeps it unexecutable until its own exec. After
        // one successful start it stays executable.
        while Command::new(&program).arg("--probe").status().is_err() {
            thread::yield_now();
        }
        Self { directory, program }
    }
}

/// Finds the channel's descriptor in the arguments, sends the 0 that comes first, and defines `say`. The frame is the one of
/// `docs/control.md` for a line of less than 254 bytes. (A shell that is not bash takes no descriptor above 9.)
const SAY: &str = r#"
for word in "$@"; do case "$word" in socket,id=control,fd=*) channel="${word#socket,id=control,fd=}";; esac; done
[ -n "$channel" ] && printf '\0' >&"$channel"
say() {
    head="$(printf '\\x02\\x89\\x04\\xff\\xff\\x%02x\\x%02x' ${#1} $((${#1} + 1)))"
    printf "$head%s\\0" "$1" >&"$channel"
}
"#;
