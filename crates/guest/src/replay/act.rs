// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Executes events, and sees what they show.

use twofold_abi::virt::{GICD_BASE, RTC_BASE, UART_BASE};

use super::access::{
    CONFIG, CONTROL, PRIORITY, ROUTER, WAKER, frame, get, load, load_double, redistributor, set, store, store_byte,
    store_double,
};
use super::choose;
use super::event::{Bits, Event, HOT, Line, Sgi};
use super::state::State;

/// No interrupt: 1020 to 1023.
const SPECIAL: u64 = 1020;

/// Raises the raw interrupts of the devices. Their interrupt masks then decide about the lines. Returns whether both are
/// raised.
pub fn raise_devices() -> bool {
    const TRIES: u32 = 1000;
    const MATCH: u64 = 0x04;
    const RAW: u64 = 0x14;
    // The UART's is that of a byte sent.
    crate::uart::println!("replay:");
    crate::uart::drain();
    // The clock's comes at once if it is set to the second that it is. The second may end in between.
    (0..TRIES).any(|_| {
        store(RTC_BASE + MATCH, load(RTC_BASE));
        load(RTC_BASE + RAW) != 0
    })
}

/// The distributor and the redistributors: all of [`HOT`] enabled, and half of them in each group.
pub fn set_up(state: &State) {
    const ODD: u32 = 0xaaaa_aaaa;
    for vcpu in 0..state.vcpus {
        store(redistributor(vcpu) + WAKER, 0);
    }
    for (n, &intid) in HOT.iter().enumerate() {
        for vcpu in 0..state.vcpus {
            let base = frame(intid, vcpu);
            store_byte(base + PRIORITY + u64::from(intid), state.known.priorities[n]);
            store(base + Bits::Group as u64 + word(intid), ODD);
            store(base + Bits::SetEnable as u64 + word(intid), 1 << (intid % 32));
        }
        if intid >= 32 {
            store_double(GICD_BASE + ROUTER + 8 * u64::from(intid), 0);
        }
    }
    store(GICD_BASE + CONTROL, 3);
}

/// The CPU interface of this vCPU, at its first turn: open for both groups.
pub fn open(state: &mut State, vcpu: usize) {
    if core::mem::replace(&mut state.known.vcpus[vcpu].is_open, true) {
        return;
    }
    set!("icc_sre_el1", 1);
    set!("icc_pmr_el1", 0xf8);
    set!("icc_bpr0_el1", 2);
    set!("icc_bpr1_el1", 3);
    set!("icc_ctlr_el1", 0);
    set!("icc_igrpen0_el1", 1);
    set!("icc_igrpen1_el1", 1);
}

/// After each event: the running priority, and whether an interrupt is signalled.
pub fn look(state: &mut State, vcpu: usize) {
    state.see(get!("icc_rpr_el1"));
    if state.known.vcpus[vcpu].enabled == [true; 2] {
        state.see(signalled());
    }
}

/// Executes an event on this vCPU.
pub fn execute(state: &mut State, vcpu: usize, event: Event) {
    match event {
        Event::Take => {
            const IRQ: u64 = 1 << 7;
            acknowledge(state, vcpu, signalled() & IRQ != 0);
        }
        Event::Acknowledge { group1 } => acknowledge(state, vcpu, group1),
        Event::HighestPending { group1: true } => _ = state.see(get!("icc_hppir1_el1")),
        Event::HighestPending { group1: false } => _ = state.see(get!("icc_hppir0_el1")),
        Event::End => end(state, vcpu),
        Event::Deactivate { intid } => {
            let intid = state.known.vcpus[vcpu].ended.pop().unwrap_or(intid);
            deactivate(state, vcpu, intid);
        }
        Event::Mask(value) => set!("icc_pmr_el1", value.into()),
        Event::Point { group1, value } => {
            end_all(state, vcpu);
            if group1 { set!("icc_bpr1_el1", value.into()) } else { set!("icc_bpr0_el1", value.into()) }
        }
        Event::Enable { group1, on } => {
            state.known.vcpus[vcpu].enabled[usize::from(group1)] = on;
            if group1 { set!("icc_igrpen1_el1", on.into()) } else { set!("icc_igrpen0_el1", on.into()) }
        }
        Event::Configure { common, split } => {
            end_all(state, vcpu);
            state.known.vcpus[vcpu].split = split;
            set!("icc_ctlr_el1", u64::from(common) | u64::from(split) << 1);
        }
        Event::Send { register: Sgi::Group0, value } => set!("icc_sgi0r_el1", value),
        Event::Send { register: Sgi::Group1, value } => set!("icc_sgi1r_el1", value),
        Event::Send { register: Sgi::Alias, value } => set!("icc_asgi1r_el1", value),
        Event::Set { of, kind, bank, mask } => store(bits(of, kind, bank * 32), mask),
        Event::Prioritize { hot, priority } => prioritize(state, hot, priority),
        Event::Trigger { of, intid, edge } => trigger(of, intid, edge),
        Event::Route { intid, affinity } => {
            store_double(GICD_BASE + ROUTER + 8 * u64::from(intid), affinity.into());
        }
        Event::Control(value) => store(GICD_BASE + CONTROL, value.into()),
        Event::Drive { line, level, how } => drive(state, vcpu, line, level, how),
        Event::Get { of, kind, bank } => get_bits(state, of, kind, bank),
        Event::Read { of, intid } => read(state, of, intid),
    }
}

/// ISR_EL1.I and F.
fn signalled() -> u64 {
    get!("isr_el1") & 0xc0
}

fn acknowledge(state: &mut State, vcpu: usize, group1: bool) {
    let intid = state.see(if group1 { get!("icc_iar1_el1") } else { get!("icc_iar0_el1") });
    if intid < SPECIAL {
        state.acknowledged += 1;
        state.known.vcpus[vcpu].handling.push((intid as u32, group1));
    }
}

fn end(state: &mut State, vcpu: usize) {
    let known = &mut state.known.vcpus[vcpu];
    let Some((intid, group1)) = known.handling.pop() else { return };
    if group1 {
        set!("icc_eoir1_el1", intid.into())
    } else {
        set!("icc_eoir0_el1", intid.into())
    }
    if known.split {
        known.ended.push(intid);
    }
}

fn deactivate(state: &State, vcpu: usize, intid: u32) {
    if choose::may_deactivate(&state.known, vcpu, intid) {
        set!("icc_dir_el1", intid.into());
    }
}

/// Ends and deactivates all that the vCPU handles.
fn end_all(state: &mut State, vcpu: usize) {
    while state.known.vcpus[vcpu].handling.last().is_some() {
        end(state, vcpu);
    }
    while let Some(intid) = state.known.vcpus[vcpu].ended.pop() {
        deactivate(state, vcpu, intid);
    }
}

fn prioritize(state: &mut State, hot: usize, priority: u8) {
    let old = core::mem::replace(&mut state.known.priorities[hot], priority);
    let other = (0..HOT.len()).find(|&n| n != hot && state.known.priorities[n] == priority);
    for (n, value) in other.map(|n| (n, old)).into_iter().chain([(hot, priority)]) {
        state.known.priorities[n] = value;
        let intid = HOT[n];
        for vcpu in 0..if intid < 32 { state.vcpus } else { 1 } {
            store_byte(frame(intid, vcpu) + PRIORITY + u64::from(intid), value);
        }
    }
}

fn trigger(of: usize, intid: u32, edge: bool) {
    let bit = 1 << (intid % 32);
    let enabled = load(bits(of, Bits::SetEnable, intid)) & bit;
    store(bits(of, Bits::ClearEnable, intid), bit);
    let register = frame(intid, of) + CONFIG + u64::from(intid / 16 * 4);
    let field = 2 << (intid % 16 * 2);
    let others = load(register) & !field;
    store(register, if edge { others | field } else { others });
    store(bits(of, Bits::SetEnable, intid), enabled);
}

fn drive(state: &mut State, vcpu: usize, line: Line, level: bool, how: u8) {
    const UART_MASK: u64 = 0x38;
    const TRANSMITTED: u32 = 1 << 5;
    const CLOCK_MASK: u64 = 0x10;
    match line {
        Line::Uart => {
            state.known.uart = level;
            store(UART_BASE + UART_MASK, if level { TRANSMITTED } else { 0 });
        }
        Line::Clock => store(RTC_BASE + CLOCK_MASK, level.into()),
        Line::VirtualTimer => {
            let (control, compare) = timer(level, how);
            set!("cntv_cval_el0", compare);
            set!("cntv_ctl_el0", control);
        }
        Line::PhysicalTimer => {
            let (control, compare) = timer(level, how);
            set!("cntp_cval_el0", compare);
            set!("cntp_ctl_el0", control);
        }
    }
    if !level && matches!(line, Line::VirtualTimer | Line::PhysicalTimer) {
        get_bits(state, vcpu, Bits::SetPending, 0);
    }
}

/// A timer's control and compare value: its line is asserted, or not, for one of three reasons.
fn timer(level: bool, how: u8) -> (u64, u64) {
    const ENABLE: u64 = 1;
    const MASK: u64 = 2;
    /// Longer than the machine runs. With the highest value of all and an offset, QEMU's timer is always due.
    const NEVER: u64 = 1 << 62;
    match (level, how) {
        (true, _) => (ENABLE, 0),
        (false, 0) => (0, 0),
        (false, 1) => (ENABLE | MASK, 0),
        (false, _) => (ENABLE, NEVER),
    }
}

fn get_bits(state: &mut State, of: usize, kind: Bits, bank: u32) {
    state.see(load(bits(of, kind, bank * 32)).into());
}

fn read(state: &mut State, of: usize, intid: u32) {
    const BOTH: u64 = 3;
    let base = frame(intid, of);
    state.see(load(base + PRIORITY + u64::from(intid & !3)).into());
    state.see(load(base + CONFIG + u64::from(intid / 16 * 4)).into());
    if intid >= 32 {
        state.see(load_double(GICD_BASE + ROUTER + 8 * u64::from(intid)));
    }
    state.see(u64::from(load(GICD_BASE + CONTROL)) & BOTH);
    state.see(get!("icc_pmr_el1"));
    state.see(get!("icc_bpr0_el1") << 8 | get!("icc_bpr1_el1"));
    state.see(get!("icc_ctlr_el1") & BOTH);
    state.see(get!("icc_igrpen0_el1") << 8 | get!("icc_igrpen1_el1"));
}

fn bits(of: usize, kind: Bits, intid: u32) -> u64 {
    frame(intid, of) + kind as u64 + word(intid)
}

/// The offset of the word with the bit of `intid`.
fn word(intid: u32) -> u64 {
    u64::from(intid / 32 * 4)
}
