// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's calls ([`twofold_abi::async_fault`]).

use twofold_abi::async_fault::{
    ACKNOWLEDGE, DISABLE, ENABLE, INTID, INVALID_PARAMETER, NO_TOKEN, NOT_SUPPORTED, QUERY, SUCCESS, TOKENS_MAX,
    VERSION, flags, query,
};
use twofold_stage2::Ipa;

use super::area::{Area, AreaMemory};
use super::arrivals::Arrivals;
use super::vcpu::{Enabled, Host, Mode, VcpuFaults};

impl<M: AreaMemory> VcpuFaults<M> {
    /// Answers a call with these arguments (x0 to x2) of this vCPU. Returns what goes to x0, or `None` if the call is
    /// not one of these.
    pub fn call(
        &mut self,
        arrivals: &Arrivals,
        host: &mut impl Host<Memory = M>,
        [function, first, second]: [u64; 3],
    ) -> Option<i64> {
        // SMCCC has the function's number in W0.
        let function = function as u32;
        if !(QUERY..=ACKNOWLEDGE).contains(&function) {
            return None;
        }
        if self.mode != Mode::Pv {
            return Some(NOT_SUPPORTED);
        }
        Some(match function {
            QUERY => answer(first),
            ENABLE => self.enable(host.memory(), Ipa::new(first), second),
            DISABLE if self.enabled.is_some() => {
                self.off(arrivals, host);
                SUCCESS
            }
            ACKNOWLEDGE => self.acknowledge(arrivals, host, first),
            _ => INVALID_PARAMETER,
        })
    }

    fn enable(&mut self, memory: &M, area: Ipa, flags: u64) -> i64 {
        if self.enabled.is_some() || flags & !flags::ALL != 0 {
            return INVALID_PARAMETER;
        }
        let Some(area) = Area::new(area, memory) else { return INVALID_PARAMETER };
        self.enabled = Some(Enabled { area, kernel: flags & flags::KERNEL != 0 });
        SUCCESS
    }

    /// Ends the token that was delivered, and delivers the next without an interrupt: the guest reads the area again
    /// after this call.
    fn acknowledge(&mut self, arrivals: &Arrivals, host: &mut impl Host<Memory = M>, token: u64) -> i64 {
        if self.unacknowledged == NO_TOKEN || token != u64::from(self.unacknowledged) {
            return INVALID_PARAMETER;
        }
        // Wake-all has no slot, nor has a token that was delivered before a migration.
        if let Some(slot) = self.requests.with_token(self.unacknowledged) {
            self.requests.close(slot);
        }
        self.unacknowledged = NO_TOKEN;
        self.deliver(arrivals, host);
        SUCCESS
    }
}

fn answer(fact: u64) -> i64 {
    match fact {
        query::VERSION => VERSION.into(),
        query::FLAGS => flags::ALL as i64,
        query::INTID => INTID.into(),
        query::TOKENS_MAX => TOKENS_MAX as i64,
        _ => INVALID_PARAMETER,
    }
}
