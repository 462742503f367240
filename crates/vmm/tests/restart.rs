// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the order in which a guest begins: nothing runs or writes while images are loaded, and the first vCPU is last.

use twofold_stage2::Ipa;
use twofold_vmm::load::Layout;
use twofold_vmm::restart::Step::*;
use twofold_vmm::restart::{Image, Step, Why, steps};

const KERNEL: Ipa = Ipa::new(0x4000_0000);
const INITRD: Ipa = Ipa::new(0x4200_0000);
const TREE: Ipa = Ipa::new(0x4400_0000);

fn all(why: Why, has_initrd: bool) -> Vec<Step> {
    steps(why, &Layout { kernel: KERNEL, entry: KERNEL, initrd: INITRD, device_tree: TREE }, has_initrd).collect()
}

#[test]
fn a_reset_stops_discards_and_loads_in_this_order() {
    let loaded = [Load(Image::Kernel, KERNEL), Load(Image::Initrd, INITRD), Load(Image::DeviceTree, TREE)];
    let begins = [ResetDevices, Invalidate, WakeFirstVcpu];
    assert_eq!(all(Why::New, true), [&loaded[..], &begins].concat());
    assert_eq!(all(Why::ColdReset, true), [&[StopVcpus, StopDevices, DiscardRam][..], &loaded, &begins].concat());
    assert_eq!(all(Why::WarmReset, true), [&[StopVcpus, StopDevices][..], &loaded, &begins].concat());
    let without = all(Why::ColdReset, false);
    assert!(!without.iter().any(|step| matches!(step, Load(Image::Initrd, _))));
    assert_eq!(without.len() + 1, all(Why::ColdReset, true).len());
}
