//! Tokens with scopes. A client presents a bearer token, whose SHA-256 is compared in constant time, or a client certificate.
//!
//! Bearer tokens are random strings with names, not user passwords, so a fast hash is enough. Logs and `Debug` show names,
//! but never tokens or hashes.

mod last_use;
mod looks;
mod quota;
mod reach;
mod record;
mod stored;
mod token;

use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::MatchedPath;
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Request};
use axum::response::{IntoResponse, Response};
use futures_util::future::{BoxFuture, Either};
use lisa_core::broker::AllTokens;
use lisa_core::names::words;
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};
use tokio::task::futures::TaskLocalFuture;
use tower::{Layer, Service};

use self::looks::Looks;
pub use self::quota::SendQuota;
pub use self::reach::Reach;
pub use self::record::{NewToken, TokenDefinition, TokenHash, TokenRecord};
use self::stored::StoredTokens;
pub(crate) use self::token::parse_hex;
pub use self::token::{Token, TokenError};
use super::client::Admitted;
use super::problem::{Problem, ProblemCode};
use super::tls::{self, ClientCertificate};

words!(
    /// A permission of a token. No scope includes another.
    Scope, "scope", {
        /// Send, cancel and reschedule messages.
        Send = "send",
        /// Read statistics, topics, messages, schedules, jobs and workers.
        Read = "read",
        /// Create, change and remove topics and schedules; pause, resume, drain, drop, keep, requeue, purge, run jobs, and examine or repair topics.
        Operate = "operate",
        /// Pull messages from a gateway.
        Receive = "receive",
        /// See the payloads and headers of messages in the dashboard.
        Payload = "payload",
        /// Create, change, rotate and remove tokens with any scopes: the scope of administrators.
        Tokens = "tokens",
    }
);

impl Scope {
    /// Returns the `WWW-Authenticate` header for a token that lacks this scope.
    const fn challenge(self) -> &'static str {
        match self {
            Self::Send => r#"Bearer realm="lisa", error="insufficient_scope", scope="send""#,
            Self::Read => r#"Bearer realm="lisa", error="insufficient_scope", scope="read""#,
            Self::Operate => r#"Bearer realm="lisa", error="insufficient_scope", scope="operate""#,
            Self::Receive => r#"Bearer realm="lisa", error="insufficient_scope", scope="receive""#,
            Self::Payload => r#"Bearer realm="lisa", error="insufficient_scope", scope="payload""#,
            Self::Tokens => r#"Bearer realm="lisa", error="insufficient_scope", scope="tokens""#,
        }
    }
}

/// The refusal of an expired token.
pub const EXPIRED: &str = "the token has expired";

/// The refusal of a token that may be a stored one, before those are read.
pub const UNREAD: &str = "the stored tokens have not been read from Redis yet; nothing was done";

/// The reason why a request is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The token is missing, malformed, or neither configured nor stored.
    Unknown,
    /// The token is not configured, and the stored tokens are not read yet.
    Unread,
    /// The token has expired.
    Expired,
    /// The token is known but lacks this scope.
    Scope(Scope),
    /// The token does not reach what the request is about. The text says what it reaches.
    Reach(String),
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        let (code, detail, challenge) = match self {
            Self::Unread => return Problem::new(ProblemCode::Unavailable, UNREAD).into_response(),
            Self::Unknown => (
                ProblemCode::Unauthorized,
                "send a valid token in the header Authorization: Bearer <token>".to_owned(),
                r#"Bearer realm="lisa""#,
            ),
            Self::Expired => (
                ProblemCode::Unauthorized,
                EXPIRED.to_owned(),
                r#"Bearer realm="lisa", error="invalid_token""#,
            ),
            Self::Reach(why) => (
                ProblemCode::Forbidden,
                why,
                r#"Bearer realm="lisa", error="insufficient_scope""#,
            ),
            Self::Scope(scope) => (
                ProblemCode::Forbidden,
                format!(
                    "the token lacks the scope `{}`, which this route requires",
                    scope.as_str()
                ),
                scope.challenge(),
            ),
        };
        let mut response = Problem::new(code, detail).into_response();
        let challenge = HeaderValue::from_static(challenge);
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        response
    }
}

/// All tokens of a process: those of its configuration, and those that were created by call. Cheap to clone. Without configured
/// tokens, all routes are open, and stored ones do not count.
#[derive(Clone, Debug, Default)]
pub struct TokenSet {
    configured: Arc<[Arc<Token>]>,
    stored: StoredTokens,
    looks: Looks,
}

impl TokenSet {
    /// Creates a set of configured tokens.
    #[must_use]
    pub fn new(tokens: Vec<Token>) -> Self {
        Self {
            configured: tokens.into_iter().map(Arc::new).collect(),
            stored: StoredTokens::default(),
            looks: Looks::default(),
        }
    }

    /// Waits for stored tokens: until [`TokenSet::follow`], a token that is not configured may be one of them.
    #[must_use]
    pub fn awaiting_stored(self) -> Self {
        self.stored.forget();
        self
    }

    /// Returns true unless the stored tokens are still to be read.
    #[must_use]
    pub fn are_read(&self) -> bool {
        self.stored.known().is_read
    }

    /// Returns whether there is no configured token, so that nothing is protected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.configured.is_empty()
    }

    /// Replaces the stored tokens, in all clones of this set. One with the name of a configured token is not accepted.
    pub fn follow(&self, all: &AllTokens) {
        let is_configured = |name: &str| self.configured.iter().any(|token| token.name() == name);
        self.stored.replace(all, is_configured);
    }

    /// Returns the version of the stored tokens that this process knows; 0 if there are none.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.stored.known().version
    }

    /// Returns the presented token if it is known and has the scope.
    ///
    /// # Errors
    /// The token is unknown, has expired, or lacks the scope.
    pub fn check(&self, presented: &str, scope: Scope) -> Result<Arc<Token>, Denied> {
        self.check_of(presented, Some(scope))
    }

    /// Does the same as [`TokenSet::check`]; with `None`, accepts any scope.
    fn check_of(&self, presented: &str, scope: Option<Scope>) -> Result<Arc<Token>, Denied> {
        let token = match self.known(presented) {
            None if !self.are_read() => return Err(Denied::Unread),
            None => return Err(Denied::Unknown),
            Some(token) if token.has_expired() => return Err(Denied::Expired),
            Some(token) => token,
        };
        match scope {
            Some(scope) if !token.has(scope) => Err(Denied::Scope(scope)),
            _ => Ok(token),
        }
    }

    /// Returns the presented token if it is known and has not expired, whatever its scopes.
    #[must_use]
    pub fn find(&self, presented: &str) -> Option<Arc<Token>> {
        self.known(presented).filter(|token| !token.has_expired())
    }

    /// Compares with the hash of every configured token, so the time taken does not reveal which one was close.
    fn known(&self, presented: &str) -> Option<Arc<Token>> {
        if self.is_empty() {
            return None;
        }
        let hash: [u8; 32] = Sha256::digest(presented.as_bytes()).into();
        let mut found = u64::MAX;
        for (index, token) in (0_u64..).zip(self.configured.iter()) {
            for sha256 in token.hashes() {
                found.conditional_assign(&index, sha256.ct_eq(&hash));
            }
        }
        let found = usize::try_from(found).ok();
        let configured = found.and_then(|index| self.configured.get(index));
        let known = configured
            .or(self.stored.known().by_hash.get(&hash))
            .cloned();
        if let Some(known) = &known {
            known.note_use(&hash);
        }
        known
    }

    /// Returns the configured token with this name, which is not a secret, unless it has expired. Only such a token can have the
    /// secret key of signed requests: of stored ones there are only hashes.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Token> {
        let mut tokens = self.configured.iter();
        let named = tokens.find(|token| token.name() == name);
        named
            .map(|token| &**token)
            .filter(|token| !token.has_expired())
    }

    /// Returns the token with this name, configured or stored, unless it has expired.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<Arc<Token>> {
        if self.is_empty() {
            return None;
        }
        let mut tokens = self.configured.iter();
        let configured = tokens.find(|token| token.name() == name);
        let token = configured
            .or(self.stored.known().by_name.get(name))
            .cloned();
        token.filter(|token| !token.has_expired())
    }

    /// Returns true if a token is limited.
    #[must_use]
    pub fn has_limited(&self) -> bool {
        let mut configured = self.configured.iter();
        let is_limited = |token: &Arc<Token>| token.reach().is_limited();
        !self.is_empty() && (configured.any(is_limited) || self.stored.known().has_limited)
    }

    /// Returns a layer for routes that admits only tokens with `scope`.
    #[must_use]
    pub fn require(&self, scope: Scope) -> Require {
        Require {
            tokens: self.clone(),
            scope: Some(scope),
        }
    }

    /// Returns a layer that admits every token, whatever its scopes and limits: for routes that show nothing but the token itself.
    #[must_use]
    pub fn require_any(&self) -> Require {
        Require {
            tokens: self.clone(),
            scope: None,
        }
    }

    /// Admits a request by its headers, or else by the certificate of its client. Without a scope, admits every token, whatever it
    /// reaches. Records the token's name in the current span. Returns the token; `None` if no tokens are configured.
    pub(super) fn admit<B>(
        &self,
        request: &Request<B>,
        scope: Option<Scope>,
    ) -> Result<Option<Arc<Token>>, Denied> {
        if self.is_empty() {
            return Ok(None);
        }
        let token = match tls::client(request) {
            Some(client) => self.of_client(client, scope)?,
            None => self.check_of(bearer(request.headers()).ok_or(Denied::Unknown)?, scope)?,
        };
        tracing::Span::current().record("token", token.name());
        let route = request.extensions().get::<MatchedPath>();
        let route = route.map(MatchedPath::as_str);
        let refusal = |scope| token.reach().refusal(scope, route, request.uri().path());
        match scope.and_then(refusal) {
            Some(why) => Err(Denied::Reach(why)),
            None => Ok(Some(token)),
        }
    }

    /// Returns a token that a certificate presents. It may have the names of several; one of them has to have the scope.
    fn of_client(
        &self,
        client: &ClientCertificate,
        scope: Option<Scope>,
    ) -> Result<Arc<Token>, Denied> {
        let is_for =
            |token: &&Arc<Token>| token.client_name().is_some_and(|name| client.is_for(name));
        let mut tokens = self.configured.iter().filter(is_for).peekable();
        if tokens.peek().is_none() || !client.is_valid() {
            return Err(Denied::Unknown);
        }
        let has_scope = |token: &&Arc<Token>| scope.is_none_or(|scope| token.has(scope));
        let mut with_scope = tokens.filter(has_scope).peekable();
        if let Some(scope) = scope
            && with_scope.peek().is_none()
        {
            return Err(Denied::Scope(scope));
        }
        with_scope
            .find(|token| !token.has_expired())
            .cloned()
            .ok_or(Denied::Expired)
    }
}

/// Returns the token of the `Authorization: Bearer` header; `None` if there is no such header, or several.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next()?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let alone = values.next().is_none();
    (alone && scheme.eq_ignore_ascii_case("bearer")).then(|| token.trim())
}

/// The layer of [`TokenSet::require`] and [`TokenSet::require_any`].
#[derive(Clone, Debug)]
pub struct Require {
    tokens: TokenSet,
    scope: Option<Scope>,
}

impl<S> Layer<S> for Require {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded {
            inner,
            require: self.clone(),
        }
    }
}

/// A service behind [`Require`].
#[derive(Clone, Debug)]
pub struct Guarded<S> {
    inner: S,
    require: Require,
}

impl<S> Service<Request<Body>> for Guarded<S>
where
    S: Service<Request<Body>, Response = Response, Future: Send> + Clone + Send + 'static,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Either<
        TaskLocalFuture<Admitted, S::Future>,
        BoxFuture<'static, Result<Response, S::Error>>,
    >;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Require { tokens, scope } = self.require.clone();
        let mut denied = match tokens.admit(&request, scope) {
            Ok(token) => {
                let client = Token::admitted(token.as_deref());
                return Either::Left(client.scope(self.inner.call(request)));
            }
            Err(denied) => denied,
        };
        let is_unknown = denied == Denied::Unknown && bearer(request.headers()).is_some();
        // The clone may not be ready.
        let inner = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, inner);
        Either::Right(Box::pin(async move {
            if is_unknown && tokens.await_look().await {
                match tokens.admit(&request, scope) {
                    Ok(token) => {
                        let client = Token::admitted(token.as_deref());
                        return client.scope(inner.call(request)).await;
                    }
                    Err(again) => denied = again,
                }
            }
            Ok(denied.into_response())
        }))
    }
}

/// Refuses a listener that strangers could reach without a token.
///
/// # Errors
/// The address is not loopback, there are no tokens, and `allow_unauthenticated` is false.
pub fn check_listener(
    address: SocketAddr,
    tokens: &TokenSet,
    allow_unauthenticated: bool,
) -> Result<(), String> {
    let loopback = address.ip().to_canonical().is_loopback();
    if loopback || allow_unauthenticated || !tokens.is_empty() {
        return Ok(());
    }
    Err(format!(
        "listening on {address}, which is not loopback, requires tokens under [auth], or \
         allow_unauthenticated = true"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::client::may_read;
    use super::*;

    fn to_hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn token(name: &str, text: &str, scopes: &[Scope]) -> Token {
        let hash: [u8; 32] = Sha256::digest(text).into();
        Token::new(name, &to_hex(&hash), scopes.to_vec()).unwrap()
    }

    fn request(values: &[&'static str]) -> Request<()> {
        let mut request = Request::new(());
        for value in values {
            let value = HeaderValue::from_static(value);
            request.headers_mut().append(AUTHORIZATION, value);
        }
        request
    }

    #[test]
    fn an_expired_token_does_not_pass_and_a_replaced_one_does_beside_its_successor() {
        let at = |text: &str| Some(text.parse().unwrap());
        let expired = token("old", "s3cret-old", &[Scope::Send]);
        let valid = token("new", "s3cret-new", &[Scope::Send]);
        let previous = to_hex(&Sha256::digest("s3cret-before"));
        let set = TokenSet::new(vec![
            expired.with_expiry(at("2020-01-01T00:00:00Z")),
            { valid.with_expiry(at("2999-01-01T00:00:00Z")) }
                .with_previous(&previous)
                .unwrap(),
        ]);
        assert_eq!(set.check("s3cret-old", Scope::Send), Err(Denied::Expired));
        assert_eq!(set.check("s3cret-old", Scope::Read), Err(Denied::Expired));
        assert_eq!((set.find("s3cret-old"), set.named("old")), (None, None));
        for presented in ["s3cret-new", "s3cret-before"] {
            assert_eq!(set.check(presented, Scope::Send).unwrap().name(), "new");
        }
        assert_eq!(Denied::Expired.into_response().status(), 401);
        assert!(!set.has_limited());
    }

    #[test]
    fn a_token_passes_with_its_scopes_only() {
        let set = TokenSet::new(vec![
            token("app", "s3cret-a", &[Scope::Send]),
            token("ops", "s3cret-b", &[Scope::Read, Scope::Operate]),
        ]);
        assert_eq!(set.check("s3cret-a", Scope::Send).unwrap().name(), "app");
        assert_eq!(set.check("s3cret-b", Scope::Operate).unwrap().name(), "ops");
        assert_eq!(
            set.check("s3cret-a", Scope::Read),
            Err(Denied::Scope(Scope::Read))
        );
        assert_eq!(set.check("s3cret-c", Scope::Read), Err(Denied::Unknown));
        assert_eq!(set.check("", Scope::Read), Err(Denied::Unknown));
        // A token may always see itself.
        assert_eq!(set.check_of("s3cret-a", None).unwrap().name(), "app");
        assert_eq!(set.check_of("s3cret-c", None), Err(Denied::Unknown));
    }

    #[test]
    fn only_one_well_formed_header_counts() {
        let set = TokenSet::new(vec![token("app", "abc", &[Scope::Send])]);
        let admit = |values: &[&'static str]| {
            let token = set.admit(&request(values), Some(Scope::Send))?;
            Ok(token.map(|token| token.name().to_owned()))
        };
        assert_eq!(admit(&["Bearer abc"]), Ok(Some("app".to_owned())));
        assert_eq!(admit(&["bearer  abc"]), Ok(Some("app".to_owned())));
        for bad in [
            &[][..],
            &["abc"],
            &["Basic abc"],
            &["Bearer"],
            &["Bearer abc", "Bearer abc"],
            &["Bearer ab"],
        ] {
            assert_eq!(admit(bad), Err(Denied::Unknown), "{bad:?}");
        }
    }

    #[test]
    fn without_tokens_everything_is_open() {
        let set = TokenSet::default();
        assert_eq!(set.admit(&request(&[]), Some(Scope::Operate)), Ok(None));
    }

    #[tokio::test]
    async fn names_are_for_clients_that_may_read() {
        let app = || token("app", "abc", &[Scope::Send]);
        let ops = token("ops", "def", &[Scope::Send, Scope::Read]);
        let answers = async |tokens: TokenSet, presented: &str| {
            let handler = tower::service_fn(async |_: Request<Body>| {
                Ok::<_, std::convert::Infallible>(may_read().to_string().into_response())
            });
            let service = tokens.require(Scope::Send).layer(handler);
            let authorization = format!("Bearer {presented}");
            let request = Request::builder().header(AUTHORIZATION, authorization);
            let request = request.body(Body::empty()).unwrap();
            let Ok(response) = tower::ServiceExt::oneshot(service, request).await;
            let body = axum::body::to_bytes(response.into_body(), 100).await;
            String::from_utf8(body.unwrap().to_vec()).unwrap()
        };
        assert_eq!(answers(TokenSet::default(), "").await, "true");
        assert_eq!(answers(TokenSet::new(vec![app()]), "abc").await, "false");
        assert_eq!(
            answers(TokenSet::new(vec![app(), ops]), "def").await,
            "true"
        );
        assert!(!may_read(), "outside a request");
    }

    #[test]
    fn debug_shows_neither_token_nor_hash() {
        let text = format!("{:?}", token("app", "abc", &[Scope::Send]));
        assert!(text.contains("app"));
        // The first bytes of the SHA-256 of "abc".
        assert!(!text.contains("ba7816bf") && !text.contains("186, 120"));
    }

    #[test]
    fn a_hash_may_have_upper_case_digits_and_bad_tokens_are_named() {
        let hash = "BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD";
        let token = Token::new("app", hash, vec![Scope::Send]).unwrap();
        let set = TokenSet::new(vec![token]);
        assert!(set.check("abc", Scope::Send).is_ok());
        let bad = Token::new("app", "é".repeat(32).as_str(), vec![Scope::Send]);
        assert!(bad.unwrap_err().to_string().contains("app"));
        assert!(Token::new("app", hash, vec![]).is_err());
        assert!(Token::new("", hash, vec![Scope::Send]).is_err());
    }

    #[test]
    fn a_listener_beyond_loopback_needs_tokens() {
        let none = TokenSet::default();
        let some = TokenSet::new(vec![token("app", "abc", &[Scope::Send])]);
        let check = |address: &str, tokens: &TokenSet, allow: bool| {
            check_listener(address.parse().unwrap(), tokens, allow)
        };
        for loopback in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(check(loopback, &none, false), Ok(()));
        }
        for open in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            assert!(check(open, &none, false).unwrap_err().contains(open));
            assert_eq!(check(open, &none, true), Ok(()));
            assert_eq!(check(open, &some, false), Ok(()));
        }
    }
}
