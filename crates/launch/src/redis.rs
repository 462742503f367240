// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Linux guest that serves Redis in a network, for `twofold bench migrate --on hypervisor`, and what it and its launcher
//! agree on. `cargo xtask build --linux-redis` makes it.
//!
//! A client of its Redis puts a number of requests into the list [`ORDERS`]. The guest makes as many by `redis-benchmark`, and then
//! puts a line into the list [`RESULTS`]: the benchmark's exit status, and the last line of its CSV. The order [`END`] ends the
//! guest.

use std::net::Ipv4Addr;
use std::path::Path;

use twofold_workload::policies::Policies;

use crate::devices::Devices;
use crate::guest::{GuestSettings, Pages, WEIGHT_DEFAULT};

/// The guest's address.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 3, 15);
/// Its Redis.
pub const PORT: u16 = 6379;
/// The list with orders.
pub const ORDERS: &str = "orders";
/// The list with results.
pub const RESULTS: &str = "results";
/// The order to end.
pub const END: &str = "end";
/// The word of Linux's command line with the number of clients of the benchmark.
pub const CLIENTS: &str = "redis-clients=";
/// Keys that the benchmark sets, at random, and the bytes of a value.
pub const KEYS: u64 = 10_000;
/// The bytes of a value.
pub const VALUE: u64 = 1000;

/// The guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redis<'a> {
    /// An arm64 Image.
    pub kernel: &'a Path,
    /// The initrd that runs [`commands`].
    pub initrd: &'a Path,
    /// vCPUs. The benchmark has as many threads.
    pub vcpus: u32,
    /// Bytes of its memory.
    pub memory: u64,
    /// Clients of the benchmark, each with a connection.
    pub clients: u32,
}

impl Redis<'_> {
    /// Its settings with these devices, of which the first card is in the client's network.
    #[must_use]
    pub fn guest(&self, devices: Devices) -> GuestSettings {
        GuestSettings {
            name: "redis".to_owned(),
            weight: WEIGHT_DEFAULT,
            firmware: None,
            kernel: self.kernel.to_owned(),
            initrd: Some(self.initrd.to_owned()),
            command_line: format!("console=ttyAMA0 panic=-1 loglevel=5 {CLIENTS}{}", self.clients),
            memory: self.memory,
            cpus: self.vcpus,
            pages: Pages::Auto,
            flags: 0,
            devices,
            swap: None,
            test: None,
            policies: Policies::default(),
        }
    }
}

/// What the guest's shell does: each is one line.
#[must_use]
pub fn commands() -> [String; 3] {
    let clients = format!("$(tr ' ' '\\n' < /proc/cmdline | sed -n 's/^{CLIENTS}//p')");
    let benchmark =
        format!("redis-benchmark -t set -r {KEYS} -d {VALUE} --threads $(nproc) -c $clients -n $order --csv");
    [
        format!("ip link set lo up && ip link set eth0 up && ip address add {ADDRESS}/24 dev eth0"),
        "ulimit -n 4096 && redis-server --bind 0.0.0.0 --protected-mode no --save '' --appendonly no --daemonize yes \
         > /tmp/redis.log && until redis-cli ping > /dev/null 2>&1; do sleep 0.1; done"
            .to_owned(),
        format!(
            "ulimit -n 4096; clients={clients}; while order=$(redis-cli blpop {ORDERS} 0 | sed -n 2p) && [ \"$order\" != {END} \
             ]; do {benchmark} > /tmp/csv 2>&1; redis-cli rpush {RESULTS} \"$? $(tail -n 1 /tmp/csv)\" > /tmp/pushed; done"
        ),
    ]
}

/// The requests a second in a result, by the guest's own clock.
///
/// # Errors
///
/// The benchmark has failed: its line.
pub fn rate(result: &str) -> Result<f64, String> {
    let rate = || result.strip_prefix("0 \"SET\",\"")?.split('"').next()?.parse().ok();
    rate().ok_or_else(|| format!("redis-benchmark in the guest has failed: {result}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_has_the_rate_or_is_an_error() {
        assert_eq!(rate("0 \"SET\",\"1234.50\",\"0.1\",\"0.2\""), Ok(1234.5));
        for bad in ["1 \"SET\",\"1234.50\"", "0 \"GET\",\"1.0\"", "0 Error: Server closed the connection", "", "0 "] {
            assert!(rate(bad).unwrap_err().ends_with(bad), "{bad}");
        }
    }

    #[test]
    fn a_command_is_one_line() {
        assert!(commands().iter().all(|command| !command.contains('\n')));
    }
}
