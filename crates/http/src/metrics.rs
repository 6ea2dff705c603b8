//! `/metrics`, for Prometheus.

use axum::http::header;
use axum::response::IntoResponse;

use crate::call::Identified;
use crate::problem::{Problem, ProblemCode};
use crate::service::{Origin, ServiceCalls as _};

/// The metrics of this node, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "cluster",
    responses((status = 200, body = String, content_type = "text/plain")))]
pub(crate) async fn metrics<O: Origin>(
    Identified(calls): Identified<O>,
) -> Result<impl IntoResponse, Problem> {
    let Some(page) = calls.metrics().await? else {
        let text = "this process records no metrics: `lockkeeper serve` does";
        return Err(Problem::new(ProblemCode::NotFound, text));
    };
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page))
}
