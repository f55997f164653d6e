//! Tests of the exporter against a collector that is unavailable or does not answer.

use std::time::Instant;

use lisa_core::message::PreparedMessage;
use lisa_core::time::UnixMs;
use tokio::net::TcpListener;

use super::*;
use crate::spans::{CommonAttributes, ProcessContext};

fn environment(variables: &[(&str, &str)]) -> Environment {
    let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Environment::new(variables.iter().map(pair))
}

const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/");

#[test]
fn nothing_is_exported_unless_an_endpoint_is_set() {
    let off: [&[(&str, &str)]; 6] = [
        &[],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")],
        &[(
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
            "http://collector:4318",
        )],
        &[
            ("OTEL_SERVICE_NAME", "lisa"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ],
        &[ENDPOINT, ("OTEL_SDK_DISABLED", "True")],
        &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")],
    ];
    for variables in off {
        assert_eq!(environment(variables).endpoint(), Ok(None), "{variables:?}");
    }
}

#[test]
fn the_endpoint_of_traces_is_used_as_it_is_and_the_common_one_with_its_path() {
    let at = |variables: &[(&str, &str)]| environment(variables).endpoint().unwrap().unwrap();
    assert_eq!(at(&[ENDPOINT]), "http://collector:4318/v1/traces");
    let with_query = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector/x/?k=v");
    assert_eq!(at(&[with_query]), "http://collector/x/v1/traces?k=v");
    assert_eq!(
        at(&[
            ENDPOINT,
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://other/x")
        ]),
        "https://other/x"
    );
    let spelled = [
        ENDPOINT,
        ("OTEL_SDK_DISABLED", "false"),
        ("OTEL_TRACES_EXPORTER", "otlp"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
    ];
    assert_eq!(at(&spelled), "http://collector:4318/v1/traces");
}

#[test]
fn a_mistake_names_its_variable() {
    for (name, value) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
    ] {
        let why = environment(&[ENDPOINT, (name, value)])
            .endpoint()
            .unwrap_err();
        assert!(
            why.starts_with(&format!("{name} is {value}, must be ")),
            "{why}"
        );
    }
    for value in ["0", "100001", "18446744073709551615", "many"] {
        let name = "OTEL_BSP_MAX_QUEUE_SIZE";
        let why = environment(&[(name, value)]).check_queue().unwrap_err();
        assert_eq!(
            why,
            format!("{name} is {value}, must be a number from 1 to 100000")
        );
    }
    for value in ["0", "10s", "-1"] {
        let name = "OTEL_EXPORTER_OTLP_TIMEOUT";
        let why = environment(&[(name, value)]).timeout().unwrap_err();
        assert!(
            why.starts_with(&format!("{name} is {value}, must be ")),
            "{why}"
        );
    }
    let given = environment(&[("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1500")]);
    assert_eq!(given.timeout(), Ok(Duration::from_millis(1500)));
}

/// Starts an exporter to this address.
fn exporter(address: &str) -> (Spans, Exporter) {
    let endpoint = format!("http://{address}");
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "60000"),
        ("OTEL_TRACES_SAMPLER", "always_on"),
    ];
    let config = Config::default();
    let started = Exporter::with_environment("consumer", &config, &environment(&variables));
    let exporter = started.unwrap().unwrap();
    (exporter.spans(&config), exporter)
}

/// Makes many more spans than the queue holds.
fn make(spans: &Spans) {
    let topic = "orders".parse().unwrap();
    let common = CommonAttributes {
        topic: &topic,
        group: None,
        shard: None,
        client: None,
    };
    for _ in 0..20_000 {
        let mut message = PreparedMessage::new("");
        drop(spans.send(&common, &mut [&mut message], false, UnixMs::new(0)));
        assert!(message.record.headers.get("traceparent").is_some());
    }
}

/// Makes many spans for an exporter to this address, and ends it. Each export would take its time limit of a minute.
async fn assert_no_delay(address: &str) {
    let (spans, exporter) = exporter(address);
    let began = Instant::now();
    make(&spans);
    exporter.flush().await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_does_not_answer_delays_neither_spans_nor_the_end() {
    let collector = TcpListener::bind("127.0.0.1:0").await.unwrap();
    assert_no_delay(&collector.local_addr().unwrap().to_string()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_unavailable_delays_neither_spans_nor_the_end() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    assert_no_delay(&address).await;
}

#[test]
fn the_resource_names_the_role_unless_the_environment_does() {
    let name = |variables: &[(&str, &str)]| {
        let resource = resource("consumer", &Config::default(), &environment(variables));
        let get = |key: &'static str| resource.get(&key.into()).map(|value| value.to_string());
        assert_eq!(
            get("service.version").as_deref(),
            Some(env!("CARGO_PKG_VERSION"))
        );
        assert_eq!(get("lisa.namespace").as_deref(), Some("lisa"));
        assert_eq!(get("telemetry.sdk.language").as_deref(), Some("rust"));
        get("service.name").unwrap()
    };
    assert_eq!(name(&[]), "lisa-consumer");
    assert_eq!(name(&[("OTEL_SERVICE_NAME", "relay")]), "relay");
}

#[test]
fn the_default_relation_is_a_link() {
    assert_eq!(Config::default().otel.process, ProcessContext::Links);
}

#[test]
fn an_endpoint_is_shown_without_what_may_be_a_secret() {
    let url = shown("https://user:secret@collector:4318/secret/v1/traces?key=secret");
    assert_eq!(url.unwrap().as_str(), "https://collector:4318/");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_client_does_not_show_the_endpoint() {
    use opentelemetry_http::{Bytes, HttpClient, Request};

    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!(
        "http://u:secret@{}/secret?secret",
        free.local_addr().unwrap()
    );
    drop(free);
    let client = Client::new(&endpoint, &environment(&[])).unwrap();
    let request = Request::post(endpoint).body(Bytes::new()).unwrap();
    let error = client.send_bytes(request).await.unwrap_err();
    let text = lisa_core::causes::with_causes(error.as_ref());
    assert!(
        !text.contains("secret") && text.contains("refused"),
        "{text}"
    );
}
