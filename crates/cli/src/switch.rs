// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold switch`: a network switch outside of QEMU.

use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use twofold_switch::{Address, Forward, Network, Serve, Server, Settings};

/// A network switch outside of QEMU, so that connections outlive a QEMU.
///
/// QEMUs plug in by `-netdev stream,addr.type=unix,addr.path=PATH`, guests of Twofold by `--net switch:PATH`. Guests get
/// addresses by DHCP, and reach each other and the ports that `--serve` names. The switch runs until it is interrupted.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Where to listen: the path of a Unix socket, or ADDRESS:PORT for TCP. Repeat for more
    #[arg(long, value_name = "PATH|ADDRESS:PORT", required = true)]
    listen: Vec<Address>,

    /// Leads a port of the host to one of a guest: `127.0.0.1:8022=10.0.3.15:22`. Repeat for more
    #[arg(long, value_name = "HOST:PORT=GUEST:PORT", conflicts_with = "no_gateway")]
    forward: Vec<Forward>,

    /// Leads a port of the gateway to a server on the host: `80=127.0.0.1:8080`. Repeat for more
    #[arg(long, value_name = "PORT=HOST:PORT", conflicts_with = "no_gateway")]
    serve: Vec<Serve>,

    /// The gateway's address, and the size of the network
    #[arg(long, value_name = "ADDRESS/BITS", default_value = "10.0.3.2/24")]
    network: Network,

    /// No gateway: guests reach each other only, and nothing gives them addresses
    #[arg(long)]
    no_gateway: bool,
}

/// Runs the switch until it is interrupted.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = Settings {
        listen: arguments.listen.clone(),
        gateway: (!arguments.no_gateway).then_some(arguments.network),
        forwards: arguments.forward.clone(),
        serves: arguments.serve.clone(),
    };
    let server = Server::new(&settings)?;
    let (stop, stopped) = UnixStream::pair().context("cannot make a pair of sockets")?;
    let mut stop = Some(stop);
    // The end of `stop` ends the switch.
    ctrlc::set_handler(move || drop(stop.take())).context("cannot handle signals")?;
    for (forward, at) in arguments.forward.iter().zip(server.forwards()) {
        let (guest, port) = forward.guest;
        eprintln!("{at} leads to {guest}:{port}");
    }
    server.run(&stopped)?;
    Ok(ExitCode::SUCCESS)
}
