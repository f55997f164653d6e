//! Sends, drains and all stages at once, beside the ceiling, the prototype and one script call a message.

use lisa_core::topic::TopicSettings;

use crate::cases::{Case, Stage};
use crate::ceiling::{self, SEND, SOME, STAGES};
use crate::lab::{Lab, Sample, Spread, Variant};
use crate::lisa::{BATCH, HOUR, Lisa, within};
use crate::plot;
use crate::prototype::{self, Load};
use crate::report::{Plot, Reach, Report, Section, number};
use crate::{calls, lab};

/// The payload of all rows here, bytes.
const SIZE: usize = 100;
/// The most messages that Lisa moves in a call.
const MOVED: u64 = 200;
/// The concurrency of all targets.
const CONCURRENCY: usize = 500;

/// One row; a variant of several stages has a sample for each.
type Samples = Vec<Sample>;

pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let n = lab.options.pick(100_000, 20_000);
    let one_caller = lab.options.pick(5_000, 1_000);
    let tcp = &lab.over_tcp();
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
    let stage = |lab, stage, concurrency| {
        let case = Case {
            concurrency,
            size: SIZE,
            ..Case::plain("plain", lab)
        };
        let case = std::rc::Rc::new(case);
        Variant::new(format!("{stage:?} {concurrency}"), move || {
            let case = case.clone();
            async move { vec![case.time(stage, n).await] }
        })
    };
    let prototype = |lab, batch| {
        let load = Load {
            n,
            size: SIZE,
            batch,
        };
        Variant::new(format!("prototype {batch}"), move || async move {
            vec![prototype::all_at_once(lab, load).await]
        })
    };
    let variants: [Variant<'_, Samples>; 16] = [
        Variant::new("ceiling", move || ceiling::stages(lab, n, HOUR, SIZE)),
        Variant::new("ceiling of some", move || {
            ceiling::stages_of_some(lab, n, SIZE)
        }),
        prototype(lab, MOVED),
        prototype(lab, BATCH),
        prototype(tcp, MOVED),
        stage(lab, Stage::All, 100),
        stage(lab, Stage::All, CONCURRENCY),
        stage(tcp, Stage::All, CONCURRENCY),
        stage(lab, Stage::Drain, 100),
        stage(lab, Stage::Drain, CONCURRENCY),
        stage(tcp, Stage::Drain, CONCURRENCY),
        stage(lab, Stage::Send, 1),
        single(1, one_caller),
        single(50, n),
        single(1000, n),
        one_call(50, n),
    ];
    let rounds = lab.alternate(&variants).await;
    let [
        ceiling,
        ceiling_of_some,
        prototype,
        prototype_500,
        prototype_tcp,
        all_100,
        all,
        all_tcp,
        drain_100,
        drain,
        drain_tcp,
        batches,
        one,
        fifty,
        thousand,
        calls,
    ] = &rounds[..]
    else {
        unreachable!("as many as there are variants");
    };

    let server = |samples: &Samples| ceiling::sum_us(samples);
    let client = |samples: &Samples| samples[0].client_us();
    let rate = |samples: &Samples| samples[0].rate();
    let percent = |over: &[Samples], under: &[Samples], figure: fn(&Samples) -> f64| {
        100.0 * Spread::of_ratios(over, under, figure).median
    };
    report.reach(Reach::at_least(
        "all stages at once: the ceiling's server time, of Lisa's",
        (85.0, 95.0),
        " %",
        percent(ceiling_of_some, all, server),
    ));
    report.reach(Reach::at_least(
        "all stages at once: the prototype's server time, of Lisa's",
        (78.0, 90.0),
        " %",
        percent(prototype, all, server),
    ));
    report.reach(Reach::at_most(
        "all stages at once: Lisa's client time, of the prototype's",
        (1.6, 1.3),
        "×",
        Spread::of_ratios(all, prototype, client).median,
    ));
    report.reach(Reach::at_least(
        "single sends, 50 callers, of one script call a message",
        (1.5, 2.5),
        "×",
        Spread::of_ratios(fifty, calls, rate).median,
    ));

    report.section(stages(ceiling, ceiling_of_some));
    let mut section = Section::new(
        "All stages at once",
        &format!(
            "{} messages of {SIZE} B, due at random within 20 ms, sent in batches of {BATCH} by four senders while they are \
             moved, read, handled and settled. The ceiling is the second one above. The prototype moves, reads and \
             acknowledges {MOVED} messages a call, as many as Lisa moves, or {BATCH}. Unix sockets where nothing else is \
             said. In brackets the least and the most of {} rounds.",
            number(n as f64),
            lab::ROUNDS
        ),
        &[
            "variant",
            "the ceiling's server time, of its",
            "the prototype's server time, of its",
            "its client time, of the prototype's",
            "messages/s",
            "server µs/message",
            "client µs/message",
            "server busy",
        ],
    );
    let ceiling_us = Spread::of(ceiling_of_some.iter().map(server));
    section.row([
        "ceiling: the commands alone".to_owned(),
        "100 %".to_owned(),
        "–".to_owned(),
        "–".to_owned(),
        "–".to_owned(),
        ceiling_us.ranged(),
        "–".to_owned(),
        "100 %".to_owned(),
    ]);
    for (name, samples, prototype) in [
        ("prototype, 200 a call", prototype, prototype),
        ("prototype, 500 a call", prototype_500, prototype),
        ("prototype, 200 a call, TCP", prototype_tcp, prototype_tcp),
        ("Lisa, concurrency 100", all_100, prototype),
        ("Lisa, concurrency 500", all, prototype),
        ("Lisa, concurrency 500, TCP", all_tcp, prototype_tcp),
    ] {
        let busy = Spread::of(samples.iter().map(|s| 100.0 * s[0].cpu / s[0].seconds));
        let of_client = Spread::of_ratios(samples, prototype, client).median;
        section.row([
            name.to_owned(),
            format!("{} %", number(percent(ceiling_of_some, samples, server))),
            format!("{} %", number(percent(prototype, samples, server))),
            format!("{}×", number(of_client)),
            Spread::of(samples.iter().map(rate)).ranged(),
            Spread::of(samples.iter().map(server)).ranged(),
            Spread::of(samples.iter().map(client)).ranged(),
            format!("{} %", number(busy.median)),
        ]);
    }
    report.section(section);

    let mut section = Section::new(
        "Stage by stage",
        "Sends are due at random within an hour. A drain moves, reads, handles and settles messages that are all due. The \
         ceiling is the first one above. Unix sockets where nothing else is said.",
        &[
            "stage",
            "the ceiling's server time, of its",
            "of one call a message, by rate",
            "messages/s",
            "server µs/message",
            "client µs/message",
        ],
    );
    let ceiling_of = |stages: std::ops::Range<usize>| -> Vec<Samples> {
        let part = |samples: &Samples| samples[stages.clone()].to_vec();
        ceiling.iter().map(part).collect()
    };
    let (of_send, of_drain) = (ceiling_of(0..SEND), ceiling_of(SEND..STAGES.len()));
    let median_rate = |samples: &[Samples]| Spread::of(samples.iter().map(rate)).median;
    let mut bars = vec![
        ("prototype, all stages".to_owned(), median_rate(prototype)),
        ("Lisa, all stages".to_owned(), median_rate(all)),
    ];
    for (name, samples, of, is_send) in [
        (
            "one script call a message, 50 callers",
            calls,
            &of_send,
            true,
        ),
        ("Lisa, send, 1 caller", one, &of_send, true),
        ("Lisa, send, 50 callers", fifty, &of_send, true),
        ("Lisa, send, 1,000 callers", thousand, &of_send, true),
        ("Lisa, send, batches of 500", batches, &of_send, true),
        ("Lisa, drain, concurrency 100", drain_100, &of_drain, false),
        ("Lisa, drain, concurrency 500", drain, &of_drain, false),
        (
            "Lisa, drain, concurrency 500, TCP",
            drain_tcp,
            &of_drain,
            false,
        ),
    ] {
        bars.push((name.to_owned(), median_rate(samples)));
        section.row([
            name.to_owned(),
            format!("{} %", number(percent(of, samples, server))),
            if is_send {
                format!(
                    "{}×",
                    number(Spread::of_ratios(samples, calls, rate).median)
                )
            } else {
                "–".to_owned()
            },
            Spread::of(samples.iter().map(rate)).ranged(),
            Spread::of(samples.iter().map(server)).ranged(),
            Spread::of(samples.iter().map(client)).ranged(),
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

fn stages(rounds: &[Samples], of_some: &[Samples]) -> Section {
    let mut section = Section::new(
        "Ceilings",
        &format!(
            "The commands of a message's life, 500 messages per command, one kind at a time, pipelined; server µs/message. \
             On the left all messages are in each structure, due within an hour, as in the stages that are timed alone; on \
             the right {} at a time, due within 20 ms, as while all stages run at once.",
            number(SOME as f64)
        ),
        &["command", "all", "some"],
    );
    let mut add = |name: &str, figure: &dyn Fn(&Samples) -> f64| {
        let of = |rounds: &[Samples]| Spread::of(rounds.iter().map(figure)).ranged();
        section.row([name.to_owned(), of(rounds), of(of_some)]);
    };
    for (index, stage) in STAGES.iter().enumerate() {
        add(stage, &|samples| samples[index].cpu_us());
    }
    add("sum", &|samples| ceiling::sum_us(samples));
    section
}
