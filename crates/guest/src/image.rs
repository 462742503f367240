// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The image in memory, by the symbols of its linker script.

unsafe extern "C" {
    static image_start: u8;
    static image_end: u8;
    static bss_start: u8;
}

/// The first address after the image, its bss and its stack: a multiple of 4 KiB.
pub fn end_of_image() -> u64 {
    (&raw const image_end).addr() as u64
}

/// Reads each page of the image and its stack, and in each page that has a RET executes it. So no later access or fetch
/// of the program is the first one of a page.
pub fn fetch_everything() {
    const PAGE: usize = 4096;
    const RET: u32 = 0xd65f_03c0;
    let (start, end) = ((&raw const image_start).addr(), (&raw const image_end).addr());
    for page in (start..end).step_by(PAGE) {
        let mut words = (page..page + PAGE).step_by(4).map(core::ptr::with_exposed_provenance::<u32>);
        // SAFETY: the page belongs to the image, and the loop only reads it.
        let ret = words.find(|word| unsafe { word.read_volatile() } == RET);
        if let Some(ret) = ret.filter(|_| page < (&raw const bss_start).addr()) {
            // SAFETY: the call executes the RET alone, which returns here.
            unsafe { core::mem::transmute::<*const u32, extern "C" fn()>(ret)() };
        }
    }
}
