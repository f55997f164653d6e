//! Tokens on the command line, and as logins of the dashboard.

use super::*;
use crate::manager::operators::lisa_manager;
use lisa_core::time::UnixMs;

#[tokio::test]
async fn a_session_of_the_dashboard_ends_with_its_token() {
    let server = Server::start();
    let served = served(&server).await;
    let secret = create(&served.api, "anna", json!({ "scopes": ["read"] })).await;
    status(&served.api, &secret, LIST, 200).await;
    let client = reqwest::Client::builder();
    let client = client.redirect(reqwest::redirect::Policy::none());
    let client = client.build().unwrap();
    let login = async |secret: &str| {
        let login = client.post(format!("{}/login", served.url));
        let login = login.header("Content-Type", "application/x-www-form-urlencoded");
        login.body(format!("token={secret}")).send().await.unwrap()
    };
    let entered = login(&secret).await;
    let cookie = entered.headers()["set-cookie"].to_str().unwrap();
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let open = async || {
        let page = client.get(format!("{}/topics/shop-a", served.url));
        page.header("Cookie", &cookie)
            .send()
            .await
            .unwrap()
            .status()
    };
    assert_eq!(open().await, 200);
    remove(&served.api, "anna").await;
    eventually(SOON, async || match open().await {
        status if status != 200 => Ok(()),
        status => Err(status),
    })
    .await;
    assert!(!login(&secret).await.headers().contains_key("set-cookie"));
    served.end().await;
}

#[tokio::test]
async fn the_command_line_creates_shows_rotates_and_removes_a_token() {
    let server = Server::start();
    let served = served_with(&server, "cli", &admin()).await;
    let through = async |arguments: &[&str]| {
        let all = [&["--url", &served.url], arguments].concat();
        let run = lisa_manager(&server, &all).env("LISA_TOKEN", ADMIN);
        run.run(SOON).await
    };
    let created = through(&["tokens", "put", "team", "scopes=send,read", "topics=shop-*"]).await;
    assert_eq!(created.code, Some(0), "{created:?}");
    let secret = created.stdout.trim();
    assert!(secret.starts_with("lisa_") && !secret.contains(char::is_whitespace));
    for part in ["team is created", "All processes accept it within 5 s"] {
        assert!(created.stderr.contains(part), "{created:?}");
    }
    let expected = (Method::GET, "/v1/topics/shop-a");
    status(&served.api, secret, expected, 200).await;
    let list = through(&["tokens"]).await.stdout;
    for part in [
        "TOKEN",
        "admin",
        "team",
        "send, read",
        " topics=shop-*",
        "run time",
    ] {
        assert!(list.contains(part), "{list}");
    }
    let changed = through(&["tokens", "put", "team", "scopes=read", "expires=30d"]).await;
    assert_eq!(changed.stdout, "team is changed\n");
    let listed = through(&["tokens", "list", "--prefix", "team", "--output", "json"]).await;
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    let expires: UnixMs = listed["tokens"][0]["expires"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let days = expires.since(served.broker.now()).as_secs() / 86_400;
    assert!((29..=30).contains(&days), "{listed}");
    let same = through(&["tokens", "put", "team", "scopes=read"]).await;
    assert_eq!(same.stdout, "team has these permissions already\n");
    let shown = through(&["tokens", "show", "team"]).await.stdout;
    assert!(
        shown.contains("scopes        read\ntopics        shop-*\n"),
        "{shown}"
    );
    let rotated = through(&["tokens", "rotate", "team"]).await;
    let second = rotated.stdout.trim();
    status(&served.api, second, (Method::GET, "/v1/topics/shop-a"), 200).await;
    let list = through(&["tokens", "list", "--prefix", "t"]).await.stdout;
    assert!(
        list.contains("rotating") && !list.contains("admin"),
        "{list}"
    );
    let finished = through(&["tokens", "rotate", "team", "--finish"]).await;
    assert_eq!(finished.stdout, "team has only its new secret\n");
    let valid = second.to_owned();
    for step in ["--cancel", "--finish"] {
        let nothing = through(&["tokens", "rotate", "team", step]).await;
        let why = "no rotation of team is in progress; nothing was changed\n";
        assert_eq!((nothing.code, &*nothing.stdout), (Some(0), why));
        status(&served.api, &valid, (Method::GET, "/v1/topics/shop-a"), 200).await;
    }
    let json = through(&["--output", "json", "tokens", "rotate", "team"])
        .await
        .stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json["secret"].is_string());
    let file = through(&["tokens", "put", "admin", "scopes=read"]).await;
    assert!(
        file.code == Some(1) && file.stderr.contains("declares token admin"),
        "{file:?}"
    );
    let removed = through(&["tokens", "remove", "team"]).await;
    assert_eq!(removed.stdout, "team is removed\n");
    let none = through(&["tokens", "show", "team"]).await;
    assert!(
        none.code == Some(1) && none.stderr.contains("there is no token"),
        "{none:?}"
    );
    let wrong = through(&["tokens", "put", "team", "scopes=all"]).await;
    assert!(
        wrong.code == Some(2) && wrong.stderr.contains("scopes"),
        "{wrong:?}"
    );
    // On Redis, with the managers' configuration.
    let config = format!(
        "[[auth.tokens]]\nname = 'admin'\nsha256 = '{}'\nscopes = ['tokens']\n",
        hex(&Sha256::digest(ADMIN))
    );
    let here = lisa_manager(&server, &["tokens", "put", "ops", "scopes=read"]);
    let here = here.config(&config).run(SOON).await;
    status(&served.api, here.stdout.trim(), LIST, 200).await;
    let without = lisa_manager(&server, &["tokens", "remove", "ops"]);
    assert_eq!(without.run(SOON).await.code, Some(2));
    served.end().await;
}

#[tokio::test]
async fn a_token_sees_itself_and_what_is_used_of_its_quotas() {
    let server = Server::start();
    let served = served_with(&server, "whoami", &admin()).await;
    let admin = served.api.clone().token(ADMIN);
    let definition = json!({
        "scopes": ["operate", "send"], "topics": ["shop-*"], "groups": null, "expires": "2999-01-01T00:00:00Z", "sends_per_second": 9,
        "max_topics": 3, "max_streams": 20, "max_messages": 31, "max_bytes": "30KiB", "max_schedules": 5,
    });
    let secret = create(&admin, "team", definition).await;
    let team = served.api.clone().token(&secret);
    let limits = json!({ "max_messages": 4, "max_bytes": 100 });
    let topic = team.call(Method::PUT, "/v1/topics/shop-b", &limits);
    topic.await.expect(201);
    let schedule = json!({ "topic": "shop-b", "cron": "0 0 0 1 1 *" });
    let schedule = team.call(Method::PUT, "/v1/schedules/shop-s", &schedule);
    schedule.await.expect(201);
    let own = team.get("/v1/token").await.expect(200);
    // The topic of the file has no limit, and counts as a third.
    let mut expected = json!({
        "token": "team", "declared_in_file": false, "scopes": ["operate", "send"], "topics": ["shop-*"], "schedules": ["shop-*"],
        "expires": "2999-01-01T00:00:00.000Z", "has_expired": false, "sends_per_second": 9,
        "max_topics": 3, "max_streams": 20, "max_messages": 31, "max_bytes": 30 << 10, "max_schedules": 5, "is_rotating": false,
        "used": { "topics": 2, "streams": 2, "messages": 14, "bytes": (10 << 10) + 100, "schedules": 1 },
    });
    assert_eq!(own.json(), expected);
    let hash = hex(&Sha256::digest(&secret));
    assert!(!own.body.contains(&secret) && !own.body.contains(&hash));
    rotate(&admin, "team", "begin").await.expect(200);
    expected["is_rotating"] = true.into();
    assert_eq!(team.get_json("/v1/token").await, expected);
    let whoami = async |token: &str| {
        let arguments = ["--url", &served.url, "tokens", "whoami"];
        let run = lisa_manager(&server, &arguments).env("LISA_TOKEN", token);
        run.run(SOON).await
    };
    let shown = whoami(&secret).await.stdout;
    for line in [
        "token         team\n",
        "scopes        operate, send\n",
        "sends/s       9\n",
        "groups        all\n",
        "max topics    3 (2 exist)\n",
        "max streams   20 (2 exist)\n",
        "max messages  31 (14 allocated to its topics)\n",
        "max bytes     30KiB (10340B allocated to its topics)\n",
        "max schedules 5 (1 exist)\n",
        "state         rotating\n",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let shown = whoami(ADMIN).await.stdout;
    for line in [
        "topics        all\n",
        "expires       never\n",
        "max bytes     no limit\n",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(
        !shown.contains('–') && !shown.contains("created"),
        "{shown}"
    );
    // One without limits.
    let expected = json!({
        "token": ADMIN, "declared_in_file": true, "scopes": ["tokens", "read", "operate"], "has_expired": false, "is_rotating": false,
        "used": {},
    });
    assert_eq!(admin.get_json("/v1/token").await, expected);
    for wrong in [&served.api, &served.api.clone().token("wrong")] {
        assert_eq!(wrong.get("/v1/token").await.status, 401);
    }
    let wrong = whoami("wrong").await;
    assert!(
        wrong.code == Some(1) && wrong.stderr.contains("name a file with a valid one"),
        "{wrong:?}"
    );
    let on_redis = lisa_manager(&server, &["tokens", "whoami"]);
    let on_redis = on_redis.run(SOON).await;
    assert!(
        on_redis.code == Some(2) && on_redis.stderr.contains("pass --url"),
        "{on_redis:?}"
    );
    served.end().await;
    let open = served_with(&server, "open", "").await;
    let none = open.api.get("/v1/token").await.expect(404);
    assert!(none.body.contains("every route is open"), "{none:?}");
    open.end().await;
}
