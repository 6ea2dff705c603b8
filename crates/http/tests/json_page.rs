//! `docs/json.md` lists the fields of the model, as the OpenAPI document does.

use std::collections::BTreeMap;
use std::fmt::Write;

use lockkeeper_http::view::schemas;
use serde_json::Value;
use utoipa::openapi::{RefOr, Schema};

/// The line of the page under which everything is made from the model.
const MARKER: &str =
    "<!-- made from the model: UPDATE_EXPECT=1 cargo xtask test -p lockkeeper-http json_page -->\n";

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
