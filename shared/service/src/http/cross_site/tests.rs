use axum::body::Body;

use super::*;

fn rule() -> CrossSite {
    CrossSite::new(
        &TokenSet::default(),
        vec!["Lisa.Example.com.".parse().unwrap()],
        vec!["https://board.example.com".parse().unwrap()],
    )
}

/// Returns the code of the problem if a request is refused.
fn judged(method: Method, target: &str, headers: &[(&str, &str)]) -> Option<ProblemCode> {
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).unwrap();
    let route = request.uri().path().to_owned();
    let refusal = rule().refusal(&request, &route)?;
    Some(refusal.code())
}

#[test]
fn a_host_that_a_stranger_may_own_is_refused() {
    let judge = |host: &str| judged(Method::GET, "/v1/stats", &[("host", host)]);
    for own in [
        "localhost",
        "LOCALHOST:7812",
        "localhost.:7812",
        "127.0.0.1:7812",
        "10.1.2.3",
        "[::1]:7812",
        "[::FFFF:127.0.0.1]",
        "lisa-manager:7812",
        "lisa_manager",
        "lisa.example.com",
        "LISA.example.com.:7812",
    ] {
        assert_eq!(judge(own), None, "{own}");
    }
    for strange in [
        "evil.example",
        "evil.example.:7812",
        "EVIL.EXAMPLE:7812",
        "com.",
        "localhost..",
        "localhost.evil.example",
        "evil.localhost",
        "127.0.0.1.evil.example",
        "127.0.0.1.",
        "lisa.example.com.evil.example",
        "evil-lisa.example.com",
        "lisa.example.com..",
        "::1",
        "[::1",
        "[::1]7812",
        "[::1]]",
        "[evil.example]",
        "[::1%25eth0]",
        "localhost:",
        "localhost:99999",
        "localhost:+1",
        "localhost:1:2",
        "evil.example@localhost",
        "localhost@evil.example",
        "localhost/evil",
        "localhost,evil.example",
        "local host",
        "",
        ":7812",
    ] {
        let refused = Some(ProblemCode::HostNotAllowed);
        assert_eq!(judge(strange), refused, "{strange}");
    }
}

#[test]
fn without_a_host_nothing_but_the_probes_is_answered() {
    let refused = Some(ProblemCode::HostNotAllowed);
    assert_eq!(judged(Method::GET, "/metrics", &[]), refused);
    for probe in ["/healthz", "/readyz"] {
        assert_eq!(judged(Method::GET, probe, &[]), None);
        let rebound = [("host", "evil.example")];
        assert_eq!(judged(Method::GET, probe, &rebound), None);
    }
}

#[test]
fn an_absolute_target_must_fit_as_well_as_host() {
    let judge = |target: &str, host: &str| judged(Method::GET, target, &[("host", host)]);
    let refused = Some(ProblemCode::HostNotAllowed);
    assert_eq!(judge("http://localhost:1/v1/stats", "localhost:1"), None);
    assert_eq!(judge("http://evil.example/", "localhost"), refused);
    assert_eq!(judge("http://localhost/", "evil.example"), refused);
}

#[test]
fn the_site_that_a_browser_names_decides_before_its_origin() {
    let own = "http://localhost:7812";
    for (site, origin, passes) in [
        ("same-origin", own, true),
        // A proxy may have replaced the Host of the request.
        ("same-origin", "https://lisa.example.com", true),
        ("none", own, true),
        ("same-site", own, false),
        ("cross-site", own, false),
        ("cross-site", "https://board.example.com", false),
        ("Same-Origin", own, false),
        ("same-origin, cross-site", own, false),
        ("", own, false),
    ] {
        for method in [Method::POST, Method::PATCH, Method::DELETE, Method::PUT] {
            let headers = [
                ("host", "localhost:7812"),
                ("sec-fetch-site", site),
                ("origin", origin),
            ];
            let judged = judged(method, "/v1/topics/t/pause", &headers);
            assert_eq!(judged.is_none(), passes, "{site} {origin} {judged:?}");
        }
    }
    let twice = [
        ("host", "localhost:7812"),
        ("sec-fetch-site", "same-origin"),
        ("sec-fetch-site", "same-origin"),
    ];
    let refused = Some(ProblemCode::CrossSite);
    assert_eq!(judged(Method::POST, "/", &twice), refused);
}

#[test]
fn without_a_site_the_origin_must_be_the_host_or_an_allowed_one() {
    for (host, origin, passes) in [
        ("localhost:7812", "http://localhost:7812", true),
        ("LOCALHOST:7812", "http://localhost:7812", true),
        ("localhost", "http://localhost", true),
        ("localhost:80", "http://localhost", true),
        ("localhost", "https://localhost:443", true),
        ("[::1]:7812", "http://[::1]:7812", true),
        ("localhost:7812", "https://board.example.com", true),
        ("localhost:7812", "https://BOARD.example.com:443", true),
        ("localhost:7812", "http://board.example.com", false),
        ("localhost:7812", "http://localhost:3000", false),
        ("localhost:7812", "http://localhost", false),
        ("localhost", "http://localhost:7812", false),
        ("localhost", "https://localhost:80", false),
        ("127.0.0.1:7812", "http://localhost:7812", false),
        ("localhost:7812", "null", false),
        ("localhost:7812", "", false),
        ("localhost:7812", "localhost:7812", false),
        ("localhost:7812", "http://localhost:7812/", false),
        ("localhost:7812", "file://", false),
        ("localhost:7812", "chrome-extension://localhost:7812", false),
        (
            "localhost:7812",
            "http://localhost:7812 http://localhost:7812",
            false,
        ),
    ] {
        let headers = [("host", host), ("origin", origin)];
        let judged = judged(Method::POST, "/v1/topics/t/pause", &headers);
        assert_eq!(judged.is_none(), passes, "{host} {origin} {judged:?}");
    }
    let twice = [
        ("host", "localhost:7812"),
        ("origin", "http://localhost:7812"),
        ("origin", "http://localhost:7812"),
    ];
    let refused = Some(ProblemCode::CrossSite);
    assert_eq!(judged(Method::POST, "/", &twice), refused);
}

#[test]
fn programs_pass_and_pages_of_other_sites_only_read() {
    let host = ("host", "localhost:7812");
    let examination = EXAMINATION;
    assert_eq!(judged(Method::DELETE, "/v1/topics/t", &[host]), None);
    assert_eq!(judged(Method::GET, examination, &[host]), None);
    let refused = Some(ProblemCode::CrossSite);
    for site in ["cross-site", "same-site"] {
        let image = [host, ("sec-fetch-site", site)];
        for method in [Method::GET, Method::HEAD] {
            let judged_examination = judged(method.clone(), examination, &image);
            assert_eq!(judged_examination, refused, "{site} {method}");
            for route in [
                "/v1/stats",
                "/v1/topics/{topic}/messages/{id}",
                "/metrics",
                "/",
            ] {
                let judged = judged(method.clone(), route, &image);
                assert_eq!(judged, None, "{site} {method} {route}");
            }
        }
        assert_eq!(judged(Method::OPTIONS, examination, &image), None);
        assert_eq!(judged(Method::TRACE, "/", &image), refused);
    }
    for site in ["same-origin", "none"] {
        let own = [host, ("sec-fetch-site", site)];
        assert_eq!(judged(Method::GET, examination, &own), None);
    }
    let scripted = [host, ("origin", "http://evil.example")];
    assert_eq!(judged(Method::GET, examination, &scripted), refused);
}

#[test]
fn an_action_of_sqs_makes_a_change_with_any_method() {
    let rule = CrossSite::default();
    let judged = |target: &str, site: &str| {
        let request = Request::get(target).header("host", "localhost:7812");
        let request = request.header("sec-fetch-site", site);
        let request = request.body(Body::empty()).unwrap();
        let route = match target.split('?').next() {
            Some("/") => "/",
            _ => "/{account}/{queue}",
        };
        rule.refusal(&request, route).is_some()
    };
    for target in [
        "/?Action=DeleteQueue&QueueUrl=q",
        "/1/q?x=y&Action=PurgeQueue",
    ] {
        assert!(judged(target, "cross-site"), "{target}");
        assert!(!judged(target, "none"), "{target}");
    }
    // The dashboard.
    assert!(!judged("/?query=Action", "cross-site"));
}

#[test]
fn a_browser_that_does_not_name_its_page_starts_nothing() {
    let rule = CrossSite::default();
    let judged = |method: Method, target: &str, route: &str, agent: &str| {
        let request = Request::builder().method(method).uri(target);
        let request = request.header("host", "10.0.0.5:7814");
        let request = request.header("user-agent", agent);
        let request = request.body(Body::empty()).unwrap();
        rule.refusal(&request, route).is_some()
    };
    let browser = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";
    let action = "/?Action=DeleteQueue&QueueUrl=q";
    for (target, route) in [(action, "/"), ("/v1/topics/t/doctor", EXAMINATION)] {
        assert!(judged(Method::GET, target, route, browser), "{target}");
        assert!(!judged(Method::GET, target, route, "curl/8.5.0"));
    }
    // These have no effect, or an origin.
    assert!(!judged(Method::GET, "/v1/topics", "/v1/topics", browser));
    assert!(!judged(Method::POST, "/", "/", browser));
}

#[test]
fn with_tokens_the_routes_decide() {
    let token = super::super::auth::Token::new(
        "app",
        &"0".repeat(64),
        vec![super::super::auth::Scope::Send],
    );
    let tokens = TokenSet::new(vec![token.unwrap()]);
    let rule = CrossSite::new(&tokens, Vec::new(), Vec::new());
    let request = Request::post("/v1/topics/t/pause")
        .header("host", "evil.example")
        .header("origin", "http://evil.example");
    let request = request.body(Body::empty()).unwrap();
    assert!(rule.refusal(&request, "/v1/topics/{topic}/pause").is_none());
}

#[test]
fn what_is_configured_is_shown_as_it_is_compared() {
    let host = |text: &str| text.parse::<HostName>().map(|host| host.to_string());
    assert_eq!(host("Lisa.Example.COM."), Ok("lisa.example.com".to_owned()));
    for bad in [
        "",
        ".",
        "a..b",
        ".a",
        "*.a",
        "a:80",
        "http://a",
        "a/b",
        "a b",
        "[::1]",
        "é.example",
    ] {
        assert_eq!(host(bad), Err(InvalidHostName), "{bad}");
    }
    let origin = |text: &str| text.parse::<Origin>().map(|origin| origin.to_string());
    for (given, shown) in [
        ("HTTPS://A.example:443", "https://a.example"),
        ("http://a.example:443", "http://a.example:443"),
        ("http://[::1]:80", "http://[::1]"),
    ] {
        assert_eq!(origin(given), Ok(shown.to_owned()));
    }
    for bad in [
        "*",
        "null",
        "a.example",
        "ftp://a",
        "http://",
        "http://a/",
        "http://a:b",
        "http://u@a",
    ] {
        assert_eq!(origin(bad), Err(InvalidOrigin), "{bad}");
    }
}
