use std::path::Path;

use rcgen::{CertificateParams, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;

use super::*;

/// A directory with a certificate that signed itself, and its key.
struct Own(TempDir);

impl Own {
    fn new() -> Self {
        let own = Self(tempfile::tempdir().unwrap());
        own.write(CertificateParams::new(["lisa.internal".to_owned()]).unwrap());
        own
    }

    fn write(&self, params: CertificateParams) {
        let key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        std::fs::write(self.files().cert_file, cert.pem()).unwrap();
        std::fs::write(self.files().key_file, key.serialize_pem()).unwrap();
    }

    fn files(&self) -> ListenerTls {
        ListenerTls {
            cert_file: self.0.path().join("cert.pem"),
            key_file: self.0.path().join("key.pem"),
            client_ca_file: None,
        }
    }
}

/// Seconds since the epoch at the begin of 2020 and of 2040.
const Y2020: u64 = 1_577_836_800;
const Y2040: u64 = 2_208_988_800;

fn params(from: i32, to: i32) -> CertificateParams {
    let mut params = CertificateParams::new(["lisa.internal".to_owned()]).unwrap();
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(to, 1, 1);
    params
}

#[test]
fn the_verifier_knows_when_a_certificate_expires() {
    let own = Own::new();
    let read = || Identity::read(&own.files()).unwrap();
    own.write(params(2020, 2040));
    assert_eq!(read().not_after(), Y2040);
    assert_eq!(read().out_of_date(Path::new("c")), None);
    // An authority may be in the chain.
    let mut authority = params(2020, 2040);
    authority.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    own.write(authority);
    assert_eq!(read().not_after(), Y2040);
    own.write(params(2010, 2020));
    let expired = "a certificate in c expired at 2020-01-01T00:00:00.000Z";
    assert_eq!(read().out_of_date(Path::new("c")).as_deref(), Some(expired));
    assert_eq!(read().not_after(), Y2020);
    own.write(params(2140, 2141));
    let later = "a certificate in c is valid only from 2140-01-01T00:00:00.000Z";
    assert_eq!(read().out_of_date(Path::new("c")).as_deref(), Some(later));
    // The first end of a chain counts.
    let long = std::fs::read_to_string(own.files().cert_file).unwrap();
    own.write(params(2020, 2040));
    let file = own.files().cert_file;
    let short = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, short + &long).unwrap();
    assert_eq!(read().not_after(), Y2040);
}

#[test]
fn what_is_wrong_with_the_files_is_named() {
    let (own, other) = (Own::new(), Own::new());
    let (text, missing) = (own.0.path().join("text"), own.0.path().join("missing"));
    std::fs::write(&text, "no PEM").unwrap();
    let bad = own.0.path().join("bad");
    std::fs::write(
        &bad,
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    )
    .unwrap();
    let encrypted = own.0.path().join("encrypted");
    let label = "ENCRYPTED PRIVATE KEY-----\n";
    std::fs::write(
        &encrypted,
        format!("-----BEGIN {label}AAAA\n-----END {label}"),
    )
    .unwrap();
    let files = own.files();
    let with = |cert: &Path, key: &Path, client_ca: Option<&Path>| {
        let files = ListenerTls {
            cert_file: cert.to_owned(),
            key_file: key.to_owned(),
            client_ca_file: client_ca.map(Path::to_owned),
        };
        Identity::read(&files)
            .map(drop)
            .map_err(|error| error.to_string())
    };
    let (cert, key) = (&*files.cert_file, &*files.key_file);
    assert_eq!(with(cert, key, Some(cert)), Ok(()));
    for (cert, key, client_ca, parts) in [
        (&*missing, key, None, ["cert_file: cannot read", "missing"]),
        (
            &text,
            key,
            None,
            ["cert_file: no certificates", "CERTIFICATE"],
        ),
        (&bad, key, None, ["cert_file: bad certificate", "bad"]),
        (key, key, None, ["cert_file: no certificates", "key.pem"]),
        (cert, &missing, None, ["key_file: cannot read", "missing"]),
        (
            cert,
            cert,
            None,
            ["key_file: no private key", "PRIVATE KEY"],
        ),
        (
            cert,
            &encrypted,
            None,
            ["key_file: no private key", "not encrypted"],
        ),
        (
            cert,
            &other.files().key_file,
            None,
            ["key_file: cannot use", "KeyMismatch"],
        ),
        (
            cert,
            key,
            Some(&*text),
            ["client_ca_file: no certificates", "text"],
        ),
        (
            cert,
            key,
            Some(&bad),
            ["client_ca_file: bad certificate", "bad"],
        ),
    ] {
        let error = with(cert, key, client_ca).unwrap_err();
        let has_all = parts.iter().all(|part| error.contains(part));
        assert!(error.starts_with("http.tls.") && has_all, "{error}");
    }
}

#[test]
fn changed_files_are_used_and_unusable_ones_are_not() {
    let own = Own::new();
    let tls = Tls::default();
    assert!(!tls.is_on());
    tls.set(Some(&own.files())).unwrap();
    let current = || tls.current().unwrap();
    let first = current();
    tls.renew();
    assert!(Arc::ptr_eq(&first, &current()), "nothing has changed");
    own.write(params(2020, 2040));
    tls.renew();
    assert_eq!(current().identity.not_after(), Y2040);
    assert_eq!(tls.warnings(), [""; 0]);
    // A new certificate without its key.
    let second = current();
    let key = std::fs::read(own.files().key_file).unwrap();
    own.write(params(2020, 2030));
    let new_key = std::fs::read(own.files().key_file).unwrap();
    std::fs::write(own.files().key_file, key).unwrap();
    tls.renew();
    assert!(Arc::ptr_eq(&second, &current()));
    let [warning] = tls.warnings().try_into().unwrap();
    assert!(
        warning.contains("key_file") && warning.ends_with("the previous certificate stays in use")
    );
    std::fs::write(own.files().key_file, new_key).unwrap();
    tls.renew();
    assert!(!Arc::ptr_eq(&second, &current()));
    assert_eq!(tls.warnings(), [""; 0]);
    // A missing file is another problem, and the old state is found again.
    std::fs::rename(own.files().cert_file, own.0.path().join("away")).unwrap();
    tls.renew();
    assert!(tls.warnings()[0].contains("cannot read"));
    std::fs::rename(own.0.path().join("away"), own.files().cert_file).unwrap();
    tls.renew();
    assert_eq!(tls.warnings(), [""; 0]);
    own.write(params(2010, 2020));
    tls.renew();
    assert!(tls.warnings()[0].contains("expired"));
    tls.set(None).unwrap();
    assert!(!tls.is_on() && tls.warnings().is_empty());
}

#[test]
fn a_client_is_known_until_its_certificate_expires() {
    let own = Own::new();
    let files = ListenerTls {
        client_ca_file: Some(own.files().cert_file),
        ..own.files()
    };
    let tls = Tls::default();
    tls.set(Some(&files)).unwrap();
    let chain = lisa_core::tls::certificates(&files.cert_file).unwrap();
    let mut client = tls
        .client(&chain, &tls.current().unwrap().identity)
        .unwrap();
    assert!(client.is_valid());
    let names = [
        ("lisa.internal", true),
        ("LISA.internal.", true),
        ("a.lisa.internal", false),
        ("internal", false),
    ];
    for (name, is_its) in names {
        assert_eq!(client.is_for(&name.parse().unwrap()), is_its, "{name}");
    }
    client.not_after = now().as_secs() - 1;
    assert!(!client.is_valid());
    client.not_after = u64::MAX;
    tls.set(None).unwrap();
    assert!(!client.is_valid(), "nobody is trusted any more");
}

#[test]
fn the_name_of_a_client_is_a_dns_name() {
    let read = |text: &str| text.parse::<ClientName>().map(|name| name.to_string());
    assert_eq!(read("Orders.Internal.").as_deref(), Ok("orders.internal"));
    assert_eq!(read("worker_7").as_deref(), Ok("worker_7"));
    for text in [
        "",
        ".",
        "*.internal",
        "10.0.0.1",
        "a b",
        "spiffe://a/b",
        "a..b",
        "-a",
    ] {
        assert_eq!(read(text), Err(InvalidClientName), "{text}");
    }
}
