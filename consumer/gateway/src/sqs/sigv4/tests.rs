//! The published test vectors of AWS, and requests that must be refused.

use axum::http::{HeaderName, HeaderValue};
use lisa_core::secret::Secret;
use lisa_service::http::auth::Scope;

use super::*;

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

fn tokens() -> TokenSet {
    let token = |name: &str| Token::new(name, &"0".repeat(64), vec![Scope::Send]).unwrap();
    let signing = token("AKIDEXAMPLE").with_aws_secret(Secret::new(SECRET));
    TokenSet::new(vec![signing, token("bearer")])
}

fn now() -> UnixMs {
    "2015-08-30T12:36:00Z".parse().unwrap()
}

/// Makes the headers of a request of the vectors, which are for `service` in us-east-1.
fn headers(more: &[(&str, &str)], signed: &str, signature: &str) -> HeaderMap {
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
         SignedHeaders={signed}, Signature={signature}"
    );
    let fixed = [
        ("host", "example.amazonaws.com"),
        ("x-amz-date", "20150830T123600Z"),
        ("authorization", authorization.as_str()),
    ];
    let mut headers = HeaderMap::new();
    for (name, value) in fixed.iter().chain(more) {
        let name = HeaderName::try_from(*name).unwrap();
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

fn verify(
    method: &str,
    path: &str,
    headers: &HeaderMap,
    body: &[u8],
    now: UnixMs,
) -> Result<String, SqsError> {
    let tokens = tokens();
    let authorization = Authorization::read(headers)?.expect("a signed request");
    let token = authorization.token(&tokens, headers, "service", now)?;
    let uri = path.parse().unwrap();
    authorization.verify(token, method, &uri, headers, &hex(&Sha256::digest(body)))?;
    Ok(token.name().to_owned())
}

/// A vector: its name, the method, the path, more headers, the signed headers, the body, and the signature.
type Vector<'a> = (
    &'a str,
    &'a str,
    &'a str,
    &'a [(&'a str, &'a str)],
    &'a str,
    &'a str,
    &'a str,
);

const VECTORS: [Vector<'_>; 9] = [
    (
        "get-vanilla",
        "GET",
        "/",
        &[],
        "host;x-amz-date",
        "",
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
    ),
    (
        "get-vanilla-query-order-key-case",
        "GET",
        "/?Param2=value2&Param1=value1",
        &[],
        "host;x-amz-date",
        "",
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
    ),
    (
        "get-header-key-duplicate",
        "GET",
        "/",
        &[
            ("my-header1", "value2"),
            ("my-header1", "value2"),
            ("my-header1", "value1"),
        ],
        "host;my-header1;x-amz-date",
        "",
        "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea",
    ),
    (
        "get-header-value-trim",
        "GET",
        "/",
        &[("my-header1", "value1"), ("my-header2", "\"a   b   c\"")],
        "host;my-header1;my-header2;x-amz-date",
        "",
        "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
    ),
    (
        "get-unreserved",
        "GET",
        "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
        &[],
        "host;x-amz-date",
        "",
        "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
    ),
    (
        "post-vanilla",
        "POST",
        "/",
        &[],
        "host;x-amz-date",
        "",
        "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
    ),
    (
        "post-header-key-sort",
        "POST",
        "/",
        &[("my-header1", "value1")],
        "host;my-header1;x-amz-date",
        "",
        "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c",
    ),
    (
        "post-header-key-case",
        "POST",
        "/",
        &[],
        "host;x-amz-date",
        "",
        "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
    ),
    (
        "post-x-www-form-urlencoded",
        "POST",
        "/",
        &[FORM],
        "content-type;host;x-amz-date",
        "Param1=value1",
        "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
    ),
];

#[test]
fn the_published_vectors_verify_and_nothing_in_them_can_be_changed() {
    for (name, method, path, more, signed, body, signature) in VECTORS {
        let given = headers(more, signed, signature);
        let verified = verify(method, path, &given, body.as_bytes(), now());
        assert_eq!(verified.as_deref(), Ok("AKIDEXAMPLE"), "{name}");
        let kind = |result: Result<String, SqsError>| result.unwrap_err().kind;
        let other = format!("{body} ");
        let changed = [
            verify("PUT", path, &given, body.as_bytes(), now()),
            verify(method, "/other", &given, body.as_bytes(), now()),
            verify(method, path, &given, other.as_bytes(), now()),
        ];
        for changed in changed {
            assert_eq!(kind(changed), Kind::SignatureDoesNotMatch, "{name}");
        }
        for header in signed.split(';').filter(|header| *header != "x-amz-date") {
            let mut given = given.clone();
            let header = HeaderName::try_from(header).unwrap();
            given.insert(header, HeaderValue::from_static("other"));
            let changed = verify(method, path, &given, body.as_bytes(), now());
            assert_eq!(kind(changed), Kind::SignatureDoesNotMatch, "{name}");
        }
        for at in [0, 31, 63] {
            let mut text = signature.to_owned();
            let digit = if &text[at..=at] == "0" { "1" } else { "0" };
            text.replace_range(at..=at, digit);
            let changed = verify(
                method,
                path,
                &headers(more, signed, &text),
                body.as_bytes(),
                now(),
            );
            assert_eq!(kind(changed), Kind::SignatureDoesNotMatch, "{name}");
        }
    }
}

/// Changes `get-vanilla`, and returns the error.
fn refusal(change: impl FnOnce(&mut HeaderMap), now: UnixMs) -> SqsError {
    let (.., signature) = VECTORS[0];
    let mut given = headers(&[], "host;x-amz-date", signature);
    change(&mut given);
    verify("GET", "/", &given, b"", now).unwrap_err()
}

fn with(header: &'static str, value: &str) -> impl FnOnce(&mut HeaderMap) {
    let value = HeaderValue::try_from(value).unwrap();
    move |headers| drop(headers.insert(header, value))
}

#[test]
fn a_request_is_valid_for_fifteen_minutes_either_way() {
    let (.., signature) = VECTORS[0];
    let given = headers(&[], "host;x-amz-date", signature);
    let at = |ms: i64| UnixMs::new(now().get().saturating_add_signed(ms));
    for ms in [-900_000, 900_000] {
        assert!(verify("GET", "/", &given, b"", at(ms)).is_ok());
    }
    for ms in [-900_001, 900_001] {
        assert_eq!(refusal(|_| (), at(ms)).kind, Kind::SignatureDoesNotMatch);
    }
}

#[test]
fn each_fault_of_a_signed_request_is_named() {
    let good = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
         SignedHeaders=host;x-amz-date, \
         Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31";
    let authorization = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        let error = refusal(with("authorization", &good.replace(from, to)), now());
        (error.kind, error.message)
    };
    for (from, to, part) in [
        ("AWS4-HMAC-SHA256", "Bearer", "expected AWS4-HMAC-SHA256"),
        ("Credential=", "Key=", "no Credential"),
        ("SignedHeaders=", "Headers=", "no SignedHeaders"),
        ("Signature=", "Sign=", "no Signature"),
        ("/aws4_request", "", "KEY/DATE/REGION/SERVICE"),
        ("/20150830", "/20150831", "not that of X-Amz-Date"),
        ("/20150830", "/2015", "not that of X-Amz-Date"),
        ("host;x-amz-date", "x-amz-date;host", "not sorted"),
        ("host;x-amz-date", "x-amz-date", "host is not signed"),
        ("host;x-amz-date", "host", "x-amz-date is not signed"),
        (
            "host;x-amz-date",
            "host;nothing;x-amz-date",
            "nothing is missing",
        ),
        ("bf31", "bf3", "64 hexadecimal digits"),
        ("bf31", "bfxx", "64 hexadecimal digits"),
    ] {
        let (kind, message) = authorization(from, to);
        assert_eq!(kind, Kind::IncompleteSignature, "{to}: {message}");
        assert!(message.contains(part), "{to}: {message}");
    }
    let (kind, message) = authorization("/service/", "/s3/");
    assert_eq!(kind, Kind::SignatureDoesNotMatch);
    assert!(message.contains("correct service"), "{message}");
    for name in ["AKIDOTHER", "bearer", ""] {
        assert_eq!(
            authorization("AKIDEXAMPLE", name).0,
            Kind::InvalidClientTokenId
        );
    }
    for date in [
        "",
        "20150830",
        "20150830T123600",
        "20150830X123600Z",
        "2015083ä123600Z",
        "20159930T123600Z",
    ] {
        let error = refusal(with("x-amz-date", date), now());
        assert_eq!(error.kind, Kind::IncompleteSignature, "{date}");
    }
    let unsigned = refusal(with("x-amz-target", "AmazonSQS.SendMessage"), now());
    assert!(unsigned.message.contains("x-amz-target is not signed"));
    let twice = refusal(
        |headers| {
            headers.append("authorization", HeaderValue::from_static("x"));
        },
        now(),
    );
    assert!(twice.message.contains("several"));
    let (.., signature) = VECTORS[0];
    let given = headers(&[], "host;x-amz-date", signature);
    let query = verify("GET", "/?a=b", &given, b"", now()).unwrap_err();
    assert_eq!(query.kind, Kind::SignatureDoesNotMatch);
    assert_eq!(Authorization::read(&HeaderMap::new()), Ok(None));
}

#[test]
fn a_path_is_encoded_once_more() {
    assert_eq!(encode("/", b"/"), "/");
    assert_eq!(encode("/0/a%20b.fifo", b"/"), "/0/a%2520b.fifo");
}
