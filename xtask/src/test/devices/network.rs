// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests that talk by TCP: to each other, to a server on the host, and Redis to clients on both sides.

use std::io;
use std::net::{Shutdown, TcpListener};
use std::process::Command;
use std::thread;

use anyhow::{Context, ensure};
use twofold_abi::bundle::flags;
use twofold_launch::{Driver, GuestSettings, Outcome};
use twofold_workspace::{install, subprocess};

use super::debian::{Guests, has_line, user};

/// Two guests send each other a file, and each sends one to the host, which sends it back.
pub fn talk(guests: &Guests) -> anyhow::Result<()> {
    let port = echo()?;
    let debian = guests.debian()?;
    let guest = |name: &str, own: &str, connect: &str| -> anyhow::Result<GuestSettings> {
        let script = format!(
            "set -e
ip address add {own}/24 dev eth0
head -c 200000 /dev/urandom > /root/sent
{connect}
sent=$(sha256sum < /root/sent) got=$(sha256sum < /root/got)
echo \"sent ${{sent%% *}}\"
echo \"got ${{got%% *}}\"
nc -N 10.0.2.2 {port} < /root/sent > /root/back
cmp /root/sent /root/back
echo 'the host sent it back'
"
        );
        let disk = guests.disk(debian, name)?;
        let mut guest = guests.guest(debian, name, disk, &script)?;
        name.clone_into(&mut guest.name);
        guest.flags |= flags::CONSOLES;
        guest.devices.nets = vec![user(Vec::new())];
        Ok(guest)
    };
    // The other guest may not listen yet.
    let one = guest("one", "10.0.2.101", "nc -N -l 5000 < /root/sent > /root/got")?;
    let two = guest(
        "two",
        "10.0.2.102",
        "tries=0
until nc -N 10.0.2.101 5000 < /root/sent > /root/got; do
    tries=$((tries + 1))
    [ $tries -lt 600 ]
    sleep 0.5
done",
    )?;
    let outcome = guests.run(vec![one, two])?;
    for name in ["one", "two"] {
        has_line(&outcome, |line| line == format!("[{name}] the host sent it back"))?;
    }
    for (sender, receiver) in [("one", "two"), ("two", "one")] {
        let (sent, got) = (sum(&outcome, sender, "sent")?, sum(&outcome, receiver, "got")?);
        ensure!(sent == got, "{sender} sent {sent}, and {receiver} got {got}");
    }
    Ok(())
}

/// Finds the sum that a guest printed after `word`.
fn sum(outcome: &Outcome, guest: &str, word: &str) -> anyhow::Result<String> {
    let prefix = format!("[{guest}] {word} ");
    let console = outcome.console.tail(usize::MAX);
    let found = console.iter().find_map(|line| line.trim_end().strip_prefix(&prefix));
    found.map(str::to_owned).with_context(|| format!("no {prefix:?} in:\n{}", console.join("\n")))
}

/// Starts a server on the host that sends back what it gets, until this program ends; returns its port.
fn echo() -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that breaks off reports that itself.
            thread::spawn(move || {
                let _ = io::copy(&mut &stream, &mut &stream);
                let _ = stream.shutdown(Shutdown::Write);
            });
        }
    });
    Ok(port)
}

/// redis-benchmark sets and gets, in the guest and on the host, by a port of the host that leads into the guest.
pub fn redis(guests: &Guests) -> anyhow::Result<()> {
    install::program("redis-benchmark", "redis-tools")?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let debian = guests.debian()?;
    let disk = guests.disk(debian, "redis")?;
    let script = format!(
        "set -e
redis-server --bind 0.0.0.0 --protected-mode no --save '' --daemonize yes > /run/redis.log
until redis-cli ping > /dev/null; do
    sleep 0.2
done
{BENCHMARK} -h 127.0.0.1 | tail -n 20 | tr '\\r' '\\n' | grep 'requests per second'
echo 'redis: ready'
until [ \"$(redis-cli get finished)\" = yes ]; do
    sleep 1
done
"
    );
    let mut guest = guests.guest(debian, "redis", disk, &script)?;
    guest.devices.nets = vec![user(vec![format!("tcp:127.0.0.1:{port}-10.0.2.15:6379")])];
    let from_the_host = |driver: Driver| -> anyhow::Result<String> {
        let lines = driver.lines;
        lines.iter().find(|line| line.trim_end() == "redis: ready").context("Redis is not ready")?;
        let port = port.to_string();
        let mut words = BENCHMARK.split(' ');
        let mut benchmark = Command::new(words.next().unwrap_or_default());
        // QEMU's user network listens with a backlog of 1. Of more clients that connect at once, the host resets some that
        // QEMU is too slow to accept.
        let printed = subprocess::read(benchmark.args(words).args(["-c", "2", "-h", "127.0.0.1", "-p", &port]))?;
        subprocess::read(Command::new("redis-cli").args(["-p", &port, "set", "finished", "yes"]))?;
        Ok(printed)
    };
    let (outcome, printed) = guests.run_driven(guest, from_the_host)?;
    for kind in ["SET", "GET"] {
        let is_result = |line: &str| line.contains(&format!("{kind}: ")) && line.contains("requests per second");
        has_line(&outcome, is_result).with_context(|| format!("no {kind} in the guest"))?;
        ensure!(printed.split(['\r', '\n']).any(is_result), "no {kind} from the host:\n{printed}");
    }
    Ok(())
}

const BENCHMARK: &str = "redis-benchmark -t set,get -n 2000 -q";
