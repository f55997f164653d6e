//! The certificate of the listeners, and tokens of client certificates.

use rcgen::{CertificateParams, KeyPair};

use super::*;

/// A directory with a certificate for `lisa.internal`, its key, and a configuration.
struct Here(tempfile::TempDir);

impl Here {
    fn new() -> Self {
        let here = Self(tempfile::tempdir().unwrap());
        here.write("server.pem", "server.key");
        here
    }

    fn write(&self, cert_file: &str, key_file: &str) {
        let params = CertificateParams::new(["lisa.internal".to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        std::fs::write(self.0.path().join(cert_file), cert.pem()).unwrap();
        std::fs::write(self.0.path().join(key_file), key.serialize_pem()).unwrap();
    }

    fn load(&self, text: &str, listener_files: SinkSecrets) -> Result<Loaded, ConfigError> {
        let file = self.0.path().join("lisa.toml");
        std::fs::write(&file, text).unwrap();
        Loaded::load(LoadOptions {
            listener_files,
            ..from_file(&file)
        })
    }
}

const BOTH: &str = "[http.tls]\ncert_file = 'server.pem'\nkey_file = 'server.key'\n";

#[test]
fn a_certificate_is_in_files_beside_the_configuration() {
    let here = Here::new();
    let loaded = here.load(BOTH, SinkSecrets::Required).unwrap();
    let tls = loaded.config.http.tls.clone().unwrap();
    assert_eq!(tls.cert_file, here.0.path().join("server.pem"));
    assert_eq!(tls.client_ca_file, None);
    assert_eq!(loaded.warnings.len(), 0);
    let listen = loaded.config.producer.listen;
    assert_eq!(loaded.config.http.url(listen), "https://127.0.0.1:7811");
    let http = toml("").unwrap().http;
    assert_eq!(
        (http.url(listen), http.tls),
        ("http://127.0.0.1:7811".to_owned(), None)
    );
}

#[test]
fn certificate_and_key_belong_together() {
    let here = Here::new();
    here.write("other.pem", "other.key");
    for (text, part) in [
        (
            "[http.tls]\ncert_file = 'server.pem'",
            "must be set together",
        ),
        (
            "[http.tls]\nkey_file = 'server.key'",
            "must be set together",
        ),
        ("[http.tls]\nclient_ca_file = 'server.pem'", "requires both"),
        (
            &BOTH.replace("server.key", "other.key"),
            "http.tls.key_file",
        ),
        (&BOTH.replace("server.pem", "server.key"), "no certificates"),
        (&BOTH.replace("server.key", "server.pem"), "no private key"),
        (
            &format!("{BOTH}ca_file = 'server.pem'"),
            "unknown key, known keys",
        ),
    ] {
        let error = here.load(text, SinkSecrets::Checked).unwrap_err();
        let [problem] = &*error.problems else {
            panic!("{text}: {error}");
        };
        assert!(problem.to_string().contains(part), "{text}: {problem}");
    }
}

#[test]
fn only_a_process_with_listeners_needs_the_files() {
    let here = Here::new();
    let text = BOTH.replace("server.pem", "missing.pem");
    let error = here
        .load(&text, SinkSecrets::Required)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("http.tls.cert_file") && error.contains("cannot read the file"),
        "{error}"
    );
    assert_eq!(
        here.load(&text, SinkSecrets::Checked)
            .unwrap()
            .warnings
            .len(),
        1
    );
    assert_eq!(
        here.load(&text, SinkSecrets::Unused)
            .unwrap()
            .warnings
            .len(),
        0
    );
    let mismatch = BOTH.replace("server.pem", "server.key");
    assert!(here.load(&mismatch, SinkSecrets::Unused).is_ok());
}

fn token(name: &str, keys: &str) -> String {
    format!("[[auth.tokens]]\nname = '{name}'\nscopes = ['send']\n{keys}\n")
}

#[test]
fn a_token_has_a_hash_or_the_name_of_a_client_or_both() {
    let here = Here::new();
    let with_clients = format!("{BOTH}client_ca_file = 'server.pem'\n");
    let load = |rest: &str| here.load(&format!("{with_clients}{rest}"), SinkSecrets::Required);
    let hash = format!("sha256 = '{SHA}'");
    let tokens = [
        token("a", "client_name = 'A.internal'"),
        token("b", &hash),
        token(
            "c",
            &format!("sha256 = '{}'\nclient_name = 'c.internal'", "0".repeat(64)),
        ),
    ];
    let loaded = load(&tokens.concat()).unwrap();
    let read: Vec<_> = { loaded.config.auth.tokens.iter() }
        .map(|token| {
            let name = token.client_name().map(ToString::to_string);
            (token.hashes().next().is_some(), name)
        })
        .collect();
    let name = |name: &str| Some(name.to_owned());
    assert_eq!(
        read,
        [
            (false, name("a.internal")),
            (true, None),
            (true, name("c.internal"))
        ]
    );
    assert_eq!(loaded.warnings.len(), 0);
    for (rest, part) in [
        (
            token("a", ""),
            "missing: the SHA-256 of the token, or else a client_name",
        ),
        (
            token("a", "client_name = '*.internal'"),
            "a DNS name without wildcard",
        ),
        (
            token("a", "client_name = 'a.internal'") + &token("b", "client_name = 'A.internal.'"),
            "another token has this client_name",
        ),
    ] {
        let error = load(&rest).unwrap_err().to_string();
        assert!(error.contains(part), "{rest}: {error}");
    }
    let nobody = load(&tokens[1]).unwrap();
    assert!(
        nobody.warnings[0].to_string().contains("identifies nobody"),
        "{:?}",
        nobody.warnings
    );
    let error = here
        .load(&format!("{BOTH}{}", tokens[0]), SinkSecrets::Required)
        .unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("http.tls.client_ca_file") && error.contains("token a"),
        "{error}"
    );
}
