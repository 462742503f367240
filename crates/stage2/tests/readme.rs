// SPDX-License-Identifier: Apache-2.0 OR MIT
//! README shows a part of `examples/minimal.rs`, which is compiled with the tests.

#[test]
fn readme_shows_what_is_compiled() {
    let shown = include_str!("../../../README.md").split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    let compiled = include_str!("../examples/minimal.rs").split("// README from here\n").nth(1);
    let compiled = compiled.and_then(|rest| rest.split("// to here\n").next());
    assert_eq!(shown, compiled);
}
