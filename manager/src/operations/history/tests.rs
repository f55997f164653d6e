//! Tests of the steps of a history.

use super::*;

const CONFIG: HistoryConfig = HistoryConfig {
    enabled: true,
    minutes: 360,
    quarters: 672,
};

fn at(minute: u64) -> UnixMs {
    UnixMs::new(minute * 60_000)
}

fn sample(sent: u64) -> Sample {
    Sample {
        sent,
        ..Sample::default()
    }
}

/// Returns the number sent in each step of `minutes`, whose samples and newest count are given.
fn sent(minutes: &[u64], samples: &[(u64, u64)], newest: u64) -> Vec<Option<u64>> {
    let ticks: Vec<_> = minutes.iter().copied().map(at).collect();
    let samples = samples
        .iter()
        .map(|(minute, sent)| (at(*minute), sample(*sent)));
    let now = UnixMs::new(at(minutes[minutes.len() - 1]).get() + 1000);
    let steps = steps(&ticks, samples.collect(), (&sample(newest), now));
    steps.into_iter().map(|step| step.sent).collect()
}

#[test]
fn long_steps_begin_at_round_times_of_the_zone_and_short_ones_everywhere_at_once() {
    let now = "2026-11-27T10:17:42.123Z".parse().unwrap();
    let ends = |hours, zone: &str| {
        let within = Some(Duration::from_hours(hours));
        let period = HistoryPeriod::new(within, CONFIG, 96).unwrap();
        let ticks = period.ticks(now, &zone.parse().unwrap());
        let ends = [ticks[0], ticks[ticks.len() - 1]].map(|at| at.to_string());
        (period.has_zone(), ticks.len(), ends)
    };
    let text = |from: &str, to: &str| [from, to].map(|at| format!("2026-11-{at}:00.000Z"));
    for zone in ["UTC", "Asia/Kathmandu"] {
        assert_eq!(
            ends(6, zone),
            (false, 73, text("27T04:15", "27T10:15")),
            "{zone}"
        );
    }
    assert_eq!(
        ends(7 * 24, "UTC"),
        (true, 85, text("20T10:00", "27T10:00"))
    );
    // 16:00 there, 5:45 ahead.
    assert_eq!(
        ends(7 * 24, "Asia/Kathmandu"),
        (true, 85, text("20T10:15", "27T10:15"))
    );
}

#[test]
fn the_history_of_a_new_topic_begins_with_its_first_messages() {
    let minutes = [9, 10, 11, 12];
    let mut began: Vec<Vec<bool>> = Vec::new();
    let mut with = |created: Option<u64>, samples: &[(u64, u64)], newest| {
        let samples = samples.iter().map(|(of, sent)| (at(*of), sample(*sent)));
        let created = created.map(|minute| UnixMs::new(at(minute).get() + 20_000));
        let ticks: Vec<_> = minutes.iter().copied().map(at).collect();
        let now = UnixMs::new(at(12).get() + 30_000);
        let steps = steps_since(created, &ticks, samples.collect(), (&sample(newest), now));
        let recorded = steps.iter().map(|step| step.messages.is_some()).collect();
        began.push(recorded);
        steps.into_iter().map(|step| step.sent).collect::<Vec<_>>()
    };
    // A sample of the minute itself was taken after the first messages.
    assert_eq!(
        with(Some(10), &[(10, 3), (11, 5), (12, 9)], 9),
        [None, Some(5), Some(4), Some(0)]
    );
    // No manager has written a sample yet.
    assert_eq!(with(Some(12), &[], 7)[2..], [None, Some(7)]);
    assert_eq!(with(None, &[], 7)[2..], [None, None]);
    // The first manager came late: it is not known when in between the messages were sent.
    assert_eq!(with(Some(10), &[(12, 5)], 5), [None, None, None, Some(0)]);
    // The history began before: another topic may have had the name.
    assert_eq!(
        with(Some(11), &[(10, 3), (11, 4), (12, 9)], 9),
        [None, Some(1), Some(5), Some(0)]
    );
    // No step before has counts either.
    let begins = began
        .iter()
        .map(|recorded| recorded.iter().position(|is| *is));
    assert_eq!(
        begins.collect::<Vec<_>>(),
        [1, 3, 3, 2, 0].map(Some),
        "{began:?}"
    );
}

#[test]
fn a_missed_minute_is_a_gap_and_a_quiet_one_is_none() {
    let minutes = [0, 1, 2, 3, 4, 5];
    assert_eq!(
        sent(&minutes, &[(0, 5), (1, 7), (3, 9), (4, 9), (5, 10)], 12),
        [Some(2), None, None, Some(0), Some(1), Some(2)]
    );
    // Quiet from minute 1 to 4.
    assert_eq!(
        sent(&minutes, &[(0, 5), (1, 7), (4, 7), (5, 10)], 10),
        [Some(2), Some(0), Some(0), Some(0), Some(3), Some(0)]
    );
    // Quiet up to now.
    assert_eq!(sent(&minutes, &[(1, 7)], 7)[1..], [Some(0); 5]);
    // Nobody wrote while something happened.
    assert_eq!(sent(&minutes, &[(0, 7)], 9), [None; 6]);
    assert_eq!(sent(&minutes, &[], 9), [None; 6]);
}

#[test]
fn a_longer_step_is_known_if_its_ends_are() {
    assert_eq!(
        sent(&[0, 3, 6], &[(0, 5), (3, 9), (6, 9)], 9),
        [Some(4), Some(0), Some(0)]
    );
}

#[test]
fn a_long_step_is_the_sum_of_the_short_ones_of_which_any_is_known() {
    let minutes: Vec<u64> = (0..13).collect();
    let fresh = [(5, 0), (6, 40), (7, 70), (9, 90), (10, 95), (12, 96)];
    let wiped = [(0, 5), (1, 9), (2, 2), (4, 8), (6, 1), (7, 3), (12, 4)];
    for samples in [&fresh[..], &wiped[..]] {
        for step in [2_u64, 4, 6] {
            let ticks: Vec<_> = (0..=12 / step).map(|n| n * step).collect();
            let coarse = sent(&ticks, samples, 99);
            // One count further than the last tick, where both have the running step.
            let fine = sent(&minutes, samples, 99);
            for (n, coarse) in coarse.iter().enumerate() {
                let begin = usize::try_from(step).unwrap() * n;
                let end = fine.len().min(begin + usize::try_from(step).unwrap());
                let known: Vec<_> = fine[begin..end].iter().flatten().collect();
                let sum: u64 = known.iter().copied().sum();
                assert!(
                    coarse.is_some() >= !known.is_empty() && coarse.unwrap_or(0) >= sum,
                    "step {n} of {step} minutes: {coarse:?} of {fine:?}"
                );
            }
        }
    }
    // A step whose start and end a new relay has not seen, and one that has not ended.
    assert_eq!(
        sent(&[0, 15], &[(5, 0), (6, 40), (14, 50)], 99)[0],
        Some(50)
    );
    let samples = [(at(5), sample(10)), (at(6), sample(40))];
    let running = steps(&[at(0)], samples.into(), (&sample(99), at(8)));
    assert_eq!(running[0].sent, Some(89));
    // What happened in a missed minute is part of a longer step.
    assert_eq!(sent(&[4, 12], &fresh, 99)[0], Some(96));
}

#[test]
fn the_lateness_of_a_long_step_is_that_of_all_its_deliveries() {
    let late = |fast, slow| {
        let mut sample = sample(0);
        (sample.lateness[2], sample.lateness[9]) = (fast, slow);
        sample
    };
    let samples = [
        (at(5), late(1, 0)),
        (at(6), late(1, 7)),
        (at(7), late(9, 8)),
    ];
    let steps = steps(&[at(0)], samples.into(), (&sample(0), at(8)));
    let lateness = (steps[0].lateness_p50_ms, steps[0].lateness_p99_ms);
    assert_eq!(lateness, (Some(5), Some(1000)), "8 fast and 8 slow ones");
}

#[test]
fn a_counter_that_went_down_is_a_gap() {
    assert_eq!(
        sent(&[0, 1, 2, 3], &[(0, 5), (1, 2), (2, 4), (3, 5)], 5),
        [None, Some(2), Some(1), Some(0)]
    );
    // It has grown beyond the old count within one step, of which the rest is known.
    assert_eq!(
        sent(&[0, 3], &[(0, 5), (1, 2), (3, 8)], 8),
        [Some(6), Some(0)]
    );
}

#[test]
fn a_topic_that_comes_back_or_goes_is_a_gap_in_the_sums_and_a_new_one_is_none() {
    let total = |topics, missing, sent| Sample {
        topics,
        missing,
        ..sample(sent)
    };
    let ticks: Vec<_> = (0..6).map(at).collect();
    let samples = [
        total(2, 0, 10),
        total(3, 0, 12),
        total(2, 7, 11),
        total(2, 7, 13),
        total(3, 0, 20),
        total(2, 0, 21),
    ];
    let samples = (0..).map(at).zip(samples).collect();
    let steps = steps(&ticks, samples, (&total(2, 0, 22), at(6)));
    let sent: Vec<_> = steps.into_iter().map(|step| step.sent).collect();
    assert_eq!(sent, [Some(2), None, Some(2), None, None, Some(1)]);
}

#[test]
fn the_age_of_the_oldest_message_grows_while_nothing_is_written() {
    let stuck = Sample {
        due_since: Some(at(1)),
        ready: 1,
        ..sample(1)
    };
    let ticks: Vec<_> = (1..5).map(at).collect();
    let samples = [(at(1), stuck.clone())].into();
    let steps = steps(&ticks, samples, (&stuck, at(5)));
    let ages = steps.iter().map(|step| step.oldest_due_ms);
    assert_eq!(
        ages.collect::<Vec<_>>(),
        [60_000, 120_000, 180_000, 240_000].map(Some)
    );
}

#[test]
fn a_quantile_is_the_bound_of_its_bucket() {
    let mut buckets = [0; 16];
    assert_eq!(quantile(&buckets, 50), None);
    buckets[2] = 98;
    buckets[9] = 1;
    buckets[15] = 1;
    let of = |hundredths| quantile(&buckets, hundredths);
    assert_eq!(
        (of(50), of(99), of(100)),
        (Some(5), Some(1000), Some(60_000))
    );
}

#[test]
fn a_period_is_bounded_by_what_is_kept() {
    let new =
        |minutes: u64, most| HistoryPeriod::new(Some(Duration::from_mins(minutes)), CONFIG, most);
    let week = Duration::from_hours(7 * 24);
    for bad in [0, 7 * 24 * 60 + 1] {
        assert_eq!(new(bad, 100), Err(NoHistory::For(week)));
    }
    let steps = |minutes, most| {
        let period = new(minutes, most).unwrap();
        (
            period.step_ms() / 60_000,
            period.ticks(at(100_000), &TimeZone::UTC).len(),
        )
    };
    assert_eq!(steps(1, 1000), (1, 2));
    assert_eq!(steps(360, 1000), (1, 361));
    assert_eq!(steps(360, 72), (5, 73));
    assert_eq!(steps(361, 1000), (15, 26));
    assert_eq!(steps(7 * 24 * 60, 84), (120, 85));
    // Round, not 4 and 105 minutes.
    assert_eq!(
        (steps(360, 96), steps(7 * 24 * 60, 96)),
        ((5, 73), (120, 85))
    );
    let off = HistoryConfig {
        enabled: false,
        ..CONFIG
    };
    assert_eq!(HistoryPeriod::new(None, off, 1), Err(NoHistory::Off));
}
