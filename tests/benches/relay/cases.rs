//! Topics and loads that are compared with each other: the same stages for each, and a table with the first as the
//! baseline.

use std::time::Duration;

use lisa_core::topic::TopicSettings;
use lisa_producer::NewMessage;

use crate::lab::{Lab, Sample, Spread, Variant};
use crate::lisa::{HOUR, Lisa, SOON, payload, settled, within};
use crate::report::{Section, number};

/// One topic under one load.
pub(crate) struct Case<'a> {
    /// Its name in the tables.
    pub(crate) name: String,
    /// The lab in which it runs.
    pub(crate) lab: &'a Lab,
    /// The topic.
    pub(crate) settings: TopicSettings,
    /// Bytes of payload.
    pub(crate) size: usize,
    /// Handlers at a time, in each group.
    pub(crate) concurrency: usize,
    /// Sets the options that distinguish the message with this number.
    pub(crate) dress: fn(u64, NewMessage) -> NewMessage,
    /// Sends that become one message.
    pub(crate) sends_a_message: u64,
}

/// A timed stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Batches of 500 from four senders, due at random within an hour.
    Send,
    /// Move, read, handle and settle messages that are all due.
    Drain,
    /// Batches of 500 from four senders, due at random within 20 ms, while all other stages run.
    All,
    /// Messages due at random within an hour go to twice as many shards.
    MigrateOut,
}

impl Stage {
    /// Its name in the tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Drain => "drain",
            Self::All => "all stages at once",
            Self::MigrateOut => "migrate",
        }
    }
}

impl<'a> Case<'a> {
    /// A plain topic under the load that other cases vary.
    pub(crate) fn plain(name: &str, lab: &'a Lab) -> Self {
        Self {
            name: name.to_owned(),
            lab,
            settings: TopicSettings::default(),
            size: 100,
            concurrency: 100,
            dress: |_, message| message,
            sends_a_message: 1,
        }
    }

    /// Times one stage for `n` messages, on a server that is empty.
    pub(crate) async fn time(&self, stage: Stage, n: u64) -> Sample {
        self.lab.flush().await;
        let lisa = Lisa::new(self.lab, self.settings.clone()).await;
        let groups = self.settings.groups.len() as u64;
        let (sends, size, dress) = (n * self.sends_a_message, self.size, self.dress);
        let sample = match stage {
            Stage::Send => {
                let work =
                    lisa.send_batches(sends, move |number| dress(number, within(HOUR, size)));
                self.lab.timed(sends, work).await
            }
            Stage::Drain => {
                let consumer = lisa.arm(self.concurrency).await;
                let due = move || NewMessage::new(payload(size)).delay(Duration::from_millis(1));
                lisa.send_batches(sends, move |number| dress(number, due()))
                    .await;
                self.lab.timed(n, lisa.drain(&consumer, n * groups)).await
            }
            Stage::All => {
                lisa.start_manager();
                let consumer = lisa.start_consumer(self.concurrency);
                let work = async {
                    lisa.send_batches(sends, move |number| dress(number, within(SOON, size)))
                        .await;
                    settled(&consumer, n * groups).await;
                };
                self.lab.timed(n, work).await
            }
            Stage::MigrateOut => {
                lisa.send_batches(sends, move |number| dress(number, within(HOUR, size)))
                    .await;
                let old = self.settings.shards;
                let topic = lisa.reshard(2 * old).await;
                self.lab.timed(n, lisa.migrate_out(&topic, old)).await
            }
        };
        lisa.end().await;
        sample
    }
}

/// The rounds of all stages of all cases.
pub(crate) struct Results {
    n: u64,
    stages: Vec<Stage>,
    cases: Vec<String>,
    /// A case has as many as there are stages.
    rounds: Vec<Vec<Sample>>,
}

/// Runs all stages of all cases in turn.
pub(crate) async fn compare(lab: &Lab, cases: &[Case<'_>], stages: &[Stage], n: u64) -> Results {
    let variants: Vec<Variant<'_, Sample>> = cases
        .iter()
        .flat_map(|case| {
            stages.iter().map(move |&stage| {
                let name = format!("{}: {}", case.name, stage.name());
                Variant::new(name, move || case.time(stage, n))
            })
        })
        .collect();
    Results {
        n,
        stages: stages.to_vec(),
        cases: cases.iter().map(|case| case.name.clone()).collect(),
        rounds: lab.alternate(&variants).await,
    }
}

impl Results {
    /// The server time of a stage of a case, as a multiple of the first case's.
    pub(crate) fn server_time_of_first(&self, case: usize, stage: usize) -> f64 {
        let rounds = |case: usize| &self.rounds[case * self.stages.len() + stage];
        Spread::of_ratios(rounds(case), rounds(0), Sample::cpu_us).median
    }

    /// A table of all of them.
    pub(crate) fn section(&self, name: &str, note: &str) -> Section {
        let mut section = Section::new(
            name,
            &format!("{} messages, {note}", number(self.n as f64)),
            &[
                "stage",
                "case",
                "rate, of the first",
                "server time, of the first",
                "messages/s",
                "min–max",
                "server µs/message",
                "client µs/message",
            ],
        );
        for (at, stage) in self.stages.iter().enumerate() {
            let rounds = |case: usize| &self.rounds[case * self.stages.len() + at];
            for (case, name) in self.cases.iter().enumerate() {
                let (mine, first) = (rounds(case), rounds(0));
                let rates = Spread::of(mine.iter().map(Sample::rate));
                section.row([
                    stage.name().to_owned(),
                    name.clone(),
                    percent(Spread::of_ratios(mine, first, Sample::rate)),
                    percent(Spread::of_ratios(mine, first, Sample::cpu_us)),
                    number(rates.median),
                    format!("{}–{}", number(rates.min), number(rates.max)),
                    number(Spread::of(mine.iter().map(Sample::cpu_us)).median),
                    number(Spread::of(mine.iter().map(Sample::client_us)).median),
                ]);
            }
        }
        section
    }
}

fn percent(ratio: Spread) -> String {
    format!("{} %", number(100.0 * ratio.median))
}
