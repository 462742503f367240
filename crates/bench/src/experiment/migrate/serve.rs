// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The source of a post-copy move, after the guest has changed hands: it sends the pages that the target asks for first.

use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, bail};
use twofold_migration::postcopy::{Outgoing, Served, Source};
use twofold_migration::ram::{Ahead, SourceRam};
use twofold_migration::{Answers, Asked};

use super::link::{Receiver, Sender};

/// Sends all pages, and waits until the target has them. Returns how many pages were sent, and in how many bytes.
///
/// # Errors
///
/// The link is cut. The guest has lost the pages that had not come: it cannot go on anywhere.
pub fn serve(
    ram: &impl SourceRam,
    (source, mut outgoing): (Source, Outgoing<Sender>),
    answers: &mut Answers<Receiver>,
) -> anyhow::Result<(u64, u64)> {
    let before = outgoing.bytes();
    let source = Mutex::new(source);
    let lock = || source.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        let asked = scope.spawn(|| -> anyhow::Result<()> {
            loop {
                match answers.asked()? {
                    Asked::Pages { waits, slot, page, count } => lock().request(waits, slot, page, count)?,
                    Asked::Complete => return Ok(()),
                    other => bail!("the target answers {other:?} while it fetches pages"),
                }
            }
        });
        let slots = lock().slots().to_vec();
        let (mut sent, mut ahead) = (0, Ahead::new());
        loop {
            let chosen = lock().choose(&mut ahead);
            match outgoing.send_page(&slots, chosen, ram, &mut ahead).context("the pages that were to follow")? {
                Served::Page(..) => sent += 1,
                // This guest has no page store.
                Served::Later => thread::yield_now(),
                Served::All => break,
            }
        }
        asked.join().unwrap_or_else(|_| bail!("a thread has panicked"))?;
        Ok((sent, outgoing.bytes() - before))
    })
}
