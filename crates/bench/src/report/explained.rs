// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One plain sentence for each phase, policy, tracker, kind of memory and source, for the places that show them.
//!
//! Invariant: every phase and every policy that an experiment of this program records has a sentence.

/// The phases that the techniques of the dirty log's experiment do not affect.
pub const UNAFFECTED: [&str; 2] = ["populate", "disable"];

/// Between a phase and the store's latency in it: `work at 10 ms`.
pub const AT: &str = " at ";

/// A phase in one sentence. `None` if it is not known. `dirty 3` is the third `dirty`.
pub fn phase(name: &str) -> Option<&'static str> {
    let name = name.split(AT).next().unwrap_or(name);
    let name = name.trim_end_matches(|letter: char| letter.is_ascii_digit()).trim_end();
    Some(match name {
        "populate" => "The guest touches all of its memory for the first time, and every page is mapped.",
        "enable" => "The dirty log is switched on; under write-protect this write-protects and splits all memory.",
        "dirty" => "The guest writes while the log runs; the time includes its faults.",
        "get" => "The collector reads which pages were written.",
        "clear" => "The collector clears the reported pages, so that their next write is recorded again.",
        "iteration" => "One round: dirty, get and clear together, because a cost that moves between them is not saved.",
        "disable" => "The dirty log is switched off.",
        "create" => "The vCPUs touch memory that is not mapped yet.",
        "update" => "The vCPUs write and read while a dirty log runs, so that blocks are mapped by pages.",
        "adjust" => "The log has stopped; the vCPUs read all memory, and faults restore the blocks.",
        "coalesce" => "The hypervisor coalesces pages into blocks ahead of the guest's accesses.",
        "before" => "The guest's rate before the log is enabled: its steady rate.",
        "logged" => "The guest's rate while the log is read and cleared at an interval.",
        "after" => "The guest's rate after the log was disabled, with the faults on pages that are still protected.",
        "lost" => "The work that the guest did not do while logged, as time at its steady rate.",
        "work" => "The work of all workers in the guest's time, with this latency of the store.",
        "guest's work" => "The time until the guest has done its work, before and after it moved.",
        "read" => "Pages come out of the guest's memory.",
        "read and scan" => "Pages come out of the guest's memory, zero pages are found, and the others get a checksum.",
        "scan" => "Zero pages are found, and the others get a checksum and a record.",
        "send" => "Records go through a socket.",
        "compress" => "Pages that are not zero are compressed.",
        "encrypt" => "Records are encrypted and authenticated.",
        "writes" => "The random pages that the guest's tasks wrote to in the same time, absent or not.",
        "pages" => "The absent pages that the guest's tasks touched and the store brought in the same time.",
        "migration" => {
            "From the begin of the migration until all of the guest is at the target, or was offered to it in the model."
        }
        "downtime" => {
            "How long the guest stands still: until its vCPUs go on at the target, or in the model until it is offered."
        }
        "rate before" => "The requests that the guest serves before the migration.",
        "rate during" => "The requests that the guest serves during the migration, its downtime included.",
        "rate after" => "The requests that the guest serves at the target, after the migration.",
        "requests during" => "The requests that were served during the migration.",
        "pages sent" => "All pages that were sent, each time that they were.",
        "pages sent again" => "The pages that were sent before and written since.",
        "rounds sent" => "Rounds while the guest ran.",
        "bytes sent" => "The bytes of all streams.",
        "per second of CPU" => "The guest's accesses while logged, for each second of CPU of guest and collector.",
        _ => return None,
    })
}

/// A policy, a tracker or a kind of memory in one sentence. `None` if it needs none, or is not known.
pub fn value(key: &str, value: &str) -> Option<&'static str> {
    Some(match (key, value) {
        ("split", "every-level") => "A split visits every entry of the tables, down to level 3, as Linux 6.12 does.",
        ("split", "skip-children") => "A split does not visit the table that it has just made.",
        ("split", "skip-leaves") => "A split does not visit level 3, where nothing can be split (Bras 2026).",
        ("split", "records") => "A split visits only the tables whose record says that they contain blocks.",
        ("cmo", "on-abort") => {
            "Each vCPU that faults cleans the caches, also if another has mapped the page meanwhile."
        }
        ("cmo", "on-map") => "Only the vCPU that installs a mapping cleans the caches (Wang 2021).",
        ("coalesce", "free-first") => {
            "The old tables are freed before the block is installed, while its entry is invalid."
        }
        ("coalesce", "install-first") => {
            "The block is installed first, and the old tables are freed after (Wang 2021)."
        }
        ("tables", "always") => "Each fault allocates as many table pages as it might need.",
        ("tables", "when-needed") => "A fault allocates a table page only if a table is missing (Wang 2021).",
        ("tracker", "write-protect") => "A write faults, and is recorded; each get clears what it reports.",
        ("tracker", "manual") => "A write faults, and is recorded; a clear is a call of its own.",
        ("tracker", "hardware") => "The CPU records writes (DBM); no write faults.",
        ("tracker", "combined") => {
            "The first write faults, and hardware records further writes to the 64 pages around it (Kolothum 2023)."
        }
        ("tracker", "adaptive") => "Faults or hardware, decided for each 64 pages by what their writes have cost.",
        ("tracker", "ring") => "KVM's dirty ring: each vCPU lists the pages that it writes.",
        ("tracker", "post-copy") => "The guest runs at the target at once, and its pages follow.",
        ("variant", "alone") => "The library that a stage uses, alone, over the same bytes.",
        ("variant", "stream") => "The stage as a migration does it.",
        ("async", "off") => "A vCPU that touches an absent page waits for it.",
        ("async", "halt") => "The vCPU waits for the page or for an interrupt, so the guest's timer still runs.",
        ("async", "pv") => "The guest gets a notification, parks its task and runs another one (Natapov 2010).",
        ("backing", "anonymous") => "Memory mapped by pages of 4 KiB, so that nothing is left to split.",
        ("backing", "anonymous_thp") => "Memory mapped by blocks of 2 MiB.",
        ("backing", "anonymous_hugetlb_1gb") => "Memory mapped by blocks of 1 GiB.",
        _ => return None,
    })
}

/// Whether this is a policy's usual value: the technique is on.
pub fn is_usual(key: &str, value: &str) -> bool {
    [("split", "records"), ("cmo", "on-map"), ("coalesce", "install-first"), ("tables", "when-needed")]
        .contains(&(key, value))
}

/// A source in one sentence. `None` if it is not known.
pub fn source(name: &str) -> Option<&'static str> {
    Some(match name {
        "Bras 2026" => "Leonardo Bras: a split that does not visit level 3. The time of the call that splits.",
        "Bras RFC 2026" => "The first version of that work, timed inside the kernel on a software model.",
        "Natapov 2010" => "Gleb Natapov: asynchronous page faults. The work that a guest does while pages are in swap.",
        "Kolothum 2023" => "Shameer Kolothum, after Keqian Zhu: a dirty log by software and hardware combined.",
        "Wang 2021" => {
            "Yanan Wang: cache maintenance by the vCPU that maps (patch 1); install the block, then free (patch 2)."
        }
        crate::results::TARGET => "A limit that Twofold sets itself.",
        _ => return None,
    })
}

/// A phase as the subject of a sentence, and its verb.
pub fn subject(phase: &str) -> (&str, &'static str) {
    let subject = match phase {
        "populate" => "populating",
        "enable" => "enabling",
        "dirty" => "writing",
        "get" => "getting the log",
        "clear" => "clearing",
        "iteration" => "a round of dirty, get and clear",
        "disable" => "disabling",
        "create" => "creating",
        "update" => "updating",
        "adjust" => "adjusting",
        "logged" => "while logged, the guest",
        "lost" => "the loss of the guest",
        "migration" => "the migration",
        "downtime" => "the downtime",
        other => other,
    };
    (subject, if ["lost", "downtime"].contains(&phase) { "is" } else { "takes" })
}
