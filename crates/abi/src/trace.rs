// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The trace: one line of text for each event that concerns guests' tables, for checkers outside of the hypervisor.
//!
//! `docs/trace.md` describes the format for readers in other languages. Here, [`Display`](fmt::Display) writes a
//! [`Line`] and [`Line::parse`] reads it; neither allocates. Invariant: parsing is the inverse of writing. The table of
//! [`Event`]s alone defines the order of fields.

use core::fmt;
use core::panic::Location;
use core::sync::atomic::Ordering;

/// The version of the format. New kinds, and new fields at the end of a kind, do not change it.
pub const VERSION: u32 = 1;

/// Whether a line carries no event: it is empty, or a comment.
pub fn is_comment(text: &str) -> bool {
    text.is_empty() || text.starts_with('#')
}

/// The first line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Where the trace was recorded.
    pub source: Source,
}

impl Header {
    /// Reads the first line of a trace.
    ///
    /// # Errors
    ///
    /// The line is not the header of a trace, or its version is not [`VERSION`].
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let text = text.strip_prefix(MAGIC).ok_or(TraceError::NotATrace)?;
        let mut fields = Fields(Some(text));
        if !fields.next("magic")?.is_empty() {
            return Err(TraceError::NotATrace);
        }
        match fields.field("version")? {
            VERSION => Ok(Self { source: fields.field("source")? }),
            found => Err(TraceError::Version { found }),
        }
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MAGIC} {VERSION} {}", self.source)
    }
}

const MAGIC: &str = "twofold-trace";

/// Any other line that is not a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Its number in one sequence for all CPUs: unique in the trace, and ascending for each CPU.
    pub seq: u64,
    /// The CPU of the event.
    pub cpu: u32,
    /// What happened.
    pub event: Event<'a>,
    /// The place in the source; `None` if software did not cause the event.
    pub site: Option<Site<'a>>,
}

impl<'a> Line<'a> {
    /// Reads a line, given without its line end.
    ///
    /// # Errors
    ///
    /// The line is cut off, or a field is malformed. An unknown kind is not an error: it becomes [`Event::Other`].
    pub fn parse(text: &'a str) -> Result<Self, TraceError> {
        let (text, site) = match text.split_once(" @") {
            Some((text, site)) => (text, Some(site)),
            None => (text, None),
        };
        let mut fields = Fields(Some(text));
        let seq = number(fields.next("seq")?).ok_or(TraceError::Malformed { field: "seq", expected: DECIMAL })?;
        let cpu = fields.field("cpu")?;
        let event = Event::parse(&mut fields)?;
        let site = match site.ok_or(TraceError::Missing { field: "site" })? {
            "-" => None,
            site => Some(Site::parse(site).ok_or(TraceError::Malformed { field: "site", expected: SITE })?),
        };
        Ok(Self { seq, cpu, event, site })
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.seq, self.cpu, self.event)?;
        match &self.site {
            Some(site) => write!(f, " @{site}"),
            None => f.write_str(" @-"),
        }
    }
}

/// A place in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site<'a> {
    /// The file; for our own source, relative to the workspace's root. White space in it is written as `?`.
    pub file: &'a str,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1.
    pub column: u32,
}

impl<'a> Site<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (text, column) = text.rsplit_once(':')?;
        let (file, line) = text.rsplit_once(':')?;
        let clean = !file.is_empty() && !file.contains(is_blank);
        clean.then_some(Self { file, line: u32::read(line)?, column: u32::read(column)? })
    }
}

impl From<&'static Location<'static>> for Site<'static> {
    fn from(location: &'static Location<'static>) -> Self {
        Self { file: location.file(), line: location.line(), column: location.column() }
    }
}

impl fmt::Display for Site<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, part) in self.file.split(is_blank).enumerate() {
            f.write_str(if number > 0 { "?" } else { "" })?;
            f.write_str(part)?;
        }
        write!(f, ":{}:{}", self.line, self.column)
    }
}

/// Why a line cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The first line is not the header of a trace.
    #[error("this is not a trace: the first line is not `twofold-trace VERSION SOURCE`")]
    NotATrace,
    /// It is a trace of another version.
    #[error("the trace has version {found}, but only version {VERSION} can be read")]
    Version {
        /// Its version.
        found: u32,
    },
    /// The line is cut off.
    #[error("the line ends before its field `{field}`")]
    Missing {
        /// The first field that is missing.
        field: &'static str,
    },
    /// A field is malformed.
    #[error("the field `{field}` is not {expected}")]
    Malformed {
        /// Which field.
        field: &'static str,
        /// What is expected there.
        expected: &'static str,
    },
}

/// A type of field: how it is written and read.
trait Field<'a>: Sized {
    /// What a value looks like, for messages.
    const EXPECTED: &'static str;

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    fn read(text: &'a str) -> Option<Self>;
}

const DECIMAL: &str = "a decimal number";
const SITE: &str = "FILE:LINE:COLUMN";

/// Addresses, sizes in bytes, registers and entries.
impl Field<'_> for u64 {
    const EXPECTED: &'static str = "a hexadecimal number with 0x, in small letters";

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#x}")
    }

    fn read(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("0x")?;
        // `from_str_radix` also accepts signs.
        let plain = digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        if plain { Self::from_str_radix(digits, 16).ok() } else { None }
    }
}

/// Counts and indexes.
impl Field<'_> for u32 {
    const EXPECTED: &'static str = DECIMAL;

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }

    fn read(text: &str) -> Option<Self> {
        number(text)?.try_into().ok()
    }
}

/// Names: they hold no white space and no `@`.
impl<'a> Field<'a> for &'a str {
    const EXPECTED: &'static str = "a name of a-z, 0-9, `_`, `.` and `-`";

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }

    fn read(text: &'a str) -> Option<Self> {
        let plain = text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-'));
        (plain && text.starts_with(|first: char| first.is_ascii_lowercase())).then_some(text)
    }
}

fn number(text: &str) -> Option<u64> {
    if text.bytes().all(|digit| digit.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn is_blank(character: char) -> bool {
    character.is_whitespace() || character.is_control()
}

/// The rest of a line, up to its site.
struct Fields<'a>(Option<&'a str>);

impl<'a> Fields<'a> {
    fn next(&mut self, field: &'static str) -> Result<&'a str, TraceError> {
        let text = self.0.ok_or(TraceError::Missing { field })?;
        let (next, rest) = match text.split_once(' ') {
            Some((next, rest)) => (next, Some(rest)),
            None => (text, None),
        };
        self.0 = rest;
        Ok(next)
    }

    fn field<T: Field<'a>>(&mut self, field: &'static str) -> Result<T, TraceError> {
        T::read(self.next(field)?).ok_or(TraceError::Malformed { field, expected: T::EXPECTED })
    }
}

/// Makes an enum of words.
macro_rules! words {
    ($($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),* $(,)? })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $type {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The word for it.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl Field<'_> for $type {
            const EXPECTED: &'static str = concat!("one of the words", $(" ", $word),*);

            fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }

            fn read(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.word() == text)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Field::write(self, f)
            }
        }
    )* };
}

words! {
    /// Where a trace was recorded.
    Source {
        /// By the hosted machine.
        Machine = "machine",
        /// By the hypervisor.
        Hypervisor = "hypervisor",
    }

    /// How an entry was written.
    How {
        /// A store. The old value was read earlier, and hardware may have changed the entry in between.
        Store = "store",
        /// A read-modify-write: the old value is exact.
        Rmw = "rmw",
    }

    /// The memory order of an access or a fence.
    Order {
        /// Only the order of accesses to the same location.
        Relaxed = "relaxed",
        /// Later accesses are ordered after its load.
        Acquire = "acquire",
        /// Earlier accesses are ordered before its store.
        Release = "release",
        /// Both.
        AcqRel = "acqrel",
        /// Both, and a total order of all `seqcst` accesses.
        SeqCst = "seqcst",
    }

    /// TLB invalidations of the EL1&0 translation regime (Arm ARM DDI 0487K.a, D8.16).
    Tlbi {
        /// Stage 2 entries by IPA, on this CPU.
        Ipas2E1 = "ipas2e1",
        /// Stage 2 entries by IPA.
        Ipas2E1Is = "ipas2e1is",
        /// Stage 2 entries by IPA, of the last level only.
        Ipas2Le1Is = "ipas2le1is",
        /// Stage 2 entries by range of IPA.
        Ripas2E1Is = "ripas2e1is",
        /// Stage 2 entries by range of IPA, of the last level only.
        Ripas2Le1Is = "ripas2le1is",
        /// Stage 1 and combined entries of the VMID, on this CPU.
        VmallE1 = "vmalle1",
        /// Stage 1 and combined entries of the VMID.
        VmallE1Is = "vmalle1is",
        /// Stage 1, stage 2 and combined entries of the VMID.
        VmallS12E1Is = "vmalls12e1is",
        /// All entries of the regime, of every VMID.
        Alle1Is = "alle1is",
    }

    /// The domain and kind of a data synchronization barrier.
    Domain {
        /// Inner shareable, stores only.
        IshSt = "ishst",
        /// Inner shareable.
        Ish = "ish",
        /// This CPU, stores only.
        NshSt = "nshst",
        /// This CPU.
        Nsh = "nsh",
    }

    /// Data cache operations by address.
    Dc {
        /// Clean and invalidate to the point of coherency.
        Civac = "civac",
        /// Zero.
        Zva = "zva",
    }

    /// Instruction cache operations.
    Ic {
        /// Invalidate to the point of unification.
        Ivau = "ivau",
        /// Invalidate all, on all CPUs of the inner shareable domain.
        IallUis = "ialluis",
    }
}

impl From<Ordering> for Order {
    fn from(order: Ordering) -> Self {
        match order {
            Ordering::Relaxed => Self::Relaxed,
            Ordering::Acquire => Self::Acquire,
            Ordering::Release => Self::Release,
            Ordering::AcqRel => Self::AcqRel,
            // `Ordering` is non-exhaustive, but no order is stronger than `SeqCst`.
            _ => Self::SeqCst,
        }
    }
}

/// Makes the enum of events, with the order of their fields.
macro_rules! events {
    ($(
        $(#[$doc:meta])*
        $variant:ident = $kind:literal $({ $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? })?
    ),* $(,)?) => {
        /// What happened. The fields are in the order of the line; addresses are physical.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Event<'a> {
            $($(#[$doc])* $variant $({ $($(#[$field_doc])* $field: $type),* })?,)*
            /// An unknown kind: a reader skips it.
            Other {
                /// The kind.
                kind: &'a str,
                /// Its fields as written, if it has any.
                fields: Option<&'a str>,
            },
        }

        /// The kinds, and the names of their fields in order.
        pub const KINDS: &[(&str, &[&str])] = &[$(($kind, &[$($(stringify!($field)),*)?])),*];

        impl<'a> Event<'a> {
            fn parse(fields: &mut Fields<'a>) -> Result<Self, TraceError> {
                Ok(match fields.field::<&str>("kind")? {
                    $($kind => Self::$variant $({ $($field: fields.field(stringify!($field))?),* })?,)*
                    kind => Self::Other { kind, fields: fields.0 },
                })
            }
        }

        impl fmt::Display for Event<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant $({ $($field),* })? => {
                        f.write_str($kind)?;
                        $($(f.write_str(" ")?; $field.write(f)?;)*)?
                        Ok(())
                    })*
                    Self::Other { kind, fields: Some(fields) } => write!(f, "{kind} {fields}"),
                    Self::Other { kind, fields: None } => f.write_str(kind),
                }
            }
        }
    };
}

events! {
    /// A CPU feature as given to the engine, one line for each feature.
    Feature = "feature" {
        /// The name of a field of `stage2::Features`.
        name: &'a str,
        /// A number, or 1 for yes.
        value: u64,
    },
    /// From here on, memory is the root of a tree. The engine zeroes it next. The root joins the tree when its lock is
    /// first taken.
    RootMade = "root.made" {
        /// Its address.
        pa: u64,
        /// The entries of it, all concatenated tables together.
        entries: u32,
        /// `VTTBR_EL2` of its guest.
        vttbr: u64,
        /// `VTCR_EL2` of its guest.
        vtcr: u64,
    },
    /// The memory is not a root any more.
    RootFreed = "root.freed" {
        /// Its address.
        pa: u64,
    },
    /// The engine has allocated a page for a table. The page still holds its old contents.
    TableTaken = "table.taken" {
        /// Its address.
        pa: u64,
    },
    /// The engine has freed the page: it may be used for anything.
    TableFreed = "table.freed" {
        /// Its address.
        pa: u64,
    },
    /// A table's lock was taken.
    LockTaken = "lock.taken" {
        /// The address of the table.
        pa: u64,
    },
    /// The lock was released.
    LockReleased = "lock.released" {
        /// The address of the table.
        pa: u64,
    },
    /// Software wrote 64 bits of a table, or of a page that will become one.
    Write = "write" {
        /// The address of the entry.
        pa: u64,
        /// The old value.
        old: u64,
        /// The new value.
        new: u64,
        /// The kind of access.
        how: How,
        /// Its order.
        order: Order,
    },
    /// Hardware updated an entry: the access flag, or dirty state.
    Hardware = "hardware" {
        /// The address of the entry.
        pa: u64,
        /// The old value.
        old: u64,
        /// The new value.
        new: u64,
    },
    /// Software wrote to memory that belongs to a guest, or will.
    DataWritten = "data.written" {
        /// The first byte.
        pa: u64,
        /// Bytes.
        size: u64,
    },
    /// `TLBI operation, operand`.
    Tlbi = "tlbi" {
        /// The instruction.
        operation: Tlbi,
        /// Its register; 0 if it takes none.
        operand: u64,
        /// `VTTBR_EL2` at that moment: it holds the VMID.
        vttbr: u64,
    },
    /// `DSB domain`.
    Dsb = "dsb" {
        /// The domain.
        domain: Domain,
    },
    /// `ISB`.
    Isb = "isb",
    /// A fence of the language's memory model.
    Fence = "fence" {
        /// Its order.
        order: Order,
    },
    /// `DC operation` for all lines, or blocks, of a range.
    Dc = "dc" {
        /// The instruction.
        operation: Dc,
        /// The first byte.
        pa: u64,
        /// Bytes.
        size: u64,
    },
    /// `IC operation` for all lines of a range.
    Ic = "ic" {
        /// The instruction.
        operation: Ic,
        /// The first byte; 0 if it takes no address.
        pa: u64,
        /// Bytes; 0 if it takes no address.
        size: u64,
    },
    /// `MSR VTTBR_EL2`.
    Vttbr = "vttbr" {
        /// The new value.
        vttbr: u64,
    },
    /// The CPU enters a guest.
    GuestEntered = "guest.entered" {
        /// The number of the vCPU.
        vcpu: u32,
        /// `VTTBR_EL2`.
        vttbr: u64,
    },
    /// The CPU has left the guest.
    GuestLeft = "guest.left" {
        /// The number of the vCPU.
        vcpu: u32,
    },
    /// From here on the CPU relies on this: walks see each entry that this CPU has written.
    Visible = "visible",
    /// From here on the CPU relies on this: for these addresses, no TLB holds an entry that this CPU has made invalid or
    /// less permissive.
    Flushed = "flushed" {
        /// The first address.
        ipa: u64,
        /// Bytes.
        size: u64,
        /// `VTTBR_EL2` of the guest.
        vttbr: u64,
    },
    /// From here on the CPU relies on this: for this address, its TLB holds nothing older than the present leaf.
    FlushedHere = "flushed.here" {
        /// The address.
        ipa: u64,
        /// The level of the leaf; 0 for all levels, tables too.
        level: u32,
        /// `VTTBR_EL2` of the guest.
        vttbr: u64,
    },
    /// The next store of this CPU to an entry may overwrite a record of the hardware there. The CPU does not need that
    /// record.
    Unrecorded = "unrecorded" {
        /// The address of the entry.
        pa: u64,
    },
    /// Lines of this CPU with lower numbers are missing, because there was no room for them.
    Lost = "lost" {
        /// How many.
        events: u32,
    },
}
