//! `AddPermission` and `RemovePermission`, which edit the attribute `Policy`. It has no effect: tokens decide what clients may do.

use axum::response::Response;
use lisa_core::topic::TopicSettings;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Call;
use super::changes::change;
use super::protocol::{Kind, SqsError, ok, or_default};
use super::queue_attributes::{self as attributes, Texts};
use super::send::is_name;

const POLICY: &str = "Policy";
/// The most actions of a permission.
const MAX_ACTIONS: usize = 7;
/// The actions that a permission can allow.
const GRANTED: [&str; 10] = [
    "*",
    "ChangeMessageVisibility",
    "DeleteMessage",
    "GetQueueAttributes",
    "GetQueueUrl",
    "ListDeadLetterSourceQueues",
    "ListQueueTags",
    "PurgeQueue",
    "ReceiveMessage",
    "SendMessage",
];

/// The parameters of `AddPermission`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Add {
    queue_url: Option<String>,
    label: Option<String>,
    #[serde(rename = "AWSAccountIds", default, deserialize_with = "or_default")]
    accounts: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    actions: Vec<String>,
}

/// The parameters of `RemovePermission`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Remove {
    queue_url: Option<String>,
    label: Option<String>,
}

/// Returns the label of a permission.
fn label(given: Option<&str>) -> Result<&str, SqsError> {
    let label = given.ok_or_else(|| SqsError::missing("Label"))?;
    match is_name(label) {
        true => Ok(label),
        false => {
            let reason = "Label can only include alphanumeric characters, hyphens and underscores. 1 to 80 in length";
            Err(SqsError::parameter("Label", label, reason))
        }
    }
}

/// Returns a list of one as its item, as AWS writes policies.
fn one_or_many(mut items: Vec<String>) -> Value {
    match items.len() {
        1 => items.remove(0).into(),
        _ => items.into(),
    }
}

impl Add {
    /// Checks the permission.
    fn check(&self) -> Result<(), SqsError> {
        if self.actions.is_empty() {
            return Err(SqsError::missing("Actions"));
        }
        let is_account =
            |account: &String| account.len() == 12 && account.bytes().all(|b| b.is_ascii_digit());
        if self.accounts.is_empty() || !self.accounts.iter().all(is_account) {
            let accounts = format!("[{}]", self.accounts.join(", "));
            return Err(SqsError::parameter(
                "PrincipalId",
                accounts,
                "Unable to verify",
            ));
        }
        if self.actions.len() > MAX_ACTIONS {
            let message = format!(
                "{} Actions were found, maximum allowed is {MAX_ACTIONS}.",
                self.actions.len()
            );
            return Err(SqsError::new(Kind::OverLimit, message));
        }
        let wrong = self
            .actions
            .iter()
            .find(|action| !GRANTED.contains(&action.as_str()));
        match wrong {
            None => Ok(()),
            Some(action) => {
                let reason = "Only the queue owner is allowed to invoke this action";
                let action = format!("SQS:{action}");
                Err(SqsError::parameter("ActionName", action, reason))
            }
        }
    }

    /// Returns the statement of a policy.
    fn statement(&self, label: &str, arn: &str) -> Value {
        let accounts = self.accounts.iter();
        let accounts = accounts.map(|account| format!("arn:aws:iam::{account}:root"));
        let actions = self.actions.iter().map(|action| format!("SQS:{action}"));
        json!({
            "Sid": label,
            "Effect": "Allow",
            "Principal": { "AWS": one_or_many(accounts.collect()) },
            "Action": one_or_many(actions.collect()),
            "Resource": arn,
        })
    }
}

/// Returns the kept policy, and its statements.
fn read(settings: &TopicSettings) -> (Map<String, Value>, Vec<Value>) {
    let text = settings.sqs.attributes.get(POLICY);
    let policy = text.and_then(|text| serde_json::from_str(text).ok());
    let mut policy: Map<String, Value> = policy.unwrap_or_default();
    let statements = match policy.remove("Statement") {
        Some(Value::Array(statements)) => statements,
        // A policy may have a single one.
        Some(one) => vec![one],
        None => Vec::new(),
    };
    (policy, statements)
}

/// Keeps a policy. One without statements is none.
fn write(
    settings: &mut TopicSettings,
    mut policy: Map<String, Value>,
    statements: Vec<Value>,
) -> Result<(), SqsError> {
    let text = match statements.is_empty() {
        true => String::new(),
        false => {
            policy.insert("Statement".to_owned(), statements.into());
            Value::Object(policy).to_string()
        }
    };
    let defaults = settings.clone();
    attributes::set(settings, "", POLICY, &text, &defaults)
}

fn is_allowed(call: &Call<'_>) -> Result<(), SqsError> {
    match call.options().ignore_attributes {
        true => Ok(()),
        false => {
            let message = "Permissions have no effect in Lisa, which refuses them: see consumer.gateway.sqs_ignore_attributes.";
            Err(SqsError::unsupported(message))
        }
    }
}

pub(super) async fn add(call: &Call<'_>, request: Add) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    let label = label(request.label.as_deref())?;
    request.check()?;
    is_allowed(call)?;
    let arn = call.arn(&queue.name);
    let given = Texts::from([("permission".to_owned(), label.to_owned())]);
    change(call, &queue, "AddPermission", &given, |settings| {
        let (mut policy, mut statements) = read(settings);
        if statements.iter().any(|one| one["Sid"] == label) {
            return Err(SqsError::parameter("Label", label, "Already exists"));
        }
        statements.push(request.statement(label, &arn));
        let version = policy.entry("Version");
        version.or_insert_with(|| "2008-10-17".into());
        let id = policy.entry("Id");
        id.or_insert_with(|| format!("{arn}/SQSDefaultPolicy").into());
        write(settings, policy, statements)
    })
    .await?;
    Ok(ok(&json!({})))
}

pub(super) async fn remove(call: &Call<'_>, request: Remove) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    let label = label(request.label.as_deref())?;
    let given = Texts::from([("no permission".to_owned(), label.to_owned())]);
    change(call, &queue, "RemovePermission", &given, |settings| {
        let (policy, mut statements) = read(settings);
        let before = statements.len();
        statements.retain(|one| one["Sid"] != label);
        if statements.len() == before {
            return Err(SqsError::parameter("Label", label, "can't find label"));
        }
        write(settings, policy, statements)
    })
    .await?;
    Ok(ok(&json!({})))
}
