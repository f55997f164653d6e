//! Sends, drains and all stages at once, beside the ceiling, the prototype and one script call a message.

use lisa_core::topic::TopicSettings;

use crate::cases::{Case, Stage};
use crate::lab::{Lab, Sample, Spread, Variant};
use crate::lisa::{HOUR, Lisa, within};
use crate::plot;
use crate::report::{Plot, Reach, Report, Section, number};
use crate::{calls, ceiling, prototype};

/// The payload of all rows here, bytes.
const SIZE: usize = 100;

/// One row; a variant of several stages has a sample for each.
type Samples = Vec<Sample>;

pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let n = lab.options.pick(100_000, 20_000);
    let one_caller = lab.options.pick(5_000, 1_000);
    let single = |callers, n| {
        Variant::new(format!("send, {callers} callers"), move || async move {
            let lisa = Lisa::new(lab, TopicSettings::default()).await;
            let work = lisa.send_single(callers, n, |_| within(HOUR, SIZE));
            let sample = lab.timed(n, work).await;
            lisa.end().await;
            vec![sample]
        })
    };
    let one_call = |callers, n| {
        Variant::new(format!("calls, {callers} callers"), move || async move {
            vec![calls::send_single(lab, callers, n, SIZE).await]
        })
    };
    let drain = |concurrency| {
        Variant::new(format!("drain {concurrency}"), move || async move {
            vec![timed(lab, Stage::Drain, n, concurrency).await]
        })
    };
    let all = |concurrency| {
        Variant::new(format!("all stages {concurrency}"), move || async move {
            vec![timed(lab, Stage::All, n, concurrency).await]
        })
    };
    let variants: [Variant<'_, Samples>; 11] = [
        Variant::new("ceiling", move || ceiling::stages(lab, n, SIZE)),
        Variant::new("prototype", move || async move {
            vec![prototype::all_at_once(lab, n, SIZE).await]
        }),
        all(100),
        all(500),
        drain(100),
        drain(500),
        Variant::new("send, batches", move || async move {
            vec![timed(lab, Stage::Send, n, 1).await]
        }),
        single(1, one_caller),
        single(50, n),
        single(1000, n),
        one_call(50, n),
    ];
    let rounds = lab.alternate(&variants).await;
    let [
        ceiling,
        prototype,
        all_100,
        all_500,
        drain_100,
        drain_500,
        batches,
        rest @ ..,
    ] = &rounds[..]
    else {
        unreachable!("as many as there are variants");
    };
    let [one, fifty, thousand, calls] = rest else {
        unreachable!("as many as there are variants");
    };

    let of_ceiling = |samples: &[Samples]| {
        let shares = ceiling.iter().zip(samples);
        Spread::of(shares.map(|(c, s)| 100.0 * ceiling::sum_us(c) / ceiling::sum_us(s)))
    };
    let rate = |samples: &Samples| samples[0].rate();
    let of_prototype =
        |samples: &[Samples]| 100.0 * Spread::of_ratios(samples, prototype, rate).median;
    let median_rate = |samples: &[Samples]| Spread::of(samples.iter().map(rate)).median;
    let best = if of_prototype(all_500) > of_prototype(all_100) {
        all_500
    } else {
        all_100
    };
    report.reach(Reach::at_least(
        "all stages at once, 100 B: the ceiling's server time of Lisa's",
        (85.0, 95.0),
        " %",
        of_ceiling(best).median,
    ));
    report.reach(Reach::at_least(
        "all stages at once, 100 B: messages a second of the prototype's",
        (80.0, 100.0),
        " %",
        of_prototype(best),
    ));
    report.reach(Reach::at_least(
        "single sends, 50 callers, of one script call a message",
        (1.5, 2.5),
        "×",
        Spread::of_ratios(fifty, calls, rate).median,
    ));

    report.section(stages(ceiling));
    let mut section = Section::new(
        "All stages at once",
        &format!(
            "{} messages of {SIZE} B, due at random within 20 ms, sent in batches of 500 by four senders while they are \
             moved, read, handled and settled. The ceiling's rate is that of a server thread which does nothing but its \
             commands.",
            number(n as f64)
        ),
        &[
            "variant",
            "of the ceiling, by server time",
            "of the prototype, by rate",
            "messages/s",
            "min–max",
            "server µs/message",
            "client µs/message",
            "server busy",
        ],
    );
    let ceiling_us = Spread::of(ceiling.iter().map(|stages| ceiling::sum_us(stages)));
    section.row([
        "ceiling: the commands alone".to_owned(),
        "100 %".to_owned(),
        "–".to_owned(),
        number(1e6 / ceiling_us.median),
        format!(
            "{}–{}",
            number(1e6 / ceiling_us.max),
            number(1e6 / ceiling_us.min)
        ),
        number(ceiling_us.median),
        "–".to_owned(),
        "100 %".to_owned(),
    ]);
    for (name, samples) in [
        ("batched prototype", prototype),
        ("Lisa, concurrency 100", all_100),
        ("Lisa, concurrency 500", all_500),
    ] {
        let rates = Spread::of(samples.iter().map(rate));
        let busy = Spread::of(samples.iter().map(|s| 100.0 * s[0].cpu / s[0].seconds));
        section.row([
            name.to_owned(),
            format!("{} %", number(of_ceiling(samples).median)),
            format!("{} %", number(of_prototype(samples))),
            number(rates.median),
            format!("{}–{}", number(rates.min), number(rates.max)),
            number(Spread::of(samples.iter().map(|s| s[0].cpu_us())).median),
            number(Spread::of(samples.iter().map(|s| s[0].client_us())).median),
            format!("{} %", number(busy.median)),
        ]);
    }
    report.section(section);

    let mut section = Section::new(
        "Stage by stage",
        "Sends are due at random within an hour. A drain moves, reads, handles and settles messages that are all due.",
        &[
            "stage",
            "of one call a message, by rate",
            "messages/s",
            "min–max",
            "server µs/message",
            "client µs/message",
        ],
    );
    let mut bars = vec![
        ("prototype, all stages".to_owned(), median_rate(prototype)),
        ("Lisa, all stages".to_owned(), median_rate(best)),
    ];
    for (name, samples) in [
        ("one script call a message, 50 callers", calls),
        ("Lisa, send, 1 caller", one),
        ("Lisa, send, 50 callers", fifty),
        ("Lisa, send, 1,000 callers", thousand),
        ("Lisa, send, batches of 500", batches),
        ("Lisa, drain, concurrency 100", drain_100),
        ("Lisa, drain, concurrency 500", drain_500),
    ] {
        let rates = Spread::of(samples.iter().map(rate));
        let ratio = Spread::of_ratios(samples, calls, rate).median;
        let is_send = !name.contains("drain");
        bars.push((name.to_owned(), rates.median));
        section.row([
            name.to_owned(),
            if is_send {
                format!("{}×", number(ratio))
            } else {
                "–".to_owned()
            },
            number(rates.median),
            format!("{}–{}", number(rates.min), number(rates.max)),
            number(Spread::of(samples.iter().map(|s| s[0].cpu_us())).median),
            number(Spread::of(samples.iter().map(|s| s[0].client_us())).median),
        ]);
    }
    let title = "Messages a second, 100 B";
    section.plots.push(Plot {
        file: "throughput".to_owned(),
        title: title.to_owned(),
        svg: plot::bars(title, "messages/s", &bars),
    });
    report.section(section);
}

async fn timed(lab: &Lab, stage: Stage, n: u64, concurrency: usize) -> Sample {
    let case = Case {
        concurrency,
        size: SIZE,
        ..Case::plain("plain", lab)
    };
    case.time(stage, n).await
}

fn stages(rounds: &[Samples]) -> Section {
    let mut section = Section::new(
        "Ceiling",
        "The commands of a message's life, 500 messages per command, one kind at a time, pipelined.",
        &["command", "server µs/message", "min–max"],
    );
    let mut add = |name: &str, us: Spread| {
        section.row([
            name.to_owned(),
            number(us.median),
            format!("{}–{}", number(us.min), number(us.max)),
        ]);
    };
    for (index, stage) in ceiling::STAGES.iter().enumerate() {
        add(stage, Spread::of(rounds.iter().map(|s| s[index].cpu_us())));
    }
    add("sum", Spread::of(rounds.iter().map(|s| ceiling::sum_us(s))));
    section
}
