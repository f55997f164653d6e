//! The pages of tokens: creates, changes, rotates and removes one in a browser without JavaScript, and shows its secret once.

use super::*;
use lisa_tests::sqs::hex;
use sha2::{Digest, Sha256};

/// Returns configured tokens whose texts are their names.
fn configured() -> String {
    let of = |(name, scopes): (&str, &str)| {
        let hash = hex(&Sha256::digest(name));
        format!("[[auth.tokens]]\nname = '{name}'\nsha256 = '{hash}'\nscopes = [{scopes}]\n")
    };
    let all = [
        ("admin", "'read', 'tokens'"),
        (
            "operator",
            "'read', 'operate', 'send', 'payload', 'receive'",
        ),
        ("api", "'read'"),
    ];
    all.map(of).concat()
}

/// Returns the value of a hidden field.
fn field(page: &str, name: &str) -> String {
    let start = format!("name=\"{name}\" value=\"");
    let (_, rest) = page
        .split_once(&start)
        .unwrap_or_else(|| panic!("no {name}: {page}"));
    rest.split('"').next().unwrap_or_default().to_owned()
}

/// Returns the secret that a page shows, and checks that no cache may keep it.
async fn secret(response: Response) -> String {
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["cache-control"], "no-store");
    let page = response.text().await.unwrap();
    let (_, rest) = page.split_once("data-copy=\"lisa_").expect("a secret");
    let rest = rest.split('"').next().unwrap_or_default();
    format!("lisa_{rest}")
}

async fn reads(site: &Site, token: &str, expected: u16) {
    let api = site.api.clone().token(token);
    eventually(SOON, async || match api.get("/v1/topics/t").await.status {
        status if status == expected => Ok(()),
        status => Err(status),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_creates_changes_rotates_and_removes_a_token() {
    let site = Site::start(&configured()).await;
    let (_, admin) = site.log_in("admin").await;
    let (_, page) = site.get("/", &admin).await;
    assert!(links(&page).contains("/tokens"), "{page}");
    let create = "token=shop&scopes.read=true&scopes.send=true&topics=t%2C+shop-*";
    let created = site.ask(Method::POST, "/new-token", &admin, create).await;
    let first = secret(created).await;
    reads(&site, &first, 200).await;
    // A reload of that page creates nothing, and shows no secret. Other permissions would be a change.
    assert_eq!(site.post("/new-token", &admin, create).await, 303);
    let other = format!("{create}&scopes.operate=true");
    let again = site.ask(Method::POST, "/new-token", &admin, &other).await;
    assert_eq!(again.status(), 412);
    let again = again.text().await.unwrap();
    assert!(
        again.contains("already exists") && !again.contains("lisa_"),
        "{again}"
    );
    let (_, list) = site.get("/tokens", &admin).await;
    for text in [
        "shop",
        "send, read",
        "by admin",
        "shop-*, t",
        "in the configuration",
        "operator",
    ] {
        assert!(list.contains(text), "{text}: {list}");
    }
    let hash = hex(&Sha256::digest(&first));
    for path in ["/tokens", "/tokens/shop", "/tokens/shop/edit", "/system"] {
        let (status, page) = site.get(path, &admin).await;
        assert_eq!(status, 200, "{path}");
        assert!(!page.contains(&first) && !page.contains(&hash), "{path}");
    }

    // A change keeps the secret, and is stored only if the token is the one that was read.
    let (_, form) = site.get("/tokens/shop/edit", &admin).await;
    let version = field(&form, "version");
    assert!(
        form.contains("name=\"scopes.send\" type=\"checkbox\" value=\"true\" checked"),
        "{form}"
    );
    let change = format!("version={version}&scopes.read=true&topics=other");
    assert_eq!(site.post("/tokens/shop/edit", &admin, &change).await, 303);
    reads(&site, &first, 403).await;
    let stale = format!("version={version}&scopes.read=true");
    assert_eq!(site.post("/tokens/shop/edit", &admin, &stale).await, 412);
    let (_, form) = site.get("/tokens/shop/edit", &admin).await;
    let back = format!("version={}&scopes.read=true", field(&form, "version"));
    assert_eq!(site.post("/tokens/shop/edit", &admin, &back).await, 303);
    reads(&site, &first, 200).await;

    // Both secrets are accepted until the rotation is finished.
    let (_, ask) = site.get("/tokens/shop/rotate/begin", &admin).await;
    let begin = format!("version={}", field(&ask, "version"));
    let begun = site
        .ask(Method::POST, "/tokens/shop/rotate/begin", &admin, &begin)
        .await;
    let second = secret(begun).await;
    reads(&site, &second, 200).await;
    reads(&site, &first, 200).await;
    assert_eq!(
        site.post("/tokens/shop/rotate/begin", &admin, "").await,
        409
    );
    let (_, page) = site.get("/tokens/shop", &admin).await;
    assert!(
        links(&page).contains("/tokens/shop/rotate/finish"),
        "{page}"
    );
    assert!(
        !links(&page).contains("/tokens/shop/rotate/begin"),
        "{page}"
    );
    assert_eq!(
        site.post("/tokens/shop/rotate/finish", &admin, "").await,
        303
    );
    reads(&site, &first, 401).await;
    reads(&site, &second, 200).await;
    // There is nothing to cancel any more: the new secret stays.
    let nothing = site
        .ask(Method::POST, "/tokens/shop/rotate/cancel", &admin, "")
        .await;
    assert_eq!(nothing.status(), 303);
    let line = format!("{:?}", nothing.headers());
    assert!(line.contains("No%20rotation%20of%20shop"), "{line}");
    reads(&site, &second, 200).await;

    // A removal is asked for.
    let (_, ask) = site.get("/tokens/shop/remove", &admin).await;
    assert!(ask.contains("Remove token shop?"), "{ask}");
    let remove = format!("version={}", field(&ask, "version"));
    assert_eq!(
        site.post("/tokens/shop/remove", &admin, "version=1").await,
        412
    );
    assert_eq!(site.post("/tokens/shop/remove", &admin, &remove).await, 303);
    reads(&site, &second, 401).await;
    assert_eq!(site.get("/tokens/shop", &admin).await.0, 404);

    let audit = site.api.clone().token("api").get_json("/v1/audit").await;
    let entries = audit["entries"].as_array().unwrap().iter().rev();
    let done = entries.filter(|entry| entry["outcome"] == "done");
    let actions: Vec<_> = done
        .map(|entry| entry["action"].as_str().unwrap())
        .collect();
    let expected = [
        "create_token",
        "change_token",
        "change_token",
        "rotate_token",
        "rotate_token",
        "remove_token",
    ];
    assert_eq!(actions, expected, "{audit:#}");
    for entry in audit["entries"].as_array().unwrap() {
        assert_eq!(
            (&entry["via"], &entry["who"]),
            (&json!("dashboard"), &json!("admin"))
        );
    }
    let text = audit.to_string();
    assert!(!text.contains(&first) && !text.contains(&second) && !text.contains(&hash));
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_tokens_are_for_the_scope_tokens_and_leave_the_configuration_alone() {
    let site = Site::start(&configured()).await;
    let (_, admin) = site.log_in("admin").await;
    let (_, operator) = site.log_in("operator").await;
    let (_, page) = site.get("/", &operator).await;
    assert!(!links(&page).contains("/tokens"), "{page}");
    let pages = [
        "/tokens",
        "/new-token",
        "/tokens/api",
        "/tokens/api/edit",
        "/tokens/api/remove",
        "/tokens/api/rotate/begin",
        "/tokens/api/rotate/finish",
        "/tokens/api/rotate/cancel",
    ];
    for path in pages {
        assert_eq!(site.get(path, &operator).await.0, 403, "{path}");
        let status = site.post(path, &operator, "token=x&scopes.read=true").await;
        let expected = if matches!(path, "/tokens" | "/tokens/api") {
            [403, 405]
        } else {
            [403, 403]
        };
        assert!(expected.contains(&status), "{path}: {status}");
    }
    assert_eq!(site.get("/tokens/api", &admin).await.0, 200);
    for (path, form) in [
        (
            "/tokens/api/edit",
            "version=1&scopes.read=true&scopes.tokens=true",
        ),
        ("/tokens/api/rotate/begin", ""),
        ("/tokens/api/remove", ""),
        ("/new-token", "token=api&scopes.read=true"),
    ] {
        assert_eq!(site.post(path, &admin, form).await, 409, "{path}");
    }
    let response = site
        .ask(
            Method::POST,
            "/new-token",
            &admin,
            "token=x&scopes.send=true&topics=%2C",
        )
        .await;
    assert_eq!(response.status(), 422);
    let page = response.text().await.unwrap();
    assert!(page.contains("must have at least one name"), "{page}");
    // What was typed is kept.
    assert!(page.contains("name=\"token\" value=\"x\""), "{page}");
    assert_eq!(site.get("/tokens/x", &admin).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_configured_tokens_the_page_says_that_none_counts() {
    let site = Site::start("").await;
    let (status, page) = site.get("/tokens", "").await;
    assert!(
        status == 200 && page.contains("The configuration has no tokens"),
        "{page}"
    );
    let (status, own) = site.get("/token", "").await;
    assert!(status == 200 && own.contains("You have no token"), "{own}");
    let (_, overview) = site.get("/", "").await;
    assert!(!links(&overview).contains("/token"), "{overview}");
    let response = site
        .ask(Method::POST, "/new-token", "", "token=x&scopes.read=true")
        .await;
    assert_eq!(response.status(), 422);
    let page = response.text().await.unwrap();
    assert!(
        page.contains("has no token, so every route is open"),
        "{page}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_sees_the_own_token_and_what_is_used_of_its_quotas() {
    let hash = hex(&Sha256::digest("team"));
    let team = format!(
        "[topics.shop-a]\nmax_messages = 1500\n[[auth.tokens]]\nname = 'team'\nsha256 = '{hash}'\nscopes = ['read']\n\
         topics = ['shop-*']\nmax_topics = 4\nmax_messages = 6000\nsends_per_second = 77\n"
    );
    let site = Site::start(&(configured() + &team)).await;
    let (_, team) = site.log_in("team").await;
    let (_, page) = site.get("/", &team).await;
    assert!(links(&page).contains("/token"), "{page}");
    let (status, page) = site.get("/token", &team).await;
    assert_eq!(status, 200);
    for text in [
        "shop-*",
        "of 4",
        "1,500",
        "of 6,000",
        "of 1,000",
        "77",
        "/v1/token",
        "tokens whoami",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(!page.contains(&hash), "{page}");
    assert!(!links(&page).contains("/tokens/team"), "{page}");
    let (_, admin) = site.log_in("admin").await;
    let (_, page) = site.get("/token", &admin).await;
    for text in ["everything", "This token has no quota"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(links(&page).contains("/tokens/admin"), "{page}");
}
