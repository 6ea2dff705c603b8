//! Errors of the deserializer, in the words of JSON and of the calls: its own name the types of Rust.

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};

use crate::problem::Problem;

/// What the deserializer says, and what is said instead.
const WORDS: [(&str, &str); 13] = [
    ("invalid type: map", "invalid type: object"),
    ("invalid type: sequence", "invalid type: array"),
    ("expected a sequence", "expected an array"),
    ("expected a map", "expected an object"),
    ("expected u64", "expected a whole number from 0"),
    ("expected u32", "expected a whole number from 0 to 4294967295"),
    (" to a `u64`", ": it is no whole number from 0"),
    (" to a `u32`", ": it is no whole number from 0 to 4294967295"),
    ("invalid digit found in string", "it is no whole number from 0"),
    ("cannot parse integer from empty string", "it is empty, and a whole number is expected"),
    ("number too large to fit in target type", "the number is too large"),
    ("EOF while parsing", "it ends within"),
    ("Cannot parse", "can't read"),
];

pub(crate) fn of_body(rejection: &JsonRejection) -> Problem {
    let what = match rejection {
        JsonRejection::JsonSyntaxError(_) => "the body is not JSON",
        _ => "the body does not fit this call",
    };
    problem(what, &rejection.body_text())
}

pub(crate) fn of_path(rejection: &PathRejection) -> Problem {
    problem("the path does not fit this call", &rejection.body_text())
}

pub(crate) fn of_query(rejection: &QueryRejection) -> Problem {
    problem("the query does not fit this call", &rejection.body_text())
}

/// The library's texts are `WHAT: REASON`.
fn problem(what: &str, said: &str) -> Problem {
    let reason = said.split_once(": ").map_or(said, |(_, reason)| reason);
    let reason = WORDS.iter().fold(without_type(reason), |text, (from, to)| text.replace(from, to));
    Problem::invalid(format!("{what}: {reason}; GET /v1/openapi.json describes it"))
}

/// `expected struct Acquire with 2 elements` is `expected an object`.
fn without_type(reason: &str) -> String {
    match reason.split_once("expected struct ") {
        Some((before, after)) => {
            let rest = after.find(" at line ").map_or("", |at| &after[at..]);
            format!("{before}expected an object{rest}")
        }
        None => reason.to_owned(),
    }
}
