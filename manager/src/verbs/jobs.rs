//! `jobs`: what a running manager does periodically. Only that manager knows, so it is asked over HTTP.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use lisa_shared::role::StartError;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{print, print_json, table};
use crate::cli::{CliError, JobsVerb, Output};

/// Names the token for a manager that wants one.
const TOKEN: &str = "LISA_TOKEN";
/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 1 << 20;
/// How long a job may run that is waited for.
const RUN: Duration = Duration::from_secs(3600);

/// Lists the jobs of the manager that listens at an address, or runs one.
pub(crate) async fn jobs(
    manager: SocketAddr,
    verb: Option<JobsVerb>,
    patience: Duration,
    output: Output,
) -> Result<(), CliError> {
    let token = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
    let ask = async |method, path: &str, patience| {
        let asked = timeout(patience, request(manager, method, path, token.as_deref()));
        asked
            .await
            .unwrap_or_else(|_| Err(unavailable(manager, "no answer in time")))
    };
    let Some(JobsVerb::Run { name }) = verb else {
        let answer = ask(Method::GET, "/v1/jobs", patience).await?;
        return match output {
            Output::Json => print_json(&answer),
            Output::Table => print(&listed(&answer)),
        };
    };
    // Names of jobs are lower-case words; anything else would be another path.
    if !name.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return Err(CliError::Usage(format!("there is no job {name:?}")));
    }
    let run = ask(Method::POST, &format!("/v1/jobs/{name}/run"), RUN).await?;
    if output == Output::Json {
        print_json(&run)?;
    }
    let took = run["took_ms"].as_u64().unwrap_or_default();
    match (run["ok"].as_bool(), output) {
        (Some(true), Output::Json) => Ok(()),
        (Some(true), Output::Table) => {
            print(&format!("{name} ran for {took} ms: {}", run["report"]))
        }
        _ => Err(CliError::Failed(format!(
            "{name} failed: {}",
            run["error"].as_str().unwrap_or_default()
        ))),
    }
}

fn listed(answer: &Value) -> String {
    let mut rows = table(["JOB", "CRON", "RUNNING", "LAST RUN", "TOOK", "RESULT"]);
    for job in answer["jobs"].as_array().into_iter().flatten() {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let last = &job["last"];
        let result = match last["ok"].as_bool() {
            Some(true) => last["report"].to_string(),
            Some(false) => text(&last["error"]),
            None => String::new(),
        };
        let took = last["took_ms"].as_u64();
        rows.add_row([
            text(&job["name"]),
            text(&job["cron"]),
            if job["running"] == true { "yes" } else { "no" }.to_owned(),
            text(&last["started_at"]),
            took.map_or(String::new(), |ms| format!("{ms} ms")),
            result,
        ]);
    }
    format!(
        "manager {}\n{rows}",
        answer["manager"].as_str().unwrap_or_default()
    )
}

async fn request(
    manager: SocketAddr,
    method: Method,
    path: &str,
    token: Option<&str>,
) -> Result<Value, CliError> {
    let away = |error: &dyn std::fmt::Display| unavailable(manager, &error.to_string());
    let stream = TcpStream::connect(reachable(manager)).await;
    let stream = TokioIo::new(stream.map_err(|error| away(&error))?);
    let (mut sender, connection) = http1::handshake(stream)
        .await
        .map_err(|error| away(&error))?;
    let mut request = Request::builder().method(method).uri(path);
    request = request.header("host", manager.to_string());
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request
        .body(Empty::<Bytes>::new())
        .map_err(|_| CliError::Usage(format!("{TOKEN} is no token")))?;
    let answer = async {
        let answer = sender
            .send_request(request)
            .await
            .map_err(|error| away(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| away(&error))?.to_bytes();
        Ok::<_, CliError>((status, body))
    };
    let (status, body) = tokio::select! {
        answer = answer => answer?,
        ended = connection => {
            let why = ended.err().map_or("it hung up".to_owned(), |error| error.to_string());
            return Err(away(&why));
        }
    };
    let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
    if status == StatusCode::OK {
        return Ok(answer);
    }
    let detail = answer["detail"].as_str().unwrap_or("no reason given");
    Err(CliError::Failed(format!(
        "manager at {manager}: {status}: {detail}"
    )))
}

/// Where to reach a listener on this machine that takes connections from everywhere.
fn reachable(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, listener.port())
}

fn unavailable(manager: SocketAddr, why: &str) -> CliError {
    let text = format!("no manager answers at {manager}: {why}; name another with --manager");
    CliError::Start(StartError::Unavailable(text))
}
