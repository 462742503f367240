// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target's process: this program, started again. The bench gives it orders, and it reports.
//!
//! Invariant: the process ends with the bench: its standard input ends then. Ctrl-C reaches both processes, and only the
//! bench heeds it.

use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};
use twofold_migration::Cancel;

use super::node::Node;
use super::orders::{Order, Report};
use super::settings::Settings;
use crate::output;
use crate::stop::Stop;

/// The target's process.
pub struct Process {
    child: Child,
    orders: ChildStdin,
    reports: BufReader<ChildStdout>,
}

impl Process {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// It does not start, or its memory does not fit.
    pub fn start(settings: &Settings) -> anyhow::Result<Self> {
        let mut program = Command::new(&settings.program);
        program.args(["bench", "migrate-target"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = program.spawn().context("cannot start the target's process")?;
        let (orders, reports) = child.stdin.take().zip(child.stdout.take()).context("the target has no pipes")?;
        let mut process = Self { child, orders, reports: BufReader::new(reports) };
        process.order(&Order::Begin(settings.clone()))?;
        match process.report()? {
            Report::Ready => Ok(process),
            other => bail!("the target's process answers {other:?}"),
        }
    }

    /// Gives an order.
    ///
    /// # Errors
    ///
    /// The process has ended.
    pub fn order(&mut self, order: &Order) -> anyhow::Result<()> {
        let line = serde_json::to_string(order)?;
        let written = writeln!(self.orders, "{line}").and_then(|()| self.orders.flush());
        written.map_err(|_| self.ended())
    }

    /// Waits for a report.
    ///
    /// # Errors
    ///
    /// The process has failed or ended.
    pub fn report(&mut self) -> anyhow::Result<Report> {
        let mut line = String::new();
        match self.reports.read_line(&mut line) {
            Ok(0) | Err(_) => Err(self.ended()),
            Ok(_) => match serde_json::from_str(&line).context("a report of the target's process")? {
                Report::Failed(why) => bail!("{why}"),
                report => Ok(report),
            },
        }
    }

    fn ended(&mut self) -> anyhow::Error {
        // Its pipe is closed, so it ends or has ended.
        match self.child.wait() {
            Ok(status) => anyhow::anyhow!("{PROCESS_ENDED}: {status}"),
            Err(error) => anyhow::anyhow!("{PROCESS_ENDED}: {error}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // If it has ended already, there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `twofold bench migrate-target`: does what its standard input says, until that ends.
///
/// # Errors
///
/// An order cannot be read. That a move fails is a report.
pub fn command() -> anyhow::Result<()> {
    // The bench decides when this ends.
    let _stop = Stop::on_signal()?;
    let mut node: Option<Node> = None;
    for line in stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?).context("an order of the bench")?;
        let done = match (order, &mut node) {
            (Order::Begin(settings), _) => Node::new(settings, TARGET).map(|new| {
                node = Some(new);
                Report::Ready
            }),
            (_, None) => bail!("the first order says what both processes know"),
            (Order::Receive(order), Some(node)) => {
                let listener = node.listen(&order);
                if listener.is_ok() {
                    report(&Report::Listening)?;
                }
                listener.and_then(|listener| node.receive(&order, listener)).map(Report::Received)
            }
            (Order::Send(order), Some(node)) => node.send(&order, &Cancel::new()).map(Report::Sent),
        };
        report(&done.unwrap_or_else(|error| Report::Failed(format!("{error:#}"))))?;
    }
    Ok(())
}

/// The error if the target's process is not there any more.
pub const PROCESS_ENDED: &str = "the target's process has ended";
/// The bench's number in the owner record.
pub const BENCH: u64 = 0;
/// The target process's.
const TARGET: u64 = 1;

fn report(report: &Report) -> anyhow::Result<()> {
    output::line(&serde_json::to_string(report)?)
}
