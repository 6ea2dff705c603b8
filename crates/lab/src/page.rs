//! The page docs/pitfalls.md, but for its introduction: the programs, as they are in this package.

use crate::PITFALLS;

/// The pitfalls as Markdown, each with its two programs.
#[must_use]
pub fn markdown() -> String {
    let mut page = "## What the programs share\n\n".to_owned();
    page += &code(&[
        function(include_str!("naive.rs"), "lock"),
        function(include_str!("account.rs"), "withdraw_slowly"),
        function(include_str!("account.rs"), "section"),
    ]);
    for pitfall in PITFALLS {
        page += &format!("\n## {}\n\n`lockkeeper pitfalls {}`\n\n", pitfall.title, pitfall.name);
        page += &format!("{}\n\n{}\n", pitfall.mistake, code(&[function(pitfall.source, "wrong")]));
        page += &format!(
            "**The right way.** {}\n\n{}",
            pitfall.remedy,
            code(&[function(pitfall.source, "right")])
        );
    }
    page
}

fn code(functions: &[&str]) -> String {
    // The programs are compiled where they are.
    format!("```rust,ignore\n{}```\n", functions.join("\n"))
}

/// A function of a file, without its comment.
fn function<'source>(source: &'source str, name: &str) -> &'source str {
    let begin = source.find(&format!("async fn {name}(")).expect("each program has it");
    // `pub(crate)` is of no interest to a reader of the page.
    let rest = &source[begin..];
    let end = rest.find("\n}\n").expect("a function ends");
    &rest[..end + "\n}\n".len()]
}
