//! A field on the command line, such as `lease=1m` or `retry.base=5s`.

use std::str::FromStr;
use std::time::SystemTime;

use lisa_core::fields::{Description, TEXT_TABLE, Value as _};
use lisa_core::time::{UnixMs, parse_duration};
use lisa_core::topic::{Group, Topic};
use lisa_service::config::Cron;
use serde_json::{Map, Value};

/// The kinds of fields whose values are texts, whatever they look like.
const TEXTS: [&str; 3] = [String::KIND, Topic::KIND, Cron::KIND];

/// A field and its value, as typed.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) key: String,
    text: String,
}

impl FromStr for Setting {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (key, text) = text
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or("expected a key and its value, such as lease=1m")?;
        Ok(Self {
            key: key.to_owned(),
            text: text.to_owned(),
        })
    }
}

impl Setting {
    /// Replaces this field of an object, whose fields are described. Reads the value as JSON, else as text: `3` is a number and
    /// `1m` a text. The value of a text field is always text. A duration for a time counts from now. A list is JSON, or texts
    /// separated by commas; a list of one in a table must be JSON. An empty value is `null`.
    pub(crate) fn set(&self, object: &mut Map<String, Value>, fields: &[Description]) {
        let (first, rest) = match self.key.split_once('.') {
            Some((first, rest)) => (first, Some(rest)),
            None => (self.key.as_str(), None),
        };
        let kind = fields.iter().find(|field| field.name == first);
        let kind = kind.map_or("", |field| field.kind);
        let is_text = match rest {
            None => TEXTS.contains(&kind),
            Some(_) => kind == TEXT_TABLE,
        };
        let value = match self.text.as_str() {
            "" => Value::Null,
            text if is_text => text.into(),
            text if kind == UnixMs::KIND && rest.is_none() => time(text),
            json if json.starts_with(['[', '{']) => json_or_text(json),
            list if kind == Vec::<Group>::KIND || list.contains(',') => list.split(',').collect(),
            value => json_or_text(value),
        };
        let mut keys: Vec<&str> = match (kind, rest) {
            (TEXT_TABLE, Some(rest)) => vec![first, rest],
            _ => self.key.split('.').collect(),
        };
        let last = keys.pop().unwrap_or_default();
        let mut table = object;
        for key in keys {
            let below = table.entry(key).or_insert(Value::Null);
            if !below.is_object() {
                *below = Map::new().into();
            }
            let Value::Object(below) = below else {
                unreachable!("made an object");
            };
            table = below;
        }
        table.insert(last.to_owned(), value);
    }
}

/// Returns the instant that is a duration from now, by the clock of this process; any other text unchanged.
fn time(text: &str) -> Value {
    match parse_duration(text) {
        Ok(duration) => UnixMs::from(SystemTime::now()).plus(duration).show(),
        Err(_) => text.into(),
    }
}

fn json_or_text(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// Sets fields of an object. Another kind of retry policy has other keys, so it replaces the whole policy.
pub(crate) fn set_all(
    mut object: Map<String, Value>,
    settings: &[Setting],
    fields: &[Description],
) -> Map<String, Value> {
    for setting in settings {
        if setting.key == "retry.kind" {
            object.remove("retry");
        }
        setting.set(&mut object, fields);
    }
    object
}

#[cfg(test)]
mod tests {
    use lisa_core::fields::Describer;
    use lisa_core::topic::TopicSettings;
    use lisa_service::recurring::RecurringMessage;
    use serde_json::json;

    use super::*;

    fn set(texts: &[&str], fields: &[Description]) -> Value {
        let settings = texts.iter().map(|text| text.parse().unwrap());
        set_all(Map::new(), &settings.collect::<Vec<_>>(), fields).into()
    }

    #[test]
    fn a_value_is_read_as_its_field_needs_it() {
        let fields = Description::all::<TopicSettings>();
        let texts = [
            "max_attempts=3",
            "lease=1m",
            "groups=a",
            "retry.kind=fixed",
            "retry.delay=5s",
            "ttl=",
        ];
        let read = json!({
            "max_attempts": 3, "lease": "1m", "groups": ["a"], "retry": { "kind": "fixed", "delay": "5s" }, "ttl": null,
        });
        assert_eq!(set(&texts, &fields), read);
        let mut described = Describer::default();
        RecurringMessage::read(&mut described);
        let texts = [
            "payload={\"a\":1,\"b\":2}",
            "topic=7",
            "headers.x.y=5",
            "priority=5",
            "cron=0 0 3 * * 1,2",
        ];
        let read = json!({
            "payload": "{\"a\":1,\"b\":2}", "topic": "7", "headers": { "x.y": "5" }, "priority": 5, "cron": "0 0 3 * * 1,2",
        });
        assert_eq!(set(&texts, &described.fields), read);
    }

    #[test]
    fn a_duration_for_a_time_counts_from_now() {
        let fields = crate::operations::tokens::described();
        let expires = |text: &str| set(&[&format!("expires={text}")], &fields)["expires"].clone();
        let instant = "2999-06-30T00:00:00Z";
        assert_eq!(expires(instant), instant);
        assert_eq!(expires("soon"), "soon");
        assert_eq!(expires(""), Value::Null);
        let at: UnixMs = expires("30d").as_str().unwrap().parse().unwrap();
        let days = at.since(SystemTime::now().into()).as_secs_f64() / 86_400.0;
        assert!((29.99..=30.0).contains(&days), "{days}");
    }
}
