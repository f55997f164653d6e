//! `tokens`: lists tokens, shows, creates, changes, rotates and removes one, and shows that of the caller.

use lisa_core::fields::plain;
use lisa_core::names::TokenName;
use lisa_core::topic::{NamePattern, Size};
use lisa_service::cli::{Output, Rows, remark};
use lisa_service::http::auth::Scope;
use reqwest::{Method, StatusCode};
use serde_json::{Value as Json, json};

use super::{again_if_changed, print};
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::cli::setting::{Setting, set_all};
use crate::operations::tokens::{
    ChangedToken, OwnToken, QuotaUse, RotationStep, TokenList, TokenView, described,
};

/// The tokens of one request.
const AT_A_TIME: usize = 1000;

/// Prints the tokens whose names begin with `prefix`.
pub(crate) async fn list(
    client: &Client,
    prefix: Option<&str>,
    output: &Output,
) -> Result<(), CliError> {
    let mut all = TokenList::default();
    let mut cursor = None;
    loop {
        let page = client.call(Method::GET, &["tokens"], Scope::Tokens);
        let page = page.query("limit", Some(AT_A_TIME));
        let page = page.query("prefix", prefix).query("cursor", cursor);
        let page: TokenList = page.answer().await?;
        all.tokens.extend(page.tokens);
        all.damaged.extend(page.damaged);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    if let Some(loaded) = client.configuration()
        && loaded.file.is_none()
    {
        remark(format_args!(
            "name the managers' configuration file with --config to list the tokens that it declares as well"
        ));
    }
    let columns = ["TOKEN", "STATE", "SOURCE", "SCOPES", "LIMITS", "EXPIRES"];
    let mut table = Rows::new(columns).marks(["STATE"]);
    for token in &all.tokens {
        table.add_row([
            token.token.as_str(),
            token.state(),
            source(token),
            &scopes(token),
            &limits(token),
            token.expires.as_deref().unwrap_or_default(),
        ]);
    }
    output.list(&all, Some("tokens"), &table)?;
    let damaged = all.damaged.iter();
    let damaged = damaged.map(|one| format!("token {}: {}", one.token, one.error));
    match &damaged.collect::<Vec<_>>()[..] {
        [] => Ok(()),
        damaged => Err(CliError::Failed(damaged.join("\n"))),
    }
}

/// Prints a token.
pub(crate) async fn show(client: &Client, name: &str, output: &Output) -> Result<(), CliError> {
    let token = client.call(Method::GET, &["tokens", name], Scope::Tokens);
    let token: TokenView = token.answer().await?;
    if !output.is_table() {
        return Ok(output.object(&token)?);
    }
    print_lines(&token, QuotaUse::default())?;
    if token.hides_stored {
        remark(format_args!(
            "note: a stored token has the same name, and is not accepted; remove it with `tokens remove {name}`"
        ));
    }
    Ok(())
}

/// Prints the token that the manager at `--url` gets, and the part of its quotas that is used.
pub(crate) async fn whoami(client: &Client, output: &Output) -> Result<(), CliError> {
    if client.broker().is_some() {
        let why = "pass --url: without it, the command line works on Redis, and has no token";
        return Err(CliError::Usage(why.to_owned()));
    }
    let token: OwnToken = client.call(Method::GET, &["token"], None).answer().await?;
    if !output.is_table() {
        return Ok(output.object(&token)?);
    }
    print_lines(&token.view, token.used)
}

/// Prints the fields of a token, one per line, including the limits that are not set. A quota has the part that is used in
/// parentheses, if that is known.
fn print_lines(token: &TokenView, used: QuotaUse) -> Result<(), CliError> {
    let state = Some(token.state()).filter(|state| !state.is_empty());
    let number = |number: Option<u64>| number.map(|number| number.to_string());
    let size = |size: Option<Size>| size.map(|size| size.to_string());
    // `max_messages` and `max_bytes` limit the sums of the limits of its topics, not what these hold.
    let allocated = "allocated to its topics";
    let quotas = [
        (
            number(token.max_topics.map(u64::from)),
            number(used.topics),
            "exist",
        ),
        (
            number(token.max_streams.map(u64::from)),
            number(used.streams),
            "exist",
        ),
        (number(token.max_messages), number(used.messages), allocated),
        (size(token.max_bytes), size(used.bytes), allocated),
        (
            number(token.max_schedules.map(u64::from)),
            number(used.schedules),
            "exist",
        ),
    ];
    let [
        max_topics,
        max_streams,
        max_messages,
        max_bytes,
        max_schedules,
    ] = quotas.map(|(quota, used, how)| match (quota, used) {
        (Some(quota), Some(used)) => format!("{quota} ({used} {how})"),
        (quota, _) => quota.unwrap_or_else(|| "no limit".to_owned()),
    });
    let sends = number(token.sends_per_second.map(u64::from));
    let all = |patterns: Option<&Vec<NamePattern>>, otherwise: &str| match patterns {
        Some(_) => names(patterns),
        None => otherwise.to_owned(),
    };
    let schedules = match &token.topics {
        Some(_) => "the names in topics",
        None => "all",
    };
    let always = [
        ("token", token.token.clone()),
        ("scopes", scopes(token)),
        ("topics", all(token.topics.as_ref(), "all")),
        ("groups", all(token.groups.as_ref(), "all")),
        ("schedules", all(token.schedules.as_ref(), schedules)),
        ("expires", token.expires.clone().unwrap_or("never".into())),
        ("sends/s", sends.unwrap_or("no limit".into())),
        ("max topics", max_topics),
        ("max streams", max_streams),
        ("max messages", max_messages),
        ("max bytes", max_bytes),
        ("max schedules", max_schedules),
        ("state", state.unwrap_or("valid").to_owned()),
        ("source", source(token).to_owned()),
    ];
    let never = token.is_rotating.then(|| "never".to_owned());
    let previous_used = token.previous_used.clone().or(never);
    let known = [
        ("previous used", &previous_used),
        ("created", &token.created),
        ("created by", &token.created_by),
    ];
    let known = known.into_iter();
    let known = known.filter_map(|(name, value)| Some((name, value.clone()?)));
    let lines = always.into_iter().chain(known);
    let lines = lines.map(|(name, value)| format!("{name:<13} {value}"));
    print(&lines.collect::<Vec<_>>().join("\n"))
}

/// Creates a token, or changes fields of one and keeps the others, including concurrent changes to them.
pub(crate) async fn put(
    client: &Client,
    name: &TokenName,
    settings: &[Setting],
    output: &Output,
) -> Result<(), CliError> {
    client.require_managers_file()?;
    let (version, status, token) =
        again_if_changed(async || read_and_put(client, name, settings).await).await?;
    let what = match status {
        StatusCode::CREATED => "is created",
        _ if token.view.version == version => "has these permissions already",
        _ => "is changed",
    };
    report(&token, what, output)
}

/// Reads a token, then creates or changes it. Returns the version that it had, the status of the response, and the new token.
async fn read_and_put(
    client: &Client,
    name: &TokenName,
    settings: &[Setting],
) -> Result<(Option<u64>, StatusCode, ChangedToken), CliError> {
    let path = ["tokens", name.as_str()];
    let read = client.call(Method::GET, &path, Scope::Tokens);
    let before: Option<TokenView> = match read.answer().await {
        Ok(before) => Some(before),
        Err(CliError::Refused(refusal)) if refusal.code() == "not_found" => None,
        Err(error) => return Err(error),
    };
    let definition = before
        .as_ref()
        .map(TokenView::definition)
        .unwrap_or_default();
    let body = set_all(definition, settings, &described());
    // Without a version, a file declares it: the response says so.
    let version = before.as_ref().and_then(|before| before.version);
    let tag = version.map(|version| format!("\"{version}\""));
    let call = client.call(Method::PUT, &path, Scope::Tokens);
    let call = match before {
        Some(_) => call.header("If-Match", tag.as_deref()),
        None => call.header("If-None-Match", Some("*")),
    };
    let put = call.json(&body.into()).answer_with_status();
    let (status, token) = put.await.map_err(CliError::about_settings)?;
    Ok((version, status, token))
}

/// Replaces the secret of a token, one step at a time.
pub(crate) async fn rotate(
    client: &Client,
    name: &TokenName,
    step: RotationStep,
    output: &Output,
) -> Result<(), CliError> {
    client.require_managers_file()?;
    // A step that is done already changes nothing, so the response is that of one that succeeds.
    let before = match step {
        RotationStep::Begin => None,
        RotationStep::Finish | RotationStep::Cancel => {
            let read = client.call(Method::GET, &["tokens", name.as_str()], Scope::Tokens);
            read.answer::<TokenView>().await?.version
        }
    };
    let path = ["tokens", name.as_str(), "rotate"];
    let call = client.call(Method::POST, &path, Scope::Tokens);
    let token: ChangedToken = call.json(&json!({ "step": step })).answer().await?;
    if before.is_some() && token.view.version == before && output.is_table() {
        return print(&format!(
            "no rotation of {name} is in progress; nothing was changed"
        ));
    }
    let what = match step {
        RotationStep::Begin => {
            "also has its previous secret until `tokens rotate --finish` or `--cancel`"
        }
        RotationStep::Finish | RotationStep::Cancel => step.outcome(),
    };
    report(&token, what, output)
}

/// Removes a token that was created by call.
pub(crate) async fn remove(
    client: &Client,
    name: &TokenName,
    output: &Output,
) -> Result<(), CliError> {
    client.require_managers_file()?;
    let path = ["tokens", name.as_str()];
    let call = client.call(Method::DELETE, &path, Scope::Tokens);
    call.answer::<()>().await?;
    if !output.is_table() {
        return Ok(output.object(&json!({ "token": name, "removed": true }))?);
    }
    print(&format!("{name} is removed"))
}

fn source(token: &TokenView) -> &'static str {
    match token.declared_in_file {
        true => "managers' configuration",
        false => "run time",
    }
}

fn scopes(token: &TokenView) -> String {
    let scopes: Vec<_> = token.scopes.iter().map(|scope| scope.as_str()).collect();
    scopes.join(", ")
}

/// Returns what a token reaches and its quotas, as they are entered: `topics=shop-* max_topics=20`; empty if it has no limit.
fn limits(token: &TokenView) -> String {
    let set = token.definition().into_iter();
    let are_those_of_topics = token.schedules == token.topics;
    let set = set.filter(|(name, _)| match &**name {
        "scopes" | "expires" => false,
        "schedules" => !are_those_of_topics,
        _ => true,
    });
    let limits = set.map(|(name, value)| match value {
        Json::Array(names) => {
            let names: Vec<_> = names.iter().map(plain).collect();
            format!("{name}={}", names.join(","))
        }
        value => format!("{name}={}", plain(&value)),
    });
    limits.collect::<Vec<_>>().join(" ")
}

fn names(patterns: Option<&Vec<NamePattern>>) -> String {
    let names: Vec<_> = patterns
        .into_iter()
        .flatten()
        .map(NamePattern::as_str)
        .collect();
    names.join(", ")
}

/// Prints a generated secret alone, so that it can be written to a file.
fn report(token: &ChangedToken, what: &str, output: &Output) -> Result<(), CliError> {
    if !output.is_table() {
        return Ok(output.object(token)?);
    }
    let name = &token.view.token;
    match &token.secret {
        Some(secret) => {
            remark(format_args!(
                "{name} {what}; its secret is shown only now. All processes accept it within 5 s:"
            ));
            print(secret)
        }
        None => print(&format!("{name} {what}")),
    }
}
