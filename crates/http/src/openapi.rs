//! The OpenAPI document, generated from the handlers.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::IntoResponse;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{self, ContentBuilder, Ref, ResponseBuilder};
use utoipa::{Modify, OpenApi};

use crate::problem::{PROBLEM_JSON, Problem};
use crate::{audit, cluster, health, keep_alive, locks, metrics, sessions, watch};

/// The document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Lockkeeper",
        description = "Distributed locks with fencing tokens. Any node answers. Durations are in milliseconds.",
    ),
    paths(
        sessions::open, keep_alive::keep_alive, sessions::close, sessions::list, sessions::end, sessions::acquire, sessions::release,
        sessions::set_value, sessions::downgrade, locks::list, locks::describe, locks::check_token, locks::break_hold,
        locks::set_limit, watch::watch, cluster::status, cluster::members, cluster::add, cluster::remove,
        cluster::transfer, cluster::backup, audit::audit, metrics::metrics, health::live, health::ready, document,
    ),
    components(schemas(Problem)),
    modifiers(&ForAll),
    security((), ("token" = [])),
)]
struct Document;

/// What holds for every operation.
struct ForAll;

impl Modify for ForAll {
    fn modify(&self, document: &mut openapi::OpenApi) {
        let problem = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
        let problem =
            ResponseBuilder::new().description("The call has failed.").content(PROBLEM_JSON, problem).build();
        for path in document.paths.paths.values_mut() {
            let operations = [&mut path.get, &mut path.post, &mut path.put, &mut path.delete];
            for operation in operations.into_iter().flatten() {
                operation.responses.responses.insert("default".to_owned(), problem.clone().into());
            }
        }
        let token = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("A token of `lockkeeper token add`; not needed with a client certificate, or if the node lets everybody do everything."))
            .build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(token));
    }
}

/// Never fails: the document has string keys only.
static DOCUMENT: LazyLock<String> =
    LazyLock::new(|| Document::openapi().to_pretty_json().unwrap_or_default());

/// This description, as an OpenAPI document.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "cluster",
    responses((status = 200, body = Object, content_type = "application/json")))]
pub(crate) async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str())
}
