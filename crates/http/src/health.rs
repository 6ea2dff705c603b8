//! `/livez` and `/readyz`, for load balancers and orchestrators: without credentials, and without detail.

use axum::extract::{Extension, Query};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::service::{Origin, Probe};

/// What is shown.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Shown {
    /// With any value: the answer lists the checks, one a line.
    #[param(required = false, value_type = String)]
    verbose: Option<String>,
}

/// Whether the process works. Needs no credentials.
#[utoipa::path(get, path = "/livez", tag = "health", params(Shown), security(()),
    responses((status = 200, body = String, content_type = "text/plain"),
        (status = 503, body = String, content_type = "text/plain", description = "A restart may help.")))]
pub(crate) async fn live<O: Origin>(
    Extension(origin): Extension<O>,
    Query(shown): Query<Shown>,
) -> impl IntoResponse {
    answer(&origin.checks(Probe::Live), &shown)
}

/// Whether clients should be sent to this node. Needs no credentials.
#[utoipa::path(get, path = "/readyz", tag = "health", params(Shown), security(()),
    responses((status = 200, body = String, content_type = "text/plain"),
        (status = 503, body = String, content_type = "text/plain", description = "Send clients to another node.")))]
pub(crate) async fn ready<O: Origin>(
    Extension(origin): Extension<O>,
    Query(shown): Query<Shown>,
) -> impl IntoResponse {
    answer(&origin.checks(Probe::Ready), &shown)
}

fn answer(checks: &[(&'static str, bool)], shown: &Shown) -> impl IntoResponse + use<> {
    let is_good = checks.iter().all(|(_, passed)| *passed);
    let mut text = String::new();
    if shown.verbose.is_some() {
        for (name, passed) in checks {
            text.push_str(&format!("{name}: {}\n", word(*passed)));
        }
    } else {
        text = format!("{}\n", word(is_good));
    }
    let status = if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text)
}

fn word(passed: bool) -> &'static str {
    if passed { "ok" } else { "failed" }
}
