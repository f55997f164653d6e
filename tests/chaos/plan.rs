//! The options of each message and the behavior of its handler, from the seed and its number alone.

use fastrand::Rng;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The consumer of a topic's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    /// Posted to the harness by two consumers.
    Plain,
    /// With ordering keys; two consumers with handlers in Rust.
    Keyed,
    /// Printed by two consumers.
    Lines,
    /// A consumer in Rust with handlers that panic and abort their process.
    Wild,
    /// A program for each message.
    Command,
    /// Printed by [`LISTENERS`], each of which gets every message: the topic has no named group.
    Radio,
    /// Pulled from [`GATEWAYS`].
    Pulled,
    /// With two groups, [`GROUPS`], each read by the process of [`READERS`] at its place.
    Twice,
}

/// The processes that read [`Topic::Twice`], and their groups. Messages that always fail do so in the second one only.
pub(crate) const READERS: [&str; 2] = ["twice-first", "twice-second"];
pub(crate) const GROUPS: [&str; 2] = ["first", "second"];
/// The processes that read [`Topic::Radio`].
pub(crate) const LISTENERS: [&str; 2] = ["radio-1", "radio-2"];
/// The processes that workers pull [`Topic::Pulled`] from.
pub(crate) const GATEWAYS: [&str; 2] = ["gateway-1", "gateway-2"];
/// The topic of recurring messages, which no sender sends: one each [`TICK_EVERY`] ms.
pub(crate) const TICKS: &str = "ticks";
pub(crate) const TICK_EVERY: u64 = 2000;
/// The schedule of every other of these times, which the file of the managers declares, and that of the times between, which is
/// created at run time. The number of ms between two of its times is the same for both.
pub(crate) const IN_FILE: (&str, &str) = ("tick", "*/4 * * * * *");
pub(crate) const BY_CALL: (&str, &str) = ("tock", "2-58/4 * * * * *");
pub(crate) const EACH_EVERY: u64 = 2 * TICK_EVERY;

impl Topic {
    pub(crate) const ALL: [Self; 8] = [
        Self::Plain,
        Self::Keyed,
        Self::Lines,
        Self::Wild,
        Self::Command,
        Self::Pulled,
        Self::Radio,
        Self::Twice,
    ];
    /// Topics with this many messages that a gap in their deliveries is significant.
    pub(crate) const BUSY: [Self; 3] = [Self::Plain, Self::Keyed, Self::Lines];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Keyed => "keyed",
            Self::Lines => "lines",
            Self::Wild => "wild",
            Self::Command => "command",
            Self::Pulled => "pulled",
            Self::Radio => "radio",
            Self::Twice => "twice",
        }
    }

    /// The groups that its settings name.
    pub(crate) fn groups(self) -> &'static [&'static str] {
        match self {
            Self::Radio => &[],
            Self::Twice => &GROUPS,
            _ => &["default"],
        }
    }

    /// Returns whether several processes get a copy of each message.
    pub(crate) fn has_copies(self) -> bool {
        matches!(self, Self::Radio | Self::Twice)
    }

    /// Returns how long ended ids are remembered, at least. A resharding takes that long: all but one topic can be
    /// resharded several times in a run.
    pub(crate) fn dedup_window(self) -> Duration {
        Duration::from_secs(match self {
            Self::Plain => 180,
            Self::Keyed => 25,
            Self::Lines | Self::Wild | Self::Command | Self::Pulled | Self::Radio | Self::Twice => {
                20
            }
        })
    }
}

impl FromStr for Topic {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL
            .into_iter()
            .find(|topic| topic.name() == name)
            .ok_or(())
    }
}

/// The handler's behavior for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Works for this many ms, and succeeds.
    Work(u64),
    /// Fails this many attempts.
    Flaky(u32),
    /// Hangs in its first attempt.
    Hang,
    /// Panics at its first attempt.
    Panic,
    /// Fails always.
    Fail,
    /// Is refused.
    Reject,
    /// Kills its process, always.
    Poison,
}

impl Plan {
    /// Returns whether the message belongs in garbage.
    pub(crate) fn is_hopeless(self) -> bool {
        matches!(self, Self::Fail | Self::Reject | Self::Poison)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(ms) => write!(f, "work:{ms}"),
            Self::Flaky(times) => write!(f, "flaky:{times}"),
            Self::Hang => f.write_str("hang"),
            Self::Panic => f.write_str("panic"),
            Self::Fail => f.write_str("fail"),
            Self::Reject => f.write_str("reject"),
            Self::Poison => f.write_str("poison"),
        }
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (word, number) = text.split_once(':').unwrap_or((text, "0"));
        let number: u64 = number.parse().map_err(|_| format!("no plan: {text:?}"))?;
        Ok(match word {
            "work" => Self::Work(number),
            "flaky" => Self::Flaky(number as u32),
            "hang" => Self::Hang,
            "panic" => Self::Panic,
            "fail" => Self::Fail,
            "reject" => Self::Reject,
            "poison" => Self::Poison,
            _ => return Err(format!("no plan: {text:?}")),
        })
    }
}

/// A sender's change to its message once it was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Cancels it after this many ms.
    Cancel(u64),
    /// Sets another delay, in ms, after this many ms.
    Reschedule(u64, u64),
}

/// A message to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) number: u64,
    pub(crate) topic: Topic,
    pub(crate) key: Option<u64>,
    /// ms.
    pub(crate) delay: u64,
    pub(crate) plan: Plan,
    pub(crate) priority: i32,
    /// Its merge key.
    pub(crate) merge: Option<u64>,
    pub(crate) change: Option<Change>,
}

/// A generator of messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dice {
    seed: u64,
    longest_delay: u64,
    /// One in this many wild messages kills its process.
    poison: u64,
}

/// The attempts of a message that can never succeed.
pub(crate) const HOPELESS_ATTEMPTS: u32 = 3;
/// Messages that share the same [`KEYS`] ordering keys, so that those of a key wait for each other.
const KEY_WINDOW: u64 = 4000;
const KEYS: u64 = 40;
/// Messages of which those with a merge key share one, and their delay, ms: with the same one for all, a merge never
/// moves a message forward.
const MERGE_WINDOW: u64 = 400;
const MERGE_DELAY: u64 = 3000;

impl Dice {
    /// Each poison message costs several leases, in which its process starts again and again. At least four of them are
    /// wanted, and no more than one in a thousand.
    pub(crate) fn new(seed: u64, messages: u64, longest_delay: u64) -> Self {
        let wild = messages / 25;
        Self {
            seed,
            longest_delay,
            poison: (wild / 4).clamp(50, 1000),
        }
    }

    /// Returns the message of this number: always the same.
    pub(crate) fn message(&self, number: u64) -> Message {
        // Neighboring seeds produce neighboring first numbers: mix them.
        let mixed = (self.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15))
            .wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mut dice = Rng::with_seed(mixed);
        let topic = match dice.u32(0..100) {
            0..42 => Topic::Plain,
            42..50 => Topic::Pulled,
            50..52 => Topic::Twice,
            52..55 => Topic::Radio,
            55..77 => Topic::Keyed,
            77..95 => Topic::Lines,
            95..99 => Topic::Wild,
            _ => Topic::Command,
        };
        let key = (topic == Topic::Keyed).then(|| number / KEY_WINDOW * KEYS + dice.u64(0..KEYS));
        let longest = self.longest_delay;
        let delay = match dice.u32(0..4) {
            0 => 0,
            1 | 2 => dice.u64(0..3000.min(longest)),
            _ => dice.u64(0..=longest),
        };
        let plan = self.plan(topic, &mut dice);
        let (priority, merge) = match dice.u32(0..20) {
            0 if topic == Topic::Lines => (dice.i32(-5..=5), None),
            1 if topic == Topic::Lines => (0, Some(number / MERGE_WINDOW)),
            _ => (0, None),
        };
        let delay = merge.map_or(delay, |_| MERGE_DELAY);
        let is_alone = merge.is_none() && !topic.has_copies();
        let may_change = delay >= 1000 && !plan.is_hopeless() && is_alone;
        let change = match dice.u32(0..100) {
            0..3 if may_change => Some(Change::Cancel(dice.u64(0..1500))),
            3..6 if may_change => Some(Change::Reschedule(dice.u64(0..longest), dice.u64(0..1500))),
            _ => None,
        };
        Message {
            number,
            topic,
            key,
            delay,
            plan,
            priority,
            merge,
            change,
        }
    }

    fn plan(&self, topic: Topic, dice: &mut Rng) -> Plan {
        let die = dice.u32(0..10_000);
        match topic {
            Topic::Plain | Topic::Pulled => match die {
                0..100 => Plan::Work(dice.u64(50..1000)),
                100..110 => Plan::Work(dice.u64(3000..4500)),
                110..115 => Plan::Hang,
                115..330 => Plan::Work(dice.u64(1..50)),
                330..900 => Plan::Flaky(dice.u32(1..3)),
                900..905 => Plan::Fail,
                905..910 => Plan::Reject,
                _ => Plan::Work(0),
            },
            Topic::Keyed => match die {
                0..50 => Plan::Work(dice.u64(10..1000)),
                50..250 => Plan::Flaky(1),
                250..255 => Plan::Fail,
                255..260 => Plan::Panic,
                _ => Plan::Work(dice.u64(0..4)),
            },
            Topic::Lines | Topic::Radio => Plan::Work(0),
            Topic::Wild => match die {
                _ if dice.u64(0..self.poison) == 0 => Plan::Poison,
                0..500 => Plan::Panic,
                500..530 => Plan::Hang,
                530..600 => Plan::Work(dice.u64(50..1000)),
                600..620 => Plan::Work(dice.u64(3000..4500)),
                620..900 => Plan::Flaky(dice.u32(1..3)),
                _ => Plan::Work(0),
            },
            Topic::Command => match die {
                0..500 => Plan::Flaky(1),
                _ => Plan::Work(0),
            },
            Topic::Twice => match die {
                0..500 => Plan::Flaky(1),
                500..700 => Plan::Fail,
                _ => Plan::Work(dice.u64(0..50)),
            },
        }
    }
}

/// The id under which a message is sent.
pub(crate) fn id(number: u64) -> String {
    format!("m{number}")
}

/// The number of an id.
pub(crate) fn number(id: &str) -> Option<u64> {
    id.strip_prefix('m')?.parse().ok()
}
