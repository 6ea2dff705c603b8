//! Which requests are guarded, and what names their resource.
//!
//! A file of rules is TOML:
//!
//! ```toml
//! [[rule]]
//! path = "/accounts/{id}/{*rest}"  # {name}: one segment; {*name}: all that follow, or nothing
//! methods = ["PUT", "DELETE"]      # of GET, HEAD, OPTIONS, POST, PUT, PATCH and DELETE, these need a token
//! resource = "accounts/{id}"       # the path by default
//! lock = "bank/{id}"               # for --locks: whose tokens these are; the resource by default, without a leading slash
//!
//! [[rule]]
//! path = "/search"
//! open = true                      # never needs a token
//! ```
//!
//! The most specific path counts, whatever the order. Without `methods`, and for a path that no rule matches,
//! every method but GET, HEAD and OPTIONS needs a token. A method that no list can leave out, such as `MOVE`,
//! needs one unless the path is open.

use std::path::Path;

use http::Method;
use lockkeeper_fence::http::is_read;
use matchit::{Params, Router};
use percent_encoding::percent_decode_str;
use serde::Deserialize;

/// The methods that the `methods` of a rule may leave out. Other methods (`MOVE`, `PROPPATCH`, `PURGE`, …)
/// may change something, so they need a token unless the path is open.
const OPTIONAL: [Method; 7] =
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// Rules for which requests are guarded, and under which resource and lock names.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    paths: Router<usize>,
    rules: Vec<PathRule>,
}

#[derive(Clone, Debug)]
struct PathRule {
    path: String,
    guarded: GuardedMethods,
    resource: Option<Template>,
    lock: Option<Template>,
}

/// Which methods need a token.
#[derive(Clone, Debug)]
enum GuardedMethods {
    /// No method: the path is open.
    None,
    AllButReads,
    /// These methods, and all that are not [`OPTIONAL`].
    Listed(Vec<Method>),
}

impl GuardedMethods {
    fn contain(&self, method: &Method) -> bool {
        match self {
            Self::None => false,
            Self::AllButReads => !is_read(method),
            Self::Listed(listed) => listed.contains(method) || !OPTIONAL.contains(method),
        }
    }
}

/// The decision of the rules for a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Ruling {
    /// Whether the request needs a token.
    pub(crate) token_required: bool,
    /// The resource's name.
    pub(crate) resource: String,
    /// The name of the lock.
    pub(crate) lock: String,
}

/// Why rules can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// The file can't be read.
    #[error("the rules can't be read")]
    Read(#[from] std::io::Error),
    /// The file is no TOML, or has unknown keys.
    #[error("the rules are not valid: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A rule makes no sense.
    #[error("the rule for `{path}`: {why}")]
    Rule {
        /// The path of the rule.
        path: String,
        /// The fault.
        why: String,
    },
}

/// Maximum number of parameters of a path, such as `{id}`. The router panics at 26.
const PARAMETERS_MAX: usize = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<RuleText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    path: String,
    methods: Option<Vec<String>>,
    resource: Option<String>,
    lock: Option<String>,
    #[serde(default)]
    open: bool,
}

impl Rules {
    /// Reads a file of rules.
    ///
    /// # Errors
    /// [`RulesError`].
    pub fn read(path: &Path) -> Result<Self, RulesError> {
        Self::parse(&std::fs::read_to_string(path)?)
    }

    /// The rules in a text.
    ///
    /// # Errors
    /// [`RulesError`].
    pub fn parse(text: &str) -> Result<Self, RulesError> {
        let file: File = toml::from_str(text)?;
        let mut rules = Self::default();
        for text in file.rule {
            let path = text.path.clone();
            rules.add(text).map_err(|why| RulesError::Rule { path, why })?;
        }
        Ok(rules)
    }

    /// Adds a path that never needs a token.
    ///
    /// # Errors
    /// [`RulesError::Rule`].
    pub fn open(&mut self, path: &str) -> Result<(), RulesError> {
        let text = RuleText { path: path.to_owned(), methods: None, resource: None, lock: None, open: true };
        self.add(text).map_err(|why| RulesError::Rule { path: path.to_owned(), why })
    }

    /// Adds a path that is guarded under this resource's name.
    ///
    /// # Errors
    /// [`RulesError::Rule`].
    pub fn guard(&mut self, path: &str, resource: &str) -> Result<(), RulesError> {
        let resource = Some(resource.to_owned());
        let text = RuleText { path: path.to_owned(), methods: None, resource, lock: None, open: false };
        self.add(text).map_err(|why| RulesError::Rule { path: path.to_owned(), why })
    }

    fn add(&mut self, text: RuleText) -> Result<(), String> {
        if !text.path.starts_with('/') {
            return Err("a path begins with `/`".to_owned());
        }
        let parameters = text.path.matches('{').count();
        if parameters > PARAMETERS_MAX {
            return Err(format!("it has {parameters} parameters, at most {PARAMETERS_MAX} are allowed"));
        }
        let guarded = match (text.open, text.methods) {
            (true, Some(_)) => return Err("`open` and `methods` exclude each other".to_owned()),
            (true, None) => GuardedMethods::None,
            (false, None) => GuardedMethods::AllButReads,
            (false, Some(names)) => {
                GuardedMethods::Listed(names.iter().map(|name| method(name)).collect::<Result<_, _>>()?)
            }
        };
        let template =
            |template: Option<String>| template.map(|it| Template::parse(&it, &text.path)).transpose();
        let rule = PathRule {
            path: text.path.clone(),
            guarded,
            resource: template(text.resource)?,
            lock: template(text.lock)?,
        };
        let mut patterns: Vec<&str> = self.rules.iter().map(|rule| rule.path.as_str()).collect();
        patterns.push(&text.path);
        self.paths = router(&patterns)?;
        self.rules.push(rule);
        Ok(())
    }

    /// Whether some rule guards a method that changes nothing.
    pub(crate) fn guards_reads(&self) -> bool {
        let reads = OPTIONAL.iter().filter(|method| is_read(method));
        reads.into_iter().any(|method| self.rules.iter().any(|rule| rule.guarded.contain(method)))
    }

    /// The ruling for a request for a path in its [`canonical`] spelling.
    pub(crate) fn of(&self, method: &Method, path: &str) -> Ruling {
        let Ok(found) = self.paths.at(path) else {
            let (resource, lock) = (path.to_owned(), lock_of(path));
            return Ruling { token_required: !is_read(method), resource, lock };
        };
        let rule = &self.rules[*found.value];
        let named = |template: &Option<Template>| template.as_ref().map(|it| it.fill(&found.params));
        let resource = named(&rule.resource).unwrap_or_else(|| path.to_owned());
        let lock = named(&rule.lock).unwrap_or_else(|| lock_of(&resource));
        Ruling { token_required: rule.guarded.contain(method), resource, lock }
    }
}

/// A router that returns the index of a pattern. `/a/{*rest}` also matches `/a`, unless `/a` has a pattern of
/// its own.
fn router(patterns: &[&str]) -> Result<Router<usize>, String> {
    let mut paths = Router::new();
    for (index, pattern) in patterns.iter().enumerate() {
        paths.insert(*pattern, index).map_err(|error| error.to_string())?;
    }
    for (index, pattern) in patterns.iter().enumerate() {
        if let Some((parent, _)) = pattern.split_once("/{*") {
            let _ = paths.insert(if parent.is_empty() { "/" } else { parent }, index);
        }
    }
    Ok(paths)
}

/// The default name of a resource's lock. Lock names have no leading slash.
fn lock_of(resource: &str) -> String {
    resource.strip_prefix('/').unwrap_or(resource).to_owned()
}

fn method(name: &str) -> Result<Method, String> {
    // `Method` also accepts lower case, which is another method and would guard nothing.
    let known =
        name.parse().ok().filter(|_| name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-'));
    known.ok_or_else(|| format!("`{name}` is no method; they are written in capitals"))
}

/// A name with parts of the path: `accounts/{id}`.
#[derive(Clone, Debug)]
struct Template(Vec<TemplatePart>);

#[derive(Clone, Debug)]
enum TemplatePart {
    Text(String),
    Parameter(String),
}

impl Template {
    fn parse(text: &str, path: &str) -> Result<Self, String> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some(begin) = rest.find('{') {
            let end = rest
                .find('}')
                .filter(|end| *end > begin)
                .ok_or_else(|| format!("`{text}`: a `{{` without `}}`"))?;
            let name = &rest[begin + 1..end];
            let is_known = [format!("{{{name}}}"), format!("{{*{name}}}")].iter().any(|it| path.contains(it));
            if !is_known {
                return Err(format!("`{text}` has `{{{name}}}`, and the path has not"));
            }
            parts.push(TemplatePart::Text(rest[..begin].to_owned()));
            parts.push(TemplatePart::Parameter(name.to_owned()));
            rest = &rest[end + 1..];
        }
        parts.push(TemplatePart::Text(rest.to_owned()));
        if text.is_empty() {
            return Err("a name can't be empty".to_owned());
        }
        Ok(Self(parts))
    }

    fn fill(&self, parameters: &Params<'_, '_>) -> String {
        let part = |part: &TemplatePart| match part {
            TemplatePart::Text(text) => text.clone(),
            TemplatePart::Parameter(name) => parameters.get(name).unwrap_or_default().to_owned(),
        };
        let name: String = self.0.iter().map(part).collect();
        // `a/{rest}` where nothing follows.
        name.trim_end_matches('/').to_owned()
    }
}

/// The canonical spelling of a path: percent-decoded, without a slash at its end. `None` if upstreams may
/// interpret the path in different ways: with another spelling, a client could bypass the resource's marks.
pub(crate) fn canonical(path: &str) -> Option<String> {
    if path == "*" {
        return Some(path.to_owned());
    }
    let has_encoded_slash = path.to_ascii_lowercase().contains("%2f");
    let decoded = percent_decode_str(path).decode_utf8().ok()?;
    let inner = decoded.strip_prefix('/')?;
    let inner = inner.strip_suffix('/').filter(|inner| !inner.is_empty()).unwrap_or(inner);
    let is_plain = |segment: &str| !matches!(segment, "" | "." | "..");
    let is_ambiguous = has_encoded_slash
        || decoded.contains(|c: char| c.is_control() || matches!(c, '\\' | ';' | '%'))
        || !(inner.is_empty() || inner.split('/').all(is_plain));
    (!is_ambiguous).then(|| format!("/{inner}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ruling(rules: &Rules, method: Method, path: &str) -> (bool, String, String) {
        let Ruling { token_required, resource, lock } = rules.of(&method, path);
        (token_required, resource, lock)
    }

    #[test]
    fn most_specific_rule_counts_and_the_defaults_guard_the_rest() {
        let rules = Rules::parse(
            r#"
            [[rule]]
            path = "/{*all}"
            methods = ["PUT"]
            [[rule]]
            path = "/accounts/{id}/{*rest}"
            resource = "accounts/{id}"
            lock = "bank/{id}/{rest}"
            [[rule]]
            path = "/search"
            open = true
            "#,
        )
        .unwrap();
        let of = |method, path| ruling(&rules, method, path);
        let name = str::to_owned;
        assert_eq!(
            of(Method::POST, "/accounts/42/cards/7"),
            (true, name("accounts/42"), name("bank/42/cards/7"))
        );
        assert_eq!(of(Method::POST, "/accounts/42"), (true, name("accounts/42"), name("bank/42")));
        assert_eq!(of(Method::PUT, "/"), (true, name("/"), name("")));
        assert_eq!(of(Method::POST, "/search"), (false, name("/search"), name("search")));
        assert_eq!(of(Method::POST, "/other"), (false, name("/other"), name("other")));
        assert_eq!(of(Method::PUT, "/other"), (true, name("/other"), name("other")));
        let none = Rules::default();
        assert_eq!(ruling(&none, Method::DELETE, "/x"), (true, name("/x"), name("x")));
        assert_eq!(ruling(&none, Method::GET, "/x"), (false, name("/x"), name("x")));
    }

    #[test]
    fn methods_that_are_not_known_to_change_nothing_need_a_token() {
        let rules =
            "[[rule]]\npath = \"/listed\"\nmethods = [\"GET\"]\n[[rule]]\npath = \"/open\"\nopen = true";
        let rules = Rules::parse(rules).unwrap();
        let required = |method: &str, path| rules.of(&method.parse().unwrap(), path).token_required;
        for method in
            ["MOVE", "COPY", "PROPPATCH", "PROPFIND", "MKCOL", "LOCK", "PURGE", "TRACE", "QUERY", "X-OWN"]
        {
            assert!(required(method, "/x") && required(method, "/listed"), "{method}");
            assert!(!required(method, "/open"), "{method}");
        }
        for method in ["GET", "HEAD", "OPTIONS"] {
            assert!(!required(method, "/x"), "{method}");
        }
        assert!(required("GET", "/listed") && !required("PUT", "/listed") && rules.guards_reads());
    }

    #[test]
    fn rules_that_make_no_sense_are_refused_with_a_reason() {
        for (text, words) in [
            ("[[rule]]\npath = \"x\"", "begins with `/`"),
            (
                "[[rule]]\npath = \"/{a}/{b}/{c}/{d}/{e}/{f}/{g}/{h}/{i}/{j}/{k}/{l}/{m}/{n}/{o}/{p}/{q}\"",
                "17 parameters, at most 16",
            ),
            ("[[rule]]\npath = \"/x\"\nopen = true\nmethods = [\"PUT\"]", "exclude each other"),
            ("[[rule]]\npath = \"/x\"\nmethods = [\"put\"]", "`put` is no method"),
            ("[[rule]]\npath = \"/x\"\nresource = \"{id}\"", "the path has not"),
            ("[[rule]]\npath = \"/{id}\"\nresource = \"{id\"", "without `}`"),
            ("[[rule]]\npath = \"/{id}\"\nresource = \"\"", "empty"),
            ("[[rule]]\npath = \"/{a}\"\n[[rule]]\npath = \"/{b}\"", "conflict"),
            ("[[rule]]\npath = \"/x\"\nmethod = [\"PUT\"]", "unknown field `method`"),
            ("rule = 1", "invalid type"),
        ] {
            let error = Rules::parse(text).expect_err(text).to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn spellings_of_one_path_have_one_name_or_none() {
        for (path, name) in [
            ("/", "/"),
            ("/a", "/a"),
            ("/a/", "/a"),
            ("/%61%2e", "/a."),
            ("/caf%C3%A9", "/caf\u{e9}"),
            ("*", "*"),
        ] {
            assert_eq!(canonical(path).as_deref(), Some(name), "{path}");
        }
        for path in [
            "//a",
            "/a//b",
            "/a/../b",
            "/a/%2e%2e/b",
            "/./a",
            "/a%2fb",
            "/a%2Fb",
            "/a;x=1",
            "/a\\b",
            "/a%5cb",
            "/a%00",
            "/%ff",
            "/%2561",
            "/a%0d%0ab",
            "//",
        ] {
            assert_eq!(canonical(path), None, "{path}");
        }
    }
}
