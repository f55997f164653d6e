//! The routes of the pages and actions, each with the scope that it requires, and the layer that decides who may use it.

#[cfg(feature = "test-util")]
use std::collections::BTreeSet;

use axum::Extension;
use axum::extract::{MatchedPath, Request, State as With};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use lisa_core::broker::Removal;
use lisa_service::http::auth::Scope;

use super::actions::MessageVerb;
use super::page::{Context, Failure};
use super::{
    Dashboard, actions as of_topics, doctor, failures, find, forecast, garbage, help, keys, login,
    message, messages, overview, own_token, removal, schedule, schedule_form, schedules, send,
    system, token, token_form, tokens, topic, topic_form, workers,
};
use crate::operations::tokens::RotationStep;

/// The pages about several topics or schedules whose handlers leave out what the viewer does not reach. Any other page without a
/// topic or a schedule in its path is refused if the viewer does not reach all topics, so a new page is refused until it is here.
const FILTERED: [&str; 12] = [
    "/",
    "/find",
    "/garbage",
    "/forecast",
    "/schedules",
    "/new-schedule",
    "/new-topic",
    "/workers",
    "/system",
    "/system/garbage-jobs/{id}/stop",
    // Show nothing of the topics.
    "/token",
    "/help",
];

/// Returns true if the handler of a page leaves out what the viewer does not reach.
pub(super) fn is_filtered(route: &str) -> bool {
    FILTERED.contains(&route)
}

/// Returns the routes of the session: login, logout, choices. They show nothing of the relay.
pub(super) fn session_pages() -> [(&'static str, MethodRouter<Dashboard>); 3] {
    [
        ("/login", get(login::show).post(login::log_in)),
        ("/logout", post(login::log_out)),
        ("/choices", post(login::choose)),
    ]
}

/// Returns all other pages and actions, each with the scope that it requires.
pub(super) fn guarded_pages() -> Vec<(String, Scope, MethodRouter<Dashboard>)> {
    let pages = pages().into_iter();
    let pages = pages.map(|(path, page)| (path.to_owned(), Scope::Read, page));
    pages.chain(actions()).collect()
}

/// Returns the paths of all pages and actions that need a session, for tests.
#[cfg(feature = "test-util")]
pub(crate) fn paths() -> Vec<String> {
    let pages = guarded_pages().into_iter();
    let paths: BTreeSet<_> = pages.map(|(path, ..)| path).collect();
    paths.into_iter().collect()
}

/// Returns the pages that only require the scope `read`.
fn pages() -> Vec<(&'static str, MethodRouter<Dashboard>)> {
    vec![
        ("/", get(overview::show)),
        ("/find", get(find::show)),
        ("/garbage", get(garbage::all)),
        ("/forecast", get(forecast::show)),
        ("/schedules", get(schedules::show)),
        ("/schedules/{schedule}", get(schedule::show)),
        ("/workers", get(workers::show)),
        ("/system", get(system::show)),
        ("/token", get(own_token::show)),
        ("/help", get(help::show)),
        ("/topics/{topic}", get(topic::show)),
        ("/topics/{topic}/send", get(send::show)),
        ("/topics/{topic}/failures", get(failures::show)),
        ("/topics/{topic}/keys", get(keys::show)),
        ("/topics/{topic}/doctor", get(doctor::show)),
        ("/topics/{topic}/messages", get(messages::show)),
        ("/topics/{topic}/messages/{id}", get(message::show)),
        ("/topics/{topic}/garbage", get(garbage::of_topic)),
    ]
}

/// Returns the actions and their confirmation pages, each with the scope that it requires in addition to `read`.
fn actions() -> Vec<(String, Scope, MethodRouter<Dashboard>)> {
    let mut actions = Vec::new();
    let mut add = |path: &str, scope, action| actions.push((path.to_owned(), scope, action));
    let operate = Scope::Operate;
    add("/system/jobs/{name}", operate, post(system::run_job));
    let stop = post(system::stop_garbage_job);
    add("/system/garbage-jobs/{id}/stop", operate, stop);
    add("/schedules/{schedule}/{verb}", operate, post(schedule::act));
    let create = get(schedule_form::show_new).post(schedule_form::create);
    // Not below `/schedules`: any name there can be that of a schedule.
    add("/new-schedule", operate, create);
    let edit = get(schedule_form::show_edit).post(schedule_form::edit);
    add("/schedules/{schedule}/edit", operate, edit);
    let remove = get(schedule::ask_removal).post(schedule::remove);
    add("/schedules/{schedule}/remove", operate, remove);
    let create = get(topic_form::show).post(topic_form::create);
    add("/new-topic", operate, create);
    let tokens = Scope::Tokens;
    add("/tokens", tokens, get(tokens::show));
    // Not below `/tokens`: any name there can be that of a token.
    let create = get(token_form::show_new).post(token_form::create);
    add("/new-token", tokens, create);
    add("/tokens/{token}", tokens, get(token::show));
    let edit = get(token_form::show_edit).post(token_form::edit);
    add("/tokens/{token}/edit", tokens, edit);
    let remove = get(token::ask_removal).post(token::remove);
    add("/tokens/{token}/remove", tokens, remove);
    for step in RotationStep::ALL {
        let path = format!("/tokens/{{token}}/rotate/{step}");
        let rotate = get(token::ask_rotation).post(token::rotate);
        add(&path, tokens, rotate.layer(Extension(*step)));
    }
    add("/topics/{topic}/{verb}", operate, post(of_topics::topic));
    for how in Removal::ALL {
        let remove = get(removal::ask).post(removal::remove);
        let path = format!("/topics/{{topic}}/{how}");
        add(&path, operate, remove.layer(Extension(*how)));
    }
    let group = get(of_topics::ask_group).post(of_topics::group);
    add("/topics/{topic}/groups/{group}/{verb}", operate, group);
    let doctor = get(doctor::ask).post(doctor::run);
    add("/topics/{topic}/doctor/{verb}", operate, doctor);
    let garbage = get(garbage::ask).post(garbage::sweep);
    let path = "/topics/{topic}/groups/{group}/garbage/{verb}";
    add(path, operate, garbage);
    for verb in MessageVerb::ALL {
        let path = format!("/topics/{{topic}}/messages/{{id}}/{verb}");
        let message = get(of_topics::ask_message).post(of_topics::message);
        add(&path, verb.scope(), message.layer(Extension(*verb)));
    }
    let payload = get(message::download);
    add(
        "/topics/{topic}/messages/{id}/payload",
        Scope::Payload,
        payload,
    );
    add("/topics/{topic}/send", Scope::Send, post(send::send));
    actions
}

/// The condition on which a page is shown, or an action is done.
#[derive(Clone, Copy)]
struct Guard {
    scope: Scope,
    is_filtered: bool,
}

/// Returns a page that is shown to viewers with the scope who reach what its path names.
pub(super) fn guarded(
    path: &str,
    scope: Scope,
    page: MethodRouter<Dashboard>,
) -> MethodRouter<Dashboard> {
    let guard = Guard {
        scope,
        is_filtered: is_filtered(path),
    };
    page.layer(from_fn_with_state(guard, admit))
}

/// Refuses a viewer without the scope, or who does not reach what the request is about.
async fn admit(
    With(guard): With<Guard>,
    Extension(context): Extension<Context>,
    route: MatchedPath,
    request: Request,
    next: Next,
) -> Response {
    let Guard { scope, is_filtered } = guard;
    if !context.viewer.can(scope) {
        return Failure::Forbidden(scope).into_response();
    }
    let reach = context.viewer.reach();
    let (route, path) = (route.as_str(), request.uri().path());
    match reach.refusal_of(scope, Some(route), path, is_filtered) {
        Some(why) => Failure::Reach(why).into_response(),
        None => next.run(request).await,
    }
}
