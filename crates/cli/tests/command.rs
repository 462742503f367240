// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold run`, `attach` and `stat` as a user types them, good and bad: `run.trycmd` is the table, and `run.in` has its files.
//! No QEMU runs: what is good writes the guest's device tree.
//!
//! `TRYCMD=overwrite cargo test -p twofold --test command` writes what the command says now into the table.

#[test]
fn the_table_of_examples() {
    // A directory without runs.
    let runs = tempfile::tempdir().unwrap();
    trycmd::TestCases::new()
        .case("tests/run.trycmd")
        .env("XDG_RUNTIME_DIR", runs.path().display().to_string())
        .env("TWOFOLD_QEMU", "/no/such/qemu")
        // Whatever the terminal of the tests is.
        .env("COLUMNS", "100")
        .insert_var("[RUNS]", runs.path().display().to_string())
        .unwrap();
}
