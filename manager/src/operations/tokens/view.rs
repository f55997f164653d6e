//! Tokens as requests and responses show them: never with their hashes, and with the secret only once.

use lisa_core::fields::{Describer, Description};
use lisa_core::names::TokenName;
use lisa_core::openapi;
use lisa_core::topic::{NamePattern, ScheduleQuota, Size, TopicQuota};
use lisa_service::http::auth::{NewToken, Scope, Token, TokenRecord};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

/// A page of tokens, by name.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct TokenList {
    pub(crate) tokens: Vec<TokenView>,
    /// The cursor of the next page; null at the end.
    pub(crate) next: Option<String>,
    /// The tokens of this page whose record cannot be read. They are not accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) damaged: Vec<DamagedToken>,
}

/// A token whose record cannot be read, and the reason.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DamagedToken {
    pub(crate) token: TokenName,
    pub(crate) error: String,
}

/// A token, without its secret and hashes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct TokenView {
    /// The name of the token.
    pub(crate) token: String,
    /// True if the configuration of this manager declares it. Only an edit of that file changes it.
    pub(crate) declared_in_file: bool,
    /// True if a token of this name is also stored. It is not accepted, because the one of the file takes precedence.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) hides_stored: bool,
    /// A number that grows with each change of the token, also if it is removed and created again. Absent if a file declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<u64>,
    /// Its scopes.
    pub(crate) scopes: Vec<Scope>,
    /// The topics that it reaches; absent for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub(crate) topics: Option<Vec<NamePattern>>,
    /// The groups that it reaches; absent for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub(crate) groups: Option<Vec<NamePattern>>,
    /// The schedules that it reaches; absent for the names in `topics`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub(crate) schedules: Option<Vec<NamePattern>>,
    /// The time from which it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires: Option<String>,
    /// True if that time has come.
    pub(crate) has_expired: bool,
    /// The number of messages that it may send in a second, in each process; absent for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sends_per_second: Option<u32>,
    /// The largest number of topics that it reaches: at this number, it cannot create another one. Absent for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_topics: Option<u32>,
    /// The largest number of streams of the topics that it reaches: one for each group on each shard. Absent for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_streams: Option<u32>,
    /// The sum of `max_messages` of the topics that it reaches, which it cannot exceed; absent for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_messages: Option<u64>,
    /// The same for `max_bytes`, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub(crate) max_bytes: Option<Size>,
    /// The largest number of stored schedules with the names that it reaches: at this number, it cannot create another one. Absent for any
    /// number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_schedules: Option<u32>,
    /// True while its previous secret is accepted as well.
    pub(crate) is_rotating: bool,
    /// The time at which its previous secret was last used, within about a minute. Absent if no use is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) previous_used: Option<String>,
    /// The mark of its previous secret, by which a use is found.
    #[serde(skip)]
    pub(crate) previous_mark: Option<String>,
    /// The time of its creation. Absent if a file declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) created: Option<String>,
    /// The name of the token, or of the user of the operating system, that has created it. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) created_by: Option<String>,
}

/// A token that was created, changed or rotated.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct ChangedToken {
    #[serde(flatten)]
    pub(crate) view: TokenView,
    /// The secret that the manager has generated, to send as `Authorization: Bearer <secret>`. It is not stored: no later
    /// response has it. Absent if the request generated none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<String>,
}

/// The schema of a token to create or change.
pub(crate) struct TokenBody;

impl PartialSchema for TokenBody {
    fn schema() -> RefOr<Schema> {
        let meaning = "A token to create or change: its permissions, and the hash of its secret unless the manager generates one.";
        let read = |from: &mut Describer| drop(NewToken::read(from));
        Schema::Object(openapi::object_of(meaning, &[], read)).into()
    }
}

impl ToSchema for TokenBody {}

impl TokenView {
    pub(super) fn of(token: &Token) -> Self {
        let reach = token.reach();
        let quota = token.topic_quota();
        Self {
            token: token.name().to_owned(),
            scopes: token.scopes().to_vec(),
            topics: reach.topics.clone(),
            groups: reach.groups.clone(),
            schedules: reach.schedules.clone(),
            expires: token.expires().map(|at| at.to_string()),
            has_expired: token.has_expired(),
            sends_per_second: token.quota().map(|quota| quota.per_second()),
            max_topics: quota.map(|quota| quota.max_topics),
            max_streams: quota.map(|quota| quota.max_streams),
            max_messages: quota.and_then(|quota| quota.max_messages),
            max_bytes: quota.and_then(|quota| quota.max_bytes),
            max_schedules: token.schedule_quota().map(|quota| quota.max_schedules()),
            is_rotating: token.has_previous(),
            previous_mark: token.previous_mark(),
            ..Self::default()
        }
    }

    pub(super) fn of_record(name: &TokenName, version: u64, record: &TokenRecord) -> Self {
        let token = record.token(name.as_str());
        let creator = record.created_by.clone();
        Self {
            version: Some(version),
            schedules: record.definition.schedules.clone(),
            created: Some(record.created.to_string()),
            created_by: Some(creator).filter(|creator| !creator.is_empty()),
            ..token.as_ref().map(Self::of).unwrap_or_default()
        }
    }

    /// Returns the fields of its definition that are set, as a request to change it repeats them.
    pub(crate) fn definition(&self) -> Map<String, Json> {
        let Ok(Json::Object(mut fields)) = serde_json::to_value(self) else {
            unreachable!("a struct is an object");
        };
        let described = described();
        fields.retain(|name, _| described.iter().any(|field| field.name == name));
        // A token without limits has none.
        for (name, _) in self.default_quotas() {
            fields.remove(name);
        }
        fields
    }

    /// Returns the names and values of the quotas that it has by default.
    pub(crate) fn default_quotas(&self) -> impl Iterator<Item = (&'static str, u32)> {
        // The quotas of messages and bytes require that of topics.
        let is_given = self.max_messages.is_some() || self.max_bytes.is_some();
        let max_topics = self.max_topics.filter(|_| !is_given);
        [
            ("max_topics", max_topics, TopicQuota::DEFAULT),
            ("max_streams", self.max_streams, TopicQuota::DEFAULT_STREAMS),
            ("max_schedules", self.max_schedules, ScheduleQuota::DEFAULT),
        ]
        .into_iter()
        .filter_map(|(name, most, default)| Some((name, most.filter(|most| *most == default)?)))
    }

    /// Returns its state as a word: `expired` or `rotating`; empty otherwise.
    pub(crate) fn state(&self) -> &'static str {
        match self {
            Self {
                has_expired: true, ..
            } => "expired",
            Self {
                is_rotating: true, ..
            } => "rotating",
            _ => "",
        }
    }
}

/// Describes the fields of a token to create or change.
pub(crate) fn described() -> Vec<Description> {
    let mut described = Describer::default();
    NewToken::read(&mut described);
    described.fields
}

#[cfg(test)]
mod tests {
    use lisa_core::time::UnixMs;
    use lisa_service::http::auth::TokenHash;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_view_has_each_field_of_the_definition() {
        let definition = described().into_iter();
        let definition = definition.filter(|field| !field.name.ends_with("sha256"));
        let sample = |field: &Description| match (field.name, field.kind) {
            ("scopes", _) => json!(["send"]),
            (_, "list") => json!(["a"]),
            (_, "time") => json!("2999-01-01T00:00:00Z"),
            _ => json!(5),
        };
        let body: Map<_, _> = definition
            .map(|field| (field.name.to_owned(), sample(&field)))
            .collect();
        let record = TokenRecord {
            definition: NewToken::from_fields(&body).unwrap().definition,
            sha256: TokenHash::of("x"),
            previous_sha256: None,
            created: UnixMs::new(1),
            created_by: "ops".to_owned(),
        };
        let view = TokenView::of_record(&"app".parse().unwrap(), 1, &record);
        // Otherwise, a change in the dashboard or on the command line would drop a field.
        let names = |fields: &Map<String, Json>| fields.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&view.definition()), names(&body));
    }
}
