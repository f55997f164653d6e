//! Programs whose listeners have TLS, and their files.

use lisa_tests::tls::{Authority, Identity};
use lisa_tests::{Api, Binary, Process, SOON, Server, eventually, free_port};
use std::path::PathBuf;
use tempfile::TempDir;

/// The name of the files with the certificate of the listeners and its key.
pub(super) const CERTIFICATE: &str = "server";

/// Tokens of two clients with a certificate, and of one without. The last one's text is `read-token`.
pub(super) const TOKENS: &str = r#"
[[auth.tokens]]
name = "orders"
client_name = "orders.internal"
scopes = ["send"]
[[auth.tokens]]
name = "reports"
client_name = "reports.internal"
scopes = ["read"]
[[auth.tokens]]
name = "eyes"
sha256 = "0328587016f9e316b9c31c94f944a2c453e1494a564062b5eab68039c75b58bf"
scopes = ["read"]
"#;

/// An authority, the files of a certificate that it signed, and a namespace on the shared server.
pub(super) struct Here {
    dir: TempDir,
    namespace: String,
    pub(super) authority: Authority,
}

/// A running program that is ready.
pub(super) struct Role {
    pub(super) process: Process,
    pub(super) port: u16,
    pub(super) api: Api,
}

impl Here {
    pub(super) fn new() -> Self {
        let here = Self {
            dir: tempfile::tempdir().unwrap(),
            namespace: Server::shared().namespace("tls").to_string(),
            authority: Authority::new(),
        };
        here.write("ca.pem", here.authority.pem());
        here.put(CERTIFICATE, &here.authority.server());
        here
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Writes a certificate and its key, one after the other.
    pub(super) fn put(&self, name: &str, identity: &Identity) {
        self.write(&format!("{name}.pem"), &identity.cert);
        self.write(&format!("{name}.key"), &identity.key);
    }

    /// Returns the configuration of roles on this port. `first` holds keys before the first table, `rest` tables.
    pub(super) fn config(&self, port: u16, first: &str, rest: &str) -> String {
        let url = Server::shared().url();
        let (namespace, cert, key) = (
            &self.namespace,
            self.path("server.pem"),
            self.path("server.key"),
        );
        format!(
            r#"
            namespace = "{namespace}"
            redis.url = "{url}"
            http.tls.cert_file = {cert:?}
            http.tls.key_file = {key:?}
            producer.listen = "127.0.0.1:{port}"
            topics.t.groups = ["g"]
            {first}
            [manager]
            listen = "127.0.0.1:{port}"
            {rest}
            "#
        )
    }

    /// Returns a client that trusts the authority.
    pub(super) fn api(&self, port: u16) -> Api {
        Api::over_tls(port, &self.authority, None)
    }

    pub(super) async fn ready(&self, port: u16) {
        eventually(SOON, async || {
            match self.api(port).try_get("/readyz").await {
                Some(reply) if reply.status == 200 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// Starts a program with further tables, without waiting for anything.
    pub(super) fn launch(
        &self,
        binary: Binary,
        arguments: &[&str],
        port: u16,
        rest: &str,
    ) -> Process {
        let config = self.config(port, "", rest);
        binary
            .with(arguments.iter().copied())
            .config(&config)
            .start()
    }

    /// Starts a program with further keys, without waiting for anything.
    pub(super) fn launch_with(
        &self,
        binary: Binary,
        arguments: &[&str],
        port: u16,
        first: &str,
    ) -> Process {
        let (keys, tables) = first.split_at(first.find("\n[").unwrap_or(first.len()));
        let config = self.config(port, keys, tables);
        binary
            .with(arguments.iter().copied())
            .config(&config)
            .start()
    }

    pub(super) async fn start(&self, binary: Binary, arguments: &[&str], rest: &str) -> Role {
        let port = free_port();
        self.role(self.launch(binary, arguments, port, rest), port)
            .await
    }

    pub(super) async fn start_with(&self, binary: Binary, arguments: &[&str], first: &str) -> Role {
        let port = free_port();
        self.role(self.launch_with(binary, arguments, port, first), port)
            .await
    }

    async fn role(&self, process: Process, port: u16) -> Role {
        self.ready(port).await;
        let api = self.api(port);
        Role { process, port, api }
    }
}
