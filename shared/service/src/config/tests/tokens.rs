//! Tokens whose clients sign requests.

use super::*;

/// Loads a token with a secret file of these contents.
fn token(name: &str, secret: &str, aws_secrets: SinkSecrets) -> Result<Loaded, ConfigError> {
    let text = format!(
        "[[auth.tokens]]\nname = '{name}'\nsha256 = '{SHA}'\nscopes = ['send']\naws_secret_file = 'secret'"
    );
    let file = file("lisa.toml", &text);
    std::fs::write(file.path.with_file_name("secret"), secret).unwrap();
    Loaded::load(LoadOptions {
        aws_secrets,
        ..from_file(&file.path)
    })
}

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

#[test]
fn a_token_has_the_secret_of_its_file_and_does_not_show_it() {
    let loaded = token("app", &format!("{SECRET}\n"), SinkSecrets::Required).unwrap();
    let token = &loaded.config.auth.tokens[0];
    assert_eq!(
        token.aws_secret().map(|secret| secret.expose()),
        Some(SECRET)
    );
    assert!(!format!("{token:?}{}", loaded.to_toml()).contains("wJalr"));
    let checked = self::token("app", SECRET, SinkSecrets::Checked).unwrap();
    assert_eq!(checked.to_toml().matches("aws_secret_file").count(), 1);
}

#[test]
fn an_unusable_secret_is_refused() {
    for (name, secret, part) in [
        ("app", "", "the file is empty"),
        ("app", "0123456789abcdef\n0123456789abcdef", "one line"),
        ("app", "0123456789abcde", "at least 16 characters"),
        ("the app", SECRET, "must consist of letters, digits"),
        ("app,b", SECRET, "must consist of letters, digits"),
    ] {
        let error = token(name, secret, SinkSecrets::Required).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn only_a_gateway_needs_the_secret() {
    let text = format!(
        "[[auth.tokens]]\nname = 'app'\nsha256 = '{SHA}'\nscopes = ['send']\naws_secret_file = 'missing'"
    );
    let file = file("lisa.toml", &text);
    let load = |aws_secrets| {
        Loaded::load(LoadOptions {
            aws_secrets,
            ..from_file(&file.path)
        })
    };
    let error = load(SinkSecrets::Required).unwrap_err().to_string();
    assert!(
        error.contains("aws_secret_file") && error.contains("cannot read the file"),
        "{error}"
    );
    assert_eq!(load(SinkSecrets::Checked).unwrap().warnings.len(), 1);
    let unused = load(SinkSecrets::Unused).unwrap();
    assert_eq!(unused.config.auth.tokens[0].aws_secret(), None);
}

#[test]
fn a_gateway_serves_sqs_clients_if_told() {
    let gateway = |keys: &str| {
        let config = toml(&format!("[consumer.gateway]\n{keys}")).unwrap();
        config.consumer.gateway.unwrap().sqs
    };
    assert_eq!(gateway("sqs_group = 'workers'"), None);
    let sqs = gateway("sqs = true").unwrap();
    assert_eq!(
        (sqs.group.as_str(), sqs.ignore_attributes),
        ("default", true)
    );
    let sqs = gateway("sqs = true\nsqs_group = 'workers'\nsqs_ignore_attributes = false").unwrap();
    assert_eq!(
        (sqs.group.as_str(), sqs.ignore_attributes),
        ("workers", false)
    );
}
