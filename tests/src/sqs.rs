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
    let request = api.request(Method::POST, "/");
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
    let target = format!("AmazonSQS.{action}");
    let time = jiff::Timestamp::now()
        .strftime("%Y%m%dT%H%M%SZ")
        .to_string();
    let names = "content-type;host;x-amz-date;x-amz-target";
    let canonical = format!(
        "POST\n/\n\ncontent-type:{JSON}\nhost:{host}\nx-amz-date:{time}\nx-amz-target:{target}\n\n{names}\n{}",
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
    let headers = [
        ("content-type", JSON),
        ("x-amz-date", &time),
        ("x-amz-target", &target),
        ("authorization", &authorization),
    ];
    headers
        .iter()
        .fold(request.body(text), |request, (name, value)| {
            request.header(*name, *value)
        })
}
