// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control channel's lines of text, from the hypervisor to its launcher.
//!
//! The UART has the guest's console, so the hypervisor speaks on a channel of its own. A line is a message of the framed
//! channel ([`channel`](crate::channel)), or goes to the semihosting console if there is no such channel. Each line is one of the forms below; a reader ignores a line whose first word it does not know.
//!
//! ```text
//! twofold:log TEXT             a note for people
//! twofold:error TEXT           why the guest could not be started
//! twofold:stat KEY VALUE       one figure, a decimal u64; KEY has dotted parts of [a-z0-9_], none of
//!                              them `self`: a reader uses that for the figure of a part that has parts
//! twofold:round N RUNS         an image with the feature `record`: pages of guest RAM that were written in round N, as
//!                              runs FIRST+COUNT, ascending; a round too long for one line continues on the next
//! twofold:end HOW              how it ended: power-off, reset, quit, panic, error, tests; only `exit` follows
//! twofold:exit STATUS          the last line: one of [`exit`](crate::exit), in decimal
//! twofold:test NAME [expect=N] one test of a test image (its answer to `list`); N is the exit status that the test
//!                              must end with, if it is not success
//! twofold:pass NAME            a test passed
//! twofold:fail NAME TEXT       a test failed
//! ```
//!
//! A test that must end with a panic first writes `twofold:log expect: TEXT` lines: each TEXT must occur in the one
//! report that follows.
//!
//! # Statistics
//!
//! | key | counts |
//! |---|---|
//! | `faults.translation`, `.permission`, `.access_flag`, `.external` | stage-2 faults by kind; `external`: answered with an abort into the guest |
//! | `faults.first_touch` | translation faults on frames that neither the guest nor its loader had touched: each frame was zeroed |
//! | `exits.KIND` | exits from the guest to EL2 by cause, faults included; `interrupt`: a physical interrupt |
//! | `mapped.pages_4k`, `.blocks_2m`, `.blocks_1g` | leaves installed. Here and below, an image whose guests' tables have pages of 16 KiB has `16k`, `32m` and `64g` in these places, and one of 64 KiB `64k`, `512m` and `4t` |
//! | `tables.allocated`, `.freed` | table pages, the root included |
//! | `tlbi.OPERATION` | TLB invalidations by instruction |
//! | `barriers.dsb`, `.isb` | barriers of the engine |
//! | `cache.lines_cleaned`, `.lines_invalidated`, `.icache_all` | D-cache lines cleaned (and invalidated) to PoC, I-cache lines and whole I-caches invalidated |
//! | `memory.frames_zeroed` | 4 KiB frames zeroed before the guest saw them |
//! | `virtio.notifications` | writes by which guests asked a virtio device for work; these rows are there if a guest has such a device |
//! | `virtio.pages_awaited` | requests of a virtio device for a page of its guest that was in the store |
//! | `swap.pages_out`, `.pages_written`, `.pages_read` | pages that left memory, and of them those that the store was asked to write; pages that it was asked for. These rows are there if a guest has a store |
//! | `swap.pages_ahead` | pages that the store was asked for before the guest needed them; they are not in `swap.pages_read` |
//! | `swap.written_by_faults` | those of `swap.pages_written` that something other than the guest's task asked the store to write, such as a fault: 0 |
//! | `swap.waits`, `.waited`, `.announced` | how often a vCPU waited for a page; for how many ticks of the counter all vCPUs did; pages that were announced to a guest, which runs another task |
//! | `disk.requests`, `.bytes_read`, `.bytes_written`, `.errors` | requests that disks have completed, and those with an error |
//! | `virtio.frames_given_up`, `balloon.pages` | frames that became free because their guest gave them up; pages that are in a balloon now, as the driver says |
//! | `net.frames_sent`, `.bytes_sent`, `.frames_received`, `.bytes_received`, `.frames_dropped` | frames of network cards; dropped: for want of room in the card's queue, or sent with an address that is another's |
//! | `heap.grown` | bytes of EL2's heap in use beyond those at the guest's first entry |
//! | `el2_instructions.total` | instructions retired at EL2 from the guest's first entry; only with [`COUNT`](crate::bundle::flags::COUNT) |
//! | `el2_instructions.by_exit.KIND` | the same by the exit that caused them; their sum is the total |
//! | `el2_instructions.first_touch_4k`, `.first_touch_2m`, `.first_touch_1g` | the part of the total spent on first touches of that mapping size |
//! | `first_touches.pages_4k`, `.blocks_2m`, `.blocks_1g` | the number of these first touches |
//! | `el2_instructions.write_fault` | the part of the total spent on write faults on read-only mappings |
//! | `faults.write` | the number of these faults |
//! | `el2_instructions.gic`, `.uart`, `.rtc`, `.virtio` | the part of the total spent on accesses to that emulated device, for virtio with the work that they ask for |
//! | `longest_masked.KIND`, `.first_touch_4k`, `.first_touch_2m`, `.first_touch_1g`, `.write_fault`, `.gic`, `.uart`, `.rtc`, `.virtio`, `.phase` | the most instructions that EL2 executed with interrupts masked, from an exit of this kind to the entry, or to where EL2 looked for an interrupt; a `KIND` is without the exits that have a key of their own; only with [`COUNT`](crate::bundle::flags::COUNT) |
//! | `phase.NAME.N.instructions` | with [`MEASURE`](crate::bundle::flags::MEASURE), instructions at EL2 while the guest was in that [phase](crate::vendor::PHASES) for the `N`th time, from 1 on; 0 without [`COUNT`](crate::bundle::flags::COUNT) |
//! | `phase.NAME.N.faults.KIND`, `.mapped.LEAF`, `.tables.allocated`, `.tables.freed`, `.memory.frames_zeroed`, `.tlbi.OPERATION`, `.barriers.dsb`, `.barriers.isb`, `.cache.lines_cleaned`, `.cache.lines_invalidated`, `.cache.icache_all` | as the figures of the same names, during the phase; a figure of 0 is left out |
//! | `phase.NAME.N.pages`, `.blocks` | pages that the log reported, and blocks that were coalesced, during the phase; a figure of 0 is left out |
//! | `phase.NAME.N.split.visits` | an image with the feature `baselines`: entries that walks visited during the phase to find blocks to split |
//! | `oracle.TRACKER.compared`, `.redirtied`, `.lost`, `.rounds`, `.starts`, `.blocks` | an image with the feature `oracle`: pages compared, pages found dirty again, pages changed but not in the log; rounds, logs started, and blocks coalesced |
//! | `record.rounds`, `.pages`, `.microseconds` | an image with the feature `record`: rounds reported, pages of guest RAM, and the rounds' time by the machine's counter, without the first round |

/// This word on the image's own command line (`/chosen` `bootargs`) says that semihosting is available. Without a
/// framed channel the image then writes its lines to the semihosting console, and ends with `SYS_EXIT_EXTENDED`.
pub const BOOT_ARGUMENT: &str = "twofold.semihosting";
/// This word on that command line says that an image with the feature `trace` sends one to its launcher.
pub const TRACE_ARGUMENT: &str = "twofold.trace";
/// On that command line, if the image has the oracle. `TRACKER,...:COMPARISONS:SEED` follows.
pub const ORACLE_ARGUMENT: &str = "twofold.oracle=";
/// On that command line, if the image records written pages. The number of rounds to keep follows.
pub const RECORD_ARGUMENT: &str = "twofold.record=";
/// Starts a line with a note for people.
pub const LOG: &str = "twofold:log";
/// Starts the line that says why the guest could not be started.
pub const ERROR: &str = "twofold:error";
/// Starts a line with one figure: key, value.
pub const STAT: &str = "twofold:stat";
/// Starts a line with pages that the guest wrote.
pub const ROUND: &str = "twofold:round";
/// Starts the line that says how it ended.
pub const END: &str = "twofold:end";
/// Starts the last line, which has the image's exit status.
pub const EXIT: &str = "twofold:exit";
/// Starts a line that names one test of a test image.
pub const TEST: &str = "twofold:test";
/// Starts a line that says that a test passed.
pub const PASS: &str = "twofold:pass";
/// Starts a line that says that a test failed, and why.
pub const FAIL: &str = "twofold:fail";
