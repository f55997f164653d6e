//! Message ids and entry ids: two different identities, two types.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use uuid::ClockSequence;
use uuid::timestamp::context::ContextV7;

use crate::crc16::crc16;
use crate::names::{InvalidName, ScheduleName, Shard, name};
use crate::time::UnixMs;

name!(
    /// The identity of a message within its topic: `[A-Za-z0-9_:-]{1,64}`.
    ///
    /// An id that Lisa generates is a UUIDv7 in 22 characters of base62, so ids sort by time. Its last 16 bits are
    /// the message's route, which determines the shard. The route of any other id is its CRC16, unless a key of its
    /// message decides.
    MessageId, "message id", "[A-Za-z0-9_:-]{1,64}",
    |text| (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_:-".contains(&b))
);

/// In ASCII order, so that the text of an id sorts like its number.
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const LENGTH: usize = 22;
/// Ten digits fit a machine word, which divides much faster than a whole id.
const WORD: usize = 10;
const TEN_DIGITS: u128 = 62u128.pow(WORD as u32);

/// Keeps the ids of this process in order within a millisecond.
#[expect(clippy::disallowed_types, reason = "the type that uuid supports")]
static ORDER: std::sync::Mutex<ContextV7> = std::sync::Mutex::new(ContextV7::new());

impl MessageId {
    /// Generates an id with a random route. Ids of one process sort in the order of their creation.
    pub fn generate() -> Self {
        Self(encode(new_uuid()).as_str().into())
    }

    /// Generates an id with this route, so that the id alone finds the shard that a key determined. Ids of one
    /// process sort in the order of their creation.
    pub fn generate_on(route: u16) -> Self {
        let number = new_uuid() & !u128::from(u16::MAX) | u128::from(route);
        Self(encode(number).as_str().into())
    }

    /// Returns the id of the message that a schedule sends for one of its times, such as `nightly:20261122T030000Z`.
    /// It is the same in every process, so the message is stored once.
    pub fn of_schedule(schedule: &ScheduleName, time: UnixMs) -> Self {
        let time = jiff::Timestamp::from(time).strftime("%Y%m%dT%H%M%SZ");
        format!("{schedule}:{time}")
            .parse()
            .expect("names are short enough for ids")
    }

    /// Returns the id of the message that a schedule sends when it is run by hand: a second run within the same second is a
    /// duplicate.
    pub fn of_run(schedule: &ScheduleName, time: UnixMs) -> Self {
        format!("{schedule}:run-{}", time.get() / 1000)
            .parse()
            .expect("names are short enough for ids")
    }

    /// Returns the shard of the message among `shards`, as far as the id determines it.
    pub fn shard(&self, shards: u16) -> Shard {
        shard_of_route(self.route(), shards)
    }

    /// Returns the route that the id alone determines.
    pub fn route(&self) -> u16 {
        self.own_route()
            .unwrap_or_else(|| route_of_key(self.as_str()))
    }

    /// Returns whether the id certainly determines the route of its message, because it has the form that Lisa
    /// generates. With any other id, a key may have decided.
    pub fn tells_route(&self) -> bool {
        self.own_route().is_some()
    }

    /// Returns the time at which the id was generated, if it has the form that Lisa generates.
    pub fn generated_at(&self) -> Option<UnixMs> {
        Some(UnixMs::new((self.number()? >> 80) as u64))
    }

    /// Returns the id as a UUID, if it has the form that Lisa generates.
    pub fn as_uuid(&self) -> Option<uuid::Uuid> {
        self.number().map(uuid::Uuid::from_u128)
    }

    /// Returns the id that Lisa generated as this UUID: the reverse of [`MessageId::as_uuid`]. `None` if the text is no UUID
    /// of version 7, in the form with hyphens.
    pub fn of_uuid(text: &str) -> Option<Self> {
        let number = uuid::Uuid::try_parse(text).ok()?.as_u128();
        let is_whole = text.len() == uuid::fmt::Hyphenated::LENGTH && is_uuid_v7(number);
        is_whole.then(|| Self(encode(number).as_str().into()))
    }

    fn own_route(&self) -> Option<u16> {
        // Truncates to the low 16 bits on purpose.
        self.number().map(|number| number as u16)
    }

    fn number(&self) -> Option<u128> {
        decode(self.as_str()).filter(|number| is_uuid_v7(*number))
    }
}

/// Returns the route of all messages with this ordering key, or with this merge key and no ordering key.
pub fn route_of_key(key: &str) -> u16 {
    crc16(key.as_bytes())
}

/// Returns the shard of a route among `shards`.
pub(crate) fn shard_of_route(route: u16, shards: u16) -> Shard {
    if shards <= 1 {
        return Shard::new(0);
    }
    Shard::new(route % shards)
}

fn is_uuid_v7(number: u128) -> bool {
    let uuid = uuid::Uuid::from_u128(number);
    uuid.get_version_num() == 7 && uuid.get_variant() == uuid::Variant::RFC4122
}

/// Generates a UUIDv7 with the layout of RFC 9562, section 5.7: 48 bits of ms, then a 42-bit counter with a new
/// arbitrary start each ms, then 32 random bits. The library's own function asks the system for randomness each time,
/// which takes longer than sending.
fn new_uuid() -> u128 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let (counter, seconds, nanos) =
        ORDER.generate_timestamp_sequence(now.as_secs(), now.subsec_nanos());
    let ms = u128::from(seconds) * 1000 + u128::from(nanos / 1_000_000);
    let rest = u128::from(counter) << 32 | u128::from(fastrand::u32(..));
    ms << 80 | 7 << 76 | (rest >> 62) << 64 | 0b10 << 62 | rest & (u128::MAX >> 66)
}

/// The text of a number, in ASCII.
struct Base62([u8; LENGTH]);

impl Base62 {
    fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("ASCII")
    }
}

fn encode(number: u128) -> Base62 {
    let mut text = [b'0'; LENGTH];
    let words = [
        number / TEN_DIGITS / TEN_DIGITS,
        number / TEN_DIGITS % TEN_DIGITS,
        number % TEN_DIGITS,
    ];
    for (digits, word) in text.rchunks_mut(WORD).zip(words.into_iter().rev()) {
        let mut word = word as u64;
        for digit in digits.iter_mut().rev() {
            *digit = BASE62[(word % 62) as usize];
            word /= 62;
        }
    }
    Base62(text)
}

fn decode(text: &str) -> Option<u128> {
    if text.len() != LENGTH {
        return None;
    }
    let mut words = text.as_bytes().rchunks(WORD).rev();
    words.try_fold(0u128, |number, digits| {
        let word = digits.iter().try_fold(0u64, |word, &byte| {
            let digit = match byte {
                b'0'..=b'9' => byte - b'0',
                b'A'..=b'Z' => byte - b'A' + 10,
                b'a'..=b'z' => byte - b'a' + 36,
                _ => return None,
            };
            Some(word * 62 + u64::from(digit))
        })?;
        number
            .checked_mul(TEN_DIGITS)?
            .checked_add(u128::from(word))
    })
}

/// A position on a stream, which identifies one delivery: `1700000000000-0`. The default is before the first entry.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EntryId {
    ms: u64,
    seq: u64,
}

impl EntryId {
    /// Creates an id from the two parts of a stream position.
    pub const fn new(ms: u64, seq: u64) -> Self {
        Self { ms, seq }
    }

    /// Returns the millisecond of Redis's clock at which the entry was added.
    pub const fn ms(self) -> u64 {
        self.ms
    }

    /// Returns the number of the entry among those of its millisecond, from 0.
    pub const fn seq(self) -> u64 {
        self.seq
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

impl fmt::Debug for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for EntryId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        text.split_once('-')
            .and_then(|(ms, seq)| Some(Self::new(ms.parse().ok()?, seq.parse().ok()?)))
            .ok_or_else(|| InvalidName::new("entry id", "<milliseconds>-<sequence>", text))
    }
}

impl TryFrom<String> for EntryId {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<EntryId> for String {
    fn from(entry: EntryId) -> Self {
        entry.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_id_has_its_time_and_any_other_has_none() {
        let now = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
        let begun = now();
        let id = MessageId::generate();
        let time = id.generated_at().unwrap().get();
        // The counter within a millisecond may run ahead of the clock.
        assert!((begun..=now() + 1).contains(&time));
        assert!(MessageId::generate_on(7).generated_at().is_some());
        let own: MessageId = "order-7".parse().unwrap();
        assert_eq!(own.generated_at(), None);
    }

    #[test]
    fn generated_ids_are_22_characters_that_sort_by_time_and_are_read_back() {
        let ids: Vec<MessageId> = (0..1000).map(|_| MessageId::generate()).collect();
        assert!(ids.iter().all(|id| id.as_str().len() == 22));
        assert!(ids.is_sorted());
        let number = decode(ids[0].as_str()).expect("base62");
        assert!(is_uuid_v7(number));
        assert_eq!(encode(number).as_str(), ids[0].as_str());
        assert_eq!(ids[0].route(), number as u16);
        let now = jiff::Timestamp::now().as_millisecond();
        let made = (number >> 80) as i64;
        assert!((now - 60_000..=now).contains(&made), "{made} at {now}");
    }

    #[test]
    fn base62_holds_every_number_and_no_more() {
        for number in [0, 61, 62, TEN_DIGITS - 1, TEN_DIGITS, u128::MAX] {
            assert_eq!(decode(encode(number).as_str()), Some(number));
        }
        assert_eq!(encode(0).as_str(), "0".repeat(LENGTH));
        assert_eq!(encode(62).as_str(), format!("{}10", "0".repeat(LENGTH - 2)));
        assert_eq!(decode(&"z".repeat(LENGTH)), None, "more than 128 bits");
        assert_eq!(decode(&"-".repeat(LENGTH)), None);
    }

    #[test]
    fn an_id_generated_on_a_route_has_it_and_sorts_with_the_others() {
        let routes = [0, 1, 0x31C3, u16::MAX];
        let ids = routes.map(MessageId::generate_on);
        assert_eq!(ids.each_ref().map(MessageId::route), routes);
        assert!(ids.iter().all(MessageId::tells_route));
        assert!(ids.is_sorted() && ids[3] < MessageId::generate());
        assert_eq!(ids[2].shard(1000), Shard::new(0x31C3 % 1000));
    }

    #[test]
    fn a_generated_id_is_a_uuid_and_back() {
        let id = MessageId::generate();
        let uuid = id.as_uuid().expect("generated").to_string();
        assert_eq!(MessageId::of_uuid(&uuid), Some(id));
        let other: MessageId = uuid.parse().expect("valid");
        assert_eq!(other.as_uuid(), None, "an id of its own");
        let random = "6b1b36cb-4d4c-4f14-a0f6-4b0a0f6f3a52";
        for text in ["order-7", random, &uuid.replace('-', "")] {
            assert_eq!(MessageId::of_uuid(text), None, "{text}");
        }
    }

    #[test]
    fn another_id_is_routed_by_the_crc16_of_redis() {
        let id: MessageId = "order-7".parse().expect("valid");
        assert_eq!(id.shard(16).get(), crc16(b"order-7") % 16);
        assert!(!id.tells_route());
    }

    #[test]
    fn shards_share_the_load() {
        let mut counts = [0u32; 16];
        for _ in 0..16_000 {
            counts[usize::from(MessageId::generate().shard(16).get())] += 1;
        }
        assert!(
            counts.iter().all(|count| (850..1150).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn ids_outside_the_alphabet_are_refused() {
        for bad in ["", "a.b", "~a", "a b", "ä", "a\0", &"x".repeat(65)] {
            assert!(bad.parse::<MessageId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_entry_id_has_two_numbers() {
        assert_eq!("5-12".parse(), Ok(EntryId::new(5, 12)));
        assert!("5".parse::<EntryId>().is_err());
    }

    #[test]
    fn the_id_names_the_schedule_and_the_time_and_fits() {
        let time = "2026-11-21T03:00:00.999Z".parse().expect("a time");
        let id = |name: &str| MessageId::of_schedule(&name.parse().expect("a name"), time);
        assert_eq!(id("nightly").as_str(), "nightly:20261121T030000Z");
        assert_eq!(id(&"x".repeat(47)).as_str().len(), 64);
        let run = MessageId::of_run(&"x".repeat(47).parse().expect("a name"), time);
        assert_eq!(run.as_str().len(), 62);
        for bad in ["", "Nightly", "a b", "a:b", "-a", &"x".repeat(48)] {
            assert!(bad.parse::<ScheduleName>().is_err(), "{bad}");
        }
    }
}
