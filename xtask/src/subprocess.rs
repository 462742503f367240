// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other programs: started, waited for, and their failure put in a sentence.
//!
//! Invariant: a program that fails is an error that names it and holds the end of what it wrote.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::output;

/// Runs `command` and gives its standard output; an error has its last words.
pub fn read(command: &mut Command) -> anyhow::Result<String> {
    let name = name(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| not_started(&name))?;
    if !output.status.success() {
        bail!("{name} ended with {}: {}", output.status, last_words(&output.stderr, &output.stdout, 8));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `command`: its output is shown as it comes on a terminal, else only when it fails.
pub fn show(command: &mut Command) -> anyhow::Result<()> {
    let name = name(command);
    if output::is_terminal() {
        // On standard error, so that standard output stays ours.
        let status = command.stdout(io::stderr()).status().with_context(|| not_started(&name))?;
        if !status.success() {
            bail!("{name} ended with {status}; it said why above");
        }
        return Ok(());
    }
    quiet(command)
}

/// Runs `command` without showing its output; an error has the end of it.
pub fn quiet(command: &mut Command) -> anyhow::Result<()> {
    let name = name(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| not_started(&name))?;
    if !output.status.success() {
        bail!("{name} ended with {}:\n{}", output.status, last_words(&output.stderr, &output.stdout, 80));
    }
    Ok(())
}

/// The file that `name` stands for in `PATH`, if there is one.
pub fn find(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Path::new(name).is_file().then(|| name.into());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// The command as one would type it.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

fn name(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let first = command.get_args().next().map(|word| word.to_string_lossy().into_owned());
    match first {
        // `cargo build` says more than `cargo`; a path or an option does not.
        Some(word) if !word.starts_with(['-', '/']) => format!("{} {word}", program.to_string_lossy()),
        _ => program.to_string_lossy().into_owned(),
    }
}

fn not_started(name: &str) -> String {
    format!("{name} does not start; `cargo xtask doctor` says what is missing")
}

fn last_words(stderr: &[u8], stdout: &[u8], count: usize) -> String {
    let text = if stderr.iter().all(u8::is_ascii_whitespace) { stdout } else { stderr };
    let text = String::from_utf8_lossy(text);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        return "it said nothing".to_owned();
    }
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_is_read() {
        assert_eq!(read(&mut shell("echo hello")).unwrap(), "hello\n");
    }

    #[test]
    fn a_failure_has_its_last_words() {
        let error = read(&mut shell("echo one >&2; echo two >&2; exit 3")).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("one\ntwo"), "{error}");
        let error = show(&mut shell("exit 3")).unwrap_err().to_string();
        assert!(error.contains("exit status: 3"), "{error}");
    }

    #[test]
    fn programs_are_found() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program").is_none());
        assert!(find("/no/such/program").is_none());
    }
}
