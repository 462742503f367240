// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A stand-in for QEMU, for tests: a shell script.

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
    /// A program that runs `script`; `$control` is the control channel's file.
    pub fn new(script: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("qemu");
        let find = r#"for word in "$@"; do case "$word" in file,id=control,path=*) control="${word#file,id=control,path=}";; esac; done"#;
        fs::write(&program, format!("#!/bin/sh\n[ \"$1\" = --probe ] && exit 0\n{find}\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        // A thread that forked while the file was open for writing keeps it unexecutable until its own exec. After
        // one successful start it stays executable.
        while Command::new(&program).arg("--probe").status().is_err() {
            thread::yield_now();
        }
        Self { directory, program }
    }
}
