//! The contents of a Markdown page that the tests check: links, headings, code spans.
//!
//! Responsible only for parsing; the checks are in `main.rs`.

use std::collections::BTreeSet;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// The contents of a Markdown page that the tests check.
#[derive(Default)]
pub(crate) struct Page {
    /// Targets of links and images.
    pub(crate) links: Vec<String>,
    /// The anchors of the page's headings.
    pub(crate) anchors: BTreeSet<String>,
    /// All code spans; code blocks are not included.
    pub(crate) spans: Vec<Span>,
}

/// A code span and the headings above it, the nearest last.
pub(crate) struct Span {
    pub(crate) code: String,
    headings: Vec<String>,
}

impl Span {
    /// Whether `heading` is among the headings above the span. A number at the start of a heading is ignored.
    pub(crate) fn is_under(&self, heading: &str) -> bool {
        self.headings.iter().any(|above| above.trim_start_matches(|c: char| !c.is_alphabetic()) == heading)
    }
}

impl Page {
    pub(crate) fn parse(text: &str) -> Page {
        let mut page = Page::default();
        let mut above: Vec<(usize, String)> = Vec::new();
        let mut heading: Option<String> = None;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { level, .. }) => {
                    above.retain(|(higher, _)| *higher < level as usize);
                    heading = Some(String::new());
                }
                Event::End(TagEnd::Heading(level)) => {
                    let text = heading.take().unwrap_or_default();
                    page.add_anchor(&text);
                    above.push((level as usize, text));
                }
                Event::Text(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                Event::Code(code) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&code);
                    }
                    let headings = above.iter().map(|(_, text)| text.clone()).collect();
                    page.spans.push(Span { code: code.into_string(), headings });
                }
                _ => {}
            }
        }
        page
    }

    /// Adds the heading's anchor, as common renderers compute it: lower case, spaces replaced by `-`, other characters
    /// than letters, digits, `-` and `_` dropped, repeated anchors numbered.
    fn add_anchor(&mut self, heading: &str) {
        let kept = heading.trim().to_lowercase();
        let slug: String = kept
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let mut anchor = slug.clone();
        let mut repeat = 0;
        while !self.anchors.insert(anchor) {
            repeat += 1;
            anchor = format!("{slug}-{repeat}");
        }
    }
}

#[test]
fn links_anchors_and_spans_of_a_page_are_found() {
    let page = Page::parse(
        "# One `two`\n[a](b.md#c) `x`\n## 3. Later\n| h |\n| - |\n| `y` |\n## Again\n`z`\n## Again\n```\n`no` [no](no)\n```\n",
    );
    assert_eq!(page.links, ["b.md#c"]);
    let anchors: Vec<&str> = page.anchors.iter().map(String::as_str).collect();
    assert_eq!(anchors, ["3-later", "again", "again-1", "one-two"]);
    let later: Vec<&str> =
        page.spans.iter().filter(|span| span.is_under("Later")).map(|span| span.code.as_str()).collect();
    assert_eq!(later, ["y"]);
}
