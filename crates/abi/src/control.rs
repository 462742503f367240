// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control channel: lines of text from the hypervisor to its launcher.
//!
//! The guest owns the UART, so the hypervisor speaks on a channel of its own (semihosting console).
//! Each line is one of the forms below; a reader ignores a line whose first word it does not know.
//!
//! ```text
//! twofold:log TEXT             something a person may want to know
//! twofold:error TEXT           why the guest could not be started
//! twofold:stat KEY VALUE       one figure, a decimal u64; KEY is dotted, its parts are [a-z0-9_] and
//!                              not `self`, which a reader keeps for the figure of a part that has parts
//! twofold:round N RUNS         of an image with the feature `record`: pages of the guest's RAM that it wrote in round N, in
//!                              runs FIRST+COUNT, ascending; a round that does not fit into one line goes on in the next
//! twofold:end HOW              the last line: power-off, reset, panic, error, tests
//! twofold:test NAME [expect=N] one test of a test image (its answer to `list`); N: the exit status that it has to
//!                              end with, if not that of success
//! twofold:pass NAME            a test passed
//! twofold:fail NAME TEXT       a test failed
//! ```
//!
//! A test that has to end with a panic first writes `twofold:log expect: TEXT` lines: what the one report that follows
//! has to contain.
//!
//! # Statistics
//!
//! | key | counts |
//! |---|---|
//! | `faults.translation`, `.permission`, `.access_flag`, `.external` | stage-2 faults by kind; `external`: answered with an abort into the guest |
//! | `faults.first_touch` | translation faults for which frames were zeroed: neither the guest nor its loader had touched them |
//! | `exits.KIND` | exits from the guest to EL2 by cause, faults included |
//! | `mapped.pages_4k`, `.blocks_2m`, `.blocks_1g` | leaves installed |
//! | `tables.allocated`, `.freed` | table pages, the root included |
//! | `tlbi.OPERATION` | TLB invalidations by instruction |
//! | `barriers.dsb`, `.isb` | barriers of the engine |
//! | `cache.lines_cleaned`, `.lines_invalidated`, `.icache_all` | D-cache lines cleaned (and invalidated) to PoC, I-cache lines and whole I-caches invalidated |
//! | `memory.frames_zeroed` | 4 KiB frames zeroed before the guest saw them |
//! | `heap.grown` | bytes of EL2's heap in use beyond those at the guest's first entry |
//! | `el2_instructions.total` | instructions retired at EL2 from the guest's first entry; only with [`COUNT`](crate::bundle::flags::COUNT) |
//! | `el2_instructions.by_exit.KIND` | the same by the exit that caused them; their sum is the total |
//! | `el2_instructions.first_touch_4k`, `.first_touch_2m`, `.first_touch_1g` | the part of the total spent on first touches of that mapping size |
//! | `first_touches.pages_4k`, `.blocks_2m`, `.blocks_1g` | how many first touches that were |
//! | `el2_instructions.write_fault` | the part of the total spent on writes to what is mapped read-only |
//! | `faults.write` | how many such writes there were |
//! | `phase.NAME.N.instructions` | with [`MEASURE`](crate::bundle::flags::MEASURE), instructions at EL2 while the guest was in that [phase](crate::vendor::PHASES) for the `N`th time, from 1 on; 0 without [`COUNT`](crate::bundle::flags::COUNT) |
//! | `phase.NAME.N.faults.KIND`, `.mapped.LEAF`, `.tables.allocated`, `.tables.freed`, `.memory.frames_zeroed`, `.tlbi.OPERATION`, `.barriers.dsb`, `.barriers.isb`, `.cache.lines_cleaned`, `.cache.lines_invalidated`, `.cache.icache_all` | as the figures of the same names, meanwhile; those that are 0 are left out |
//! | `phase.NAME.N.pages`, `.blocks` | pages that the log told of, blocks that were put together, meanwhile; left out where they are 0 |
//! | `phase.NAME.N.split.visits` | of an image with the feature `baselines`: entries that walks visited meanwhile to find blocks to split |
//! | `oracle.TRACKER.compared`, `.redirtied`, `.lost`, `.rounds`, `.starts` | of an image with the feature `oracle`: pages that were found as the log has them, found dirty again, found changed without a word of the log; rounds, and logs started |
//! | `record.rounds`, `.pages`, `.microseconds` | of an image with the feature `record`: rounds that it tells of, pages of the guest's RAM, and what the machine's counter says that they took, the first one left out |

/// The word on the image's own command line (`/chosen` `bootargs`) that says that semihosting is there: the image then
/// speaks on the control channel, and ends with `SYS_EXIT_EXTENDED`.
pub const BOOT_ARGUMENT: &str = "twofold.semihosting";
/// The last words on that command line, if the image is one that writes a trace: the rest of the line is the file's name,
/// as whoever serves semihosting calls finds it.
pub const TRACE_ARGUMENT: &str = "twofold.trace=";
/// On that command line, if the image is one with the oracle: what follows is `TRACKER,...:COMPARISONS:SEED`.
pub const ORACLE_ARGUMENT: &str = "twofold.oracle=";
/// On that command line, if the image is one that records: how many rounds it keeps.
pub const RECORD_ARGUMENT: &str = "twofold.record=";
/// Starts a line with something a person may want to know.
pub const LOG: &str = "twofold:log";
/// Starts the line that says why the guest could not be started.
pub const ERROR: &str = "twofold:error";
/// Starts a line with one figure: key, value.
pub const STAT: &str = "twofold:stat";
/// Starts a line with pages that the guest wrote.
pub const ROUND: &str = "twofold:round";
/// Starts the last line.
pub const END: &str = "twofold:end";
/// Starts a line that names one test of a test image.
pub const TEST: &str = "twofold:test";
/// Starts a line that says that a test passed.
pub const PASS: &str = "twofold:pass";
/// Starts a line that says that a test failed, and why.
pub const FAIL: &str = "twofold:fail";
