//! `audit`: lists the actions of operators.

use lisa_service::cli::{Output, Rows};

use crate::cli::args::AuditArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::operations::audit::AuditPage;

/// Prints a page of the audit log.
pub(crate) async fn audit(
    client: &Client,
    args: &AuditArgs,
    output: &Output,
) -> Result<(), CliError> {
    let call = client.get(&["audit"]).query("limit", Some(args.limit));
    let page: AuditPage = call.query("cursor", args.cursor).answer().await?;
    let mut rows = Rows::new([
        "TIME", "VIA", "WHO", "ACTION", "TOPIC", "GROUP", "DETAILS", "OUTCOME",
    ]);
    for entry in &page.entries {
        rows.add_row([
            entry.at.as_str(),
            &entry.via,
            entry.who.as_deref().unwrap_or_default(),
            &entry.action,
            entry.topic.as_deref().unwrap_or_default(),
            entry.group.as_deref().unwrap_or_default(),
            entry.details.as_deref().unwrap_or_default(),
            &entry.outcome,
        ]);
    }
    output.list(&page, Some("entries"), &rows)?;
    match &page.next {
        Some(next) => Ok(output.note(&format!("more: --cursor {next}"))?),
        None => Ok(()),
    }
}
