// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold run --incoming`: waits for a guest, and runs it.

use std::process::ExitCode;

use anyhow::Context;
use twofold_bench::output;
use twofold_launch::interactive::Origin;
use twofold_launch::migrate::link;
use twofold_launch::migrate::record::Record;
use twofold_launch::migrate::target::{Coming, Incoming};
use twofold_launch::spec::Net;
use twofold_launch::{Loaded, Qemu};

use super::{Options, Started, image, machine, start};

pub(super) fn command(options: &Options) -> anyhow::Result<ExitCode> {
    let [Some(address), Some(key), Some(owner)] =
        [options.incoming.clone().map(Into::into), options.key.clone(), options.owner.clone()]
    else {
        anyhow::bail!("give --incoming, --key and --owner together");
    };
    let (address, key) = (address.to_string_lossy().into_owned(), link::key(&key)?);
    let address = if address.starts_with(':') { format!("0.0.0.0{address}") } else { address };
    let directory = tempfile::Builder::new().prefix("twofold-").tempdir().context("cannot make a directory")?;
    let image = image::find(options.image.as_deref(), directory.path())?;
    let qemu = Qemu::find()?;
    let mut incoming =
        Incoming::bind(&address, key, Record::new(&owner)).with_context(|| format!("cannot wait at {address}"))?;
    if let Some(memory) = options.memory {
        incoming.memory = memory.bytes();
    }
    incoming.postcopy = !options.no_postcopy;
    output::line(&format!("waits for a guest at {}", incoming.address()?))?;
    let mut coming = wait(&mut incoming);
    if !options.net.is_empty() {
        let networks: Vec<_> = options.net.iter().filter_map(|Net(network)| network.clone()).collect();
        coming.carried.set_networks(&networks)?;
    }
    let (guest, memory) = (coming.carried.known(), coming.carried.memory());
    let path = directory.path().join("guest.bundle");
    let bundle = coming.carried.write(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let cpus = options.host_cpus.unwrap_or(guest.cpus);
    let machine = machine(image, Loaded::Guest { bundle, memory }, cpus, options);
    let started = Started { qemu: &qemu, machine: &machine, directory: directory.path(), options };
    start(&started, &[guest], Origin::Link(Box::new(coming)), None)
}

/// Waits until a guest begins to come. What is refused is said, and the next one may come.
fn wait(incoming: &mut Incoming) -> Coming {
    loop {
        match incoming.wait() {
            Ok(coming) => return coming,
            Err(why) => output::error(&format!("no guest came: {why}")),
        }
    }
}
