//! The way back from the error page of a form, derived from the route that the form posted to.

use axum::http::HeaderMap;
use axum::http::header::REFERER;
use url::Url;

/// Returns the path of the page that has the form of a route. `path` is that of the request, without the base path.
///
/// The header `Referer` decides only whether it was the page that asks for confirmation, and adds the query of that page: the
/// path is always one of this dashboard.
pub(super) fn page_of_form(path: &str, base: &str, headers: &HeaderMap) -> String {
    let asked = referer(headers).filter(|from| from.path().strip_prefix(base) == Some(path));
    if let Some(from) = asked {
        return match from.query() {
            Some(query) => format!("{path}?{query}"),
            None => path.to_owned(),
        };
    }
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    match parts[..] {
        ["topics", topic, "send"] => format!("/topics/{topic}/send"),
        ["topics", topic, "doctor", _] => format!("/topics/{topic}/doctor"),
        ["topics", topic, "messages", id, _] => format!("/topics/{topic}/messages/{id}"),
        ["topics", topic, "groups", group, "garbage", _] => {
            format!("/topics/{topic}/garbage?group={group}")
        }
        ["topics", topic, ..] => format!("/topics/{topic}"),
        ["new-schedule"] => "/new-schedule".to_owned(),
        ["schedules", schedule, "edit"] => format!("/schedules/{schedule}/edit"),
        ["schedules", schedule, _] => format!("/schedules/{schedule}"),
        ["new-topic"] => "/new-topic".to_owned(),
        ["new-token"] => "/new-token".to_owned(),
        ["tokens", token, "edit"] => format!("/tokens/{token}/edit"),
        ["tokens", token, ..] => format!("/tokens/{token}"),
        ["system", ..] => "/system".to_owned(),
        _ => "/".to_owned(),
    }
}

/// Returns the page that a request says it comes from.
fn referer(headers: &HeaderMap) -> Option<Url> {
    Url::parse(headers.get(REFERER)?.to_str().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn from(path: &str, base: &str, referer: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(REFERER, HeaderValue::from_str(referer).unwrap());
        page_of_form(path, base, &headers)
    }

    #[test]
    fn each_form_leads_back_to_its_page() {
        for (path, page) in [
            ("/topics/t/pause", "/topics/t"),
            ("/topics/t/send", "/topics/t/send"),
            ("/topics/t/groups/g/drop", "/topics/t"),
            ("/topics/t/doctor/repair", "/topics/t/doctor"),
            (
                "/topics/t/messages/m%2F1/cancel",
                "/topics/t/messages/m%2F1",
            ),
            (
                "/topics/t/groups/g/garbage/purge",
                "/topics/t/garbage?group=g",
            ),
            ("/new-schedule", "/new-schedule"),
            ("/schedules/s/edit", "/schedules/s/edit"),
            ("/schedules/s/run", "/schedules/s"),
            ("/new-topic", "/new-topic"),
            ("/new-token", "/new-token"),
            ("/tokens/t/edit", "/tokens/t/edit"),
            ("/tokens/t/rotate/begin", "/tokens/t"),
            ("/system/jobs/clean", "/system"),
            ("/system/garbage-jobs/7/stop", "/system"),
            ("/choices", "/"),
        ] {
            assert_eq!(page_of_form(path, "", &HeaderMap::new()), page, "{path}");
            for foreign in [
                "https://evil.example/x?y",
                "https://evil.example//evil.example",
                "javascript:alert(1)",
                "nonsense",
            ] {
                assert_eq!(from(path, "", foreign), page, "{path} from {foreign}");
            }
        }
    }

    #[test]
    fn a_form_that_was_asked_for_leads_back_to_the_question_with_its_filter() {
        let path = "/topics/t/groups/g/garbage/requeue";
        let asked = format!("{path}?reason=rejected&error=a%22b");
        let own = format!("https://lisa.example{asked}");
        assert_eq!(from(path, "", &own), asked);
        assert_eq!(
            from(path, "/lisa", &format!("https://lisa.example/lisa{asked}")),
            asked
        );
        assert_eq!(from(path, "/lisa", &own), "/topics/t/garbage?group=g");
        // The sender of the header chooses at most a query.
        let foreign = format!("https://evil.example{path}?x=<b>\"");
        let link = from(path, "", &foreign);
        assert!(link.starts_with(&format!("{path}?")), "{link}");
    }
}
