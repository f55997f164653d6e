//! The report: ratios to Lisa first, then the figures, then how each was set and what it cannot do.

use std::process::Command;

use crate::calls::{CALLS, Calls};
use crate::measure::{LATENESS_DELAY, RATE, Speed};
use crate::peers::{number_in, said};
use crate::report::{Plot, Reach, Report, Section, number};
use crate::{Found, HANDLERS, machine, plot, protocol};

/// The number of messages due at one instant, in the test of bursts.
pub(crate) const BURST: usize = 10_000;
/// The targets: the drain rate relative to this peer, the minimum and the aim.
const DRAINS: [(&str, (f64, f64)); 3] = [
    ("bullmq", (6.0, 10.0)),
    ("apalis-leases", (8.0, 10.0)),
    ("beanstalkd", (2.0, 2.5)),
];
/// A target: what is measured, the minimum and the aim.
type Goal = (Figure, (f64, f64));
/// The targets of our clients, relative to the fastest other client of their runtime, or to that for TypeScript if there is no
/// other.
const CLIENTS: [(&str, &[Goal]); 4] = [
    (
        "typescript",
        &[
            (Figure::Single, (1.5, 3.0)),
            (Figure::Drain(0), (1.2, 1.8)),
            (Figure::Drain(1), (2.0, 3.0)),
        ],
    ),
    (
        "python",
        &[
            (Figure::Single, (2.0, 4.0)),
            (Figure::Drain(0), (8.0, 12.0)),
            (Figure::Drain(1), (12.0, 20.0)),
        ],
    ),
    ("java", &[(Figure::Drain(1), (1.0, 1.5))]),
    ("go", &[(Figure::Drain(1), (1.0, 1.5))]),
];
const NONE: &str = "–";

/// Makes the report of a run.
pub(crate) fn report(
    command: &str,
    all: &[Found],
    calls: Option<Result<Calls, String>>,
    rounds: usize,
) -> Report {
    let mut report = Report::new("Lisa beside its peers", machine::facts(command));
    report.fact("server", said(Command::new("redis-server").arg("-v")));
    let runtimes = [
        ("node", "--version"),
        ("python3", "--version"),
        ("java", "--version"),
        ("go", "version"),
    ]
    .map(|(program, argument)| {
        let said = said(Command::new(program).arg(argument));
        format!("{program} {}", number_in(&said))
    });
    report.fact("the peers' runtimes", runtimes.join(", "));
    report.fact(
        "how",
        format!(
            "messages of {} B; every stage on a fresh server on this machine, over TCP, nothing on disk; the peers take \
             turns, medians of {rounds} rounds; server CPU is that of Redis's thread that serves, and of all processes \
             of another server",
            protocol::SIZE
        ),
    );
    let lisa = all.iter().find(|found| found.peer.name == "lisa");
    if let Some(lisa) = lisa {
        for (name, bounds) in DRAINS {
            let peer = all.iter().find(|found| found.peer.name == name);
            if let Some(ratio) = peer.and_then(|peer| ratio(rate(&lisa.drain)?, rate(&peer.drain)?))
            {
                report.reach(Reach::at_least(
                    format!("drain against {name}"),
                    bounds,
                    "×",
                    ratio,
                ));
            }
        }
        report.section(ratios(lisa, all));
    }
    report.section(speeds(all));
    clients(&mut report, all);
    if let Some(calls) = calls {
        one_caller(&mut report, calls);
    }
    report.section(waiting(all));
    report.section(settings(all));
    report
}

fn ratios(lisa: &Found, all: &[Found]) -> Section {
    let mut section = Section::new(
        "How many times as fast Lisa is",
        "Messages a second of Lisa over those of the peer; of CPU, µs a message of the peer's server over those of \
         Lisa's. Above 1 Lisa is better.",
        &[
            "peer",
            "drain",
            "drain, server CPU",
            "send in bulk",
            "bulk, server CPU",
            "send one a call",
            "one a call, server CPU",
        ],
    );
    let times = |value: Option<f64>| {
        value.map_or_else(|| NONE.to_owned(), |value| format!("{}×", number(value)))
    };
    for found in all.iter().filter(|found| found.peer.name != "lisa") {
        let faster =
            |ours, theirs| times(rate(ours).zip(rate(theirs)).and_then(|(a, b)| ratio(a, b)));
        let cheaper =
            |ours, theirs| times(cpu(theirs).zip(cpu(ours)).and_then(|(a, b)| ratio(a, b)));
        section.row([
            found.peer.versioned(),
            faster(&lisa.drain, &found.drain),
            cheaper(&lisa.drain, &found.drain),
            faster(&lisa.bulk, &found.bulk),
            cheaper(&lisa.bulk, &found.bulk),
            faster(&lisa.single, &found.single),
            cheaper(&lisa.single, &found.single),
        ]);
    }
    section
}

fn speeds(all: &[Found]) -> Section {
    let mut section = Section::new(
        "Messages a second, and server CPU in µs a message",
        "`send`: due in an hour. `drain`: all were due before the workers started; no-op handlers, settled as each does \
         it. The smallest and largest of the rounds stand in brackets.",
        &[
            "peer",
            "send in bulk",
            "µs",
            "send one a call",
            "µs",
            "drain",
            "µs",
        ],
    );
    for found in all {
        let mut row = vec![found.peer.versioned()];
        if let Err(why) = &found.installed {
            row.push(format!("not installed: {why}"));
            row.resize(7, NONE.to_owned());
        } else {
            for speeds in [&found.bulk, &found.single, &found.drain] {
                row.extend(cells(speeds));
            }
        }
        section.row(row);
    }
    let bars: Vec<_> = all
        .iter()
        .filter_map(|found| Some((found.peer.title.to_owned(), rate(&found.drain)?)))
        .collect();
    if !bars.is_empty() {
        let title = "Drain: overdue messages handled, 100 B, no-op handler";
        section.plots.push(Plot {
            file: "peers-drain".to_owned(),
            title: title.to_owned(),
            svg: plot::bars(title, "messages/s", &bars),
        });
    }
    section
}

/// Adds the section of clients, and what they are to reach.
fn clients(report: &mut Report, all: &[Found]) {
    let measured = all
        .iter()
        .filter(|found| found.peer.runtime.is_some() && found.installed.is_ok());
    let measured: Vec<&Found> = measured.collect();
    if measured.is_empty() {
        return;
    }
    for (name, goals) in CLIENTS {
        let Some(ours) = measured.iter().find(|found| found.peer.name == name) else {
            continue;
        };
        let of_runtime = measured
            .iter()
            .filter(|found| found.peer.runtime == ours.peer.runtime && found.peer.name != name);
        let mut others: Vec<&Found> = of_runtime.copied().collect();
        let mut against = "";
        if others.is_empty() && name != "typescript" {
            let typescript = |found: &&&Found| found.peer.name == "typescript";
            others.extend(measured.iter().find(typescript));
            against = ", of TypeScript's";
        }
        for &(figure, goal) in goals {
            let rates = others.iter().filter_map(|found| rate(figure.of(found)));
            let best = rates.reduce(f64::max);
            if let Some(ratio) = rate(figure.of(ours))
                .zip(best)
                .and_then(|(a, b)| ratio(a, b))
            {
                let title = format!("{}, {}{against}", ours.peer.title, figure.title());
                report.reach(Reach::at_least(title, goal, "×", ratio));
            }
        }
        if let Some(gateway) = median_round(&ours.handlers[1]).map(|speed| speed.programs[1]) {
            let title = format!("{}, CPU of the gateway with 200 handlers", ours.peer.title);
            report.reach(Reach::at_most(title, (20.0, 10.0), " µs", gateway));
        }
    }
    let mut section = Section::new(
        "Clients",
        "One process of each client, with no-op handlers. CPU in µs a message: of the client / of the manager with its \
         producer + of the gateway / of Redis's thread that serves.",
        &[
            "client",
            "runtime",
            "send one a call, 50 callers",
            "CPU",
            "send in bulk",
            "CPU",
            "drain, 50 handlers",
            "CPU",
            "drain, 200 handlers",
            "CPU",
        ],
    );
    for found in measured {
        let runtime = found.peer.runtime.unwrap_or_default();
        let mut row = vec![found.peer.versioned(), runtime.to_owned()];
        for figure in [
            Figure::Single,
            Figure::Bulk,
            Figure::Drain(0),
            Figure::Drain(1),
        ] {
            let rounds = figure.of(found);
            match (rate(rounds), median_round(rounds)) {
                (
                    Some(rate),
                    Some(Speed {
                        cpu,
                        client,
                        programs,
                        ..
                    }),
                ) => {
                    let [manager, gateway] = programs.map(number);
                    row.push(number(rate));
                    let programs = if found.peer.is_client() {
                        format!("{manager} + {gateway}")
                    } else {
                        NONE.to_owned()
                    };
                    row.push(format!("{} / {programs} / {}", number(client), number(cpu)));
                }
                _ => row.extend([failure(rounds), NONE.to_owned()]),
            }
        }
        section.row(row);
    }
    report.section(section);
}

/// Adds the section of one caller, and what its calls are to take.
fn one_caller(report: &mut Report, calls: Result<Calls, String>) {
    let mut section = Section::new(
        "One message at a time over HTTP",
        "One caller with a connection to the producer and one to the gateway, which sends a message, pulls it and acknowledges \
         it. The time of each call, in ms.",
        &["call", "p50", "p99", "max"],
    );
    match calls {
        Ok(calls) => {
            for (name, times) in CALLS.iter().zip(calls) {
                let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
                let title = format!("one message at a time, {name}, p50");
                report.reach(Reach::at_most(title, (0.35, 0.25), " ms", at(0.5)));
                let mut row = vec![(*name).to_owned()];
                row.extend([0.5, 0.99, 1.0].map(|share| number(at(share))));
                section.row(row);
            }
        }
        Err(why) => section.row([
            format!("failed: {why}"),
            NONE.into(),
            NONE.into(),
            NONE.into(),
        ]),
    }
    report.section(section);
}

/// A figure of a client.
#[derive(Clone, Copy)]
enum Figure {
    Single,
    Bulk,
    /// A drain with this one of the numbers of handlers.
    Drain(usize),
}

impl Figure {
    fn of(self, found: &Found) -> &[Result<Speed, String>] {
        match self {
            Self::Single => &found.single,
            Self::Bulk => &found.bulk,
            Self::Drain(at) => &found.handlers[at],
        }
    }

    fn title(self) -> String {
        match self {
            Self::Single => "sends one a call".to_owned(),
            Self::Bulk => "sends in bulk".to_owned(),
            Self::Drain(at) => format!("drain with {} handlers", HANDLERS[at]),
        }
    }
}

/// The round of the median rate.
fn median_round(rounds: &[Result<Speed, String>]) -> Option<Speed> {
    let mut good: Vec<Speed> = rounds.iter().flatten().copied().collect();
    good.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    good.get(good.len() / 2).copied()
}

fn waiting(all: &[Found]) -> Section {
    let seconds = LATENESS_DELAY.as_secs();
    let note = format!(
        "{RATE} messages a second, each due {seconds} s after its send; the time from then to its handler, in ms, by \
         one clock. Early is the share that was handled before it was due. `idle`: commands a second that one waiting \
         worker makes the server do, those within scripts counted."
    );
    let mut section = Section::new(
        "Lateness, and idling",
        &note,
        &["peer", "p50", "p99", "max", "early, %", "idle, commands/s"],
    );
    for found in all.iter().filter(|found| found.installed.is_ok()) {
        let idle = match &found.idle {
            Ok(Some(commands)) => number(*commands),
            Ok(None) => NONE.to_owned(),
            Err(why) => why.clone(),
        };
        let mut row = vec![found.peer.versioned()];
        row.extend(lateness(&found.late));
        row.push(idle);
        section.row(row);
    }
    section
}

fn lateness(rounds: &[Result<Vec<i64>, String>]) -> [String; 4] {
    let good: Vec<&Vec<i64>> = rounds
        .iter()
        .flatten()
        .filter(|late| !late.is_empty())
        .collect();
    if good.is_empty() {
        return [failure(rounds), NONE.into(), NONE.into(), NONE.into()];
    }
    let over_rounds = |figure: &dyn Fn(&[i64]) -> f64| {
        let figures = good.iter().map(|late| figure(late)).collect();
        number(median(figures))
    };
    let at = |share: f64| {
        move |late: &[i64]| late[((late.len() - 1) as f64 * share).round() as usize] as f64
    };
    let early = |late: &[i64]| {
        let early = late.iter().filter(|ms| **ms < 0).count();
        100.0 * early as f64 / late.len() as f64
    };
    [
        over_rounds(&at(0.5)),
        over_rounds(&at(0.99)),
        over_rounds(&at(1.0)),
        over_rounds(&early),
    ]
}

fn settings(all: &[Found]) -> Section {
    let burst = format!("{} due at once", number(BURST as f64));
    let mut section = Section::new(
        "How each was set, and what it cannot do",
        "Each as its documentation advises, with the number of worker processes that drained faster in a trial. \
         Versions are pinned in `tests/benches/peers/`; those of the servers are Debian's. asynq and River are missing: \
         Go modules cannot be fetched on the machine of the kept results. Only Lisa and pg-boss (`key_strict_fifo`) \
         have order by key.",
        &["peer", "processes", "settings", "cannot", &burst],
    );
    for found in all {
        let burst = match (&found.installed, &found.burst) {
            (Err(_), _) => NONE.to_owned(),
            (_, Ok(speed)) => format!("{}/s", number(speed.rate)),
            (_, Err(why)) => format!("**fails**: {why}"),
        };
        let cannot = if found.peer.cannot.is_empty() {
            NONE
        } else {
            found.peer.cannot
        };
        section.row([
            found.peer.versioned(),
            found.workers.to_string(),
            found.peer.settings.to_owned(),
            cannot.to_owned(),
            burst,
        ]);
    }
    section
}

fn cells(rounds: &[Result<Speed, String>]) -> [String; 2] {
    let good: Vec<Speed> = rounds.iter().flatten().copied().collect();
    let (Some(rate), Some(cpu)) = (rate(rounds), cpu(rounds)) else {
        return [failure(rounds), NONE.to_owned()];
    };
    let rates = || good.iter().map(|speed| speed.rate);
    let (least, most) = (
        rates().fold(f64::INFINITY, f64::min),
        rates().fold(0.0, f64::max),
    );
    [
        format!("{} ({}–{})", number(rate), number(least), number(most)),
        number(cpu),
    ]
}

fn failure<T>(rounds: &[Result<T, String>]) -> String {
    let why = rounds.iter().find_map(|round| round.as_ref().err());
    why.map_or_else(|| NONE.to_owned(), |why| format!("failed: {why}"))
}

fn rate(rounds: &[Result<Speed, String>]) -> Option<f64> {
    let rates: Vec<f64> = rounds.iter().flatten().map(|speed| speed.rate).collect();
    (!rates.is_empty()).then(|| median(rates))
}

fn cpu(rounds: &[Result<Speed, String>]) -> Option<f64> {
    let costs: Vec<f64> = rounds.iter().flatten().map(|speed| speed.cpu).collect();
    (!costs.is_empty()).then(|| median(costs))
}

fn ratio(a: f64, b: f64) -> Option<f64> {
    (b > 0.0).then(|| a / b)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
