// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The trace: a line of text for each thing that matters to guests' tables, for whoever checks them from outside.
//!
//! `docs/trace.md` is the description for readers in other languages. Here, a [`Line`] is written by
//! [`Display`](fmt::Display) and read by [`Line::parse`], both without memory of their own. Invariant: reading is the
//! inverse of writing, and the order of fields stands in one place, the table of [`Event`]s.

use core::fmt;
use core::panic::Location;
use core::sync::atomic::Ordering;

/// The version of the format. Kinds, and fields at the end of a kind, are added without a new one.
pub const VERSION: u32 = 1;

/// Whether a line says nothing: it is empty, or a comment.
pub fn is_comment(text: &str) -> bool {
    text.is_empty() || text.starts_with('#')
}

/// The first line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Where it was recorded.
    pub source: Source,
}

impl Header {
    /// Reads the first line of a trace.
    ///
    /// # Errors
    ///
    /// It is none, or of a version that is not [`VERSION`].
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

/// Any other line that is no comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Its number in the order of all CPUs: no other line has it, and a CPU's own are ascending.
    pub seq: u64,
    /// The CPU that did it.
    pub cpu: u32,
    /// What it did.
    pub event: Event<'a>,
    /// Where in the source; `None` where it was not software.
    pub site: Option<Site<'a>>,
}

impl<'a> Line<'a> {
    /// Reads a line, given without its end.
    ///
    /// # Errors
    ///
    /// It is cut off, or a field is not what it should be. A kind that is not known is no error: [`Event::Other`].
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
    /// The file, from the workspace's root for its own. White space in it is written as `?`.
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
pub enum TraceError {
    /// The first line is not the one of a trace.
    #[error("this is no trace: the first line is not `twofold-trace VERSION SOURCE`")]
    NotATrace,
    /// It is a trace of another version.
    #[error("the trace has version {found}, and version {VERSION} is the one that is read here")]
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
    /// A field is not what it should be.
    #[error("the field `{field}` is not {expected}")]
    Malformed {
        /// Which field.
        field: &'static str,
        /// What it should be.
        expected: &'static str,
    },
}

/// A type of field: how it is written and read.
trait Field<'a>: Sized {
    /// What it is, for messages.
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
        // `from_str_radix` takes signs, too.
        let plain = digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        if plain { Self::from_str_radix(digits, 16).ok() } else { None }
    }
}

/// Numbers of things.
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

/// What is left of a line, up to its site.
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
        /// On the hosted machine.
        Machine = "machine",
        /// On the hypervisor.
        Hypervisor = "hypervisor",
    }

    /// How an entry was written.
    How {
        /// A store: what was there before was read before, and hardware may have changed it in between.
        Store = "store",
        /// A read-modify-write: what was there before is exact.
        Rmw = "rmw",
    }

    /// The memory order of an access or a fence.
    Order {
        /// None but that of the same location.
        Relaxed = "relaxed",
        /// What comes after is ordered after its load.
        Acquire = "acquire",
        /// What comes before is ordered before its store.
        Release = "release",
        /// Both.
        AcqRel = "acqrel",
        /// Both, and a total order of all such.
        SeqCst = "seqcst",
    }

    /// TLB invalidations of the EL1&0 translation regime (Arm ARM D8.16).
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
            // The type may grow; there is no stronger one.
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
        /// What was done. The fields are in the order of the line; addresses are physical.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Event<'a> {
            $($(#[$doc])* $variant $({ $($(#[$field_doc])* $field: $type),* })?,)*
            /// A kind that is not known here, to be passed over.
            Other {
                /// The kind.
                kind: &'a str,
                /// Its fields as they stand there, if it has any.
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
    /// What the engine was told of the CPUs, one line for each feature.
    Feature = "feature" {
        /// The name of a field of `stage2::Features`.
        name: &'a str,
        /// A number, or 1 for yes.
        value: u64,
    },
    /// Memory is the root of a tree from here on. It is zeroed next, and part of the tree once its lock was taken.
    RootMade = "root.made" {
        /// Where it is.
        pa: u64,
        /// The entries of it, all concatenated tables together.
        entries: u32,
        /// `VTTBR_EL2` of its guest.
        vttbr: u64,
        /// `VTCR_EL2` of its guest.
        vtcr: u64,
    },
    /// It is none any more.
    RootFreed = "root.freed" {
        /// Where it is.
        pa: u64,
    },
    /// A page is the engine's, for a table. It holds whatever it held.
    TableTaken = "table.taken" {
        /// Where it is.
        pa: u64,
    },
    /// It is not any more: it may become anything.
    TableFreed = "table.freed" {
        /// Where it is.
        pa: u64,
    },
    /// A table's lock was taken.
    LockTaken = "lock.taken" {
        /// Where the table is.
        pa: u64,
    },
    /// It was released.
    LockReleased = "lock.released" {
        /// Where the table is.
        pa: u64,
    },
    /// Software wrote 64 bits of a table, or of a page that is going to be one.
    Write = "write" {
        /// Where the entry is.
        pa: u64,
        /// What it was.
        old: u64,
        /// What it is.
        new: u64,
        /// By which kind of access.
        how: How,
        /// Its order.
        order: Order,
    },
    /// Hardware wrote an entry: access flag, or dirty state.
    Hardware = "hardware" {
        /// Where the entry is.
        pa: u64,
        /// What it was.
        old: u64,
        /// What it is.
        new: u64,
    },
    /// Software wrote to memory that is, or is going to be, a guest's.
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
        /// Its register; 0 where it takes none.
        operand: u64,
        /// `VTTBR_EL2` at that moment, which has the VMID.
        vttbr: u64,
    },
    /// `DSB domain`.
    Dsb = "dsb" {
        /// Which.
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
        /// The first byte; 0 where it takes no address.
        pa: u64,
        /// Bytes; 0 where it takes no address.
        size: u64,
    },
    /// `MSR VTTBR_EL2`.
    Vttbr = "vttbr" {
        /// What it is now.
        vttbr: u64,
    },
    /// The CPU goes into a guest.
    GuestEntered = "guest.entered" {
        /// The number of the vCPU.
        vcpu: u32,
        /// `VTTBR_EL2`.
        vttbr: u64,
    },
    /// The CPU has left it.
    GuestLeft = "guest.left" {
        /// The number of the vCPU.
        vcpu: u32,
    },
    /// Each entry that this CPU made before is visible to walks: the CPU relies on that from here on.
    Visible = "visible",
    /// No TLB holds what this CPU took away in these addresses before: the CPU relies on that from here on.
    Flushed = "flushed" {
        /// The first address.
        ipa: u64,
        /// Bytes.
        size: u64,
        /// `VTTBR_EL2` of the guest.
        vttbr: u64,
    },
    /// The TLB of this CPU holds nothing older of an address than its leaf is now: the CPU relies on that from here on.
    FlushedHere = "flushed.here" {
        /// The address.
        ipa: u64,
        /// The level of the leaf; 0 for all levels, tables too.
        level: u32,
        /// `VTTBR_EL2` of the guest.
        vttbr: u64,
    },
    /// The next store of this CPU to an entry may overwrite what hardware records there. The CPU does not need that record.
    Unrecorded = "unrecorded" {
        /// Where the entry is.
        pa: u64,
    },
    /// Lines of this CPU with lower numbers are missing: there was no room for them.
    Lost = "lost" {
        /// How many.
        events: u32,
    },
}
