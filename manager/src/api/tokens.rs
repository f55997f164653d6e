//! Tokens: lists, shows, creates, changes, rotates and removes them.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State as With};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use lisa_core::broker::MAX_TOKEN_RECORD;
use lisa_core::fields;
use lisa_core::names::TokenName;
use lisa_service::http::auth::NewToken;
use lisa_service::http::body::read_limited;
use lisa_service::http::{Problem, Query, TokenPath, read_fields, read_object};

use super::precondition::{self, Tag};
use super::{Api, invalid};
use crate::operations::tokens::{
    ChangedToken, OwnToken, RotationStep, TokenBody, TokenList, TokenView, Tokens,
};

/// The largest body with a definition in bytes: JSON may need six for one.
const MAX_BODY: usize = 6 * MAX_TOKEN_RECORD;
/// The largest body with a step in bytes.
const MAX_STEP: usize = 1024;
/// No cache may keep a response with the secret of a token.
const NO_STORE: [(HeaderName, &str); 1] = [(CACHE_CONTROL, "no-store")];

fields! {
    #[derive(Clone, Debug)]
    pub(super) struct TokensQuery, query {
        /// Start of the names of the tokens to list. Default: all tokens.
        prefix: Option<String> = None;
        /// Tokens per page.
        limit: usize = 100, in 1..=1000;
        /// `next` of the previous page, with the same other parameters.
        cursor: Option<String> = None;
    }
}

fields! {
    /// A step of the replacement of a token's secret.
    #[derive(Clone, Debug)]
    pub(super) struct Rotation, schema = "Rotation" {
        /// `begin` generates a secret, and the previous one is accepted as well; `finish` ends that; `cancel` accepts only the previous one.
        step: RotationStep = RotationStep::Begin;
    }
}

/// Lists tokens by name, without their secrets and hashes: those that this manager's configuration declares, and those that were
/// created by call.
#[utoipa::path(get, operation_id = "list_tokens", path = "/v1/tokens", tag = "tokens", params(TokensQuery),
    responses((status = 200, description = "A page of tokens; `next` is null on the last page", body = TokenList)))]
pub(super) async fn list(
    With(api): With<Api>,
    Query(query): Query<TokensQuery>,
) -> Result<Json<TokenList>, Problem> {
    let prefix = query.prefix.as_deref().unwrap_or_default();
    let list = tokens(&api).list(prefix, query.cursor.as_deref(), query.limit);
    list.await.map(Json).map_err(Problem::from)
}

/// Returns a token, without its secret and hashes.
#[utoipa::path(get, operation_id = "show_token", path = "/v1/tokens/{token}", tag = "tokens", params(TokenPath),
    responses((status = 200, description = "The token; the header `ETag` has the version in quotes, unless a file declares it", body = TokenView),
        (status = 404, description = "not_found: no such token")))]
pub(super) async fn show(
    With(api): With<Api>,
    Path(path): Path<TokenPath>,
) -> Result<(Option<Tag>, Json<TokenView>), Problem> {
    let view = tokens(&api).show(&path.token).await?;
    Ok((view.version.map(precondition::tag), Json(view)))
}

/// Returns the token of this request, without its secret and hashes: its scopes, what it reaches, its quotas, and the part of them that is
/// used. Requires a token with any scope.
#[utoipa::path(get, operation_id = "show_own_token", path = "/v1/token", tag = "tokens",
    responses((status = 200, description = "The token", body = OwnToken),
        (status = 404, description = "not_found: no tokens are configured, so the request has none")))]
pub(super) async fn show_own(With(api): With<Api>) -> Result<Json<OwnToken>, Problem> {
    tokens(&api).own().await.map(Json)
}

/// Creates a token, or replaces its permissions.
///
/// Without `sha256`, a token that exists keeps its secret, and for a new one the manager generates a secret, which only this response has.
/// If the response is lost, rotate the token. All processes follow within 5 s. If the token already is as the body says, the request
/// succeeds regardless of its version. A token may get any scope, also one that the caller lacks.
#[utoipa::path(put, operation_id = "put_token", path = "/v1/tokens/{token}", tag = "tokens",
    params(TokenPath,
        ("If-Match" = Option<String>, Header, pattern = r#"^"[1-9][0-9]{0,17}"$"#, description = "An `ETag` of the token: changes it only if it still has this `ETag`, or is as the body says"),
        ("If-None-Match" = Option<String>, Header, pattern = r"^\*$", description = "`*`: creates the token; one that exists must be as the body says")),
    request_body = TokenBody,
    responses((status = 200, description = "The token; the header `ETag` has the version in quotes", body = ChangedToken),
        (status = 201, description = "The new token, with its secret if the manager has generated it", body = ChangedToken),
        (status = 409, description = "declared_in_file: the managers' configuration declares the token; busy: the limit of 1,000 tokens is reached"),
        (status = 412, description = "precondition_failed: the token has changed, exists, or does not exist"),
        (status = 422, description = "invalid: `errors` lists everything that is wrong; or the managers' configuration has no token, so every route is open")))]
pub(super) async fn put(
    With(api): With<Api>,
    Path(path): Path<TokenPath>,
    headers: HeaderMap,
    body: Body,
) -> Result<
    (
        StatusCode,
        [(HeaderName, &'static str); 1],
        Option<Tag>,
        Json<ChangedToken>,
    ),
    Problem,
> {
    let name = name(&path)?;
    let at = precondition::of_put(&headers)?;
    let body = read_limited(body, MAX_BODY, &api.bodies).await?;
    let new = NewToken::from_fields(&read_object(&body)?)?;
    let put = tokens(&api).put(&name, &new, at, |verb| api.action(verb));
    let (token, created) = put.await?;
    let status = match created {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    let tag = token.view.version.map(precondition::tag);
    Ok((status, NO_STORE, tag, Json(token)))
}

/// Replaces the secret of a token that was created by call, in two steps.
///
/// `begin` generates a secret, which only this response has; the previous secret is accepted as well. When all clients have the new secret,
/// `finish`. If the response is lost, `cancel` and begin again.
#[utoipa::path(post, operation_id = "rotate_token", path = "/v1/tokens/{token}/rotate", tag = "tokens",
    params(TokenPath,
        ("If-Match" = Option<String>, Header, pattern = r#"^"[1-9][0-9]{0,17}"$"#, description = "An `ETag` of the token: rotates it only if it still has this `ETag`, or the step is done already")),
    request_body = Rotation,
    responses((status = 200, description = "The token, after `begin` with its new secret; the header `ETag` has the version in quotes", body = ChangedToken),
        (status = 404, description = "not_found: no such token"),
        (status = 409, description = "declared_in_file: the managers' configuration declares the token; busy: its previous secret is still accepted"),
        (status = 412, description = "precondition_failed: the token has another `ETag`")))]
pub(super) async fn rotate(
    With(api): With<Api>,
    Path(path): Path<TokenPath>,
    headers: HeaderMap,
    body: Body,
) -> Result<
    (
        [(HeaderName, &'static str); 1],
        Option<Tag>,
        Json<ChangedToken>,
    ),
    Problem,
> {
    let name = name(&path)?;
    let at = precondition::if_match(&headers)?;
    let body = read_limited(body, MAX_STEP, &api.bodies).await?;
    let rotation: Rotation = read_fields(&body)?;
    let action = api.action("rotate_token");
    let rotate = tokens(&api).rotate(&name, rotation.step, at, action);
    let (token, _) = rotate.await?;
    let tag = token.view.version.map(precondition::tag);
    Ok((NO_STORE, tag, Json(token)))
}

/// Removes a token that was created by call. All processes refuse it within 5 s.
#[utoipa::path(delete, operation_id = "remove_token", path = "/v1/tokens/{token}", tag = "tokens",
    params(TokenPath,
        ("If-Match" = Option<String>, Header, pattern = r#"^"[1-9][0-9]{0,17}"$"#, description = "An `ETag` of the token: removes it only if it still has this `ETag`")),
    responses((status = 204, description = "The token was removed"),
        (status = 404, description = "not_found: no such token, or already removed"),
        (status = 409, description = "declared_in_file: the managers' configuration declares the token"),
        (status = 412, description = "precondition_failed: the token has another `ETag`")))]
pub(super) async fn remove(
    With(api): With<Api>,
    Path(path): Path<TokenPath>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let at = precondition::if_match(&headers)?;
    let action = api.action("remove_token");
    tokens(&api).remove(&name(&path)?, at, action).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn tokens(api: &Api) -> Tokens<'_> {
    Tokens {
        broker: &api.broker,
        config: &api.config,
        accepted: &api.tokens,
    }
}

fn name(path: &TokenPath) -> Result<TokenName, Problem> {
    path.token.parse().map_err(|error| invalid("token", &error))
}
