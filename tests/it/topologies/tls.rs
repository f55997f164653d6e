//! Redis behind TLS that requires a certificate of its clients.

use super::SOON;
use crate::scenarios::deployment::{Deployment, STDOUT, TOPIC};
use crate::scenarios::lines;
use lisa_tests::tls::Authority;
use lisa_tests::{Binary, Server, Site, eventually, free_port};
use std::path::Path;

/// A server with TLS, if the engine has it.
#[track_caller]
fn server() -> Option<Server> {
    if Server::has_tls() {
        return Some(Server::builder().cluster(false).tls().start());
    }
    Site::leave_out("the engine was built without TLS");
    None
}

#[tokio::test]
async fn all_roles_work_over_tls_with_certificates_of_both_sides() {
    let Some(server) = server() else { return };
    let here = Deployment::on(Site::One(Box::new(server)), "");
    let (producer, manager) = (here.producer().await, here.manager().await);
    let mut consumer = here.consumer(STDOUT).await;
    producer
        .api
        .send(TOPIC, "x", &[("Lisa-Delay", "50ms")])
        .await
        .expect(202);
    lines(&mut consumer, 1, SOON).await;
    here.drained().await;
    for mut role in [producer, manager, consumer] {
        role.stop().await;
    }
    here.conserved().await;
}

/// A configuration with these files; nothing where a path is empty.
fn config(server: &Server, ca: &Path, cert: &Path, key: &Path) -> String {
    let line = |name: &str, path: &Path| match path.as_os_str().is_empty() {
        true => String::new(),
        false => format!("tls.{name} = {path:?}\n"),
    };
    let lines = [("ca_file", ca), ("client_cert", cert), ("client_key", key)];
    let lines: String = lines.map(|(name, path)| line(name, path)).concat();
    format!(
        "[redis]\nurl = \"{}\"\n{lines}[manager]\nlisten = \"127.0.0.1:{}\"\n",
        server.url(),
        free_port()
    )
}

#[tokio::test]
async fn certificates_that_do_not_fit_are_reported() {
    let Some(server) = server() else { return };
    let (files, dir) = (server.tls().unwrap(), tempfile::tempdir().unwrap());
    let none = Path::new("");
    let (ca, cert, key) = (files.ca(), files.client_cert(), files.client_key());
    let written = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let stranger = Authority::new();
    let strangers_ca = written("stranger.pem", stranger.pem());
    let strange = stranger.client();
    let strange = [
        written("strange.pem", &strange.cert),
        written("strange.key", &strange.key),
    ];
    let expired = files.authority().expired_client();
    let expired = [
        written("expired.pem", &expired.cert),
        written("expired.key", &expired.key),
    ];
    let no_pem = written("no.pem", "no certificate");
    let missing = dir.path().join("missing.pem");
    let verb = async |ca: &Path, cert: &Path, key: &Path| {
        let launch = Binary::Manager.with(["stats", "--timeout", "1s"]);
        let text = config(&server, ca, cert, key);
        launch.config(&text).run(SOON).await
    };
    // An error that the server's side may repair is retried; one that only the files can repair is a mistake in the
    // configuration.
    for (code, ca, cert, key, said) in [
        (69, &*strangers_ca, &*cert, &*key, "UnknownIssuer"),
        (69, none, &cert, &key, "UnknownIssuer"),
        (69, &ca, none, none, "CertificateRequired"),
        (69, &ca, &strange[0], &strange[1], "UnknownCA"),
        (69, &ca, &expired[0], &expired[1], "CertificateExpired"),
        (78, &ca, &strange[0], &key, "KeyMismatch"),
        (78, &ca, &no_pem, &key, "no certificates"),
        (78, &ca, &cert, &no_pem, "private key"),
        (78, &missing, &cert, &key, "missing.pem"),
        (78, &ca, &cert, none, "must be set together"),
    ] {
        // On a busy machine, the time may be over before the server has refused.
        eventually(SOON, async || match verb(ca, cert, key).await {
            done if done.code == Some(code) && done.stderr.contains(said) => Ok(()),
            done => Err(format!("{said}: {done:?}")),
        })
        .await;
    }
    assert_eq!(verb(&ca, &cert, &key).await.code, Some(0));
}

#[tokio::test]
async fn a_role_whose_certificate_is_not_trusted_is_not_ready_and_says_why() {
    let Some(server) = server() else { return };
    let files = server.tls().unwrap();
    let good = [files.client_cert(), files.client_key()].map(|path| std::fs::read(path).unwrap());
    files.set_client(&files.authority().expired_client());
    let here = Deployment::on(Site::One(Box::new(server)), "");
    let role = here.launch(Binary::Manager, &["run"], STDOUT);
    eventually(SOON, async || match role.api.try_get("/readyz").await {
        Some(reply) if reply.status == 503 && reply.body.contains("CertificateExpired") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    role.api.get("/healthz").await.expect(200);
    drop(role);
    let Site::One(server) = &here.site else {
        unreachable!("it was one server")
    };
    let files = server.tls().unwrap();
    std::fs::write(files.client_cert(), &good[0]).unwrap();
    std::fs::write(files.client_key(), &good[1]).unwrap();
    here.manager().await;
}
