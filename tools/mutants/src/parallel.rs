// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judging several mutants at a time, with a progress bar.

use std::io::{self, IsTerminal};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use twofold_workspace::output;

/// Runs `work` on each of `items` and its index, `jobs` at a time; returns the results in the order of the items.
/// `work` may print through the progress bar.
pub fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    jobs: usize,
    work: impl Fn(usize, &T, &ProgressBar) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    let bar = progress(items.len());
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let said = Mutex::new(Instant::now());
    let worker = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return anyhow::Ok(()) };
            // After an error no worker begins another item.
            let result = work(index, item, &bar).inspect_err(|_| next.store(items.len(), Ordering::Relaxed))?;
            bar.inc(1);
            if bar.is_hidden() && is_time(&said) {
                output::line(&format!("{:>12} of {}", bar.position(), items.len()))?;
            }
            if let Ok(mut results) = results.lock() {
                results.push((index, result));
            }
        }
    };
    let ended: anyhow::Result<()> = thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| bail!("a worker panicked")))
    });
    bar.finish_and_clear();
    ended?;
    let mut results = results.into_inner().map_err(|_| anyhow::anyhow!("a worker panicked"))?;
    results.sort_by_key(|(index, _)| *index);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Returns whether a progress line is due; used if no bar is drawn.
fn is_time(said: &Mutex<Instant>) -> bool {
    let Ok(mut said) = said.try_lock() else { return false };
    let is_time = said.elapsed() >= BETWEEN_LINES;
    if is_time {
        *said = Instant::now();
    }
    is_time
}

const BETWEEN_LINES: Duration = Duration::from_secs(20);

/// Returns a progress bar, which is drawn on a terminal only.
fn progress(count: usize) -> ProgressBar {
    let target = if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len}, {elapsed} gone, {eta} to go");
    let bar = ProgressBar::with_draw_target(Some(count as u64), target);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_and_an_error_ends_it() {
        let doubled = in_parallel(&[1, 2, 3, 4, 5], 3, |index, item, _| Ok((index, item * 2))).unwrap();
        assert_eq!(doubled, [(0, 2), (1, 4), (2, 6), (3, 8), (4, 10)]);
        let failed = in_parallel(&[1, 2, 3], 1, |_, item, _| if *item == 2 { bail!("two") } else { Ok(()) });
        assert_eq!(failed.unwrap_err().to_string(), "two");
    }
}
