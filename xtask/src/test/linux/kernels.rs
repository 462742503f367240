// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kernels of a few instructions.

use twofold_abi::virt::RAM_BASE;

/// Returns the smallest arm64 Image: its header with a branch to itself.
pub fn spinning_kernel() -> Vec<u8> {
    const B_TO_ITSELF: u32 = 0x1400_0000;
    kernel(B_TO_ITSELF, &[], &[])
}

/// Returns a kernel that asks QEMU to run a host command, by the semihosting call SYS_SYSTEM, and then powers off.
pub fn commanding_kernel(command: &str) -> Vec<u8> {
    const B_TO_CODE: u32 = 0x1400_0010;
    const CODE: [u32; 6] = [
        0x1000_00c1, // adr x1, behind the code
        0x5280_0240, // mov w0, #0x12: SYS_SYSTEM
        0xd45e_0000, // hlt #0xf000
        0x5280_0100, // mov w0, #8
        0x72b0_8000, // movk w0, #0x8400, lsl #16: SYSTEM_OFF
        0xd400_0002, // hvc #0
    ];
    let text = RAM_BASE + 64 + 24 + 16;
    let block = [text.to_le_bytes(), (command.len() as u64).to_le_bytes()].concat();
    kernel(B_TO_CODE, &CODE, &[&block, command.as_bytes(), b"\0"].concat())
}

/// Returns an Image: its first instruction, and the code and data behind the header.
fn kernel(first: u32, code: &[u32], data: &[u8]) -> Vec<u8> {
    let mut image = vec![0; 64];
    image[..4].copy_from_slice(&first.to_le_bytes());
    image[16..24].copy_from_slice(&4096u64.to_le_bytes());
    image[24..32].copy_from_slice(&0xau64.to_le_bytes());
    image[56..60].copy_from_slice(b"ARM\x64");
    image.extend(code.iter().flat_map(|word| word.to_le_bytes()));
    image.extend(data);
    image.resize(4096, 0);
    image
}
