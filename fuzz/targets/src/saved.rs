// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sections of a saved guest, as a launcher may send them.

use twofold_vmm::saved::{self, Card, Disk, Section, SectionError, Time};

/// Bytes are sections, or the first that is none is refused. A section, and each content that is read, is written as it was.
pub fn saved(data: &[u8]) {
    let mut rest = data;
    while !rest.is_empty() {
        let (section, after) = match Section::read(rest) {
            Ok(read) => read,
            Err(error) => {
                // The error has a text, and nothing was read behind the bytes.
                assert!(!error.to_string().is_empty());
                break;
            }
        };
        let mut again = Vec::new();
        section.write(&mut again);
        assert_eq!(again, rest[..rest.len() - after.len()]);
        content(section.bytes);
        rest = after;
    }
    content(data);
}

/// Content of any section.
fn content(bytes: &[u8]) {
    fn check<T, const N: usize>(bytes: &[u8], read: Result<T, SectionError>, write: impl Fn(&T) -> [u8; N]) {
        if let Ok(content) = read {
            assert_eq!(write(&content), bytes);
        }
    }
    check(bytes, Time::read(bytes), Time::bytes);
    check(bytes, saved::read_power(bytes), |state| saved::power_bytes(*state));
    check(bytes, saved::read_async_fault(bytes), saved::async_fault_bytes);
    check(bytes, Card::read(bytes), Card::bytes);
    check(bytes, Disk::read(bytes), Disk::bytes);
    if let (Ok(one), Ok(other)) = (Disk::read(bytes), Disk::read(&[0; 32])) {
        // Equal disks are the same, and others are refused with a text.
        assert_eq!(one.check(&other).is_ok(), one == other);
        assert!(one.check(&other).is_ok() || !one.check(&other).unwrap_err().to_string().is_empty());
    }
}
