//! Tokens that are created by call: their definitions, and their records in Redis.
//!
//! A record has the hashes of a token, never its secret.

use std::fmt;
use std::sync::Arc;

use lisa_core::broker::MAX_TOKEN_RECORD;
use lisa_core::fields::{
    Any, Field, FieldProblem, Given, JsonReader, Reader as _, TableReader, Value, within,
};
use lisa_core::time::UnixMs;
use lisa_core::topic::{NamePattern, ScheduleQuota, TopicQuota};
use serde_json::{Map, Value as Json};
use sha2::{Digest, Sha256};

use super::token::{is_past, parse_hex};
use super::{Reach, Scope, SendQuota, Token};

/// The SHA-256 of the secret of a token. `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// Returns the hash of a secret.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text).into())
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

impl Value for TokenHash {
    const SECRET: bool = true;
    const KIND: &'static str = "string";

    fn allowed() -> String {
        "64 hexadecimal digits".into()
    }

    fn read(given: Given<'_>) -> Result<Self, String> {
        let expected =
            "expected 64 hexadecimal digits: printf %s TOKEN | sha256sum | cut -d' ' -f1";
        parse_hex(given.text()?)
            .map(Self)
            .ok_or_else(|| expected.into())
    }

    fn show(&self) -> Json {
        let digits = self.0.iter().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>().into()
    }

    fn schema() -> Json {
        serde_json::json!({ "type": "string", "pattern": "^[0-9a-fA-F]{64}$" })
    }
}

/// The permissions of a token that is created by call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenDefinition {
    /// Its scopes.
    pub scopes: Vec<Scope>,
    /// The topics that it reaches; `None` for all.
    pub topics: Option<Vec<NamePattern>>,
    /// The groups that it reaches; `None` for all.
    pub groups: Option<Vec<NamePattern>>,
    /// The schedules that it reaches; `None` for the names in `topics`.
    pub schedules: Option<Vec<NamePattern>>,
    /// The time from which it is refused; `None` for never.
    pub expires: Option<UnixMs>,
    /// The number of messages that it may send in a second, in each process; `None` for any.
    pub sends_per_second: Option<u32>,
    /// The limits of the topics that it may declare; `None` for any.
    pub topic_quota: Option<TopicQuota>,
    /// The limit of the schedules that it may create; `None` for any number.
    pub schedule_quota: Option<ScheduleQuota>,
}

/// A definition, and the hashes of a secret that the caller has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewToken {
    /// The definition.
    pub definition: TokenDefinition,
    /// The hash of the secret; `None` to keep that of the token, or to generate a secret.
    pub sha256: Option<TokenHash>,
    /// The hash of the previous secret, which is accepted as well.
    pub previous_sha256: Option<TokenHash>,
}

/// A token as Redis keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRecord {
    /// The definition.
    pub definition: TokenDefinition,
    /// The hash of the secret.
    pub sha256: TokenHash,
    /// The hash of the previous secret, which is accepted until the rotation is finished.
    pub previous_sha256: Option<TokenHash>,
    /// The time of its creation.
    pub created: UnixMs,
    /// The name of the token, or of the user of the operating system, that has created it; empty if unknown.
    pub created_by: String,
}

impl TokenDefinition {
    fn read(from: &mut impl TableReader) -> Option<Self> {
        let scopes: Option<Vec<Scope>> = from.required_field(
            "scopes",
            "A list of `send`, `read`, `operate`, `receive`, `payload` and `tokens`.",
        );
        if scopes.as_ref().is_some_and(Vec::is_empty) {
            let why = "must have at least one scope".to_owned();
            from.problem("scopes", Json::Array(Vec::new()), why);
        }
        let topics = patterns(
            from,
            "topics",
            "The topics that the token reaches, each a name, or a prefix followed by `*`. By default, all.",
        );
        let groups = patterns(
            from,
            "groups",
            "The groups that the token reaches on these topics, in the same form. By default, all.",
        );
        let schedules = patterns(
            from,
            "schedules",
            "The schedules that the token reaches, by name, in the same form; their topics must be reached, too. By default, the \
             names in `topics`.",
        );
        let is_limited = topics.is_some() || groups.is_some() || schedules.is_some();
        if is_limited
            && scopes
                .as_ref()
                .is_some_and(|scopes| scopes.contains(&Scope::Tokens))
        {
            let why = "`tokens` cannot be limited: leave out topics, groups and schedules";
            from.problem("scopes", Json::from(Scope::Tokens.as_str()), why.to_owned());
        }
        let expires = Field::new(
            "expires",
            None,
            "The time from which the token is refused, by the clock of each machine. By default, never.",
        );
        let expires = from.read(expires, Any);
        let sends_per_second = Field::new(
            "sends_per_second",
            None,
            "The number of messages that the token may send in a second, in each process. By default, any.",
        );
        let sends_per_second = from.read(sends_per_second, within(1..=SendQuota::MOST));
        let topic_quota = TopicQuota::read(from, topics.as_deref());
        let names = schedules.as_deref().or(topics.as_deref());
        let schedule_quota = ScheduleQuota::read(from, names);
        Some(Self {
            scopes: scopes?,
            topics,
            groups,
            schedules,
            expires,
            sends_per_second,
            topic_quota,
            schedule_quota,
        })
    }

    /// Returns the quotas of what it may store, as the fields from which they can be read.
    pub fn quotas(&self) -> impl Iterator<Item = (&'static str, Option<Json>)> {
        let of_topics = self.topic_quota.iter().flat_map(TopicQuota::fields);
        of_topics.chain(self.schedule_quota.iter().map(ScheduleQuota::field))
    }

    /// Returns true if the time from which the token is refused has come, by the clock of this machine.
    #[must_use]
    pub fn has_expired(&self) -> bool {
        self.expires.is_some_and(is_past)
    }

    /// Returns the fields from which it can be read. Those that are not set are missing.
    #[must_use]
    pub fn fields(&self) -> Map<String, Json> {
        let fields = [
            ("scopes", Some(self.scopes.show())),
            ("topics", self.topics.as_ref().map(Value::show)),
            ("groups", self.groups.as_ref().map(Value::show)),
            ("schedules", self.schedules.as_ref().map(Value::show)),
            ("expires", self.expires.as_ref().map(Value::show)),
            ("sends_per_second", self.sends_per_second.map(Json::from)),
        ];
        let given = fields.into_iter().chain(self.quotas());
        let given = given.filter_map(|(name, value)| Some((name.to_owned(), value?)));
        given.collect()
    }
}

/// Reads a list of patterns, in any order; `None` if it is missing.
fn patterns(
    from: &mut impl TableReader,
    name: &'static str,
    meaning: &'static str,
) -> Option<Vec<NamePattern>> {
    let mut read = from.read(Field::new(name, Vec::new(), meaning), Any);
    NamePattern::normalize(&mut read);
    Some(read).filter(|read| !read.is_empty())
}

/// Returns the problems of lists that are empty: such a token would reach everything, which nobody means by an empty list.
fn empty_lists(fields: &Map<String, Json>) -> impl Iterator<Item = FieldProblem> {
    let lists = ["topics", "groups", "schedules"].into_iter();
    let empty = lists.filter(|name| fields.get(*name) == Some(&Json::Array(Vec::new())));
    empty.map(|name| FieldProblem {
        field: name.to_owned(),
        value: "[]".to_owned(),
        message: "must have at least one name, or be omitted".to_owned(),
    })
}

/// Reads an object with a function, and returns everything that is wrong instead, if anything is.
fn read_all<T>(
    fields: &Map<String, Json>,
    read: impl FnOnce(&mut JsonReader<'_>) -> Option<T>,
) -> Result<T, Vec<FieldProblem>> {
    let mut reader = JsonReader::new(fields).null_is_missing();
    let read = read(&mut reader);
    let mut problems = reader.finish();
    problems.extend(empty_lists(fields));
    match read {
        Some(read) if problems.is_empty() => Ok(read),
        _ => Err(problems),
    }
}

impl NewToken {
    /// Reads the fields of a body. Returns `None` if a required one is missing or wrong, which is a problem.
    pub fn read(from: &mut impl TableReader) -> Option<Self> {
        let definition = TokenDefinition::read(from);
        let sha256 = Field::new(
            "sha256",
            None,
            "The SHA-256 of the token's secret in hexadecimal. By default, a token that exists keeps its secret; for a new one, the manager \
             generates a secret of 256 random bits.",
        );
        let sha256 = from.read(sha256, Any);
        let previous_sha256 = Field::new(
            "previous_sha256",
            None,
            "The SHA-256 of the token's previous secret, which is accepted as well. Requires `sha256`.",
        );
        let previous_sha256: Option<TokenHash> = from.read(previous_sha256, Any);
        if previous_sha256.is_some() && sha256.is_none() {
            from.problem(
                "previous_sha256",
                Json::Null,
                "requires sha256; to replace a secret, rotate the token".to_owned(),
            );
        }
        Some(Self {
            definition: definition?,
            sha256,
            previous_sha256,
        })
    }

    /// Reads the fields of a body. A field that is `null` is missing.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn from_fields(fields: &Map<String, Json>) -> Result<Self, Vec<FieldProblem>> {
        read_all(fields, |reader| Self::read(reader))
    }
}

impl TokenRecord {
    /// Reads a record. One with a field that this version does not know cannot be read: the field may be a limit.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fields: Map<String, Json> =
            serde_json::from_str(text).map_err(|error| error.to_string())?;
        let read = read_all(&fields, |from| {
            let new = NewToken::read(from);
            let created = from.required_field("created", "The time of its creation.");
            let created_by = Field::new("created_by", String::new(), "Its creator.");
            let created_by = from.read(created_by, Any);
            let new = new?;
            Some(Self {
                sha256: new.sha256?,
                previous_sha256: new.previous_sha256,
                definition: new.definition,
                created: created?,
                created_by,
            })
        });
        read.map_err(|problems| {
            let named = problems
                .iter()
                .map(|problem| format!("{}: {}", problem.field, problem.message));
            let named: Vec<_> = named.collect();
            match &named[..] {
                [] => "sha256: missing".to_owned(),
                named => named.join("; "),
            }
        })
    }

    /// Returns the secret from which it can be read.
    ///
    /// # Errors
    /// It is too large.
    pub fn text(&self) -> Result<String, String> {
        let mut fields = self.definition.fields();
        let previous = self.previous_sha256.as_ref();
        let more = [
            ("sha256", Some(self.sha256.show())),
            ("previous_sha256", previous.map(Value::show)),
            ("created", Some(self.created.show())),
            ("created_by", Some(self.created_by.as_str().into())),
        ];
        let more = more.into_iter();
        fields.extend(more.filter_map(|(name, value)| Some((name.to_owned(), value?))));
        let text = Json::from(fields).to_string();
        match text.len() {
            ..=MAX_TOKEN_RECORD => Ok(text),
            size => Err(format!(
                "the token has {size} bytes, must be at most {MAX_TOKEN_RECORD}: name fewer topics, groups or schedules"
            )),
        }
    }

    /// Returns the token that it describes; `None` if it has no scope.
    #[must_use]
    pub fn token(&self, name: &str) -> Option<Token> {
        let of = &self.definition;
        let reach = Reach {
            topics: of.topics.clone(),
            groups: of.groups.clone(),
            schedules: of.schedules.clone().or_else(|| of.topics.clone()),
        };
        let token = Token::without_secret(name, of.scopes.clone()).ok()?;
        let previous = self.previous_sha256.map(|hash| hash.0);
        let token = token.with_hashes(self.sha256.0, previous);
        let quota = of.sends_per_second.map(SendQuota::new).map(Arc::new);
        let token = token.with_expiry(of.expires).with_quota(quota);
        let token = token.with_topic_quota(of.topic_quota.clone());
        let token = token.with_schedule_quota(of.schedule_quota.clone());
        Some(token.with_reach(reach))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn new(body: Json) -> Result<NewToken, Vec<FieldProblem>> {
        NewToken::from_fields(body.as_object().unwrap())
    }

    /// Teams are compared by their patterns.
    #[test]
    fn the_order_and_repetitions_of_patterns_make_no_difference() {
        let definition = |topics: Json, groups: Json| {
            let body = json!({ "scopes": ["send"], "topics": topics, "groups": groups });
            new(body).unwrap().definition
        };
        let sorted = definition(json!(["a", "b-*"]), json!(["x", "y"]));
        let others = definition(json!(["b-*", "a", "b-*"]), json!(["y", "x"]));
        assert_eq!(sorted, others);
        assert_ne!(sorted, definition(json!(["a"]), json!(["x", "y"])));
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_shows_no_hash() {
        let body = json!({
            "scopes": ["send", "receive"], "topics": ["shop-*"], "groups": ["a"], "schedules": ["s"],
            "expires": "2999-01-01T00:00:00.000Z", "sends_per_second": 5, "max_topics": 3, "max_streams": 9, "max_messages": 1000, "max_bytes": "64MiB", "max_schedules": 7,
            "sha256": "0".repeat(64), "previous_sha256": "F".repeat(64),
        });
        let NewToken {
            definition,
            sha256,
            previous_sha256,
        } = new(body).unwrap();
        let record = TokenRecord {
            definition,
            sha256: sha256.unwrap(),
            previous_sha256,
            created: UnixMs::new(1_700_000_000_000),
            created_by: "ops".to_owned(),
        };
        let text = record.text().unwrap();
        assert_eq!(TokenRecord::parse(&text), Ok(record.clone()));
        assert!(!format!("{record:?}").contains(&"0".repeat(20)));
        let token = record.token("app").unwrap();
        assert_eq!(token.hashes().count(), 2);
        assert!(token.has(Scope::Receive) && !token.has(Scope::Operate));
        assert!(token.reach().is_limited());
        assert_eq!(token.quota().unwrap().per_second(), 5);
        assert_eq!(token.topic_quota().unwrap().max_messages, Some(1000));
        assert_eq!(token.schedule_quota().unwrap().max_schedules(), 7);
        let unknown = text.replace("{", r#"{"later":1,"#);
        assert!(TokenRecord::parse(&unknown).unwrap_err().contains("later"));
        for damaged in ["", "[]", "{}", r#"{"scopes":["send"]}"#] {
            assert!(TokenRecord::parse(damaged).is_err(), "{damaged}");
        }
    }

    #[test]
    fn the_schedules_are_by_default_those_of_the_topics() {
        let new = new(json!({ "scopes": ["operate"], "topics": ["shop-*"] })).unwrap();
        let record = TokenRecord {
            definition: new.definition,
            sha256: TokenHash::of("x"),
            previous_sha256: None,
            created: UnixMs::new(1),
            created_by: String::new(),
        };
        let token = record.token("app").unwrap();
        assert!(token.reach().has_schedule(&"shop-a".parse().unwrap()));
        assert!(!token.reach().has_schedule(&"bank".parse().unwrap()));
        let quota = ScheduleQuota::new(&["shop-*".parse().unwrap()], 1000);
        assert_eq!(token.schedule_quota().map(|of| &**of), Some(&quota));
        assert!(!record.text().unwrap().contains("max_schedules"));
    }

    #[test]
    fn what_would_reach_more_than_is_meant_is_refused() {
        for (body, field) in [
            (json!({}), "scopes"),
            (json!({ "scopes": [] }), "scopes"),
            (json!({ "scopes": ["all"] }), "scopes"),
            (json!({ "scopes": ["send"], "topics": [] }), "topics"),
            (json!({ "scopes": ["send"], "topics": "none" }), "topics"),
            (json!({ "scopes": ["send"], "topics": ["a b"] }), "topics"),
            (json!({ "scopes": ["send"], "topic": ["a"] }), "topic"),
            (json!({ "scopes": ["tokens"], "topics": ["a"] }), "scopes"),
            (
                json!({ "scopes": ["send"], "sends_per_second": 0 }),
                "sends_per_second",
            ),
            (json!({ "scopes": ["send"], "max_topics": 1 }), "max_topics"),
            (
                json!({ "scopes": ["operate"], "groups": ["g"], "max_schedules": 1 }),
                "max_schedules",
            ),
            (
                json!({ "scopes": ["send"], "topics": ["a"], "max_bytes": "1GiB" }),
                "max_bytes",
            ),
            (json!({ "scopes": ["send"], "expires": "soon" }), "expires"),
            (json!({ "scopes": ["send"], "sha256": "abc" }), "sha256"),
            (
                json!({ "scopes": ["send"], "previous_sha256": "0".repeat(64) }),
                "previous_sha256",
            ),
        ] {
            let problems = new(body.clone()).unwrap_err();
            assert_eq!(problems[0].field, field, "{body}: {problems:?}");
        }
    }
}
