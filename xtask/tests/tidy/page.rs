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
    /// The headings that are there twice.
    pub(crate) repeated: Vec<String>,
    /// All code spans; code blocks are not included.
    pub(crate) spans: Vec<String>,
}

impl Page {
    pub(crate) fn parse(text: &str) -> Page {
        let mut page = Page::default();
        let mut heading: Option<String> = None;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => page.add_anchor(&heading.take().unwrap_or_default()),
                Event::Text(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                Event::Code(code) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&code);
                    }
                    page.spans.push(code.into_string());
                }
                _ => {}
            }
        }
        page
    }

    /// Adds the heading's anchor, as common renderers compute it: lower case, spaces replaced by `-`, other
    /// characters than letters, digits, `-` and `_` dropped, repeated anchors numbered.
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
            self.repeated.push(heading.to_owned());
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
    assert_eq!(page.spans, ["two", "x", "y", "z"]);
}
