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

/// Loads a token with these further keys.
fn with_keys(keys: &str) -> Result<Config, ConfigError> {
    let text =
        format!("[[auth.tokens]]\nname = 'app'\nsha256 = '{SHA}'\nscopes = ['send']\n{keys}");
    toml(&text)
}

#[test]
fn a_token_may_be_limited_and_expire() {
    let token = |keys: &str| with_keys(keys).unwrap().auth.tokens.remove(0);
    assert!(!token("").reach().is_limited());
    let limited = token("topics = ['shop-*', 'mail']\ngroups = ['billing']");
    let reach = limited.reach();
    for (topic, expected) in [("shop-eu", true), ("mail", true), ("mail-2", false)] {
        assert_eq!(
            reach.has_topic(&topic.parse().unwrap()),
            expected,
            "{topic}"
        );
        assert_eq!(
            reach.has_schedule(&topic.parse().unwrap()),
            expected,
            "{topic}"
        );
    }
    assert!(reach.has_group(&"billing".parse().unwrap()));
    assert!(!reach.has_group(&"other".parse().unwrap()));
    let same = token("topics = ['mail', 'shop-*', 'mail']\ngroups = ['billing']");
    assert_eq!(reach.topics, same.reach().topics, "teams are compared");
    let of_schedules = token("topics = ['a']\nschedules = ['daily-*']");
    let reach = of_schedules.reach();
    assert!(reach.has_schedule(&"daily-a".parse().unwrap()));
    assert!(!reach.has_schedule(&"a".parse().unwrap()));
    let quota = |keys: &str| {
        let quota = token(keys).schedule_quota().cloned();
        quota.map(|quota| quota.max_schedules())
    };
    for (keys, expected) in [
        ("groups = ['a']", None),
        ("topics = ['a']", Some(1000)),
        ("schedules = ['a']\nmax_schedules = 0", Some(0)),
    ] {
        assert_eq!(quota(keys), expected, "{keys}");
    }
    // A time of TOML, and a string.
    for (time, has_expired) in [
        ("2020-01-01T00:00:00Z", true),
        ("'2999-01-01T00:00:00Z'", false),
    ] {
        let token = token(&format!("expires = {time}"));
        assert_eq!(token.has_expired(), has_expired, "{time}");
    }
}

#[test]
fn limits_of_a_token_that_mean_nothing_are_refused() {
    for (keys, part) in [
        ("topics = []", "must have at least one name"),
        ("groups = []", "must have at least one name"),
        ("topics = ['*-eu']", "is not a pattern of names"),
        ("topics = 'shop-*'", "expected a list"),
        ("max_schedules = 1", "requires topics or schedules"),
        (
            "topics = ['a']\nmax_schedules = 100001",
            "must be 0 to 100000",
        ),
        ("expires = '2027'", "is not an instant"),
        ("expires = 2027-01-01", "is not an instant"),
        ("previous_sha256 = 'abc'", "64 hexadecimal digits"),
        (
            "[[auth.tokens]]\nname = 'b'\nscopes = ['read']\nclient_name = 'b'\nprevious_sha256 = '{SHA}'",
            "another token has this SHA-256",
        ),
    ] {
        let keys = keys.replace("{SHA}", SHA);
        let problems = problems(with_keys(&keys)).concat();
        assert!(problems.contains(part), "{keys}: {problems}");
    }
}
