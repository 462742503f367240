// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bm` (Natapov 2010): some threads write to random pages of an array, others work, for a time.
//!
//! If the array is larger than the memory that the machine gives its guest, most writes find their page absent. The more of
//! that time the working threads get, the more they do.
//!
//! Each faulting thread has a word of its own in each page: the number of the page, and how often the thread wrote there. It
//! checks the word before each write. With `--check` the sum of all words has to be the number of writes in the end. So no
//! write is lost, and no page has come back as another, or as an older one.

use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use clap::Parser;

/// Writes to random pages in some threads, and works in others
#[derive(Parser)]
#[command(name = "bm", version)]
struct Options {
    /// Threads that write to random pages
    #[arg(short, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(..=WORDS as i64))]
    faulters: u16,
    /// Threads that work
    #[arg(short, value_name = "N", default_value_t = 1)]
    workers: u16,
    /// Bytes of the array
    #[arg(short, value_name = "BYTES", default_value_t = 1 << 30, value_parser = clap::value_parser!(u64).range(PAGE as u64..))]
    memory: u64,
    /// How long they do this
    #[arg(short, value_name = "SECONDS", default_value_t = 5)]
    time: u64,
    /// Reads the whole array in the end: the sum of all words is the number of writes
    #[arg(long)]
    check: bool,
}

const PAGE: usize = 4096;
const WORDS: usize = PAGE / size_of::<AtomicU64>();
/// The bits of a word that count. The others are the page's number.
const COUNT_BITS: u32 = 32;

#[repr(C, align(4096))]
struct Page([AtomicU64; WORDS]);

/// What a thread did; on a line of its own, so that threads do not contend for it.
#[repr(align(64))]
#[derive(Default)]
struct Done(AtomicU64);

fn main() -> ExitCode {
    let Options { faulters, workers, memory, time, check } = Options::parse();
    // As the original's `memset`: each page exists.
    let pages: Vec<_> = (0..memory / PAGE as u64).map(Page::new).collect();
    let [writes, work] =
        [faulters, workers].map(|count| -> Vec<Done> { (0..count).map(|_| Done::default()).collect() });
    let (stop, wrong) = (AtomicBool::new(false), AtomicBool::new(false));
    let begin = Barrier::new(writes.len() + work.len() + 1);
    thread::scope(|scope| {
        for (thread, done) in writes.iter().enumerate() {
            let (begin, stop, wrong, pages) = (&begin, &stop, &wrong, &pages);
            scope.spawn(move || {
                begin.wait();
                if let Err(Wrong { page, word }) = fault(pages, thread, done, stop) {
                    println!("bm: FAILED: page {page} has {word:#x} of thread {thread}");
                    wrong.store(true, Ordering::Relaxed);
                }
            });
        }
        for done in &work {
            let (begin, stop) = (&begin, &stop);
            scope.spawn(move || {
                begin.wait();
                labour(done, stop);
            });
        }
        begin.wait();
        thread::sleep(Duration::from_secs(time));
        stop.store(true, Ordering::Relaxed);
    });
    for (number, done) in work.iter().enumerate() {
        println!("worker {number}: {}", done.get());
    }
    let [made, worked] = [&writes, &work].map(|all| all.iter().map(Done::get).sum::<u64>());
    println!("bm: pages {made} work {worked}");
    if check && !wrong.load(Ordering::Relaxed) {
        match found(&pages, writes.len()) {
            Ok(found) if found == made => println!("bm: {found} writes in {} pages", pages.len()),
            Ok(found) => {
                println!("bm: FAILED: {found} writes are in the array, and {made} were made");
                wrong.store(true, Ordering::Relaxed);
            }
            Err(Wrong { page, word }) => {
                println!("bm: FAILED: page {page} has {word:#x} in the end");
                wrong.store(true, Ordering::Relaxed);
            }
        }
    }
    if wrong.into_inner() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// A word that is not as it was written.
struct Wrong {
    page: usize,
    word: u64,
}

/// Writes to random pages.
fn fault(pages: &[Page], thread: usize, done: &Done, stop: &AtomicBool) -> Result<(), Wrong> {
    let mut random = thread as u64 + 1;
    while !stop.load(Ordering::Relaxed) {
        let page = next(&mut random) as usize % pages.len();
        let place = &pages[page].0[thread];
        let word = place.load(Ordering::Relaxed);
        if word >> COUNT_BITS != page as u64 {
            return Err(Wrong { page, word });
        }
        place.store(word + 1, Ordering::Relaxed);
        done.add();
    }
    Ok(())
}

/// Counts, as the original does.
fn labour(done: &Done, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        done.add();
    }
}

/// The sum of all counts.
fn found(pages: &[Page], threads: usize) -> Result<u64, Wrong> {
    let mut sum = 0;
    for (page, words) in pages.iter().enumerate() {
        for word in &words.0[..threads] {
            let word = word.load(Ordering::Relaxed);
            if word >> COUNT_BITS != page as u64 {
                return Err(Wrong { page, word });
            }
            sum += word & ((1 << COUNT_BITS) - 1);
        }
    }
    Ok(sum)
}

impl Page {
    fn new(number: u64) -> Self {
        Self([const { AtomicU64::new(0) }; WORDS].map(|_| AtomicU64::new(number << COUNT_BITS)))
    }
}

impl Done {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// One thread adds.
    fn add(&self) {
        self.0.store(self.get() + 1, Ordering::Relaxed);
    }
}

/// xorshift64 (Marsaglia 2003).
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array() -> Vec<Page> {
        (0..8).map(Page::new).collect()
    }

    #[test]
    fn all_writes_are_found() {
        let (pages, done, stop) = (array(), [Done::default(), Done::default()], AtomicBool::new(false));
        thread::scope(|scope| {
            for (thread, done) in done.iter().enumerate() {
                let (pages, stop) = (&pages, &stop);
                scope.spawn(move || assert!(fault(pages, thread, done, stop).is_ok()));
            }
            while done.iter().any(|done| done.get() < 1000) {
                thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(found(&pages, 2).ok(), Some(done[0].get() + done[1].get()));
        // One write is lost.
        let page = pages.iter().find(|page| page.0[1].load(Ordering::Relaxed) as u32 > 0).unwrap();
        page.0[1].fetch_sub(1, Ordering::Relaxed);
        assert_eq!(found(&pages, 2).ok(), Some(done[0].get() + done[1].get() - 1));
    }

    #[test]
    fn a_page_in_anothers_place_is_wrong() {
        let mut pages = array();
        pages.swap(3, 4);
        assert!(matches!(found(&pages, 1), Err(Wrong { page: 3, .. })));
        let (done, stop) = (Done::default(), AtomicBool::new(false));
        assert!(fault(&pages, 0, &done, &stop).is_err());
    }
}
