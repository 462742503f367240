// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's benchmark, as it is ordered by the guest's own Redis. The connection that orders is not the watcher's.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use redis::Connection;
use twofold_launch::redis::{END, ORDERS, RESULTS, rate};

use super::host::{Host, LOOK};
use crate::experiment::host_clock::Moment;
use crate::stop::Stop;

/// The guest's benchmark.
pub struct Benchmark {
    connection: Connection,
}

/// A benchmark that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// When.
    pub at: Moment,
    /// Requests a second by the guest's own clock, which stands still while the guest does.
    pub rate: f64,
}

impl Benchmark {
    /// Waits until the guest's Redis answers.
    ///
    /// # Errors
    ///
    /// The guest ended before.
    pub fn wait_for(redis: SocketAddr, host: &Host, stop: &Stop) -> anyhow::Result<Self> {
        loop {
            // The switch takes a connection at once, and ends it if the guest does.
            let error = match connect(redis) {
                Ok(connection) => return Ok(Self { connection }),
                Err(error) => error,
            };
            ensure!(!stop.is_requested(), "the bench was stopped");
            ensure!(!host.has_ended(), "the guest has ended before its Redis answered: {error:#}");
            thread::sleep(LOOK);
        }
    }

    /// Orders this number of requests. Returns when.
    ///
    /// # Errors
    ///
    /// The connection was dropped.
    pub fn order(&mut self, requests: u64) -> anyhow::Result<Moment> {
        redis::cmd("RPUSH").arg(ORDERS).arg(requests).exec(&mut self.connection).context("an order to the guest")?;
        Ok(Moment::now())
    }

    /// Waits until the benchmark has ended.
    ///
    /// # Errors
    ///
    /// It has failed, for example because a connection of its own was dropped; or this connection was.
    pub fn wait(&mut self, stop: &Stop) -> anyhow::Result<Ended> {
        loop {
            let popped = redis::cmd("BLPOP").arg(RESULTS).arg(1).query(&mut self.connection);
            let popped: Option<(String, String)> = popped.context("the guest's result")?;
            if let Some((_, result)) = popped {
                let at = Moment::now();
                return match rate(&result) {
                    Ok(rate) => Ok(Ended { at, rate }),
                    Err(why) => bail!(why),
                };
            }
            ensure!(!stop.is_requested(), "the bench was stopped");
        }
    }

    /// The number of keys in the guest.
    ///
    /// # Errors
    ///
    /// The connection was dropped.
    pub fn keys(&mut self) -> anyhow::Result<u64> {
        redis::cmd("DBSIZE").query(&mut self.connection).context("the number of keys")
    }

    /// Ends the guest.
    ///
    /// # Errors
    ///
    /// The connection was dropped.
    pub fn end(mut self) -> anyhow::Result<()> {
        redis::cmd("RPUSH").arg(ORDERS).arg(END).exec(&mut self.connection).context("the last order to the guest")
    }
}

/// A connection to the guest's Redis.
///
/// # Errors
///
/// There is none.
pub fn connect(redis: SocketAddr) -> anyhow::Result<Connection> {
    let client = redis::Client::open(format!("redis://{redis}/"))?;
    let connection = client.get_connection_with_timeout(Duration::from_secs(10))?;
    connection.set_read_timeout(Some(SILENCE))?;
    connection.set_write_timeout(Some(SILENCE))?;
    Ok(connection)
}

/// For how long a guest may not answer, which is far more than a move takes.
const SILENCE: Duration = Duration::from_secs(300);
