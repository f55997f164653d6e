//! The command line and the dashboard, with TLS.

use super::files::{CERTIFICATE, Here, TOKENS};
use lisa_tests::tls::Authority;
use lisa_tests::{Binary, SOON, free_port};
use reqwest::Method;
use reqwest::header::SET_COOKIE;

#[tokio::test]
async fn the_command_line_trusts_a_private_authority_and_presents_a_certificate() {
    let here = Here::new();
    let clients = Authority::new();
    here.write("clients.pem", clients.pem());
    here.put("reports", &clients.client_named("reports.internal"));
    let first = format!(
        "http.tls.client_ca_file = {:?}\n{TOKENS}",
        here.path("clients.pem")
    );
    let role = here.start_with(Binary::Manager, &["run"], &first).await;
    let verb = |arguments: &[&str]| {
        let arguments = [&["stats", "--url", role.api.url()], arguments].concat();
        Binary::Manager.with(arguments)
    };
    let (ca, cert, key) = (
        here.text("ca.pem"),
        here.text("reports.pem"),
        here.text("reports.key"),
    );
    let options = [
        "--ca-file",
        &*ca,
        "--client-cert",
        &cert,
        "--client-key",
        &key,
    ];
    let done = verb(&options).run(SOON).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let done = verb(&[])
        .env("LISA_CA_FILE", &ca)
        .env("LISA_CLIENT_CERT", &cert)
        .env("LISA_CLIENT_KEY", &key)
        .run(SOON)
        .await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let token = verb(&["--ca-file", &ca])
        .env("LISA_TOKEN", "read-token")
        .run(SOON)
        .await;
    assert_eq!(token.code, Some(0), "{token:?}");
    let missing = here.text("missing.pem");
    for (arguments, code, said) in [
        (&["--ca-file", &*ca][..], 1, "requires a token"),
        (
            &["--ca-file", &*here.text("clients.pem")],
            69,
            "UnknownIssuer",
        ),
        (&["--ca-file", &missing], 78, "missing.pem"),
        (
            &["--ca-file", &ca, "--client-cert", &cert],
            2,
            "must be given together",
        ),
        (
            &[
                "--ca-file",
                &ca,
                "--client-cert",
                &cert,
                "--client-key",
                &here.text("server.key"),
            ],
            78,
            "KeyMismatch",
        ),
    ] {
        let refused = verb(arguments).run(SOON).await;
        assert_eq!(refused.code, Some(code), "{arguments:?}: {refused:?}");
        assert!(refused.stderr.contains(said), "{arguments:?}: {refused:?}");
    }
    let alone = Binary::Manager
        .with(["stats", "--ca-file", &ca])
        .run(SOON)
        .await;
    assert_eq!(alone.code, Some(2), "{alone:?}");
    assert!(
        alone.stderr.contains("--ca-file requires --url"),
        "{alone:?}"
    );
    // Without a URL, `jobs` asks the configured manager.
    let config = here.config(role.port, &first[..first.find('[').unwrap()], TOKENS);
    let jobs = Binary::Manager
        .with(["jobs", "--ca-file", &ca])
        .config(&config);
    let jobs = jobs.env("LISA_TOKEN", "read-token").run(SOON).await;
    assert_eq!(jobs.code, Some(0), "{jobs:?}");
}

#[tokio::test]
async fn healthcheck_asks_its_own_listener_whatever_names_the_certificate_has() {
    let here = Here::new();
    here.put(CERTIFICATE, &here.authority.client_named("lisa.internal"));
    let port = free_port();
    let config = here.config(port, "", "[consumer]\nlisten = \"127.0.0.1:9\"");
    let _process = Binary::Manager.with(["run"]).config(&config).start();
    let healthcheck = || Binary::Manager.with(["healthcheck"]).config(&config);
    lisa_tests::eventually(SOON, async || {
        let ended = healthcheck().run(SOON).await;
        match ended.code {
            Some(0) => Ok(()),
            _ => Err(format!("{ended:?}")),
        }
    })
    .await;
    // It sees a listener without TLS, too: one that runs with an older configuration.
    let plain = here.config(port, "", "").replace("http.tls", "# http.tls");
    let ended = Binary::Manager
        .with(["healthcheck"])
        .config(&plain)
        .run(SOON)
        .await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("answers 400"), "{ended:?}");
}

#[tokio::test]
async fn a_check_of_the_configuration_finds_what_is_wrong_with_the_files() {
    let here = Here::new();
    let check = async |first: &str| {
        let config = here.config(7812, first, "");
        Binary::Manager
            .with(["config", "check"])
            .config(&config)
            .run(SOON)
            .await
    };
    let good = check("").await;
    assert_eq!(
        (good.code, good.stderr.contains("warning")),
        (Some(0), false),
        "{good:?}"
    );
    here.write("clients.pem", "no PEM");
    let clients = format!("http.tls.client_ca_file = {:?}", here.path("clients.pem"));
    let refused = check(&clients).await;
    assert_eq!(refused.code, Some(78), "{refused:?}");
    assert!(
        refused.stderr.contains("http.tls.client_ca_file"),
        "{refused:?}"
    );
    assert!(refused.stderr.contains("no certificates"), "{refused:?}");
    here.put(CERTIFICATE, &here.authority.server_until(2021));
    let expired = check("").await;
    assert_eq!(expired.code, Some(0), "{expired:?}");
    assert!(
        expired.stderr.contains("expired at 2021-01-01"),
        "{expired:?}"
    );
    here.write("server.key", &here.authority.server().key);
    let mismatch = check("").await;
    assert_eq!(mismatch.code, Some(78), "{mismatch:?}");
    assert!(
        mismatch.stderr.contains("http.tls.key_file"),
        "{mismatch:?}"
    );
    assert!(mismatch.stderr.contains("KeyMismatch"), "{mismatch:?}");
    // The same error at start, and a verb that serves nothing does not need the files.
    let config = here.config(free_port(), "", "");
    let start = Binary::Manager
        .with(["run"])
        .config(&config)
        .run(SOON)
        .await;
    assert_eq!(start.code, Some(78), "{start:?}");
    assert!(start.stderr.contains("KeyMismatch"), "{start:?}");
    std::fs::remove_file(here.path("server.key")).unwrap();
    let missing = check("").await;
    assert_eq!(missing.code, Some(0), "{missing:?}");
    assert!(
        missing.stderr.contains("cannot read the file"),
        "{missing:?}"
    );
    let verb = Binary::Manager
        .with(["stats"])
        .config(&config)
        .run(SOON)
        .await;
    assert_eq!(verb.code, Some(0), "{verb:?}");
}

#[tokio::test]
async fn a_session_over_tls_has_a_secure_cookie() {
    let here = Here::new();
    let first = TOKENS
        .replace("client_name", "sha256")
        .replace("orders.internal", &"0".repeat(64))
        .replace("reports.internal", &"1".repeat(64));
    let role = here
        .start_with(Binary::Manager, &["run"], &format!("\n{first}"))
        .await;
    let login = role.api.request(Method::POST, "/login");
    let login = login
        .header("content-type", "application/x-www-form-urlencoded")
        .body("token=read-token");
    let reply = login.send().await.unwrap();
    let cookie = reply.headers()[SET_COOKIE].to_str().unwrap().to_owned();
    assert!(
        cookie.starts_with("__Host-lisa=") && cookie.contains("Secure;"),
        "{cookie}"
    );
    let page = role
        .api
        .request(Method::GET, "/system")
        .header("cookie", cookie);
    assert_eq!(page.send().await.unwrap().status(), 200);
}
