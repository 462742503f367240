// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands that a Linux runs from its initramfs, and what its console has of them. `guest/commands` is the other half.
//!
//! Invariant: a command has a result only if it ended; the result has its exit status and its own lines.

use anyhow::{Context, bail, ensure};

/// The file of the initramfs with the commands.
pub const FILE: &str = "commands";

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The command.
    pub command: String,
    /// The exit status that the shell reported.
    pub status: i32,
    /// The lines that the command wrote to standard output and standard error.
    pub lines: Vec<String>,
}

/// Returns the content of [`FILE`].
pub fn lines(commands: &[String]) -> anyhow::Result<Vec<u8>> {
    ensure!(commands.iter().all(|command| !command.contains('\n')), "a command is one line");
    Ok(format!("{}\n", commands.join("\n")).into_bytes())
}

/// Separates the commands' own lines from the rest of the console.
pub fn ran(commands: &[String], console: &[String]) -> anyhow::Result<Vec<Ran>> {
    let mut lines = console.iter().map(|line| line.trim_end());
    let mut all = Vec::new();
    for (number, command) in commands.iter().enumerate() {
        let begin = format!("{BEGIN}{number}");
        if !lines.any(|line| line == begin) {
            bail!("the console has no beginning of `{command}`");
        }
        let end = format!("{END}{number} ");
        let (mut own, mut status) = (Vec::new(), None);
        for line in lines.by_ref() {
            if let Some(text) = line.strip_prefix(&end) {
                status = Some(text.parse().with_context(|| format!("`{command}` ended with `{text}`"))?);
                break;
            }
            own.push(line.to_owned());
        }
        let status = status.with_context(|| format!("the console has no end of `{command}`"))?;
        // The first process prints a line end after the command's output.
        if own.last().is_some_and(String::is_empty) {
            own.pop();
        }
        all.push(Ran { command: command.clone(), status, lines: own });
    }
    Ok(all)
}

impl Ran {
    /// Returns the command's lines if it ended with 0; else an error with the last lines.
    pub fn ended_well(&self) -> anyhow::Result<&[String]> {
        let last = &self.lines[self.lines.len().saturating_sub(20)..];
        ensure!(self.status == 0, "`{}` ended with status {}:\n{}", self.command, self.status, last.join("\n"));
        Ok(&self.lines)
    }
}

const BEGIN: &str = "twofold: begin ";
const END: &str = "twofold: end ";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::initramfs;

    fn console(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn each_command_has_its_own_lines() {
        let commands = ["one".to_owned(), "two".to_owned()];
        let text =
            "booting\ntwofold: begin 0\na\n\nb\n\ntwofold: end 0 0\r\ntwofold: begin 1\n\ntwofold: end 1 139\nok\n";
        let all = ran(&commands, &console(text)).unwrap();
        assert_eq!(all[0], Ran { command: "one".to_owned(), status: 0, lines: console("a\n\nb") });
        assert_eq!(all[1], Ran { command: "two".to_owned(), status: 139, lines: Vec::new() });
        assert_eq!(all[0].ended_well().unwrap().len(), 3);
        assert!(all[1].ended_well().is_err());
    }

    #[test]
    fn a_command_that_did_not_end_is_an_error() {
        let commands = ["one".to_owned(), "two".to_owned()];
        for text in
            ["", "twofold: begin 0\na", "twofold: begin 0\ntwofold: end 1 0", "twofold: begin 0\ntwofold: end 0 0"]
        {
            assert!(ran(&commands, &console(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn the_first_process_has_the_same_file_and_marks() {
        for words in
            [format!("3< /{FILE}\n"), format!("echo \"{BEGIN}$number\""), format!("echo \"{END}$number $status\"")]
        {
            assert!(initramfs::COMMANDS.contains(&words), "{words}");
        }
    }
}
