//! The token of the request that is being answered, and the part of its quotas that is used.

use std::slice;

use lisa_core::topic::{Size, TopicQuotaUse};
use lisa_service::http::auth::Token;
use lisa_service::http::client::token_name;
use lisa_service::http::{Problem, ProblemCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Tokens;
use super::view::TokenView;

/// The token of a request, without its secret and hashes, and what is used of its quotas.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct OwnToken {
    #[serde(flatten)]
    pub(crate) view: TokenView,
    pub(crate) used: QuotaUse,
}

/// The parts of a token's quotas that are used, also by other tokens that reach the same names. Absent without the quota.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct QuotaUse {
    /// The topics that the token reaches, of `max_topics`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) topics: Option<u64>,
    /// The streams of the topics that the token reaches, of `max_streams`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) streams: Option<u64>,
    /// The sum of `max_messages` of these topics, of the token's `max_messages`. A topic without a limit counts as an equal part, and one
    /// that holds more than its limit as what it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) messages: Option<u64>,
    /// The same for `max_bytes`, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub(crate) bytes: Option<Size>,
    /// The stored schedules with the names that it reaches, of `max_schedules`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) schedules: Option<u64>,
}

impl Tokens<'_> {
    /// Returns the token of the request that is being answered, or of the session.
    ///
    /// # Errors
    /// The request has none; Redis.
    pub(crate) async fn own(self) -> Result<OwnToken, Problem> {
        let Some(name) = token_name() else {
            let why = "no tokens are configured: every route is open";
            return Err(Problem::new(ProblemCode::NotFound, why));
        };
        // It may have been removed since it was accepted.
        let token = self.accepted.by_name(&name);
        let token = token.ok_or_else(|| super::unknown(&name))?;
        let mut declared = self.config.auth.tokens.iter();
        let mut view = TokenView {
            declared_in_file: declared.any(|declared| declared.name() == &*name),
            ..TokenView::of(&token)
        };
        self.add_uses(slice::from_mut(&mut view)).await?;
        Ok(OwnToken {
            view,
            used: self.used(&token).await?,
        })
    }

    async fn used(self, token: &Token) -> Result<QuotaUse, Problem> {
        let mut used = QuotaUse::default();
        if let Some(quota) = token.topic_quota() {
            let TopicQuotaUse {
                topics,
                streams,
                messages,
                bytes,
            } = self.broker.topic_quota_use(quota).await?;
            used.topics = Some(topics as u64);
            used.streams = Some(streams);
            used.messages = messages;
            used.bytes = bytes.map(Size::new);
        }
        if let Some(quota) = token.schedule_quota() {
            used.schedules = Some(self.broker.count_schedules(quota).await?);
        }
        Ok(used)
    }
}
