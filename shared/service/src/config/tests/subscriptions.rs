//! Tests of subscriptions and their sinks.

use super::*;
use crate::targets::RetryAfter;

#[test]
fn subscriptions_are_checked_against_each_other_and_the_topics() {
    let row = |topic, group| {
        format!(
            "[[consumer.subscriptions]]\ntopic = '{topic}'\ngroup = '{group}'\nsink = {{ type = 'stdout' }}\n"
        )
    };
    let text = [
        row("orders", "billing"),
        row("orders", "other"),
        row("free", "any"),
        row("free", "any"),
    ]
    .concat();
    let found = problems(toml(&format!(
        "{text}[topics.orders]\ngroups = ['billing']"
    )));
    assert_eq!(
        found,
        [
            "consumer.subscriptions[1].group = \"other\": topic orders has no such group; its groups are [\"billing\"]",
            "consumer.subscriptions[3].group = \"any\": topic free already has a subscription for this group",
        ]
    );
    let found = problems(toml(
        &[row("free", "instance-7"), row("free", "Any")].concat(),
    ));
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].ends_with("or {instance}"), "{found:#?}");
    let found = problems(toml(
        "[[consumer.subscriptions]]\ntopic = 'a b'\nconcurrency = 0\nsink = { type = 'x' }",
    ));
    assert_eq!(found.len(), 4, "{found:#?}");
}

#[test]
fn a_subscription_may_be_for_each_instance_by_itself() {
    let row = "[[consumer.subscriptions]]\ntopic = 'a'\ngroup = '{instance}'\nsink = { type = 'stdout' }\n";
    let config = toml(&format!("{row}[topics.a]\ngroups = ['b']")).unwrap();
    assert_eq!(
        config.consumer.subscriptions[0].group,
        SubscriptionGroup::Instance
    );
    let twice = problems(toml(&[row, row].concat()));
    assert_eq!(
        twice,
        [
            "consumer.subscriptions[1].group = \"{instance}\": topic a already has a subscription for this group"
        ]
    );
}

#[test]
fn a_webhook_is_checked_and_its_secrets_are_hidden() {
    let sink = |rest: &str| {
        let text = format!(
            "[[consumer.subscriptions]]\ntopic = 'a'\ngroup = 'b'\n[consumer.subscriptions.sink]\ntype = 'http'\n{rest}"
        );
        toml(&text)
    };
    let good = "whsec_ZXhhbXBsZS1rZXktdGhhdC1ldmVyeWJvZHkta25vd3M=";
    let config = sink(&format!(
        "url = 'https://h/x'\nsecret = ['{good}', '{good}']\ntimeout = '5s'"
    ))
    .unwrap();
    let SinkConfig::Http(webhook) = &config.consumer.subscriptions[0].sink else {
        panic!("a webhook");
    };
    assert_eq!(webhook.secrets.len(), 2);
    assert_eq!(webhook.timeout, Duration::from_secs(5));
    assert_eq!(webhook.retry_after, RetryAfter::Retry);
    let deferring = sink("url = 'https://h/x'\nretry_after = 'defer'").unwrap();
    assert!(matches!(
        &deferring.consumer.subscriptions[0].sink,
        SinkConfig::Http(webhook) if webhook.retry_after == RetryAfter::Defer
    ));
    let found = problems(sink("url = 'https://h/x'\nretry_after = 'ignore'"));
    assert!(
        found.len() == 1 && found[0].ends_with("one of retry defer"),
        "{found:?}"
    );
    assert!(!format!("{config:?}").contains("whsec_"));

    let keys = file("keys", &format!("{good}\n\n{good}\n"));
    let from_file = sink(&format!(
        "url = 'http://h'\nsecret_file = '{}'",
        keys.path.display()
    ))
    .unwrap();
    assert!(format!("{from_file:?}").contains("[***, ***]"));

    let found = problems(sink(
        "url = 'ftp://h'\nsecret = 'whsec_c2hvcnQ='\ntimeout = '2h'\nheaders = 1",
    ));
    assert_eq!(found.len(), 4, "{found:#?}");
    assert!(!found.concat().contains("c2hvcnQ"), "{found:?}");
    assert_eq!(
        problems(sink("url = 'https://ann:pw@h'\nsecret = 'plain'")).len(),
        2
    );
}

fn row_with_callbacks(topic: &str, callbacks: &str) -> String {
    format!(
        "[[consumer.subscriptions]]\ntopic = '{topic}'\ngroup = 'default'\nsink = {{ type = 'stdout' }}\n{callbacks}\n"
    )
}

#[test]
fn callbacks_go_to_topics_that_do_not_lead_back() {
    let rows = [
        row_with_callbacks("orders", "success_topic = 'done'\ngarbage_topic = 'failed'"),
        row_with_callbacks("done", "garbage_topic = 'failed'"),
    ]
    .concat();
    let config = toml(&rows).unwrap();
    let [orders, done] = &config.consumer.subscriptions[..] else {
        panic!("two subscriptions");
    };
    let names: Vec<_> = orders.callback_topics().map(Topic::as_str).collect();
    assert_eq!(names, ["done", "failed"]);
    assert_eq!(
        (&done.success_topic, done.callback_topics().count()),
        (&None, 1)
    );

    let rows = [
        row_with_callbacks("orders", "success_topic = 'done'\ngarbage_topic = 'orders'"),
        row_with_callbacks("done", "garbage_topic = 'later'"),
        row_with_callbacks("later", "success_topic = 'orders'"),
        row_with_callbacks("other", "success_topic = 'Not a topic'"),
    ]
    .concat();
    let found = problems(toml(&rows));
    let end = "callbacks form a cycle";
    assert_eq!(found.len(), 3, "{found:#?}");
    for expected in [
        format!("consumer.subscriptions[0].garbage_topic = \"orders\": {end}: orders → orders"),
        format!(
            "consumer.subscriptions[2].success_topic = \"orders\": {end}: later → orders → done → later"
        ),
    ] {
        assert!(found.contains(&expected), "{expected}\n{found:#?}");
    }
    let invalid = "consumer.subscriptions[3].success_topic = \"Not a topic\": ";
    assert!(
        found.iter().any(|line| line.starts_with(invalid)),
        "{found:#?}"
    );
}

#[test]
fn a_callback_topic_that_forgets_too_soon_or_is_not_declared_is_a_warning() {
    let warnings = |topics: &str| {
        let row = row_with_callbacks("orders", "success_topic = 'done'");
        let file = file("lisa.toml", &[&row, topics].concat());
        let loaded = Loaded::load(from_file(&file.path)).unwrap();
        let lines = loaded.warnings.iter();
        let lines = lines.map(|warning| format!("{}: {}", warning.path, warning.message));
        lines.collect::<Vec<_>>()
    };
    assert_eq!(warnings("[topics.orders]\n[topics.done]"), [""; 0]);
    let path = "consumer.subscriptions[0].success_topic";
    let short = warnings("[topics.orders]\nlease = '2m'\n[topics.done]\ndedup_window = '1m'");
    assert_eq!(short.len(), 1, "{short:?}");
    assert!(
        short[0].starts_with(&format!(
            "{path}: dedup_window of done is shorter than lease of orders"
        )),
        "{short:?}"
    );
    let elsewhere = warnings("[topics.orders]");
    assert_eq!(
        elsewhere,
        [format!(
            "{path}: this topic is not declared here; it must be declared elsewhere"
        )]
    );
    let row = row_with_callbacks("orders", "success_topic = 'doen'");
    let found = problems(toml(&[&row, "[topics.orders]\n[topics.done]"].concat()));
    assert!(
        found.len() == 1 && found[0].contains("did you mean done"),
        "{found:?}"
    );
}

const ROW: &str =
    "[[consumer.subscriptions]]\ntopic = 'a'\ngroup = 'b'\n[consumer.subscriptions.sink]\n";

#[test]
fn a_webhook_has_headers_of_its_own_that_nothing_shows() {
    let http = |rest: &str| format!("{ROW}type = 'http'\nurl = 'https://h'\n{rest}");
    let token = file("token", "Bearer hunter2\n");
    let path = token.path.display();
    let given = http(&format!(
        "headers = {{ \"X-Tenant\" = 'hunter2' }}\nauthorization_file = '{path}'"
    ));
    let given = file("lisa.toml", &given);
    let loaded = Loaded::load(from_file(&given.path)).unwrap();
    let SinkConfig::Http(webhook) = &loaded.config.consumer.subscriptions[0].sink else {
        panic!("a webhook");
    };
    let exposed: Vec<_> = webhook
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect();
    assert_eq!(
        exposed,
        [("x-tenant", "hunter2"), ("authorization", "Bearer hunter2")]
    );
    let shown = [loaded.to_toml(), loaded.to_json(), format!("{loaded:?}")].concat();
    assert!(
        shown.contains("X-Tenant") && !shown.contains("hunter2"),
        "{shown}"
    );

    let many: Vec<_> = (0..33).map(|n| format!("x-{n} = 'hunter2'")).collect();
    for (wrong, path, why) in [
        (
            "headers = { webhook-id = 'hunter2' }",
            "headers.webhook-id",
            "set by the sink itself",
        ),
        (
            "headers = { Host = 'hunter2' }",
            "headers.Host",
            "set by the sink itself",
        ),
        (
            "headers = { 'a b' = 'hunter2' }",
            "headers.\"a b\"",
            "not the name of a header",
        ),
        ("headers = { a = 'hunter2ä' }", "headers.a", "visible ASCII"),
        (
            "headers = { a = '' }",
            "headers.a",
            "expected a non-empty string",
        ),
        (
            "headers = { a = 'hunter2', A = 'hunter2' }",
            "headers.a",
            "set twice",
        ),
        (
            "headers = { a = ['hunter2'] }",
            "headers.a",
            "expected a string",
        ),
        ("headers = 'hunter2'", "headers", "expected a table"),
        ("headr = { a = 'hunter2' }", "headr", "unknown key"),
        (
            "Authorisation = 'Bearer hunter2'",
            "Authorisation",
            "unknown key",
        ),
        (
            &format!("headers = {{ {} }}", many.join(", ")),
            "headers",
            "at most 32 headers",
        ),
        (
            "authorization = \"hunter2\\n\"",
            "authorization",
            "visible ASCII",
        ),
        (
            &format!("authorization = 'hunter2'\nauthorization_file = '{path}'"),
            "authorization_file",
            "authorization and authorization_file cannot both be set",
        ),
        (
            "authorization = 'hunter2'\nheaders = { Authorization = 'hunter2' }",
            "authorization",
            "authorization and headers.authorization cannot both be set",
        ),
    ] {
        let found = problems(toml(&http(wrong)));
        assert_eq!(found.len(), 1, "{wrong}: {found:#?}");
        let expected = format!("consumer.subscriptions[0].sink.{path}");
        assert!(found[0].starts_with(&expected), "{wrong}: {found:?}");
        assert!(found[0].contains(why), "{wrong}: {found:?}");
        assert!(!found[0].contains("hunter2"), "{found:?}");
    }
    std::fs::write(&token.path, "a\nb\n").unwrap();
    let found = problems(toml(&http(&format!("authorization_file = '{path}'"))));
    assert!(
        found[0].contains("expected a file with one line"),
        "{found:?}"
    );
}

#[test]
fn a_command_gets_only_variables_that_it_may_have() {
    let command = |environment: &str| {
        toml(&format!(
            "{ROW}type = 'command'\ncommand = ['sh']\nenvironment = {environment}"
        ))
    };
    let config = command("['DATABASE_URL']").unwrap();
    let SinkConfig::Command(settings) = &config.consumer.subscriptions[0].sink else {
        panic!("a command");
    };
    assert_eq!(settings.environment, ["DATABASE_URL"]);
    for (wrong, why) in [
        ("['LISA_REDIS_URL']", "reserved for the metadata"),
        ("['A=b']", "without its value"),
        ("['']", "without its value"),
        ("'A'", "expected a list"),
    ] {
        let found = problems(command(wrong));
        assert!(
            found.len() == 1 && found[0].contains(why),
            "{wrong}: {found:?}"
        );
    }
}

#[test]
fn only_a_process_that_runs_a_sink_needs_its_secret() {
    let file = file(
        "lisa.toml",
        "[[consumer.subscriptions]]\ntopic = 'a'\ngroup = 'b'\nsink = { type = 'http', url = 'https://h', secret_file = 'none' }",
    );
    let load = |sink_secrets| {
        Loaded::load(LoadOptions {
            sink_secrets,
            ..from_file(&file.path)
        })
    };
    assert!(load(SinkSecrets::Unused).unwrap().warnings.is_empty());
    let warnings = load(SinkSecrets::Checked).unwrap().warnings;
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].path.ends_with("sink.secret_file")
            && warnings[0].message.contains("cannot read the file"),
        "{warnings:?}"
    );
    let error = load(SinkSecrets::Required).unwrap_err().to_string();
    assert!(error.contains("cannot read the file"), "{error}");
    // A file that exists must have valid contents.
    std::fs::write(file.path.with_file_name("none"), "nonsense").unwrap();
    assert!(load(SinkSecrets::Checked).is_err());
    assert!(load(SinkSecrets::Unused).is_ok());
}

#[test]
fn a_sink_that_can_never_work_is_reported_to_who_runs_or_checks_it() {
    let load = |sink: &str, sink_secrets| {
        let row = "[[consumer.subscriptions]]\ntopic = 'a'\ngroup = 'b'\nsink = ";
        let file = file("lisa.toml", &format!("{row}{sink}"));
        Loaded::load(LoadOptions {
            sink_secrets,
            ..from_file(&file.path)
        })
    };
    for (host, shown, kind) in [
        ("127.0.0.1:9", "127.0.0.1", "a loopback address"),
        ("2130706433", "127.0.0.1", "a loopback address"),
        ("[fc00::1]", "[fc00::1]", "a private address"),
        ("localhost", "localhost", "a name of this machine"),
    ] {
        let url = format!("url = 'http://{host}/hunter2'");
        let sink = format!("{{ type = 'http', {url} }}");
        for checked in [SinkSecrets::Required, SinkSecrets::Checked] {
            let found = problems(load(&sink, checked).map(|loaded| loaded.config));
            assert_eq!(
                found,
                [format!(
                    "consumer.subscriptions[0].sink.url = \"http://{host}/***\": \
                     {shown} is {kind}: refused unless allow_private = true"
                )]
            );
        }
        assert!(load(&sink, SinkSecrets::Unused).is_ok());
        let allowed = format!("{{ type = 'http', {url}, allow_private = true }}");
        assert!(load(&allowed, SinkSecrets::Required).is_ok());
    }
    for (program, why) in [
        ("/nonexistent/tool", "no such program"),
        ("/etc/passwd", "not executable"),
    ] {
        let sink = format!("{{ type = 'command', command = ['{program}'] }}");
        let warnings = load(&sink, SinkSecrets::Checked).unwrap().warnings;
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert_eq!(warnings[0].path, "consumer.subscriptions[0].sink.command");
        assert!(warnings[0].message.contains(why), "{warnings:?}");
        assert!(
            load(&sink, SinkSecrets::Unused)
                .unwrap()
                .warnings
                .is_empty()
        );
    }
    let sink = "{ type = 'command', command = ['sh'] }";
    assert!(
        load(sink, SinkSecrets::Checked)
            .unwrap()
            .warnings
            .is_empty()
    );
}

#[test]
fn a_slip_of_a_declared_topic_or_group_is_refused_and_another_name_is_a_warning() {
    let row = |topic: &str, group: &str| {
        format!(
            "[[consumer.subscriptions]]\ntopic = '{topic}'\ngroup = '{group}'\nsink = {{ type = 'stdout' }}\n"
        )
    };
    let declared = "[topics.orders]\ngroups = ['billing']\n[topics.orders-eu]\n";
    let found = problems(toml(&[row("order", "billing").as_str(), declared].concat()));
    assert_eq!(
        found,
        [
            "consumer.subscriptions[0].topic = \"order\": this topic is not declared here, did you mean orders? If not, declare it: [topics.order]"
        ]
    );
    let found = problems(toml(&[row("orders", "biling").as_str(), declared].concat()));
    assert!(
        found[0].ends_with("; did you mean \"billing\"?"),
        "{found:?}"
    );
    let schedule = "[schedules.s]\ntopic = 'ordres'\ncron = '0 * * * * *'\n";
    let found = problems(toml(&[schedule, declared].concat()));
    assert!(
        found.len() == 1 && found[0].contains("did you mean orders?"),
        "{found:?}"
    );
    let other = |text: &str| super::file("lisa.toml", text);
    for (topic, warned) in [("reminders", 1), ("orders-us", 1), ("orders-eu", 0)] {
        let file = other(&[row(topic, "{instance}").as_str(), declared].concat());
        let warnings = Loaded::load(from_file(&file.path)).unwrap().warnings;
        assert_eq!(warnings.len(), warned, "{topic} {warnings:?}");
    }
    // A configuration that declares no topics gets no warnings: all topics are declared elsewhere.
    let file = other(&row("order", "billing"));
    assert!(
        Loaded::load(from_file(&file.path))
            .unwrap()
            .warnings
            .is_empty()
    );
}

#[test]
fn a_webhook_may_be_completed_later_at_a_gateway() {
    let sink = |url: &str, more: &str| {
        toml(&format!(
            "[[consumer.subscriptions]]\ntopic = 'a'\ngroup = 'b'\n{more}\n\
             sink = {{ type = 'http', url = 'https://h/x', complete_url = '{url}' }}\n"
        ))
    };
    let config = sink("https://gateway/lisa", "garbage_topic = 'failed'").unwrap();
    assert!(config.consumer.subscriptions[0].sink.can_be_later());
    let found = problems(sink("gateway", ""));
    assert!(found[0].contains("complete_url"), "{found:?}");
    let found = problems(sink("https://gateway", "success_topic = 'done'"));
    assert!(
        found[0].contains("cannot be combined with sink.complete_url"),
        "{found:?}"
    );
}
