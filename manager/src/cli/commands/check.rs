//! `check`: reports the health of the relay in one line and as an exit code, for Nagios and scripts.

use lisa_service::cli::{Output, escape};

use super::{counted, in_ms, print};
use crate::cli::args::CheckArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::operations::attention::{Attention, Status};

/// Checks all topics, or one. Returns the exit code; a failure to read is unknown.
pub(crate) async fn check(
    client: Result<Client, CliError>,
    args: &CheckArgs,
    output: &Output,
) -> Result<u8, CliError> {
    let attention = match client {
        Ok(client) => read(&client, args).await,
        Err(error) => Err(error),
    };
    let attention = attention.unwrap_or_else(|error| Attention::unreadable(error.to_string()));
    match output.is_table() {
        false => output.object(&attention)?,
        true => print(&text(&attention))?,
    }
    Ok(match attention.status {
        Status::Ok | Status::Notice => 0,
        Status::Warning => 1,
        Status::Critical => 2,
        Status::Unknown => 3,
    })
}

async fn read(client: &Client, args: &CheckArgs) -> Result<Attention, CliError> {
    let call = client
        .get(&["attention"])
        .query("topic", args.topic.as_ref());
    let call = call.query("late", args.late.map(in_ms));
    let call = call.query("oldest", args.oldest.map(in_ms));
    let read: Attention = call.query("garbage", args.garbage).answer().await?;
    // The status follows from the troubles, whatever the server says.
    Ok(Attention::new(read.troubles, read.lost))
}

/// Returns the line of a check.
fn text(attention: &Attention) -> String {
    let mut all: Vec<_> = { attention.troubles.iter() }
        .map(|trouble| match trouble.subject() {
            subject if subject.is_empty() => trouble.what.clone(),
            subject => format!("{subject}: {}", trouble.what),
        })
        .map(|line| escape(&line).into_owned())
        .collect();
    if all.is_empty() {
        all.push("no problems".to_owned());
    }
    if attention.lost > 0 {
        let messages = counted(attention.lost, "message");
        all.push(format!("{messages} counted as lost earlier"));
    }
    let status = match attention.status {
        Status::Notice => Status::Ok,
        status => status,
    };
    let status = status.as_str().to_uppercase();
    format!("LISA {status}: {}", all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::attention::{ReportedKind, Trouble, TroubleKind};

    fn attention(troubles: usize, lost: u64) -> Attention {
        let trouble = |_| Trouble {
            status: Status::Warning,
            kind: ReportedKind::Known(TroubleKind::Garbage),
            topic: Some("t".to_owned()),
            group: None,
            schedule: None,
            what: "x".to_owned(),
        };
        Attention {
            status: if troubles > 0 {
                Status::Warning
            } else {
                Status::Ok
            },
            troubles: (0..troubles).map(trouble).collect(),
            lost,
        }
    }

    #[test]
    fn the_text_is_one_line() {
        assert_eq!(text(&attention(0, 0)), "LISA OK: no problems");
        assert_eq!(text(&attention(2, 0)), "LISA WARNING: t: x; t: x");
    }

    #[test]
    fn messages_that_were_counted_as_lost_are_named_and_change_no_status() {
        assert_eq!(
            text(&attention(0, 1)),
            "LISA OK: no problems; 1 message counted as lost earlier"
        );
        assert_eq!(
            text(&attention(1, 2)),
            "LISA WARNING: t: x; 2 messages counted as lost earlier"
        );
    }
}
