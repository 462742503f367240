// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Targets and streams that do not fit a guest: it is refused by name, on both sides, and runs on where it is.
//!
//! Another key is refused in `the_command_moves_a_guest_that_runs`, another guest's record in `crates/launch`, a file that is no
//! snapshot in the tests of the command.

use anyhow::ensure;
use twofold_migration::stream::wire::{Preamble, VERSION};
use twofold_migration::stream::{Compression, Feature, Hello, Name, Writer};
use zerocopy::IntoBytes;

use super::middle::Middle;
use super::sides::{Side, Sides};
use crate::test::vm::machines::Machines;

/// Before its memory is sent: a name that no run has, a target with less memory, and streams with another version, another machine
/// model and a feature that the target lacks.
pub fn at_once(machines: &Machines) -> anyhow::Result<()> {
    let sides = Sides::new(machines)?;
    let mut source = sides.source(PACE)?;
    source.line_with("pace: ")?;

    let (mut target, to) = sides.target(&["--memory", "32M"])?;
    let mut order = sides.migrate("two", &to, &[])?;
    ensure!(!order.ended()? && order.said.contains("no run has a guest two; there is one"), "{}", order.said);

    stays(&sides, [&mut source, &mut target], &to, "the guest has 64 MiB of RAM, and this target at most 32 MiB")?;
    drop(target);

    let (mut target, to) = sides.target(&[])?;
    let model = Hello { model: name("twofold-virt-9"), ..hello() };
    let sve = Feature { name: name("id-aa64zfr0.sve"), value: 2, exact: false };
    for (begin, why) in [
        (
            [Preamble::of(VERSION + 1).as_bytes(), &[0; 64]].concat(),
            "a stream of version 3, and this target reads 1 to 2",
        ),
        (begin(&model)?, "the guest's machine is twofold-virt-9, and this target builds twofold-virt-1"),
        (
            begin(&Hello { features: vec![sve], ..hello() })?,
            "the guest was given id-aa64zfr0.sve with value 2, and this target does not have it",
        ),
        (
            begin(&Hello { page_shift: 16, ..hello() })?,
            "the guest's pages have 65536 bytes, and those of this target 4096",
        ),
    ] {
        let middle = Middle::beginning(&to, &sides.key(), begin)?;
        stays(&sides, [&mut source, &mut target], &middle.address.to_string(), why)?;
    }
    // That target takes a guest yet.
    let mut order = sides.migrate("one", &to, &["--force"])?;
    ensure!(order.ended()?, "{}", order.said);
    target.line_with("pace: ")?;
    Ok(())
}

/// When it is whole: a target with another CPU. A snapshot is refused there, too.
pub fn cpu(machines: &Machines) -> anyhow::Result<()> {
    const CPU: [&str; 2] = ["--cpu", "neoverse-n1"];
    let sides = Sides::new(machines)?;
    let mut source = sides.source(PACE)?;
    source.line_with("pace: ")?;
    let (mut target, to) = sides.target(&CPU)?;
    let mut order = sides.migrate("one", &to, &["--force"])?;
    ensure!(!order.ended()? && order.said.contains("the guest goes on here"), "{}", order.said);
    let is_well = target.ended()?;
    ensure!(!is_well, "{}", target.said);
    for said in [&order.said, &target.said] {
        ensure!(said.contains("the guest's ID_AA64") && said.contains(CPU_IT_HAD), "{said}");
    }
    runs(&sides, &mut source)?;
    let file = sides.snapshot("one")?;
    let mut other = sides.restored(&file, &CPU)?;
    ensure!(!other.ended()? && other.said.contains(CPU_IT_HAD), "{}", other.said);
    runs(&sides, &mut source)?;
    let mut same = sides.restored(&file, &[])?;
    same.line_with("pace: ")?;
    Ok(())
}

/// The guest is refused for this reason, on both sides.
fn stays(sides: &Sides<'_>, [source, target]: [&mut Side; 2], to: &str, why: &str) -> anyhow::Result<()> {
    let mut order = sides.migrate("one", to, &["--force"])?;
    ensure!(
        !order.ended()? && order.said.contains(why) && order.said.contains("the guest goes on here"),
        "{}",
        order.said
    );
    let said = target.line_with("no guest came: ")?;
    ensure!(said.contains(why), "{said}");
    runs(sides, source)
}

/// The guest runs here.
fn runs(sides: &Sides<'_>, source: &mut Side) -> anyhow::Result<()> {
    ensure!(sides.states()?[0] == "one=running", "{:?}", sides.states()?);
    source.all_said();
    source.line_with("pace: ").map(drop)
}

/// The begin of a stream.
fn begin(hello: &Hello) -> anyhow::Result<Vec<u8>> {
    let mut writer = Writer::new(Vec::new(), Compression::Off);
    writer.hello(hello)?;
    Ok(writer.into_sink())
}

/// Of a guest that a target takes.
fn hello() -> Hello {
    Hello {
        migration: [1; 16],
        stream: 0,
        streams: 1,
        model: name("twofold-virt-1"),
        page_shift: 12,
        ipa_bits: 40,
        vcpus: 2,
        memory: 64 << 20,
        features: Vec::new(),
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap_or_else(|| unreachable!("{text} is a name"))
}

/// The guest's program.
const PACE: &str = "pace=200";
/// What a machine with another CPU says.
const CPU_IT_HAD: &str = "start it with the CPU that it had";
