//! The limits and the certificate of all listeners.

use super::layers::SinkSecrets;
use super::secret_file;
use super::table::Table;
use super::{AuthConfig, HttpConfig, ListenerTls};
use crate::http::tls::Identity;
use crate::settings::Settings as _;
use lisa_core::small_file::{self, MAX_PEM_BYTES};

/// Reads the table of all listeners.
pub(super) fn read(mut table: Table<'_>, auth: &AuthConfig) -> HttpConfig {
    let config = HttpConfig::read(&mut table).expect("no key is required");
    let mut tokens = auth.tokens.iter();
    let of_client = tokens.find(|token| token.client_name().is_some());
    let has_authorities = { config.tls.as_ref() }.is_some_and(|tls| tls.client_ca_file.is_some());
    match (of_client, has_authorities) {
        (Some(token), false) => {
            let why = format!(
                "missing: token {} has a client_name, which requires it",
                token.name()
            );
            table.reject("tls.client_ca_file", why);
        }
        (None, true) => {
            let why = "no token has a client_name, so a client certificate identifies nobody";
            table.warning("tls.client_ca_file", why);
        }
        _ => {}
    }
    table.finish();
    config
}

/// Reads the paths of the files, and checks their contents in a process that serves listeners.
pub(super) fn tls(table: &mut Table<'_>, _: &str) -> Option<Option<ListenerTls>> {
    let mut table = table.open("tls").secrets_of(|secrets| secrets.listeners);
    let cert_file = secret_file::path(
        &mut table,
        "cert_file",
        "A PEM file of the certificate of every listener, followed by its chain. With it, listeners speak TLS only. It is \
         read again when it changes, as are the other files.",
    );
    let key_file = secret_file::path(
        &mut table,
        "key_file",
        "A PEM file of the private key of `cert_file`, not encrypted.",
    );
    let client_ca_file = secret_file::path(
        &mut table,
        "client_ca_file",
        "A PEM file of the authorities whose client certificates are accepted in place of bearer tokens, see `client_name` of \
         tokens.",
    );
    let files = match (cert_file, key_file) {
        (Some(cert_file), Some(key_file)) => Some(ListenerTls {
            cert_file,
            key_file,
            client_ca_file,
        }),
        (None, None) if client_ca_file.is_none() => None,
        _ => {
            let why = "cert_file and key_file must be set together; client_ca_file requires both";
            table.reject("cert_file", why);
            None
        }
    };
    if let Some(files) = &files {
        check_identity(files, &table);
    }
    table.finish();
    Some(files)
}

fn check_identity(files: &ListenerTls, table: &Table<'_>) {
    let paths = [&files.cert_file, &files.key_file].into_iter();
    let mut paths = paths.chain(&files.client_ca_file);
    let is_readable = paths.all(|path| small_file::read(path, MAX_PEM_BYTES).is_ok());
    // One that cannot be read has been reported.
    if !is_readable || table.secrets() == SinkSecrets::Unused {
        return;
    }
    match Identity::read(files) {
        Ok(identity) => {
            if let Some(warning) = identity.out_of_date(&files.cert_file) {
                table.warning("cert_file", warning);
            }
        }
        Err(error) => table.reject(error.key, error.reason),
    }
}
