//! Requests of the SQS protocol, as AWS SDKs send them.

use hmac::{Hmac, KeyInit, Mac};
use reqwest::Method;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::Api;

/// The media type of the protocol.
pub const JSON: &str = "application/x-amz-json-1.0";

/// Returns bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    mac.chain_update(text).finalize().into_bytes().to_vec()
}

/// Makes a signed request of the client `name`, as its SDK does (Signature Version 4).
pub fn signed(
    api: &Api,
    name: &str,
    secret: &str,
    action: &str,
    body: &Value,
) -> reqwest::RequestBuilder {
    signed_text(api, name, secret, action, body.to_string())
}

/// Makes a signed request like [`signed`], with any text as its body.
pub fn signed_text(
    api: &Api,
    name: &str,
    secret: &str,
    action: &str,
    text: String,
) -> reqwest::RequestBuilder {
    let target = format!("AmazonSQS.{action}");
    let headers = [("content-type", JSON), ("x-amz-target", &target)];
    sign(api, name, secret, (Method::POST, ""), &headers, text)
}

/// Makes a signed request of the older protocol, with its parameters in the URL, in a form, or in both.
pub fn signed_form(
    api: &Api,
    name: &str,
    secret: &str,
    query: &str,
    form: &str,
) -> reqwest::RequestBuilder {
    let method = match form {
        "" => Method::GET,
        _ => Method::POST,
    };
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    sign(
        api,
        name,
        secret,
        (method, query),
        &headers,
        form.to_owned(),
    )
}

fn sign(
    api: &Api,
    name: &str,
    secret: &str,
    (method, query): (Method, &str),
    headers: &[(&str, &str)],
    text: String,
) -> reqwest::RequestBuilder {
    let path = match query {
        "" => "/".to_owned(),
        query => format!("/?{query}"),
    };
    let request = api.request(method.clone(), &path);
    let url = request
        .try_clone()
        .and_then(|request| request.build().ok())
        .expect("a request");
    let url = url.url();
    let host = format!(
        "{}:{}",
        url.host_str().expect("a host"),
        url.port().expect("a port")
    );
    let time = jiff::Timestamp::now()
        .strftime("%Y%m%dT%H%M%SZ")
        .to_string();
    let more = [("host", host.as_str()), ("x-amz-date", &time)];
    let mut signed: Vec<_> = headers.iter().copied().chain(more).collect();
    signed.sort_unstable();
    let names: Vec<_> = signed.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let lines: String = signed
        .iter()
        .map(|(name, value)| format!("{name}:{value}\n"))
        .collect();
    let mut pairs: Vec<_> = query.split('&').collect();
    pairs.sort_unstable();
    let canonical = format!(
        "{method}\n/\n{}\n{lines}\n{names}\n{}",
        pairs.join("&"),
        hex(&Sha256::digest(&text))
    );
    let scope = [&time[..8], "eu-central-1", "sqs", "aws4_request"];
    let key = scope
        .iter()
        .fold(format!("AWS4{secret}").into_bytes(), |key, part| {
            mac(&key, part)
        });
    let scope = scope.join("/");
    let hash = hex(&Sha256::digest(canonical));
    let signature = hex(&mac(
        &key,
        &format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{hash}"),
    ));
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={name}/{scope}, SignedHeaders={names}, Signature={signature}"
    );
    let more = [
        ("x-amz-date", time.as_str()),
        ("authorization", &authorization),
    ];
    headers
        .iter()
        .chain(&more)
        .fold(request.body(text), |request, (name, value)| {
            request.header(*name, *value)
        })
}
