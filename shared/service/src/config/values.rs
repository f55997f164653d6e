//! The values of the configuration that only a service knows: addresses of webhooks, tokens, cron expressions.

use serde_json::{Value as Json, json};

use super::problem::{hide_login, hide_path};
use crate::cron::{Cron, TimeZone};
use crate::http::tls::ClientName;
use crate::http::{HostName, Origin};
use lisa_core::fields::{Given, Value};
use lisa_core::secret::Secret;
use lisa_core::text_value;

text_value! {
    Cron, "cron", "six fields, seconds first";
    TimeZone, "string", "a name of the IANA database";
    HostName, "string", "a host name without scheme and port";
    ClientName, "string", "a DNS name without wildcard";
    Origin, "string", "`http://` or `https://`, host, and port unless it is the scheme's own";
}

/// The address of a webhook, whose path or query may be a secret.
pub(crate) struct Address(pub(crate) String);

impl Value for Address {
    const KIND: &'static str = "string";

    fn allowed() -> String {
        "`http://` or `https://`, without user and password".into()
    }

    fn read(given: Given<'_>) -> Result<Self, String> {
        given.text().map(|text| Self(text.to_owned()))
    }

    fn show(&self) -> Json {
        hide_path(&self.0).into()
    }
}

/// The URL of a server, whose password is a secret.
pub(crate) struct ServerUrl(pub(crate) String);

impl Value for ServerUrl {
    const KIND: &'static str = "string";

    fn allowed() -> String {
        "the URL of a server".into()
    }

    fn read(given: Given<'_>) -> Result<Self, String> {
        given.text().map(|text| Self(text.to_owned()))
    }

    fn show(&self) -> Json {
        hide_login(&self.0).into()
    }
}

/// The SHA-256 of a token in hexadecimal; hidden, because a weak token could be guessed from it.
pub(crate) struct Hash(pub(crate) String);

impl Value for Hash {
    const SECRET: bool = true;
    const KIND: &'static str = "string";

    fn allowed() -> String {
        "64 hexadecimal digits".into()
    }

    fn read(given: Given<'_>) -> Result<Self, String> {
        let text = given.text()?;
        if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            Ok(Self(text.into()))
        } else {
            Err(
                "expected 64 hexadecimal digits: printf %s TOKEN | sha256sum | cut -d' ' -f1"
                    .into(),
            )
        }
    }

    fn show(&self) -> Json {
        Secret::new("").to_string().into()
    }
}

/// One value, or a list of them.
pub(crate) struct OneOrMany<T>(pub(crate) Vec<T>);

impl<T: Value> Value for OneOrMany<T> {
    const SECRET: bool = T::SECRET;
    const KIND: &'static str = "string or list";

    fn allowed() -> String {
        T::allowed()
    }

    fn read(given: Given<'_>) -> Result<Self, String> {
        match given {
            Given::Json(Json::String(_)) => T::read(given).map(|one| Self(vec![one])),
            _ => Vec::read(given).map(Self),
        }
    }

    fn show(&self) -> Json {
        self.0.show()
    }

    fn schema() -> Json {
        json!({ "type": ["string", "array"] })
    }
}
