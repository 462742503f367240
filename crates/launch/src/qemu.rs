// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds QEMU, and refuses a version that is too old.
//!
//! Invariant: a [`Qemu`] is a program that answered `--version` with [`OLDEST`] or later.

use std::env;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use thiserror::Error;

/// The oldest version with the features that the image needs: the hardware dirty bit at stage 2, LPA2.
pub const OLDEST: Version = Version { major: 7, minor: 2, micro: 0 };
/// The environment variable that names another QEMU.
pub const VARIABLE: &str = "TWOFOLD_QEMU";
/// The program to look for if the variable is not set.
pub const PROGRAM: &str = "qemu-system-aarch64";

/// A version of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number, 0 if there is none.
    pub micro: u32,
}

/// A QEMU that is new enough.
#[derive(Clone, Debug)]
pub struct Qemu {
    program: PathBuf,
    version: Version,
    sandbox: bool,
}

/// Denies child processes and changes of privileges.
const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny";

/// Why no QEMU is usable, and what to do.
#[derive(Debug, Error)]
pub enum QemuError {
    /// The program is not there.
    #[error("QEMU is missing: {program} was not found; `cargo xtask doctor` says how to install it")]
    Missing {
        /// The name that was looked for.
        program: PathBuf,
    },
    /// The program that [`VARIABLE`] names is not there.
    #[error("{VARIABLE} names {program}, which was not found; unset it or name another one in it")]
    NamedMissing {
        /// The name that was looked for.
        program: PathBuf,
    },
    /// The program does not start, or is not QEMU.
    #[error("{program} is not usable as QEMU: {why}; unset {VARIABLE} or name another one in it")]
    Unusable {
        /// The program.
        program: PathBuf,
        /// What the program did.
        why: String,
    },
    /// The program is older than [`OLDEST`].
    #[error(
        "{program} is QEMU {found}, and {OLDEST} or later is needed; install a newer one and, if it is not \
         in PATH, name it in {VARIABLE}"
    )]
    TooOld {
        /// The program.
        program: PathBuf,
        /// Its version.
        found: Version,
    },
}

impl Qemu {
    /// The QEMU named by [`VARIABLE`], or [`PROGRAM`] from `PATH`.
    pub fn find() -> Result<Self, QemuError> {
        match Self::named() {
            Some(program) => Self::at(&program).map_err(QemuError::of_the_variable),
            None => Self::at(Path::new(PROGRAM)),
        }
    }

    /// The value of [`VARIABLE`], if it is set.
    pub fn named() -> Option<PathBuf> {
        env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from)
    }

    /// The QEMU at `program`, a path or a name to be found in `PATH`.
    pub fn at(program: &Path) -> Result<Self, QemuError> {
        let unusable = |why: String| QemuError::Unusable { program: program.to_owned(), why };
        let output = match Command::new(program).arg("--version").output() {
            Ok(output) => output,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(QemuError::Missing { program: program.to_owned() });
            }
            Err(error) => return Err(unusable(error.to_string())),
        };
        if !output.status.success() {
            return Err(unusable(format!("`--version` ended with {}", output.status)));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let found =
            Version::parse(&text).ok_or_else(|| unusable("it does not answer `--version` as QEMU does".to_owned()))?;
        if found < OLDEST {
            return Err(QemuError::TooOld { program: program.to_owned(), found });
        }
        // A QEMU that was built without seccomp refuses the option.
        let asked = Command::new(program).args(["-sandbox", SANDBOX, "--version"]).output();
        let sandbox = asked.is_ok_and(|output| output.status.success());
        Ok(Self { program: program.to_owned(), version: found, sandbox })
    }

    /// The arguments that keep QEMU from starting programs, whatever a guest makes it do. Empty if QEMU has no sandbox.
    pub fn sandbox(&self) -> &'static [&'static str] {
        if self.sandbox { &["-sandbox", SANDBOX] } else { &[] }
    }

    /// The program to start.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }
}

impl QemuError {
    /// The other errors name the variable whether it is set or not.
    fn of_the_variable(self) -> Self {
        match self {
            Self::Missing { program } => Self::NamedMissing { program },
            other => other,
        }
    }
}

impl Version {
    /// Reads the answer to `--version`.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.trim_start().strip_prefix("QEMU emulator version ")?;
        let word = rest.split(|character: char| !(character.is_ascii_digit() || character == '.')).next()?;
        let mut numbers = word.split('.').map(|number| number.parse::<u32>());
        let major = numbers.next()?.ok()?;
        let minor = numbers.next()?.ok()?;
        let micro = numbers.next().and_then(Result::ok).unwrap_or(0);
        Some(Self { major, minor, micro })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn reads_versions() {
        let version = |text| Version::parse(text).map(|version| version.to_string());
        assert_eq!(version("QEMU emulator version 7.2.22 (Debian 1:7.2)\nCopyright").as_deref(), Some("7.2.22"));
        assert_eq!(version("QEMU emulator version 10.0.2").as_deref(), Some("10.0.2"));
        assert_eq!(version("QEMU emulator version 9.1\n").as_deref(), Some("9.1.0"));
        assert_eq!(version("QEMU emulator version 11.0.0-rc1\n").as_deref(), Some("11.0.0"));
        assert_eq!(version("GNU bash, version 5.2"), None);
        assert_eq!(version(""), None);
    }

    #[test]
    fn versions_are_ordered_by_number() {
        let version = |text| Version::parse(&format!("QEMU emulator version {text}")).unwrap();
        assert!(version("7.1.99") < OLDEST);
        assert!(version("7.10.0") > OLDEST);
        assert!(version("10.0.0") > OLDEST);
    }

    #[test]
    fn missing_old_and_foreign_programs_are_refused() {
        let at = |fake: &Fake| Qemu::at(&fake.program).unwrap_err().to_string();
        let missing = Qemu::at(Path::new("no-such-qemu")).unwrap_err().to_string();
        assert!(missing.contains("doctor"), "{missing}");
        let named = Qemu::at(Path::new("no-such-qemu")).unwrap_err().of_the_variable().to_string();
        assert!(named.contains(VARIABLE) && named.contains("no-such-qemu"), "{named}");
        let old = at(&Fake::new("echo 'QEMU emulator version 6.2.0'"));
        assert!(old.contains("6.2.0") && old.contains("7.2.0 or later"), "{old}");
        let foreign = at(&Fake::new("echo hello"));
        assert!(foreign.contains("does not answer"), "{foreign}");
        let failing = at(&Fake::new("exit 3"));
        assert!(failing.contains("exit status: 3"), "{failing}");
    }

    #[test]
    fn a_new_one_is_taken() {
        let fake = Fake::new("echo 'QEMU emulator version 8.2.1'");
        assert_eq!(Qemu::at(&fake.program).unwrap().version().to_string(), "8.2.1");
    }
}
