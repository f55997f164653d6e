//! `jobs`: what a running manager does periodically. Only that manager knows, so it is asked over HTTP.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::str::FromStr;
use std::time::Duration;
use std::{fmt, io};

use axum::body::Bytes;
use axum::http::uri::Authority;
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
    manager: &ManagerAddress,
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
    manager: &ManagerAddress,
    method: Method,
    path: &str,
    token: Option<&str>,
) -> Result<Value, CliError> {
    let away = |error: &dyn std::fmt::Display| unavailable(manager, &error.to_string());
    let stream = manager.connect().await;
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
    let mut answer = pin!(answer);
    // A manager may hang up right after its answer, which is there all the same.
    let (status, body) = tokio::select! {
        biased;
        answer = &mut answer => answer?,
        ended = connection => match (answer.await, ended) {
            (Ok(answer), _) => answer,
            (Err(_), Err(error)) => return Err(away(&error)),
            (Err(error), Ok(())) => return Err(error),
        },
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

/// Where a manager listens: `host:port`, or the URL of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManagerAddress {
    /// A name or an address, without brackets.
    host: String,
    port: u16,
}

impl FromStr for ManagerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str =
            "expected host:port or http://host:port, like lisa.internal:7812 or [::1]:7812";
        if text.starts_with("https://") {
            return Err("https is not supported: use http and a private network".to_owned());
        }
        let (rest, default) = match text.strip_prefix("http://") {
            Some(rest) => (rest.strip_suffix('/').unwrap_or(rest), Some(80)),
            None => (text, None),
        };
        if !rest.contains("://") && rest.contains(['/', '?', '#']) {
            return Err(format!("a path is not supported: {EXPECTED}"));
        }
        if rest.contains('@') {
            return Err(format!(
                "user and password are not supported: put a token in {TOKEN}"
            ));
        }
        let authority: Authority = rest.parse().map_err(|_| EXPECTED.to_owned())?;
        let host = authority.host();
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let port = match authority.as_str().strip_prefix(host) {
            Some("") => default,
            Some(port) => port.strip_prefix(':').and_then(|port| port.parse().ok()),
            None => None,
        };
        match port {
            Some(port) if port > 0 && !host.is_empty() => Ok(Self {
                host: bare.unwrap_or(host).to_owned(),
                port,
            }),
            _ => Err(EXPECTED.to_owned()),
        }
    }
}

impl From<SocketAddr> for ManagerAddress {
    fn from(listener: SocketAddr) -> Self {
        Self {
            host: listener.ip().to_string(),
            port: listener.port(),
        }
    }
}

impl fmt::Display for ManagerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

impl ManagerAddress {
    /// Connects to any address of the host. A listener that takes connections from everywhere is on this machine.
    async fn connect(&self) -> io::Result<TcpStream> {
        let host = match self.host.parse() {
            Ok(IpAddr::V4(ip)) if ip.is_unspecified() => "127.0.0.1",
            Ok(IpAddr::V6(ip)) if ip.is_unspecified() => "::1",
            _ => &self.host,
        };
        TcpStream::connect((host, self.port)).await
    }
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

    #[test]
    fn a_manager_is_named_by_host_and_port_or_by_a_url() {
        for (text, shown) in [
            ("127.0.0.1:7812", "127.0.0.1:7812"),
            ("localhost:7812", "localhost:7812"),
            ("lisa.internal.example.com:1", "lisa.internal.example.com:1"),
            ("[::1]:7812", "[::1]:7812"),
            ("http://lisa-manager:7812", "lisa-manager:7812"),
            ("http://lisa-manager:7812/", "lisa-manager:7812"),
            ("http://lisa-manager", "lisa-manager:80"),
            ("http://[::1]", "[::1]:80"),
        ] {
            let manager: Result<ManagerAddress, _> = text.parse();
            assert_eq!(manager.unwrap().to_string(), shown, "{text}");
        }
        for (text, why) in [
            ("", "expected host:port"),
            ("lisa-manager", "expected host:port"),
            ("lisa-manager:", "expected host:port"),
            ("lisa-manager:0", "expected host:port"),
            ("lisa-manager:70000", "expected host:port"),
            (":7812", "expected host:port"),
            ("http://", "expected host:port"),
            ("::1:7812", "expected host:port"),
            ("lisa manager:7812", "expected host:port"),
            ("redis://lisa-manager:7812", "expected host:port"),
            ("http://lisa-manager:7812/lisa", "a path is not supported"),
            ("http://me:secret@lisa-manager:7812", "LISA_TOKEN"),
            ("https://lisa-manager:7812", "https is not supported"),
        ] {
            let refused = text.parse::<ManagerAddress>().unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }

    #[tokio::test]
    async fn an_answer_counts_although_the_manager_hangs_up_after_it() {
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
}
