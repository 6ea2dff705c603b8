//! `/livez` and `/readyz`.

use lockkeeper_http::HttpInterface;

use crate::{Leaderless, got};

#[tokio::test]
async fn probes_name_their_checks_only_if_asked_and_fail_with_503() {
    let interface = HttpInterface::<Leaderless>::new(true, None);
    for (path, status, text) in [
        ("/livez", 200, "ok\n"),
        ("/livez?verbose", 200, "replica: ok\n"),
        ("/readyz", 503, "failed\n"),
        ("/readyz?verbose", 503, "leader: failed\nmember: ok\n"),
        ("/readyz?verbose=1", 503, "leader: failed\nmember: ok\n"),
    ] {
        let (response, body) = got(&interface, path, ("accept", "*/*")).await;
        let body = String::from_utf8(body).unwrap();
        assert_eq!((response.status().as_u16(), &body[..]), (status, text), "{path}");
        assert_eq!(response.headers()["content-type"], "text/plain; charset=utf-8");
        assert_eq!(response.headers()["cache-control"], "no-store");
    }
}
