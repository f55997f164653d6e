//! The book in shared/docs: the reference pages match the programs, each page is in the table of contents, and every
//! link has a target. `LISA_WRITE_REFERENCE=1` writes the pages again.

mod configuration;
mod http_api;
mod size;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Command, CommandFactory};
use lisa_core::broker::Observer;
use lisa_core::fields::Description;
use lisa_core::message::MessageOptions;
use lisa_core::state::Settled;
use lisa_service::http::unknown_route;
use lisa_service::metrics::{Metrics, TopicReading};
use lisa_tests::{Api, Binary, SOON, Server, eventually, free_port};
use reqwest::Method;
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    let text = std::fs::read_to_string(path);
    text.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns true if this run writes the generated files.
fn writes() -> bool {
    std::env::var_os("LISA_WRITE_REFERENCE").is_some()
}

/// Compares a generated page with the one in the book.
fn assert_current(name: &str, generated: &str) {
    let path = root().join(name);
    if writes() {
        std::fs::write(&path, generated).expect("written");
    }
    let page = read(&path);
    for (number, (page, generated)) in page.lines().zip(generated.lines()).enumerate() {
        let hint = "LISA_WRITE_REFERENCE=1 cargo test -p lisa-tests --test it book::";
        assert_eq!(
            page,
            generated,
            "{name}:{}: write it with {hint}",
            number + 1
        );
    }
    assert_eq!(page.lines().count(), generated.lines().count(), "{name}");
}

/// A text as the cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn command_page(page: &mut String, command: &Command, path: &str, level: usize) {
    let about = command.get_about().map(ToString::to_string);
    let _ = writeln!(page, "\n{} `{path}`", "#".repeat(level));
    if let Some(about) = about {
        let _ = writeln!(page, "\n{}.", about.trim_end_matches('.'));
    }
    let aliases: Vec<String> = command
        .get_visible_aliases()
        .map(|name| format!("`{name}`"))
        .collect();
    if !aliases.is_empty() {
        let _ = writeln!(page, "\nAliases: {}.", aliases.join(", "));
    }
    let arguments: Vec<_> = command
        .get_arguments()
        .filter(|argument| {
            !argument.is_hide_set() && !["help", "version"].contains(&argument.get_id().as_str())
        })
        .filter(|argument| {
            level == 2 || !argument.is_global_set() || argument.get_id() == "manager"
        })
        .collect();
    if !arguments.is_empty() {
        page.push_str("\n| argument | default | what it does |\n|---|---|---|\n");
    }
    for argument in arguments {
        let value = argument.get_value_names().unwrap_or_default();
        let value = value
            .first()
            .map_or(String::new(), |value| format!(" {value}"));
        let name = match argument.get_long() {
            Some(long) if argument.get_action().takes_values() => format!("--{long}{value}"),
            Some(long) => format!("--{long}"),
            None => value.trim().to_owned(),
        };
        let defaults: Vec<String> = argument
            .get_default_values()
            .iter()
            .map(|value| format!("`{}`", value.to_string_lossy()))
            .filter(|_| argument.get_action().takes_values())
            .collect();
        let mut help = argument
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        let values: Vec<String> = argument
            .get_possible_values()
            .iter()
            .filter(|_| argument.get_action().takes_values())
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        if !values.is_empty() {
            let _ = write!(help, ": {}", values.join(", "));
        }
        let _ = writeln!(
            page,
            "| `{name}` | {} | {} |",
            defaults.join(" "),
            cell(&help)
        );
    }
    for next in command
        .get_subcommands()
        .filter(|next| next.get_name() != "help")
    {
        command_page(
            page,
            next,
            &format!("{path} {}", next.get_name()),
            level + 1,
        );
    }
}

#[test]
fn the_page_of_the_command_line_says_what_the_programs_do() {
    let mut page = "# Command line\n\nGenerated from the programs. Global options may stand before or after the verb.\n\n\
        Exit codes: 0 done, 1 failed, 2 wrong usage, 69 Redis unavailable, 78 wrong configuration.\n"
        .to_owned();
    for command in [
        lisa_manager::cli::Cli::command(),
        lisa_producer::cli::Cli::command(),
        lisa_consumer::cli::Cli::command(),
    ] {
        let name = command.get_name().to_owned();
        command_page(&mut page, &command, &name, 2);
    }
    assert_current("shared/docs/reference/cli.md", &page);
}

/// A source without its comments and its tests.
fn code(path: &str) -> String {
    let text = read(&root().join(path));
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn each_interface_takes_the_options_from_their_declaration() {
    let options = Description::all::<MessageOptions>();
    assert!(options.len() >= 13);
    for (path, named) in [
        // The id has two headers, and the key also names existing messages.
        ("producer/src/http/headers.rs", &["id", "key"][..]),
        ("shared/service/src/http/description.rs", &["id"]),
        ("producer/src/batch_line.rs", &["id"]),
        ("shared/service/src/cli/field_args.rs", &[]),
    ] {
        let code = code(path);
        for option in options
            .iter()
            .filter(|option| !named.contains(&option.name))
        {
            let quoted = format!("\"{}\"", option.name);
            assert!(!code.contains(&quoted), "{path} names {quoted}");
        }
    }
}

/// Records a value of each metric, since those without any are not shown.
fn record_all(metrics: &Metrics) {
    let (t, g, s) = ("orders", "billing", Duration::from_secs(1));
    metrics.sent(t, "waiting", 1);
    metrics.moved(t, 1);
    metrics.migrated(t, 1);
    metrics.callback(t, g, "success", "sent");
    let deliveries = metrics.deliveries(t, g);
    deliveries.ended(Settled::Acked);
    deliveries.lateness(s);
    deliveries.handled(s);
    metrics.suspects(t, g, "running", 1);
    metrics.pulls_waiting(t, g, 1);
    metrics.pulled(t, g, 1);
    metrics.sink(t, g, true, false, 16);
    metrics.pulls_waiting(t, g, 1);
    metrics.pulled(t, g, 1);
    metrics.sqs_request("SendMessage", "ok");
    metrics.certificate_expires(Some(1));
    metrics.scaler_call("IsActive", "Ok");
    metrics.source_up("delayed", true);
    metrics.source_message("delayed", "accepted");
    metrics.reclaimed(t, g, "retry", 1);
    let group = json!({
        "group": g, "backlog": 0, "parked": 0, "ready": 1, "in_flight": 0, "retry": 0, "garbage": 0, "consumers": 0,
        "oldest_due_age_ms": 0, "oldest_ready_age_ms": 0,
    });
    let stats = json!({
        "topic": t, "paused": false, "class": "plain", "stored": 1, "waiting": 0, "tombstones": 0, "overdue_ms": 0,
        "groups": [group], "counters": {}, "conservation_error": 0,
    });
    metrics.topics(vec![Arc::new(TopicReading {
        stats: serde_json::from_value(stats).unwrap(),
        due: vec![("1m", 1)],
        max_messages: Some(1),
        max_bytes: Some(1),
    })]);
    let findings = [("orphan", 1)].into();
    metrics.doctor_findings([(t.parse().unwrap(), findings)].into());
    metrics.clock_skew(1.0);
    metrics.redis_up(true);
    metrics.redis_evicts(true);
    metrics.redis_memory(1, 2);
    metrics.managers(1);
    metrics.snapshot_age(Some(s));
    metrics.redis_error("io");
    metrics.script("send", s);
    metrics.job("clean", s);
    metrics.job_failed("clean");
    metrics.job_succeeded("clean", lisa_core::time::UnixMs::new(1));
    metrics.reloaded("applied");
    metrics.panicked("mover");
    metrics.schedule_fired("nightly", "sent");
    metrics.schedule_last("nightly", lisa_core::time::UnixMs::new(1));
    metrics.http_request("/v1/topics", "GET", 200, s);
}

#[test]
fn the_page_of_metrics_names_all_of_them() {
    let registry = prometheus_client::registry::Registry::default();
    let metrics = Metrics::new(registry, "0.1.0", "manager");
    record_all(&metrics);
    let mut page = "# Metrics\n\nGenerated from the code. Every role serves metrics at `/metrics` in the OpenMetrics format; \
        the role decides which of them have values. [Monitoring](../operate/monitoring.md) says which to watch.\n\n\
        | metric | type | labels | meaning |\n|---|---|---|---|\n"
        .to_owned();
    let text = metrics.encode();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((name, help)) = line
            .strip_prefix("# HELP ")
            .and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        let kind = lines
            .next()
            .and_then(|line| line.rsplit(' ').next())
            .unwrap_or_default();
        let sample = lines
            .find(|line| line.starts_with(name))
            .unwrap_or_default();
        let labels = sample
            .split_once('{')
            .and_then(|(_, rest)| rest.split_once('}'));
        let labels = labels.map_or("", |(labels, _)| labels).split(',');
        let labels: Vec<&str> = labels
            .filter_map(|label| label.split('=').next())
            .filter(|label| !label.is_empty() && *label != "le")
            .collect();
        let suffix = if kind == "counter" { "_total" } else { "" };
        let help = help.trim_end_matches('.');
        let _ = writeln!(
            page,
            "| `{name}{suffix}` | {kind} | {} | {} |",
            labels.join(", "),
            cell(help)
        );
    }
    assert_current("shared/docs/reference/metrics.md", &page);
}

/// Starts a program and returns the description that it serves.
async fn description(server: &Server, binary: Binary, arguments: &[&str]) -> Value {
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let program = binary.with(arguments.iter().copied().chain(["--listen", &listen]));
    let _program = program.env("LISA_REDIS_URL", &server.url()).start();
    described(port).await
}

/// Starts a consumer with a gateway, and returns the description that the gateway serves.
async fn gateway_description(server: &Server) -> Value {
    let port = free_port();
    let program = Binary::Consumer.with(["run", "--listen", "127.0.0.1:0"]);
    let program = program.env("LISA_REDIS_URL", &server.url());
    let listen = format!("127.0.0.1:{port}");
    let _program = program
        .env("LISA_CONSUMER__GATEWAY__LISTEN", &listen)
        .start();
    described(port).await
}

async fn described(port: u16) -> Value {
    let api = Api::new(port);
    eventually(SOON, async || {
        let reply = api.try_get("/openapi.json").await.ok_or("no answer")?;
        (reply.status == 200).then(|| reply.json()).ok_or("not yet")
    })
    .await
}

/// Adds the paths, schemas and tags of another description.
fn merge(all: &mut Value, other: &Value) {
    for pointer in ["/paths", "/components/schemas"] {
        let from = other.pointer(pointer).and_then(Value::as_object);
        let to = all.pointer_mut(pointer).and_then(Value::as_object_mut);
        let from = from.into_iter().flatten();
        let from = from.map(|(name, value)| (name.clone(), value.clone()));
        to.expect("an object").extend(from);
    }
    let tags = other["tags"].as_array().cloned().unwrap_or_default();
    let all = all["tags"].as_array_mut().expect("a list");
    all.extend(tags);
}

/// The operations of a description, by path and method.
fn operations(description: &Value) -> BTreeMap<(&str, &str), &Value> {
    let paths = description["paths"].as_object().into_iter().flatten();
    let operations = paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().into_iter().flatten();
        methods.map(|(method, operation)| ((path.as_str(), method.as_str()), operation))
    });
    operations.collect()
}

/// The routes below `/v1`, a line each, behind the first listener that has it.
fn routes(listeners: &[(&str, &Value)]) -> String {
    let mut seen = BTreeSet::new();
    let mut lines = String::new();
    for (listener, description) in listeners {
        for (path, method) in operations(description).into_keys() {
            if path.starts_with("/v1/") && seen.insert((path, method)) {
                let _ = writeln!(lines, "{listener} {} {path}", method.to_uppercase());
            }
        }
    }
    lines
}

#[tokio::test]
async fn the_pages_of_the_http_interface_have_each_route_and_schema() {
    const MESSAGE: (&str, &str) = ("/v1/topics/{topic}/messages/{id}", "get");
    let server = Server::start();
    let mut all = description(&server, Binary::Manager, &["run", "--with-producer"]).await;
    let gateway = gateway_description(&server).await;
    merge(&mut all, &gateway);
    assert_current("shared/docs/reference/http-api.md", &http_api::page(&all));
    assert_current("shared/docs/reference/openapi.json", &format!("{all:#}\n"));
    let producer = description(&server, Binary::Producer, &["run"]).await;
    let listeners = [
        ("producer", &producer),
        ("gateway", &gateway),
        ("manager", &all),
    ];
    assert_current("shared/service/src/http/routes.txt", &routes(&listeners));
    let mut names = BTreeSet::new();
    for (route, operation) in operations(&all) {
        let name = operation["operationId"].as_str().expect("a name");
        assert!(names.insert(name.to_owned()), "{name} twice");
        assert_eq!(operation["tags"].as_array().map(Vec::len), Some(1));
        let (body, json) = (
            &operation["requestBody"],
            "/content/application~1json/schema",
        );
        let null = body
            .pointer(json)
            .map(|schema| schema.to_string().contains("null"));
        assert_ne!(
            null,
            Some(true),
            "{name}: a body may be absent, but not null"
        );
        if [
            "pull_messages",
            "retry_delivery",
            "reject_delivery",
            "extend_delivery",
        ]
        .contains(&name)
        {
            assert_ne!(body["required"], true, "{name}");
        }
        for (status, answer) in operation["responses"].as_object().expect("answers") {
            let has_body = status != "204";
            assert_eq!(
                answer["content"].is_object(),
                has_body,
                "{route:?} {status}"
            );
        }
    }
    each_route_is_hinted_at(&gateway, "gateway.listen");
    for binary in [Binary::Producer, Binary::Manager] {
        let mut one = description(&server, binary, &["run"]).await;
        for (route, operation) in operations(&one) {
            assert_eq!(operations(&all)[&route], operation, "{route:?}");
        }
        for (name, schema) in one["components"]["schemas"].as_object().expect("schemas") {
            let same = &all["components"]["schemas"][name];
            assert!(
                same == schema || (same.is_null() && binary == Binary::Manager),
                "{name}"
            );
        }
        let paths = one["paths"].as_object_mut().expect("paths");
        let listener = match binary {
            // A producer has this one, too.
            Binary::Manager => paths.remove(MESSAGE.0).map(|_| "manager.listen"),
            _ => Some("producer.listen"),
        };
        each_route_is_hinted_at(&one, listener.expect("a message"));
    }
}

/// Checks that the other listeners hint at the one that has these routes, unless this run writes the file that they include.
fn each_route_is_hinted_at(description: &Value, listener: &str) {
    if writes() {
        return;
    }
    for (path, method) in operations(description).into_keys() {
        let method: Method = method.to_uppercase().parse().expect("a method");
        let detail = unknown_route(&method, path).detail().to_owned();
        assert!(detail.contains(listener), "{detail}");
    }
}

fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            pages.extend(self::pages(&path));
        } else if path.extension().is_some_and(|kind| kind == "md") {
            pages.push(path);
        }
    }
    pages
}

/// The targets of the links of a page, without those to other hosts.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.contains(' '))
}

/// The anchors of the headings of a page, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| -> String {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn no_link_of_the_book_leads_nowhere() {
    let root = root();
    let mut pages = pages(&root.join("shared/docs"));
    pages.extend(
        [
            "README.md",
            "CONTRIBUTING.md",
            "SECURITY.md",
            "CHANGELOG.md",
        ]
        .map(|name| root.join(name)),
    );
    let mut broken = Vec::new();
    for page in &pages {
        let text = read(page);
        for link in links(&text) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.with_file_name("").join(path),
            };
            let is_there = target.exists()
                && (anchor.is_empty()
                    || target.is_dir()
                    || anchors(&read(&target)).contains(anchor));
            if !is_there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn each_page_of_the_book_is_in_its_table_of_contents() {
    let docs = root().join("shared/docs");
    let summary = read(&docs.join("SUMMARY.md"));
    let listed: BTreeSet<PathBuf> = links(&summary).map(|link| docs.join(link)).collect();
    let unlisted: Vec<_> = pages(&docs)
        .into_iter()
        .filter(|page| !page.ends_with("SUMMARY.md") && !listed.contains(page))
        .collect();
    assert!(unlisted.is_empty(), "{unlisted:#?}");
    assert!(listed.iter().all(|page| page.exists()), "{listed:#?}");
}
