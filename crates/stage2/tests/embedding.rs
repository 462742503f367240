// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guide "Replace your stage-2 code" shows a program that is compiled and run here, and that fits an afternoon.

#[allow(dead_code, reason = "its `main` is called below")]
#[path = "../examples/embedding.rs"]
mod embedding;

const GUIDE: &str = include_str!("../docs/embedding.md");

/// The most lines of the code that replaces an embedder's own, without blank lines. Its test comes on top.
const MOST_LINES: usize = 120;

fn blocks() -> Vec<&'static str> {
    GUIDE.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

#[test]
fn the_guide_s_program_runs() {
    embedding::main().unwrap();
}

#[test]
fn the_guide_shows_what_is_compiled() {
    let compiled = include_str!("../examples/embedding.rs").split("// The guide from here\n").nth(1);
    assert_eq!(Some(blocks().join("\n").as_str()), compiled);
}

#[test]
fn the_guide_s_code_is_short() {
    let blocks = blocks();
    let (test, code) = blocks.split_last().unwrap();
    assert!(test.contains("pub fn main()"));
    let lines = code.iter().flat_map(|block| block.lines()).filter(|line| !line.trim().is_empty()).count();
    assert!(lines <= MOST_LINES, "the guide has {lines} lines of code");
}
