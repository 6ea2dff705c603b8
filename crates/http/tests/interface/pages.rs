//! The pages for browsers, and errors.

use std::sync::Arc;

use lockkeeper_http::{HazardPlayer, HttpInterface, PageFile};
use serde_json::json;

use crate::{Leaderless, got, json_of};

fn interface() -> HttpInterface<Leaderless> {
    let files = vec![PageFile {
        path: "/hazard".to_owned(),
        media_type: "text/html; charset=utf-8",
        content: "<title>hazards</title>".into(),
    }];
    let trace = Arc::new(|query: &[(String, String)]| match query {
        [(key, value)] if key == "story" => Ok(format!("{{\"played\":\"{value}\"}}")),
        _ => Err("there is no such setting".to_owned()),
    });
    HttpInterface::new(true, Some(HazardPlayer { files, trace }))
}

#[tokio::test]
async fn console_is_served_with_a_strict_policy_short_and_once() {
    let interface = interface();
    let (page, text) = got(&interface, "/", ("accept", "*/*")).await;
    assert_eq!(
        (page.status().as_u16(), &page.headers()["content-type"]),
        (200, &"text/html; charset=utf-8".parse().unwrap())
    );
    let policy = page.headers()["content-security-policy"].to_str().unwrap();
    for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
        assert!(policy.contains(part) && !policy.contains("unsafe"), "{policy}");
    }
    let tag = page.headers()["etag"].to_str().unwrap();
    let text = String::from_utf8(text).unwrap();
    let script = format!("/{}", text.split('"').find(|part| part.ends_with("main.js")).unwrap());

    let (known, body) = got(&interface, "/", ("if-none-match", tag)).await;
    assert_eq!((known.status().as_u16(), body.len()), (304, 0));

    let (short, short_body) = got(&interface, &script, ("accept-encoding", "br, gzip")).await;
    assert_eq!(
        (&short.headers()["content-encoding"], &short.headers()["content-type"]),
        (&"gzip".parse().unwrap(), &"text/javascript; charset=utf-8".parse().unwrap())
    );
    let (plain, body) = got(&interface, &script, ("accept", "*/*")).await;
    assert!(plain.headers().get("content-encoding").is_none());
    assert!(body.len() > short_body.len());

    assert_eq!(json_of(&interface, "/console/none.js").await.0, 404);
    assert_eq!(json_of(&interface, "/console/..%2findex.html").await.0, 404);
}

#[tokio::test]
async fn hazards_are_played_by_what_the_process_brings() {
    let interface = interface();
    assert_eq!(json_of(&interface, "/hazard/trace?story=paused").await, (200, json!({ "played": "paused" })));
    let (status, problem) = json_of(&interface, "/hazard/trace?ttl=1").await;
    assert_eq!((status, &problem["detail"]), (400, &json!("there is no such setting")));
    assert_eq!(json_of(&interface, "/hazard/none").await.0, 404);
    let bare = HttpInterface::new(true, None);
    assert_eq!(
        (json_of(&bare, "/hazard").await.0, json_of(&bare, "/hazard/trace?story=a").await.0),
        (404, 404)
    );
}

/// A link on another site opens a page; everything else of this port is not for other sites.
#[tokio::test]
async fn other_sites_may_link_to_pages_only() {
    let interface = interface();
    for (path, status) in [("/", 200), ("/hazard", 200), ("/hazard/trace?story=a", 403), ("/v1/locks", 403)] {
        let (answer, _) = got(&interface, path, ("sec-fetch-site", "cross-site")).await;
        assert_eq!(answer.status().as_u16(), status, "{path}");
    }
}

#[tokio::test]
async fn errors_of_the_service_are_problems() {
    let interface = interface();
    let (status, problem) = json_of(&interface, "/v1/locks/a").await;
    assert_eq!(
        (status, &problem["code"], &problem["detail"]),
        (503, &json!("unavailable"), &json!("no node leads"))
    );
    assert_eq!(json_of(&interface, "/metrics").await.0, 404);
}
