//! Login, logout, and the viewer's choices.

use std::net::SocketAddr;

use axum::Extension;
use axum::body::Body;
use axum::extract::{ConnectInfo, RawQuery, Request, State as With};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use lisa_service::http::ProblemCode;
use lisa_service::http::tls::is_secure;
use maud::html;

use super::cookies::{cookies, new_session_name, session_cookie, session_names};
use super::form::{Fields, PLAIN};
use super::page::{Choices, Context, Failure, LIVE, Page, Section, Theme, see_other};
use super::session::{Session, Viewer};
use super::{Dashboard, peer};

impl Dashboard {
    /// Returns the viewer of a request, and the cookie that renews the session. `None` if there is no session.
    ///
    /// # Errors
    /// Redis did not answer in time whether the session was ended, which a change needs to know. A page may show an ended
    /// session what it last read.
    pub(super) async fn viewer(
        &self,
        headers: &HeaderMap,
        is_change: bool,
    ) -> Result<Option<(Viewer, Option<String>)>, Failure> {
        if !self.0.sessions.are_required() {
            return Ok(Some((Viewer::Anybody, None)));
        }
        let presented = self.presented(headers);
        if presented.is_empty() {
            return Ok(None);
        }
        let (ended, is_current) = self.0.ended_sessions.read(self.broker(), is_change).await;
        if is_change && !is_current {
            let detail = "Redis did not answer whether this session was ended";
            return Err(Failure::new(ProblemCode::Unavailable, detail));
        }
        // Another program on the host may have set a cookie of the same name, and an ended session may have left one.
        let valid = { presented.into_iter() }.find(|(_, session)| !session.id.has_ended(&ended));
        Ok(valid.map(|(name, session)| {
            let renewed = session.renewed.map(|value| session_cookie(&name, &value));
            (session.viewer, renewed)
        }))
    }

    /// Returns the sessions whose cookies a request has, with the names of the cookies.
    fn presented(&self, headers: &HeaderMap) -> Vec<(String, Session)> {
        let now = self.broker().now();
        let mut presented = Vec::new();
        for name in session_names(headers) {
            let sessions =
                cookies(headers, &name).filter_map(|value| self.0.sessions.check(&value, now));
            presented.extend(sessions.map(|session| (name.clone(), session)));
        }
        presented
    }
}

/// Returns a path of this dashboard from a field; the overview if it leads elsewhere.
fn next_of(fields: &Fields) -> &str {
    let next = fields.text("next").unwrap_or("/");
    let is_local = next.starts_with('/')
        && !next[1..].starts_with(['/', '\\'])
        && !next.contains(char::is_control);
    if is_local && next.is_ascii() {
        next
    } else {
        "/"
    }
}

pub(super) async fn show(
    Extension(context): Extension<Context>,
    RawQuery(query): RawQuery,
) -> Response {
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    if !matches!(context.viewer, Viewer::Stranger) {
        return see_other(&context.link(next_of(&fields)), None);
    }
    page(&context, next_of(&fields), None, StatusCode::OK).into_response()
}

fn page(context: &Context, next: &str, error: Option<&str>, status: StatusCode) -> Page {
    let body = html! {
        form.card.login method="post" action=(context.link("/login")) {
            p.lead { "Enter a token with the scope " code { "read" } "." }
            input type="hidden" name="next" value=(next);
            label for="token" { "Token" }
            input #token name="token" type="password" autocomplete="current-password" required autofocus aria-describedby="login-note";
            @if let Some(error) = error { p.field-error role="alert" { (error) } }
            button.primary { "Log in" }
            p #login-note .muted { "Tokens are in the configuration, under " code { "[auth]" } ", or an administrator creates them at run time. The scopes of your token decide what you can see and do. Over plain HTTP, others on the network can read the token: use HTTPS." }
        }
    };
    Page {
        status,
        ..Page::new(Section::None, "Log in", body)
    }
}

pub(super) async fn log_in(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    from: Option<Extension<ConnectInfo<SocketAddr>>>,
    request: Request,
) -> Result<Response, Failure> {
    let sessions = &dashboard.0.sessions;
    let peer = peer(from.as_deref());
    let cookie_name = new_session_name(request.headers(), is_secure(request.extensions()));
    let fields = Fields::read(request.into_body(), PLAIN, &dashboard.0.bodies).await?;
    let next = next_of(&fields);
    let token = fields.text("token").unwrap_or_default().trim();
    // A right token always counts, or a stranger behind the same proxy could lock everyone out.
    let Some(value) = sessions.log_in(token, dashboard.broker().now()) else {
        let (error, status) = if sessions.is_locked_out(peer) {
            let error = "Too many failed attempts from this address. Wait a minute.";
            (error, StatusCode::TOO_MANY_REQUESTS)
        } else {
            sessions.failed(peer);
            tracing::warn!(%peer, "login to the dashboard with an unknown token");
            ("Unknown token.", StatusCode::FORBIDDEN)
        };
        return Ok(page(&context, next, Some(error), status).into_response());
    };
    let cookie = session_cookie(&cookie_name, &value);
    Ok(see_other(&context.link(next), Some(&cookie)))
}

pub(super) async fn log_out(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let fields = Fields::read(body, PLAIN, &dashboard.0.bodies).await?;
    let is_all = fields.text("sessions") == Some("all");
    for (_, session) in dashboard.presented(&headers) {
        let ended = &dashboard.0.ended_sessions;
        ended.end(dashboard.broker(), &session.id, is_all).await?;
    }
    let mut response = see_other(&context.link("/login"), None);
    for name in session_names(&headers) {
        let secure = if name.starts_with("__") {
            " Secure;"
        } else {
            ""
        };
        let gone = format!("{name}=; Path=/; Max-Age=0; HttpOnly;{secure} SameSite=Lax");
        if let Ok(gone) = gone.parse() {
            response
                .headers_mut()
                .append(axum::http::header::SET_COOKIE, gone);
        }
    }
    Ok(response)
}

pub(super) async fn choose(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    body: Body,
) -> Result<Response, Failure> {
    let fields = Fields::read(body, PLAIN, &dashboard.0.bodies).await?;
    let live = fields.value("live")?.filter(|live| LIVE.contains(live));
    let choices = Choices {
        theme: Theme::parse(fields.text("theme").unwrap_or_default()),
        live: live.unwrap_or(context.choices.live),
        is_utc: fields.text("zone") == Some("utc"),
        keys: fields.text("keys") != Some("off"),
    };
    let cookie = format!(
        "lisa-choices={}; Path=/; Max-Age=31536000; HttpOnly; SameSite=Lax",
        choices.cookie()
    );
    let to = match context.viewer {
        Viewer::Stranger => "/login",
        _ => next_of(&fields),
    };
    Ok(see_other(&context.link(to), Some(&cookie)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_in_leads_to_this_dashboard_only() {
        let next = |query: &str| next_of(&Fields::parse(query.as_bytes())).to_owned();
        assert_eq!(next("next=/topics/a%3Fb=1"), "/topics/a?b=1");
        for query in [
            "",
            "next=//evil.example",
            "next=/%5Cevil.example",
            "next=https://evil.example",
            "next=/a%0D%0Ab",
            "next=/%C3%BC",
        ] {
            assert_eq!(next(query), "/", "{query}");
        }
    }
}
