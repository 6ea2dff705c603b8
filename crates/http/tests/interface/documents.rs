//! The pages of the documentation list the calls and fields of the OpenAPI document.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use lockkeeper_http::HttpInterface;
use lockkeeper_http::view::schemas;
use serde_json::Value;
use utoipa::openapi::{RefOr, Schema};

use crate::{Leaderless, json_of};

/// The line of the page under which everything is made from the model.
const MARKER: &str =
    "<!-- made from the model: UPDATE_EXPECT=1 cargo xtask test -p lockkeeper-http json_page_lists -->\n";

const HTTP_PAGE: &str = include_str!("../../../../docs/http.md");
const JSON_PAGE: &str = include_str!("../../../../docs/json.md");

/// The type of a field, as the page shows it.
fn kind(schema: &Value, all: &BTreeMap<&str, Value>) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap();
        let Some(values) = all[name]["enum"].as_array() else {
            return format!("[{name}](#{})", name.to_lowercase());
        };
        let values: Vec<String> =
            values.iter().map(|value| format!("`{}`", value.as_str().unwrap())).collect();
        return values.join(", ");
    }
    // A field that may be absent may be null in the description.
    let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
    match kind.unwrap_or_else(|| panic!("a field without a type: {schema}")) {
        "array" => format!("list of {}", kind_of_items(&schema["items"], all)),
        "integer" => "number".to_owned(),
        "boolean" => "true or false".to_owned(),
        "string" => "text".to_owned(),
        other => panic!("the page has no word for {other}: {schema}"),
    }
}

fn kind_of_items(items: &Value, all: &BTreeMap<&str, Value>) -> String {
    if items["type"] == "integer" { "numbers".to_owned() } else { kind(items, all) }
}

#[test]
fn json_page_lists_the_fields_of_the_model() {
    let schemas = schemas();
    let value = |schema: &_| serde_json::to_value(schema).unwrap();
    let all: BTreeMap<&str, Value> = schemas.iter().map(|(name, schema)| (*name, value(schema))).collect();
    let mut made = String::new();
    for (name, schema) in &schemas {
        let RefOr::T(Schema::Object(object)) = schema else { panic!("{name} is no object") };
        if object.properties.is_empty() {
            continue;
        }
        let described = |of: &Value| match of["description"].as_str() {
            Some(text) => text.replace('\n', " "),
            None => panic!("{name}: no description: {of}"),
        };
        writeln!(made, "\n## {name}\n\n{}\n", described(&all[name])).unwrap();
        writeln!(made, "| field | type | meaning |\n| --- | --- | --- |").unwrap();
        // In the order of the model.
        for (field, schema) in &object.properties {
            let schema = serde_json::to_value(schema).unwrap();
            let absent = if object.required.contains(field) { "" } else { "; may be absent" };
            writeln!(made, "| `{field}` | {}{absent} | {} |", kind(&schema, &all), described(&schema))
                .unwrap();
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");
    let page = std::fs::read_to_string(path).expect("docs/json.md can be read");
    let (head, written) = page.split_once(MARKER).expect("docs/json.md has the line before the made part");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, [head, MARKER, &made].concat()).expect("docs/json.md can be written");
    } else {
        assert!(
            written == made,
            "docs/json.md is not what the model says; with UPDATE_EXPECT=1 this test writes it"
        );
    }
}

/// The words in code spans and code blocks: `{ttl_ms, label?}` has two.
fn words(page: &str) -> BTreeSet<&str> {
    let code = page.split('`').skip(1).step_by(2);
    code.flat_map(|code| code.split(|it: char| !it.is_alphanumeric() && it != '_' && it != '-')).collect()
}

/// The names of the fields of a schema.
fn properties<'a>(document: &'a Value, schema: &'a Value) -> BTreeSet<&'a str> {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap();
        return properties(document, &document["components"]["schemas"][name]);
    }
    let own =
        schema["properties"].as_object().into_iter().flat_map(|fields| fields.keys().map(String::as_str));
    let parts = schema["allOf"].as_array().into_iter().flatten();
    own.chain(parts.flat_map(|part| properties(document, part))).collect()
}

#[tokio::test]
async fn http_page_lists_the_calls_and_fields_of_the_document() {
    let interface = HttpInterface::<Leaderless>::new(true, None);
    let (_, document) = json_of(&interface, "/v1/openapi.json").await;

    // Each row: the calls and their parameters in the first cell, the other fields in the second.
    let mut listed = BTreeSet::new();
    let table = HTTP_PAGE.split_once("\n## Calls\n").unwrap().1.split_once("\n\nA ").unwrap().0;
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let mut of_call = None;
        for code in row.split('`').skip(1).step_by(2) {
            if let Some((method, target)) = code.split_once(" /v1/") {
                let (path, query) = target.split_once('?').unwrap_or((target, ""));
                let call = &document["paths"][format!("/v1/{path}")][method.to_lowercase()];
                assert!(call.is_object(), "docs/http.md has {code}, which is not in the document");
                listed.insert(format!("{method} /v1/{path}"));
                let parameters = call["parameters"].as_array().into_iter().flatten();
                let parameters: BTreeSet<&str> = parameters.map(|it| it["name"].as_str().unwrap()).collect();
                for name in query.split('&').filter(|it| !it.is_empty()).map(|it| it.trim_end_matches('=')) {
                    assert!(parameters.contains(name), "docs/http.md: {code} has no parameter {name}");
                }
                of_call = Some(call);
            } else if let (Some(call), true) = (of_call, code.starts_with('{')) {
                let body = &call["requestBody"]["content"]["application/json"]["schema"];
                let fields = properties(&document, body);
                for name in code.trim_matches(['{', '}']).split(", ").filter(|it| *it != "…") {
                    assert!(
                        fields.contains(name.trim_end_matches('?')),
                        "docs/http.md: no field {name} in {row}"
                    );
                }
            }
        }
    }
    let known: BTreeSet<&str> = words(HTTP_PAGE).union(&words(JSON_PAGE)).copied().collect();
    let mut names = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, call) in item.as_object().unwrap() {
            let call_name = format!("{} {path}", method.to_uppercase());
            let is_listed =
                listed.contains(&call_name) || HTTP_PAGE.contains(&call_name) || path == "/metrics";
            assert!(is_listed, "docs/http.md does not list {call_name}");
            let parameters = call["parameters"].as_array().into_iter().flatten();
            names.extend(parameters.map(|it| it["name"].as_str().unwrap()));
        }
    }
    for schema in document["components"]["schemas"].as_object().unwrap().values() {
        names.extend(properties(&document, schema));
    }
    let missing: Vec<&&str> = names.difference(&known).collect();
    assert!(missing.is_empty(), "neither docs/http.md nor docs/json.md names {missing:?}");
}
