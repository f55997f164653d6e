//! `jobs`: lists and runs the periodic jobs of a running manager. Only that manager knows them, so it is asked over HTTP.

use std::pin::pin;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use lisa_service::cli::{Output, Rows};
use lisa_service::http::auth::Scope;
use lisa_service::role::StartError;
use serde_json::Value;
use tokio::time::timeout;

use super::print;
use crate::cli::address::{ManagerAddress, TOKEN};
use crate::cli::args::JobsVerb;
use crate::cli::error::CliError;

/// The largest response that is read, in bytes.
const MAX_ANSWER: usize = 1 << 20;
/// The time limit for a job that is waited for.
const RUN: Duration = Duration::from_secs(3600);

/// Lists the jobs of the manager at an address, or runs one of them.
pub(crate) async fn jobs(
    manager: &ManagerAddress,
    verb: Option<JobsVerb>,
    call_timeout: Duration,
    output: &Output,
) -> Result<(), CliError> {
    let token = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
    let ask = async |method, path: &str, call_timeout| {
        let asked = timeout(
            call_timeout,
            request(manager, method, path, token.as_deref()),
        );
        asked
            .await
            .unwrap_or_else(|_| Err(unavailable(manager, "no response within the time limit")))
    };
    let Some(JobsVerb::Run { name }) = verb else {
        let answer = ask(Method::GET, "/v1/jobs", call_timeout).await?;
        if output.is_table() && !output.no_headers {
            print(&format!(
                "manager {}",
                answer["manager"].as_str().unwrap_or_default()
            ))?;
        }
        return Ok(output.list(&answer, Some("jobs"), &listed(&answer))?);
    };
    // Names of jobs are lower-case words. Anything else would form another path.
    if !name.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return Err(CliError::Usage(format!("unknown job {name:?}")));
    }
    let run = ask(Method::POST, &format!("/v1/jobs/{name}/run"), RUN).await?;
    if !output.is_table() {
        output.object(&run)?;
    }
    let took = run["took_ms"].as_u64().unwrap_or_default();
    match (run["ok"].as_bool(), output.is_table()) {
        (Some(true), false) => Ok(()),
        (Some(true), true) => print(&format!("{name} finished in {took} ms: {}", run["report"])),
        _ => Err(CliError::Failed(format!(
            "{name} failed: {}",
            run["error"].as_str().unwrap_or_default()
        ))),
    }
}

fn listed(answer: &Value) -> Rows {
    let mut rows = Rows::new(["JOB", "CRON", "RUNNING", "LAST RUN", "TOOK", "RESULT"]);
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
    rows
}

/// Sends one request and returns the JSON of its response.
async fn request(
    manager: &ManagerAddress,
    method: Method,
    path: &str,
    token: Option<&str>,
) -> Result<Value, CliError> {
    let failed = |error: &dyn std::fmt::Display| unavailable(manager, &error.to_string());
    let stream = manager.connect().await;
    let stream = TokioIo::new(stream.map_err(|error| failed(&error))?);
    let (mut sender, connection) = http1::handshake(stream)
        .await
        .map_err(|error| failed(&error))?;
    let mut request = Request::builder().method(method.clone()).uri(path);
    request = request.header("host", manager.to_string());
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request
        .body(Empty::<Bytes>::new())
        .map_err(|_| CliError::Usage(format!("{TOKEN} is not a valid token")))?;
    let answer = async {
        let answer = sender
            .send_request(request)
            .await
            .map_err(|error| failed(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| failed(&error))?.to_bytes();
        Ok::<_, CliError>((status, body))
    };
    let mut answer = pin!(answer);
    // A manager may close the connection right after its response, which is complete nevertheless.
    let (status, body) = tokio::select! {
        biased;
        answer = &mut answer => answer?,
        ended = connection => match (answer.await, ended) {
            (Ok(answer), _) => answer,
            (Err(_), Err(error)) => return Err(failed(&error)),
            (Err(error), Ok(())) => return Err(error),
        },
    };
    let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
    if status == StatusCode::OK {
        return Ok(answer);
    }
    let scope = if method == Method::GET {
        Scope::Read
    } else {
        Scope::Operate
    };
    Err(CliError::Failed(refusal(manager, scope, status, &answer)))
}

/// Explains a response that is not 200, with the remedy if the request lacks a token or an allowed host name.
fn refusal(manager: &ManagerAddress, scope: Scope, status: StatusCode, problem: &Value) -> String {
    let detail = problem["detail"].as_str().unwrap_or("no reason given");
    let remedy = match problem["code"].as_str() {
        Some("unauthorized" | "forbidden") => {
            let scope = scope.as_str();
            format!("; set {TOKEN} to a token with the scope {scope}")
        }
        Some("host_not_allowed") => format!(
            "; add {:?} to auth.allowed_hosts of that manager, or name it by its IP address",
            manager.host()
        ),
        _ => String::new(),
    };
    format!("manager at {manager}: {status}: {detail}{remedy}")
}

fn unavailable(manager: &ManagerAddress, why: &str) -> CliError {
    let text = format!("no manager answers at {manager}: {why}; name another with --manager");
    CliError::Start(StartError::Unavailable(text))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_response_counts_although_the_manager_closes_the_connection_after_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let manager = ManagerAddress::from(listener.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            for answer in [
                "HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{\"jobs\": []}",
                "",
            ] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let answer = request(&manager, Method::GET, "/v1/jobs", None).await;
        assert_eq!(answer.unwrap(), serde_json::json!({ "jobs": [] }));
        let refused = request(&manager, Method::GET, "/v1/jobs", None).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("no manager answers"), "{refused}");
        serving.await.unwrap();
    }

    #[test]
    fn a_refusal_for_lack_of_a_token_or_an_allowed_host_names_the_remedy() {
        let manager = "lisa.internal:7812".parse().unwrap();
        let refusal = |scope, status: u16, code: &str| {
            let problem = serde_json::json!({ "code": code, "detail": "no" });
            refusal(&manager, scope, status.try_into().unwrap(), &problem)
        };
        assert_eq!(
            refusal(Scope::Read, 401, "unauthorized"),
            "manager at lisa.internal:7812: 401 Unauthorized: no; set LISA_TOKEN to a token with the scope read"
        );
        let forbidden = refusal(Scope::Operate, 403, "forbidden");
        assert!(forbidden.ends_with("with the scope operate"), "{forbidden}");
        let stranger = refusal(Scope::Read, 403, "host_not_allowed");
        let remedy = "; add \"lisa.internal\" to auth.allowed_hosts of that manager, or name it by its IP address";
        assert!(stranger.ends_with(remedy), "{stranger}");
        assert!(refusal(Scope::Read, 404, "not_found").ends_with("404 Not Found: no"));
    }
}
