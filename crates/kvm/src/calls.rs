// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The calls that the crate `kvm-ioctls` lacks, or has only with an allocation in the timed path.

use std::os::fd::BorrowedFd;

use kvm_bindings::{KVMIO, kvm_clear_dirty_log, kvm_dirty_log};
use kvm_ioctls::VmFd;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, NoArg, Opcode, Updater, ioctl, opcode};

use crate::bitmap::Bitmap;

/// Reads a slot's dirty log into `bitmap`, which has a bit for each of its pages.
pub(crate) fn get_dirty_log(vm: &VmFd, slot: u32, bitmap: &mut Bitmap) -> Result<(), Errno> {
    let mut log = kvm_dirty_log { slot, ..Default::default() };
    log.__bindgen_anon_1.dirty_bitmap = bitmap.words_mut().as_mut_ptr().cast();
    // SAFETY: KVM writes a bit for each page of the slot, in whole words of 64, and the caller's bitmap has as many
    // words.
    unsafe { ioctl(fd(vm), Updater::<GET_DIRTY_LOG, _>::new(&mut log)) }
}

/// Clears the dirty state of `count` pages of a slot, from `first` on, whose bits are set in `bitmap`, which is the
/// slot's whole bitmap. `first` must be a multiple of 64. `count` must be one too, or the pages must end with the slot.
pub(crate) fn clear_dirty_log(vm: &VmFd, slot: u32, first: u64, count: u32, bitmap: &Bitmap) -> Result<(), Errno> {
    let words = bitmap.words().get((first / 64) as usize..).filter(|words| words.len() as u64 * 64 >= u64::from(count));
    let words = words.ok_or(Errno::INVAL)?;
    let mut log = kvm_clear_dirty_log { slot, num_pages: count, first_page: first, ..Default::default() };
    log.__bindgen_anon_1.dirty_bitmap = words.as_ptr().cast_mut().cast();
    // SAFETY: KVM reads a bit for each of `count` pages, in whole words, and `words` has as many. It writes nothing.
    unsafe { ioctl(fd(vm), Updater::<CLEAR_DIRTY_LOG, _>::new(&mut log)) }
}

/// Clears the dirty state of the pages that were collected from all rings; returns their number.
pub(crate) fn reset_dirty_rings(vm: &VmFd) -> Result<u64, Errno> {
    // SAFETY: the call has no argument.
    unsafe { ioctl(fd(vm), Counted(NoArg::<RESET_DIRTY_RINGS>::new())) }
}

const GET_DIRTY_LOG: Opcode = opcode::write::<kvm_dirty_log>(KVMIO as u8, 0x42);
const CLEAR_DIRTY_LOG: Opcode = opcode::read_write::<kvm_clear_dirty_log>(KVMIO as u8, 0xc0);
const RESET_DIRTY_RINGS: Opcode = opcode::none(KVMIO as u8, 0xc7);

/// A call without an argument that returns a number.
struct Counted(NoArg<RESET_DIRTY_RINGS>);

// SAFETY: as for `NoArg`, from which it differs only in what it returns.
unsafe impl Ioctl for Counted {
    type Output = u64;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        self.0.opcode()
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        self.0.as_ptr()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut std::ffi::c_void) -> rustix::io::Result<u64> {
        Ok(out as u64)
    }
}

fn fd(vm: &VmFd) -> BorrowedFd<'_> {
    // SAFETY: this is the machine's own descriptor, which stays open while the machine is borrowed.
    unsafe { BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(vm)) }
}
