// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads what Cargo prints with `--message-format=json`.

use std::path::PathBuf;

use serde::Deserialize;

/// A program that Cargo made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executable {
    /// The target's name.
    pub target: String,
    /// The program's file.
    pub file: PathBuf,
    /// The directory of the target's package.
    pub package: PathBuf,
}

/// A message of the compiler.
#[derive(Debug, Deserialize)]
pub struct Diagnostic {
    level: String,
    /// The message as the compiler would print it.
    pub rendered: Option<String>,
    /// The pieces of source that the message is about.
    #[serde(default)]
    pub spans: Vec<Span>,
}

/// A piece of a source file.
#[derive(Debug, Deserialize)]
pub struct Span {
    /// The file.
    pub file_name: String,
    /// The first byte.
    pub byte_start: usize,
    /// The byte after the last one.
    pub byte_end: usize,
    /// Whether this is the piece to blame; the others explain it.
    pub is_primary: bool,
}

/// Returns the programs among Cargo's messages.
pub fn executables(messages: &str) -> impl Iterator<Item = Executable> {
    read(messages).filter_map(|message| {
        let package = message.manifest_path?.parent()?.to_owned();
        Some(Executable { target: message.target?.name, file: message.executable?, package })
    })
}

/// Returns the compiler's errors among Cargo's messages.
pub fn errors(messages: &str) -> impl Iterator<Item = Diagnostic> {
    read(messages).filter_map(|message| message.message).filter(|message| message.level == "error")
}

fn read(messages: &str) -> impl Iterator<Item = Message> {
    messages.lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// One message of Cargo.
#[derive(Deserialize)]
struct Message {
    target: Option<Target>,
    manifest_path: Option<PathBuf>,
    executable: Option<PathBuf>,
    message: Option<Diagnostic>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_compiler_is_shown() {
        let text = r#"{"reason":"compiler-message","message":{"level":"error","rendered":"error: no\n"}}
{"reason":"compiler-message","message":{"level":"warning","rendered":"warning: hm\n"}}"#;
        let found: Vec<_> = errors(text).filter_map(|error| error.rendered).collect();
        assert_eq!(found, ["error: no\n"]);
    }

    #[test]
    fn a_program_is_found_among_messages() {
        let text = r#"{"manifest_path":"/w/cli/Cargo.toml","target":{"name":"twofold"},"executable":"/t/release/twofold"}
{"manifest_path":"/w/abi/Cargo.toml","target":{"name":"twofold-abi"},"executable":null}
{"reason":"build-finished","success":true}"#;
        let (target, file, package) = ("twofold".to_owned(), "/t/release/twofold".into(), "/w/cli".into());
        assert_eq!(executables(text).collect::<Vec<_>>(), [Executable { target, file, package }]);
    }
}
