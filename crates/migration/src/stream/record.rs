// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A record: what a reader returns for a header and its payload.

use alloc::vec::Vec;

use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use super::error::Cause;
use super::hello::{Capabilities, Hello};
use super::message::{Message, ownership};
use super::name::Name;
use super::order::Order;
use super::page::{check, unpack};
use super::slots::Slot;
use super::wire::{Header, SectionHead, WHOLE, checksum, kind, page, request, round};
use crate::commit::Ownership;

/// A record of a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// Which guest comes. The reader has compared it with this target's capabilities.
    Hello(&'a Hello),
    /// The guest's memslots.
    Slots(&'a [Slot]),
    /// A round begins. Where several streams carry a migration, its pages may be stored once all of them have ended
    /// the round before.
    Round {
        /// Its number, from 1.
        number: u64,
        /// Whether the guest is stopped.
        stopped: bool,
    },
    /// A page of a memslot.
    Page {
        /// The memslot's number.
        slot: u16,
        /// The page in the memslot.
        page: u64,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// Zero pages of a memslot.
    ZeroPages {
        /// The memslot's number.
        slot: u16,
        /// The first in the memslot.
        page: u64,
        /// How many.
        count: u32,
    },
    /// The round ends.
    RoundEnd {
        /// How many pages it had in this stream.
        pages: u64,
    },
    /// A section begins. The caller refuses sections that it does not know, and those that are too large for it.
    Section {
        /// What it is the state of.
        name: Name,
        /// Which of several of that name.
        instance: u32,
        /// The version of its content.
        version: u32,
        /// Its size in bytes.
        size: u64,
    },
    /// The next bytes of the section.
    Part(&'a [u8]),
    /// All of the guest came, as it was stopped under this ownership: the source's offer ([`crate::commit`]).
    End(Ownership),
    /// A message.
    Message(Message),
    /// Pages that follow the end, or that the target says it lacks. From version 2 on.
    Absent {
        /// The memslot's number.
        slot: u16,
        /// The page of the first bit: a multiple of 64.
        page: u64,
        /// Bit `n` of word `m` is set for page `page + 64 * m + n`.
        words: &'a [U64],
    },
    /// Target to source: absent pages are wanted. From version 2 on.
    Request {
        /// Whether a vCPU waits for the page.
        waits: bool,
        /// The memslot's number.
        slot: u16,
        /// The first page.
        page: u64,
        /// How many.
        count: u32,
    },
    /// The link is back, and absent pages follow; the guest's owner. From version 2 on.
    Resume(Ownership),
}

/// Checks a record whose header continues the stream, and returns it. An lz4 page is unpacked into `unpacked`.
pub(super) fn interpret<'a>(
    header: Header,
    payload: &'a [u8],
    unpacked: &'a mut Vec<u8>,
    order: &'a mut Order,
    here: &Capabilities,
) -> Result<Record<'a>, Cause> {
    if header.kind == kind::PAGE {
        return interpret_page(header, payload, unpacked, order);
    }
    check_unused(&header)?;
    check_sum(&header, payload)?;
    let (argument, version) = (header.argument.get(), order.version());
    Ok(match header.kind {
        kind::HELLO => {
            let hello = Hello::from_bytes(payload)?;
            let refusals = hello.refusals(here);
            if !refusals.is_empty() {
                return Err(Cause::Refused(refusals));
            }
            unpacked.resize(1 << hello.page_shift, 0);
            Record::Hello(order.greet(hello)?)
        }
        kind::SLOTS => {
            order.slots(&Slot::from_bytes(payload)?)?;
            Record::Slots(order.memslots())
        }
        kind::ROUND => {
            let stopped = header.form == round::STOPPED;
            Record::Round { number: order.round(Some(argument), stopped)?, stopped }
        }
        kind::ROUND_END => Record::RoundEnd { pages: order.end_round(Some(argument))? },
        kind::SECTION => {
            let head = SectionHead::read_from_bytes(payload).map_err(|_| Cause::Section(payload.len()))?;
            let name = Name::from_bytes(head.name).ok_or(Cause::Section(payload.len()))?;
            let (instance, version, size) = (head.instance.get(), head.version.get(), head.size.get());
            order.section(name, instance, size)?;
            Record::Section { name, instance, version, size }
        }
        kind::PART => {
            order.part(Some(argument), payload.len() as u64)?;
            Record::Part(payload)
        }
        kind::END => {
            let from = ownership(payload).ok_or(Cause::End(payload.len()))?;
            order.end()?;
            Record::End(from)
        }
        kind::MESSAGE => {
            let message = Message::from_form_and_bytes(header.form, payload, version)?;
            order.message(&message)?;
            Record::Message(message)
        }
        kind::ABSENT if version > WHOLE => {
            let words = <[U64]>::ref_from_bytes(payload).map_err(|_| Cause::Absent(payload.len()))?;
            order.absent(header.slot.get(), argument, words)?;
            Record::Absent { slot: header.slot.get(), page: argument, words }
        }
        kind::REQUEST if version > WHOLE => {
            let (waits, slot, count) = (header.form == request::WAITS, header.slot.get(), header.length.get());
            order.request(slot, argument, count)?;
            Record::Request { waits, slot, page: argument, count }
        }
        kind::RESUME if version > WHOLE => {
            let from = ownership(payload).ok_or(Cause::End(payload.len()))?;
            order.resume()?;
            Record::Resume(from)
        }
        other => return Err(Cause::Kind(other)),
    })
}

fn interpret_page<'a>(
    header: Header,
    payload: &'a [u8],
    unpacked: &'a mut [u8],
    order: &mut Order,
) -> Result<Record<'a>, Cause> {
    let (slot, page) = (header.slot.get(), header.argument.get());
    let count = if header.form == page::ZERO { header.length.get() } else { 1 };
    order.pages(slot, page, count.into())?;
    check(header.form, payload.len(), unpacked.len())?;
    let bytes = match header.form {
        page::ZERO => {
            check_sum(&header, &[])?;
            return Ok(Record::ZeroPages { slot, page, count });
        }
        page::LZ4 => {
            unpack(payload, unpacked)?;
            unpacked
        }
        _ => payload,
    };
    check_sum(&header, bytes)?;
    Ok(Record::Page { slot, page, bytes })
}

fn check_sum(header: &Header, bytes: &[u8]) -> Result<(), Cause> {
    let (found, wanted) = (checksum(bytes), header.content.get());
    if found == wanted { Ok(()) } else { Err(Cause::Checksum { found, wanted }) }
}

/// Returns an error if a field that this kind of record does not use is not zero.
fn check_unused(header: &Header) -> Result<(), Cause> {
    let slot = matches!(header.kind, kind::ABSENT | kind::REQUEST);
    let (forms, argument, payload) = match header.kind {
        kind::ROUND => (round::STOPPED, true, false),
        kind::ROUND_END => (0, true, false),
        kind::PART => (0, true, true),
        kind::MESSAGE => (u8::MAX, false, true),
        kind::ABSENT => (0, true, true),
        kind::REQUEST => (request::AHEAD, true, true),
        _ => (0, false, true),
    };
    let unused = [
        (slot || header.slot.get() == 0, "slot"),
        (header.form <= forms, "form"),
        (argument || header.argument.get() == 0, "argument"),
        (payload || header.length.get() == 0, "length"),
    ];
    match unused.iter().find(|(good, _)| !good) {
        Some((_, field)) => Err(Cause::Reserved(field)),
        None => Ok(()),
    }
}
