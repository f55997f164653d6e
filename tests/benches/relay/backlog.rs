//! The cost of sends and moves while many messages wait, in memory that no cache holds any more.
//!
//! The relays use a virtual clock. A round sends messages due within the hour, lets time pass until as many are due
//! anywhere in the backlog, and moves them. So the size of the backlog does not change.

use lisa_core::broker::Moved;
use lisa_core::time::UnixMs;
use lisa_core::topic::{Shard, TopicSettings};
use lisa_tests::Aof;
use redis::cmd;

use crate::lab::{self, Lab, ROUNDS, Sample, Spread};
use crate::lisa::{BATCH, HOUR, Lisa, TOPIC, settled, within};
use crate::plot::{self, Axis};
use crate::report::{Plot, Reach, Report, Section, number};

/// Messages sent, and then moved, at a time.
const STRETCH: u64 = 5_000;
/// The number of stretches in a round.
const STRETCHES: u64 = 4;

pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let sizes: &[u64] = if lab.options.quick {
        &[10_000, 200_000]
    } else {
        &[10_000, 100_000, 1_000_000, 5_000_000]
    };
    let lab = lab.beside(lab::settings(Aof::Off).start()).await;
    let mut backlogs = Vec::new();
    for &size in sizes {
        eprintln!("  filling {}", number(size as f64));
        backlogs.push(Backlog::fill(&lab, size).await);
    }
    let mut rounds: Vec<Vec<(Sample, Sample)>> = vec![Vec::new(); backlogs.len()];
    let steps = ROUNDS * backlogs.len();
    for round in 0..ROUNDS {
        for (index, backlog) in backlogs.iter_mut().enumerate() {
            let name = format!("{} waiting", number(backlog.size as f64));
            lab.turn_to(&name, round * rounds.len() + index + 1, steps);
            rounds[index].push(backlog.round(&lab).await);
        }
    }
    for backlog in backlogs {
        backlog.lisa.end().await;
    }
    tell(report, sizes, &rounds);
}

/// A relay with messages that wait.
struct Backlog {
    lisa: Lisa,
    size: u64,
    now: UnixMs,
}

impl Backlog {
    async fn fill(lab: &Lab, size: u64) -> Self {
        let lisa = Lisa::new(lab, TopicSettings::default()).await;
        let now = lisa.broker().now();
        lisa.broker().set_virtual_now(now);
        lisa.send_batches(size, |_| within(HOUR, 100)).await;
        Self { lisa, size, now }
    }

    /// Sends and moves; returns a sample of each.
    async fn round(&mut self, lab: &Lab) -> (Sample, Sample) {
        let (mut sends, mut moves) = (Vec::new(), Vec::new());
        for _ in 0..STRETCHES {
            let send = self.lisa.send_batches(STRETCH, |_| within(HOUR, 100));
            sends.push(lab.timed(STRETCH, send).await);
            self.pass_time(lab).await;
            moves.push(lab.timed(STRETCH, self.move_due()).await);
            // Only now, so that the server's time above covers only moves.
            self.handle().await;
        }
        (Sample::sum(&sends), Sample::sum(&moves))
    }

    /// Lets time pass until enough is due.
    async fn pass_time(&mut self, lab: &Lab) {
        let waiting = format!(
            "{}:v1:{{{TOPIC}:0}}:waiting",
            self.lisa.broker().namespace()
        );
        let mut range = cmd("ZRANGE");
        range.arg(waiting).arg(STRETCH - 1).arg(STRETCH - 1);
        let [(_, due)]: [(String, u64); 1] = lab.ask(range.arg("WITHSCORES")).await;
        self.now = self.now.max(UnixMs::new(due));
        self.lisa.broker().set_virtual_now(self.now);
    }

    async fn move_due(&self) {
        let broker = self.lisa.broker();
        let topic = broker.topic(&TOPIC.parse().expect("a topic")).await;
        let topic = topic.expect("declared");
        let mut moved = 0;
        while moved < STRETCH {
            let now = broker.move_due(&topic, Shard::new(0), BATCH as u16, HOUR);
            match now.await.expect("moved") {
                Moved::Moved { count, .. } => {
                    assert!(count > 0, "enough is due");
                    moved += count;
                }
                Moved::Paused => unreachable!("nobody pauses"),
            }
        }
    }

    /// Runs a consumer until it has settled what was moved.
    async fn handle(&self) {
        let consumer = self.lisa.consumer(100);
        let done = consumer.clone();
        let run = consumer.run();
        let run = run.with_graceful_shutdown(async move { settled(&done, STRETCH).await });
        run.await.expect("a consumer that ends well");
    }
}

fn tell(report: &mut Report, sizes: &[u64], rounds: &[Vec<(Sample, Sample)>]) {
    let sum = |(send, moved): &(Sample, Sample)| send.cpu_us() + moved.cpu_us();
    let mut section = Section::new(
        "Backlog",
        &format!(
            "The server's cost to send and move a message while this many others wait, due at random within an hour; \
             {STRETCHES} times {} messages a round, 100 B.",
            number(STRETCH as f64)
        ),
        &[
            "waiting",
            "send + move, of the first",
            "send, server µs",
            "move, server µs",
            "sum",
            "min–max",
            "sent/s",
        ],
    );
    let mut curves: [Vec<(f64, f64)>; 3] = Default::default();
    for (size, mine) in sizes.iter().zip(rounds) {
        let ratio = Spread::of_ratios(mine, &rounds[0], sum).median;
        let send = Spread::of(mine.iter().map(|(send, _)| send.cpu_us())).median;
        let moved = Spread::of(mine.iter().map(|(_, moved)| moved.cpu_us())).median;
        let both = Spread::of(mine.iter().map(sum));
        let rate = Spread::of(mine.iter().map(|(send, _)| send.rate())).median;
        section.row([
            number(*size as f64),
            format!("{}×", number(ratio)),
            number(send),
            number(moved),
            number(both.median),
            format!("{}–{}", number(both.min), number(both.max)),
            number(rate),
        ]);
        for (curve, us) in curves.iter_mut().zip([send, moved, both.median]) {
            curve.push((*size as f64, us));
        }
    }
    let title = "Server time of a message, by backlog";
    let (x, y) = ("messages waiting", "server µs/message");
    let labels = ["send", "move", "send + move"].map(str::to_owned);
    let series: Vec<_> = labels.into_iter().zip(curves).collect();
    let axis = |label, log| Axis { label, log };
    section.plots.push(Plot {
        file: "backlog".to_owned(),
        title: title.to_owned(),
        svg: plot::lines(title, axis(x, true), axis(y, false), &series),
    });
    let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
    report.reach(Reach::at_most(
        format!(
            "send + move with {} waiting, of the cost with {}",
            number(last as f64),
            number(first as f64)
        ),
        (5.0, 3.5),
        "×",
        Spread::of_ratios(&rounds[rounds.len() - 1], &rounds[0], sum).median,
    ));
    report.section(section);
}
