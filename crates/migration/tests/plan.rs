// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Planning against a guest and a link that are simulated page by page.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use twofold_migration::plan::{FULL_SPEED, Measured, Outcome, Plan, Wanted, forecast, plan, throttle};

const WANTED: Wanted = Wanted {
    downtime: Duration::from_millis(10),
    fixed: Duration::from_millis(2),
    rounds: 20,
    throttle: 990,
    forced: false,
};

/// A quarter of a million pages a second: 1 GB/s. 256 MiB are left, and all of it is written to.
const MEASURED: Measured<'static> =
    Measured { bandwidth: 250_000, writes: &[50_000], working_set: 65_536, left: 65_536 };

#[test]
fn a_guest_that_writes_a_fifth_of_the_link_needs_a_few_rounds() {
    let Plan::Round(forecast) = plan(&MEASURED, &WANTED) else { panic!("it converges") };
    // 65,536, 13,107, 2,621 pages; 524 are left, and 2,000 fit 8 ms.
    assert_eq!(
        (forecast.outcome, forecast.rounds, forecast.pages),
        (Outcome::Converges, 3, 65_536 + 13_107 + 2_621 + 524)
    );
    assert_eq!(forecast.downtime, Duration::from_micros(2_000 + 524 * 4));
    assert_eq!(forecast.total, Duration::from_micros((65_536 + 13_107 + 2_621) * 4) + forecast.downtime);
}

#[test]
fn what_fits_is_sent_at_once() {
    let fits = |left| plan(&Measured { left, writes: &[1 << 40], ..MEASURED }, &WANTED);
    assert!(matches!(fits(2_000), Plan::Stop(now) if now.downtime == WANTED.downtime && now.rounds == 0));
    assert!(!matches!(fits(2_001), Plan::Stop(_)));
}

/// A downtime that state and commit take whole, and a link that carries nothing, if there is nothing to send.
#[test]
fn nothing_to_send_fits() {
    let nothing = Measured { left: 0, ..MEASURED };
    let wanted = Wanted { fixed: WANTED.downtime, ..WANTED };
    assert_eq!(forecast(&nothing, &wanted).outcome, Outcome::Converges);
    let now = forecast(&Measured { bandwidth: 0, ..nothing }, &WANTED);
    assert_eq!((now.outcome, now.downtime), (Outcome::Converges, WANTED.fixed));
    for left in [1, 2] {
        let never = forecast(&Measured { bandwidth: 0, left, ..MEASURED }, &WANTED);
        assert_eq!((never.outcome, never.downtime), (Outcome::NoLink, Duration::MAX));
    }
}

/// A guest that is stopped in the end by force gets its rounds before; without a link it is not stopped at all.
#[test]
fn force_has_rounds_and_a_link() {
    let forced = Wanted { forced: true, throttle: 0, rounds: 1, ..WANTED };
    let measured = Measured { writes: &[225_000], ..MEASURED };
    assert!(matches!(plan(&measured, &forced), Plan::Round(now) if matches!(now.outcome, Outcome::Forced { .. })));
    assert!(matches!(plan(&measured, &Wanted { rounds: 0, ..forced }), Plan::Stop(_)));
    let outcome = |bandwidth| forecast(&Measured { bandwidth, ..MEASURED }, &forced).outcome;
    assert_eq!(forecast(&MEASURED, &Wanted { forced: true, ..WANTED }).outcome, Outcome::Converges);
    assert_eq!((outcome(0), outcome(1)), (Outcome::NoLink, Outcome::Forced { left: 65_536, fit: 0 }));
}

/// What a migration that does not end has sent, without what is left.
#[test]
fn a_migration_that_never_ends_has_sent_its_rounds() {
    let wanted = Wanted { rounds: 1, ..WANTED };
    let never = forecast(&Measured { writes: &[225_000], ..MEASURED }, &wanted);
    assert!(matches!(never.outcome, Outcome::TooManyRounds { .. }));
    assert_eq!((never.pages, never.total), (65_536, Duration::from_micros(65_536 * 4)));
}

/// To the page: two vCPUs that write 10 pages a second each, over a link on which 10 in all converge and 11 do not.
#[test]
fn the_least_throttle_is_exact() {
    let measured = Measured { bandwidth: 11, writes: &[10, 10], working_set: 1000, left: 100 };
    let wanted = Wanted { downtime: Duration::from_secs(1), fixed: Duration::ZERO, rounds: u32::MAX, ..WANTED };
    let rates = [10, 11].map(|rate| forecast(&Measured { writes: &[rate], ..measured }, &wanted).outcome);
    assert_eq!(rates[0], Outcome::Converges);
    assert_ne!(rates[1], Outcome::Converges);
    let least = throttle(&measured, &wanted).unwrap();
    assert_eq!((least.slowed, least.rate), (vec![500, 500], 10));
    // No vCPU is stopped, whatever is allowed.
    let fast = Measured { bandwidth: 1500, writes: &[1_000_000], working_set: 1 << 30, left: 10_000 };
    for most in [999, 1000, u16::MAX] {
        assert_eq!(throttle(&fast, &Wanted { throttle: most, ..wanted }).map(|least| least.slowed), Some(vec![999]));
    }
    assert_eq!(throttle(&fast, &Wanted { throttle: 998, ..wanted }), None);
    let slow = Measured { bandwidth: 900, ..fast };
    assert_eq!(throttle(&slow, &Wanted { throttle: u16::MAX, ..wanted }), None, "it still writes 1000");
}

#[test]
fn a_small_working_set_converges_whatever_the_guest_writes() {
    let measured = Measured { writes: &[u64::MAX, u64::MAX], working_set: 2_000, ..MEASURED };
    assert!(matches!(plan(&measured, &WANTED), Plan::Round(now) if now.rounds == 1));
}

#[test]
fn only_the_vcpus_that_write_most_are_slowed_down() {
    let measured = Measured { writes: &[400_000, 10_000, 0, 300_000], ..MEASURED };
    let Plan::Throttle(throttle, then) = plan(&measured, &WANTED) else { panic!("it needs throttling") };
    assert_eq!(then.outcome, Outcome::Converges);
    assert_eq!((throttle.slowed[1], throttle.slowed[2]), (0, 0));
    let speeds = [(400_000, throttle.slowed[0]), (300_000, throttle.slowed[3])];
    let rates = speeds.map(|(rate, slowed)| rate * u64::from(FULL_SPEED - slowed) / 1000);
    assert!(rates[0].abs_diff(rates[1]) <= 400, "both write as much then: {rates:?}");
    // The least: one per mille less of it does not converge.
    let faster = Measured { writes: &[throttle.rate + 800], ..measured };
    assert_ne!(forecast(&faster, &WANTED).outcome, Outcome::Converges);
}

#[test]
fn a_migration_that_never_ends_says_why() {
    let never = |measured: Measured<'_>, wanted: Wanted| match plan(&measured, &wanted) {
        Plan::Never(forecast) => forecast.outcome.to_string(),
        other => panic!("{other:?}"),
    };
    let unthrottled = Wanted { throttle: 0, ..WANTED };
    assert_eq!(
        never(Measured { writes: &[200_000, 100_000], ..MEASURED }, unthrottled),
        "300000 pages a second are written and 250000 sent; 65536 pages stay left, where 2000 fit the downtime"
    );
    assert_eq!(
        never(Measured { writes: &[225_000], ..MEASURED }, unthrottled),
        "after 20 rounds 7964 pages are left, where 2000 fit the downtime"
    );
    assert_eq!(never(Measured { bandwidth: 0, ..MEASURED }, WANTED), "the link carries nothing");
    assert_eq!(
        never(MEASURED, Wanted { fixed: Duration::from_millis(11), ..WANTED }),
        "state and commit take 11ms, and the downtime is 10ms"
    );
    let forced = Wanted { forced: true, throttle: 0, ..WANTED };
    let Plan::Stop(now) = plan(&Measured { writes: &[300_000], ..MEASURED }, &forced) else { panic!("it is forced") };
    assert_eq!(now.outcome.to_string(), "the guest is stopped with 65536 pages left, where 2000 fit the downtime");
}

/// What the simulation of a migration saw.
struct Moved {
    rounds: u32,
    pages: u64,
    total: u128,
    downtime: u128,
}

/// Moves a guest that writes a page every `1 / rate` seconds, each chosen by `choose` from the number of the write. Time
/// is in nanoseconds.
fn simulate(measured: &Measured<'_>, wanted: &Wanted, choose: impl Fn(u64) -> u64) -> Moved {
    let (rate, bandwidth) = (u128::from(measured.writes[0]), u128::from(measured.bandwidth));
    let mut dirty = vec![false; measured.working_set as usize];
    let (mut left, mut writes, mut now) = (measured.left, 0_u64, 0_u128);
    let mut moved = Moved { rounds: 0, pages: 0, total: 0, downtime: 0 };
    loop {
        moved.pages += left;
        let needs = (u128::from(left) * 1_000_000_000).div_ceil(bandwidth);
        if left <= wanted.fitting(measured.bandwidth) {
            moved.downtime = needs + wanted.fixed.as_nanos();
            moved.total = now + moved.downtime;
            return moved;
        }
        moved.rounds += 1;
        now += needs;
        dirty.fill(false);
        while u128::from(writes + 1) * 1_000_000_000 <= now * rate {
            writes += 1;
            dirty[choose(writes) as usize] = true;
        }
        left = dirty.iter().filter(|&&dirty| dirty).count() as u64;
    }
}

proptest! {
    /// A guest that writes one page after another: rounds, pages and time are the forecast's. The forecast rounds each
    /// round's writes down by up to one page, and that page by up to ten more in all later rounds, as the rate is at most
    /// nine tenths of the link. Where what is left just fits the downtime, or just does not, one round may be the difference,
    /// if a round then leaves at least ten pages less than it sent.
    #[test]
    fn the_forecast_is_the_simulation(
        bandwidth in 10_000_u64..100_000, tenth in 1_u64..=900, working_set in 1_000_u64..20_000, left in 1_000_u64..20_000,
        milliseconds in 3_u64..30,
    ) {
        let writes = [bandwidth * tenth / 1000];
        let measured = Measured { bandwidth, writes: &writes, working_set, left };
        let wanted = Wanted { downtime: Duration::from_millis(milliseconds), rounds: 1000, ..WANTED };
        let forecast = forecast(&measured, &wanted);
        prop_assume!(forecast.outcome == Outcome::Converges);
        prop_assume!(wanted.fitting(bandwidth) * (1000 - tenth) / 1000 >= 10);
        let moved = simulate(&measured, &wanted, |write| write % working_set);
        prop_assert!(moved.rounds.abs_diff(forecast.rounds) <= 1);
        let slack = u64::from(moved.rounds.max(forecast.rounds)) * 10;
        let one_round = if moved.rounds == forecast.rounds { 0 } else { wanted.fitting(bandwidth) + slack };
        prop_assert!(moved.pages.abs_diff(forecast.pages) <= slack + one_round);
        let pages_time = u128::from(slack + one_round) * 1_000_000_000 / u128::from(bandwidth);
        prop_assert!(moved.total.abs_diff(forecast.total.as_nanos()) <= pages_time + u128::from(slack));
        prop_assert!(moved.downtime <= wanted.downtime.as_nanos() && forecast.downtime <= wanted.downtime);
    }

    /// A guest that writes anywhere writes some pages twice, so it takes no longer than the forecast.
    #[test]
    fn the_forecast_is_no_better_than_a_guest_that_writes_anywhere(
        bandwidth in 10_000_u64..100_000, percent in 1_u64..=90, working_set in 1_000_u64..20_000, seed: u64,
    ) {
        let writes = [bandwidth * percent / 100];
        let measured = Measured { bandwidth, writes: &writes, working_set, left: working_set };
        let wanted = Wanted { rounds: 1000, ..WANTED };
        let forecast = forecast(&measured, &wanted);
        prop_assume!(forecast.outcome == Outcome::Converges);
        prop_assume!(wanted.fitting(bandwidth) * (100 - percent) / 100 >= 10);
        let mix = |write: u64| (write ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let moved = simulate(&measured, &wanted, |write| mix(write) % working_set);
        let slack = 10 * u64::from(forecast.rounds);
        let one_round = if moved.rounds > forecast.rounds { wanted.fitting(bandwidth) + slack } else { 0 };
        prop_assert!(moved.pages <= forecast.pages + slack + one_round);
        prop_assert!(moved.rounds <= forecast.rounds + 1);
    }

    #[test]
    fn a_guest_is_stopped_only_when_the_rest_fits(
        bandwidth in prop_oneof![Just(0), 1..1_000_000_u64, Just(u64::MAX)],
        writes in vec(prop_oneof![0..500_000_u64, Just(u64::MAX)], 0..5),
        (working_set, left) in (0..1_000_000_u64, prop_oneof![0..1_000_000_u64, Just(u64::MAX)]),
        (downtime, fixed, rounds, throttle, forced) in (0..100_u64, 0..20_u64, 0..50_u32, 0..1000_u16, any::<bool>()),
    ) {
        let [downtime, fixed] = [downtime, fixed].map(Duration::from_millis);
        let wanted = Wanted { downtime, fixed, rounds, throttle, forced };
        let measured = Measured { bandwidth, writes: &writes, working_set, left };
        let fits = u128::from(left) * 1_000_000_000 <= u128::from(bandwidth) * downtime.saturating_sub(fixed).as_nanos();
        match plan(&measured, &wanted) {
            Plan::Stop(now) => prop_assert!(forced || fits && fixed <= downtime, "{now:?}"),
            Plan::Round(then) => prop_assert!(!fits && rounds > 0 && then.outcome.ends()),
            Plan::Throttle(least, then) => {
                prop_assert!(!fits && then.outcome == Outcome::Converges);
                prop_assert_eq!(least.slowed.len(), writes.len());
                prop_assert!(least.slowed.iter().all(|&slowed| slowed <= throttle) && least.slowed.iter().any(|&slowed| slowed > 0));
            }
            Plan::Never(then) => prop_assert!(!then.outcome.ends() && (!forced || bandwidth == 0)),
        }
    }

    /// Where more has to be done in less time, no vCPU is slowed down less.
    #[test]
    fn throttling_is_monotone(
        bandwidth in 1_000_u64..1_000_000, writes in vec(0..1_000_000_u64, 1..5), (working_set, left) in (1..1_000_000_u64, 1..1_000_000_u64),
        (milliseconds, rounds, most) in (3..100_u64, 1..30_u32, 0..1000_u16), harder in 0..6, by in 1..100_000_u64, vcpu: prop::sample::Index,
    ) {
        let mut measured = Measured { bandwidth, writes: &writes, working_set, left };
        let mut wanted = Wanted { downtime: Duration::from_millis(milliseconds), rounds, throttle: most, ..WANTED };
        let before = throttle(&measured, &wanted);
        let mut more = writes.clone();
        more[vcpu.index(writes.len())] += by;
        match harder {
            0 => measured.bandwidth = bandwidth.saturating_sub(by),
            1 => measured.writes = &more,
            2 => measured.working_set += by,
            3 => measured.left += by,
            4 => wanted.downtime = wanted.downtime.saturating_sub(Duration::from_micros(by)),
            _ => wanted.rounds = rounds - 1,
        }
        match (before, throttle(&measured, &wanted)) {
            (Some(before), Some(after)) => prop_assert!(
                before.slowed.iter().zip(&after.slowed).all(|(before, after)| before <= after), "{before:?} {after:?}"
            ),
            (None, after) => prop_assert_eq!(after, None),
            (Some(_), None) => {}
        }
    }
}
