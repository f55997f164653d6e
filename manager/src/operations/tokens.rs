//! Tokens: lists, creates, changes, rotates and removes them, for HTTP and the command line.
//!
//! The secret of a token is in the response that creates it, and nowhere else.

mod own;
mod view;

use std::collections::BTreeMap;
use std::slice;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lisa_core::broker::{Broker, BrokerError, MAX_TOKENS, StoredToken, TokenChange};
use lisa_core::fields::plain;
use lisa_core::names::{TokenName, words};
use lisa_core::topic::NamePattern;
use lisa_service::config::Config;
use lisa_service::http::auth::{
    NewToken, Token, TokenDefinition, TokenHash, TokenRecord, TokenSet,
};
use lisa_service::http::{Problem, ProblemCode};
use tokio::time::timeout;

pub(crate) use self::own::{OwnToken, QuotaUse};
pub(crate) use self::view::{
    ChangedToken, DamagedToken, TokenBody, TokenList, TokenView, described,
};
use super::audit::{self, Action};

/// The bytes of a generated secret.
const TEXT_BYTES: usize = 32;
/// The start of each generated secret, by which people and scanners of secrets recognize it.
const TEXT_START: &str = "lisa_";
/// The longest time for which a response waits until its process has applied the change.
const FOLLOW_WITHIN: Duration = Duration::from_secs(5);
/// The tries of a change without a version, if others change the token at the same time.
const TRIES: usize = 5;

words!(
    /// A step of the replacement of a token's secret.
    RotationStep, "step of a rotation", {
        /// Generates a secret, and also accepts the previous one.
        Begin = "begin",
        /// Accepts only the new secret.
        Finish = "finish",
        /// Accepts only the previous secret.
        Cancel = "cancel",
    }
);

impl RotationStep {
    /// Returns the result of the step, as words that follow the name of the token.
    pub(crate) const fn outcome(self) -> &'static str {
        match self {
            Self::Begin => "has a new secret",
            Self::Finish => "has only its new secret",
            Self::Cancel => "has only its previous secret",
        }
    }
}

/// The tokens of a relay: those that were created by call, and those that a configuration declares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens<'a> {
    pub(crate) broker: &'a Broker,
    /// The configuration of this process.
    pub(crate) config: &'a Config,
    /// The tokens that this process accepts.
    pub(crate) accepted: &'a TokenSet,
}

/// A change of a token that was read.
struct Change {
    record: TokenRecord,
    /// The generated secret, if any.
    text: Option<String>,
}

impl Tokens<'_> {
    /// Lists tokens by name: up to `limit` of those that begin with `prefix` and come after `after`.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub(crate) async fn list(
        self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<TokenList, BrokerError> {
        let is_listed =
            |name: &str| name.starts_with(prefix) && after.is_none_or(|after| name > after);
        let stored = self.broker.tokens().await?.tokens.into_iter();
        let stored = stored.filter(|stored| is_listed(stored.name.as_str()));
        let mut all: BTreeMap<String, (Option<StoredToken>, Option<&Token>)> = BTreeMap::new();
        for stored in stored {
            all.insert(stored.name.to_string(), (Some(stored), None));
        }
        let declared = self.config.auth.tokens.iter();
        for token in declared.filter(|token| is_listed(token.name())) {
            all.entry(token.name().to_owned()).or_default().1 = Some(token);
        }
        let has_more = all.len() > limit;
        let mut list = TokenList::default();
        for (name, (stored, declared)) in all.into_iter().take(limit) {
            match (stored, declared) {
                (stored, Some(declared)) => list.tokens.push(TokenView {
                    declared_in_file: true,
                    hides_stored: stored.is_some(),
                    ..TokenView::of(declared)
                }),
                (Some(stored), None) => match TokenRecord::parse(&stored.record) {
                    Ok(record) => {
                        let view = TokenView::of_record(&stored.name, stored.version, &record);
                        list.tokens.push(view);
                    }
                    Err(error) => list.damaged.push(DamagedToken {
                        token: stored.name,
                        error,
                    }),
                },
                (None, None) => {}
            }
            list.next = Some(name).filter(|_| has_more);
        }
        self.add_uses(&mut list.tokens).await?;
        Ok(list)
    }

    /// Adds the last uses of previous secrets. Costs one command if a token has one.
    async fn add_uses(self, views: &mut [TokenView]) -> Result<(), BrokerError> {
        if views.iter().all(|view| view.previous_mark.is_none()) {
            return Ok(());
        }
        let uses = self.broker.previous_uses().await?;
        for view in views {
            let last = uses.get(&view.token);
            let last = last.filter(|of| Some(&of.mark) == view.previous_mark.as_ref());
            view.previous_used = last.map(|of| of.at.to_string());
        }
        Ok(())
    }

    /// Returns a token.
    ///
    /// # Errors
    /// There is none, or it cannot be read; Redis.
    pub(crate) async fn show(self, name: &str) -> Result<TokenView, Problem> {
        let mut declared = self.config.auth.tokens.iter();
        let declared = declared.find(|token| token.name() == name);
        let stored = match name.parse::<TokenName>() {
            Ok(name) => self.broker.token(&name).await?,
            Err(_) => None,
        };
        let mut view = match (declared, stored) {
            (Some(declared), stored) => TokenView {
                declared_in_file: true,
                hides_stored: stored.is_some(),
                ..TokenView::of(declared)
            },
            (None, Some(stored)) => {
                let record = read(&stored)?;
                TokenView::of_record(&stored.name, stored.version, &record)
            }
            (None, None) => return Err(unknown(name)),
        };
        self.add_uses(slice::from_mut(&mut view)).await?;
        Ok(view)
    }

    /// Creates a token, or replaces its definition, if it is at the version `at`: 0 if it must not exist. Returns it, and whether it
    /// is new.
    ///
    /// # Errors
    /// The configuration declares it, or no token at all; it is at another version; it is too large; there are too many; it
    /// would expire in the past; Redis.
    pub(crate) async fn put(
        self,
        name: &TokenName,
        new: &NewToken,
        at: Option<u64>,
        action: impl Fn(&str) -> Action,
    ) -> Result<(ChangedToken, bool), Problem> {
        self.require_tokens()?;
        self.not_in_file(name)?;
        let (create, change) = (action("create_token"), action("change_token"));
        let creator = create.who().to_owned();
        let about = format!("{name}, {}", extent(&new.definition));
        let make = |before: Option<&TokenRecord>| {
            // Another field of a token that has expired can still be changed.
            let had = before.and_then(|before| before.definition.expires);
            if new.definition.expires != had && new.definition.has_expired() {
                return Err(invalid("expires", "is in the past"));
            }
            let (sha256, previous_sha256, text) = match (new.sha256, before) {
                (Some(sha256), _) => (sha256, new.previous_sha256, None),
                (None, Some(before)) => (before.sha256, before.previous_sha256, None),
                (None, None) => {
                    let text = generate()?;
                    (TokenHash::of(&text), None, Some(text))
                }
            };
            let record = TokenRecord {
                definition: new.definition.clone(),
                sha256,
                previous_sha256,
                created: before.map_or_else(|| self.broker.now(), |before| before.created),
                created_by: before.map_or_else(|| creator.clone(), |b| b.created_by.clone()),
            };
            Ok(Change { record, text })
        };
        // A damaged record is replaced as if there were none.
        let is_new = self.broker.token(name).await?.is_none();
        let action = if is_new { create } else { change };
        let action = action.details(about);
        let change = action.run(self.change(name, at, make), |(_, changed, _)| {
            audit::changed(*changed)
        });
        let (token, _, was_there) = change.await?;
        self.follow().await;
        Ok((token, !was_there))
    }

    /// Replaces the secret of a token in steps, if it is at the version `at`. A step that is done already changes nothing. Returns the
    /// token, and whether the step has changed it.
    ///
    /// # Errors
    /// There is no such token; the configuration declares it; it is at another version; its previous secret is still accepted; Redis.
    pub(crate) async fn rotate(
        self,
        name: &TokenName,
        step: RotationStep,
        at: Option<u64>,
        action: Action,
    ) -> Result<(ChangedToken, bool), Problem> {
        self.not_in_file(name)?;
        let make = |before: Option<&TokenRecord>| {
            let before = before.ok_or_else(|| unknown(name.as_str()))?;
            let mut change = Change {
                record: before.clone(),
                text: None,
            };
            let record = &mut change.record;
            match (step, record.previous_sha256) {
                (RotationStep::Begin, Some(_)) => {
                    let why = format!(
                        "token {name} still has a previous secret: `finish` if its clients have the new one, or `cancel` to keep the \
                         previous one"
                    );
                    return Err(Problem::new(ProblemCode::Busy, why));
                }
                (RotationStep::Begin, None) => {
                    let text = generate()?;
                    record.previous_sha256 = Some(record.sha256);
                    record.sha256 = TokenHash::of(&text);
                    change.text = Some(text);
                }
                (RotationStep::Finish, _) => record.previous_sha256 = None,
                (RotationStep::Cancel, Some(previous)) => {
                    record.previous_sha256 = None;
                    record.sha256 = previous;
                }
                (RotationStep::Cancel, None) => {}
            }
            Ok(change)
        };
        let action = action.details(format!("{name}, {step}"));
        let change = action.run(self.change(name, at, make), |(_, changed, _)| {
            audit::changed(*changed)
        });
        let (token, changed, _) = change.await?;
        self.follow().await;
        Ok((token, changed))
    }

    /// Removes a stored token, if it is at the version `at`. From then on, no process accepts it.
    ///
    /// # Errors
    /// There is none; only the configuration declares it; it is at another version; Redis.
    pub(crate) async fn remove(
        self,
        name: &TokenName,
        at: Option<u64>,
        action: Action,
    ) -> Result<(), Problem> {
        // Also one that a token of the file hides: otherwise, it would be accepted again after an edit of the file.
        if self.broker.token(name).await?.is_none() {
            self.not_in_file(name)?;
            return Err(unknown(name.as_str()));
        }
        let remove = async {
            for _ in 0..TRIES {
                let Some(stored) = self.broker.token(name).await? else {
                    return Err(unknown(name.as_str()));
                };
                if at.is_some_and(|at| at != stored.version) {
                    return Err(other(name, stored.version));
                }
                match self.broker.change_token(name, None, stored.version).await? {
                    TokenChange::Changed(_) => {
                        self.forget_use(name).await;
                        return Ok(());
                    }
                    TokenChange::Other(_) | TokenChange::Full => {}
                }
            }
            Err(changing(name))
        };
        let remove = action.details(name).run(remove, |()| audit::changed(true));
        remove.await?;
        self.follow().await;
        Ok(())
    }

    /// Applies a change in this process before its response, so that the caller can use the new secret at once. If Redis does not answer in
    /// time, this process follows as all others do.
    async fn follow(self) {
        let read = timeout(FOLLOW_WITHIN, self.accepted.read_stored(self.broker));
        if let Ok(Err(error)) = read.await {
            tracing::debug!(%error, "cannot read the stored tokens; retrying");
        }
    }

    /// Forgets the use of a previous secret that is no longer accepted. A failure is harmless: a use is shown only with its secret.
    async fn forget_use(self, name: &TokenName) {
        if let Err(error) = self.broker.forget_previous_use(name).await {
            tracing::debug!(%error, "cannot forget the use of a previous secret");
        }
    }

    /// Changes a record. Returns the token, whether that changed anything, and whether there was a token before.
    async fn change(
        self,
        name: &TokenName,
        at: Option<u64>,
        make: impl Fn(Option<&TokenRecord>) -> Result<Change, Problem>,
    ) -> Result<(ChangedToken, bool, bool), Problem> {
        let changed = |version, record: &TokenRecord, text| ChangedToken {
            view: TokenView::of_record(name, version, record),
            secret: text,
        };
        let mut refused: Option<(Change, bool)> = None;
        for _ in 0..TRIES {
            let stored = self.broker.token(name).await?;
            let version = stored.as_ref().map_or(0, |stored| stored.version);
            let before = stored.as_ref().and_then(|stored| read(stored).ok());
            // The call was repeated because its reply was lost, and it has found its own record.
            if let Some((Change { record, text }, was_there)) = refused.take()
                && before.as_ref() == Some(&record)
            {
                return Ok((changed(version, &record, text), true, was_there));
            }
            let Change { record, text } = make(before.as_ref())?;
            if before.as_ref() == Some(&record) {
                return Ok((changed(version, &record, None), false, true));
            }
            if at.is_some_and(|at| at != version) {
                return Err(other(name, version));
            }
            let stored_text = record.text().map_err(|why| invalid("topics", &why))?;
            let change = self.broker.change_token(name, Some(&stored_text), version);
            match change.await? {
                TokenChange::Changed(new) => {
                    let had = before.and_then(|before| before.previous_sha256);
                    if had.is_some() && had != record.previous_sha256 {
                        self.forget_use(name).await;
                    }
                    return Ok((changed(new, &record, text), true, stored.is_some()));
                }
                TokenChange::Full => {
                    let why = format!("the limit of {MAX_TOKENS} tokens is reached");
                    return Err(Problem::new(ProblemCode::Busy, why));
                }
                TokenChange::Other(_) => {
                    refused = Some((Change { record, text }, stored.is_some()))
                }
            }
        }
        Err(changing(name))
    }

    /// Refuses to store a token where none would be accepted.
    fn require_tokens(self) -> Result<(), Problem> {
        if !self.config.auth.tokens.is_empty() {
            return Ok(());
        }
        let why = "the managers' configuration has no token, so every route is open: add one to auth.tokens, and reload all processes";
        Err(Problem::new(ProblemCode::Invalid, why)
            .error("auth.tokens", "missing in the configuration"))
    }

    /// Refuses to change a token that the managers' configuration declares.
    ///
    /// # Errors
    /// It declares the token.
    pub(crate) fn not_in_file(self, name: &TokenName) -> Result<(), Problem> {
        let mut declared = self.config.auth.tokens.iter();
        if declared.all(|token| token.name() != name.as_str()) {
            return Ok(());
        }
        let why = format!(
            "the managers' configuration declares token {name}: edit auth.tokens there, and reload all processes"
        );
        Err(Problem::new(ProblemCode::DeclaredInFile, why))
    }
}

/// Returns a new secret of 256 random bits.
fn generate() -> Result<String, Problem> {
    let mut bytes = [0; TEXT_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| {
        let why = format!("the system has no random numbers: {error}");
        Problem::new(ProblemCode::Internal, why)
    })?;
    Ok(format!("{TEXT_START}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// Returns the permissions of a token for the audit log.
fn extent(definition: &TokenDefinition) -> String {
    let scopes: Vec<_> = definition
        .scopes
        .iter()
        .map(|scope| scope.as_str())
        .collect();
    let mut text = scopes.join("+");
    for (what, patterns) in [
        ("topics", &definition.topics),
        ("groups", &definition.groups),
        ("schedules", &definition.schedules),
    ] {
        let patterns = patterns.iter().flatten().map(NamePattern::as_str);
        let patterns: Vec<_> = patterns.collect();
        if !patterns.is_empty() {
            text += &format!(", {what} {}", patterns.join(" "));
        }
    }
    if let Some(expires) = definition.expires {
        text += &format!(", expires {expires}");
    }
    if let Some(sends) = definition.sends_per_second {
        text += &format!(", {sends} sends/s");
    }
    for (name, value) in definition.quotas() {
        if let Some(value) = value {
            text += &format!(", {name} {}", plain(&value));
        }
    }
    text
}

fn read(stored: &StoredToken) -> Result<TokenRecord, Problem> {
    TokenRecord::parse(&stored.record).map_err(|error| {
        let why = format!(
            "the record of token {} cannot be read: {error}",
            stored.name
        );
        Problem::new(ProblemCode::Internal, why)
    })
}

fn unknown(name: &str) -> Problem {
    let why = format!("there is no token {name:?}");
    Problem::new(ProblemCode::NotFound, why)
}

fn other(name: &TokenName, version: u64) -> Problem {
    let why = match version {
        0 => format!("token {name} does not exist"),
        version => {
            format!("token {name} already exists or has changed: it is at version {version}")
        }
    };
    Problem::new(ProblemCode::PreconditionFailed, why)
}

fn changing(name: &TokenName) -> Problem {
    let why = format!("token {name} changes too often; repeat the request");
    Problem::new(ProblemCode::Busy, why)
}

fn invalid(field: &str, why: &str) -> Problem {
    Problem::new(ProblemCode::Invalid, format!("{field}: {why}")).error(field, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_texts_have_256_random_bits() {
        let (one, other) = (generate().unwrap(), generate().unwrap());
        assert_ne!(one, other);
        let coded = one.strip_prefix(TEXT_START).unwrap();
        assert_eq!(URL_SAFE_NO_PAD.decode(coded).unwrap().len(), TEXT_BYTES);
    }
}
