//! The fencing headers of a request.
//!
//! Reads the four headers, each of which may be sent once. A malformed header is refused, since falling back
//! to its default would check less than the client intended.

use http::header::{HeaderMap, HeaderName};

use crate::resource::Resource;
use crate::rule::{Action, Section};
use lockkeeper_core::limits::TOKEN_MAX;
use lockkeeper_core::{ModeKind, Slot, Token};

use super::problem::Problem;

/// The token of the section.
pub const TOKEN: HeaderName = HeaderName::from_static("fencing-token");
/// The resource.
pub const RESOURCE: HeaderName = HeaderName::from_static("fencing-resource");
/// The mode of the hold; for a permit also its slot.
pub const MODE: HeaderName = HeaderName::from_static("fencing-mode");
/// The action of the section at the fence.
pub const ACTION: HeaderName = HeaderName::from_static("fencing-action");

/// The parsed fencing headers of a request.
#[derive(Debug)]
pub(super) struct FenceHeaders {
    pub(super) section: Section,
    pub(super) action: Option<Action>,
    pub(super) resource: Option<Resource>,
}

/// `None` if the request has no fencing headers.
pub(super) fn read(headers: &HeaderMap) -> Result<Option<FenceHeaders>, Problem> {
    let Some(token) = one(headers, &TOKEN)? else {
        // If another fencing header is present, the token was forgotten; passing the request unchecked would
        // hide the mistake.
        return match [&RESOURCE, &MODE, &ACTION].into_iter().find(|name| headers.contains_key(*name)) {
            Some(name) => {
                Err(Problem::malformed(shown(&TOKEN), format!("is missing, though {} is there", shown(name))))
            }
            None => Ok(None),
        };
    };
    let token = read_token(token)?;
    let (mode, slot) = one(headers, &MODE)?.map_or(Ok((ModeKind::Exclusive, None)), read_mode)?;
    let section = Section::new(mode, slot, token)?;
    let action = one(headers, &ACTION)?.map(read_action).transpose()?;
    let resource = match one(headers, &RESOURCE)? {
        Some(name) => Some(
            Resource::new(name)
                .map_err(|bad| Problem::malformed(shown(&RESOURCE), format!("is bad: {bad}")))?,
        ),
        None => None,
    };
    Ok(Some(FenceHeaders { section, action, resource }))
}

fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Problem::malformed(shown(name), "is given more than once; send it once".to_owned()));
    }
    match std::str::from_utf8(value.as_bytes()) {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(Problem::malformed(shown(name), "is not UTF-8".to_owned())),
    }
}

fn read_token(text: &str) -> Result<Token, Problem> {
    // Checked here, since `parse` alone also accepts `+5`.
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let token = digits.then(|| text.parse().ok().and_then(Token::new)).flatten();
    token.ok_or_else(|| {
        Problem::malformed(
            shown(&TOKEN),
            format!("is `{text}`; send the token of the grant, a number from 1 to {TOKEN_MAX}"),
        )
    })
}

fn read_mode(text: &str) -> Result<(ModeKind, Option<Slot>), Problem> {
    let (mode, slot) = match text.split_once(';') {
        Some((mode, slot)) => (mode, Some(slot.trim_start_matches(' '))),
        None => (text, None),
    };
    let mode = match mode {
        "exclusive" => Some(ModeKind::Exclusive),
        "shared" => Some(ModeKind::Shared),
        "permit" => Some(ModeKind::Permit),
        _ => None,
    };
    let slot = match slot.map(|slot| slot.strip_prefix("slot=").filter(|digits| is_digits(digits))) {
        None => Some(None),
        Some(digits) => digits.and_then(|digits| digits.parse().ok()).map(Some),
    };
    mode.zip(slot).ok_or_else(|| {
        Problem::malformed(
            shown(&MODE),
            format!("is `{text}`; send `exclusive`, `shared`, `permit` or `permit;slot=3`"),
        )
    })
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn read_action(text: &str) -> Result<Action, Problem> {
    [Action::Enter, Action::Write, Action::CheckOnce]
        .into_iter()
        .find(|action| action.to_string() == text)
        .ok_or_else(|| {
            Problem::malformed(
                shown(&ACTION),
                format!("is `{text}`; send `enter`, `write` or `check_once`, or leave it out"),
            )
        })
}

/// A header's name in its documented spelling.
pub(super) fn shown(name: &HeaderName) -> &'static str {
    match name {
        name if name == TOKEN => "Fencing-Token",
        name if name == RESOURCE => "Fencing-Resource",
        name if name == MODE => "Fencing-Mode",
        _ => "Fencing-Action",
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn said(headers: &[(HeaderName, &str)]) -> Result<Option<FenceHeaders>, Problem> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
        }
        read(&map)
    }

    #[test]
    fn a_token_alone_is_an_exclusive_section() {
        let said = said(&[(TOKEN, "7")]).expect("well said").expect("a section");
        assert_eq!(said.section, Section::exclusive(Token::new(7).expect("a token")));
        assert!(said.action.is_none() && said.resource.is_none());
    }

    #[test]
    fn modes_slots_and_actions_are_read() {
        let token = Token::new(7).expect("a token");
        for (mode, section) in [
            ("exclusive", Section::exclusive(token)),
            ("shared", Section::shared(token)),
            ("permit", Section::new(ModeKind::Permit, None, token).expect("a section")),
            ("permit;slot=3", Section::permit(3, token).expect("a slot")),
            ("permit; slot=0", Section::permit(0, token).expect("a slot")),
        ] {
            let said = said(&[(TOKEN, "7"), (MODE, mode)]).expect("well said").expect("a section");
            assert_eq!(said.section, section, "{mode}");
        }
        for action in [Action::Enter, Action::Write, Action::CheckOnce] {
            let said =
                said(&[(TOKEN, "7"), (ACTION, &action.to_string())]).expect("well said").expect("a section");
            assert_eq!(said.action, Some(action));
        }
        let said = said(&[(TOKEN, "7"), (RESOURCE, "Bestellung/ä")]).expect("well said").expect("a section");
        assert_eq!(said.resource.expect("named").as_str(), "Bestellung/ä");
    }

    #[test]
    fn malformed_header_is_refused_and_named() {
        assert!(said(&[]).expect("nothing said").is_none());
        let long = "x".repeat(513);
        for (headers, names) in [
            (&[(TOKEN, "0")][..], "Fencing-Token"),
            (&[(TOKEN, "")], "Fencing-Token"),
            (&[(TOKEN, "+5")], "Fencing-Token"),
            (&[(TOKEN, "5.0")], "Fencing-Token"),
            (&[(TOKEN, "9007199254740992")], "Fencing-Token"),
            (&[(TOKEN, "99999999999999999999999")], "Fencing-Token"),
            (&[(TOKEN, "5"), (TOKEN, "6")], "Fencing-Token"),
            (&[(MODE, "shared")], "Fencing-Token"),
            (&[(TOKEN, "5"), (MODE, "Exclusive")], "Fencing-Mode"),
            (&[(TOKEN, "5"), (MODE, "permit;slot=")], "Fencing-Mode"),
            (&[(TOKEN, "5"), (MODE, "permit;slot=-1")], "Fencing-Mode"),
            (&[(TOKEN, "5"), (MODE, "permit;slot=+1")], "Fencing-Mode"),
            (&[(TOKEN, "5"), (MODE, "permit;slots=1")], "Fencing-Mode"),
            (&[(TOKEN, "5"), (MODE, "permit;slot=1;slot=2")], "Fencing-Mode"),
            (&[(TOKEN, "5"), (MODE, "permit;slot=65536")], "slot 65536"),
            (&[(TOKEN, "5"), (MODE, "exclusive;slot=1")], "slot 1"),
            (&[(TOKEN, "5"), (ACTION, "read")], "Fencing-Action"),
            (&[(TOKEN, "5"), (RESOURCE, "")], "Fencing-Resource"),
            (&[(TOKEN, "5"), (RESOURCE, &long)], "Fencing-Resource"),
        ] {
            let problem = said(headers).expect_err("misspelt");
            assert_eq!(problem.status(), http::StatusCode::BAD_REQUEST, "{headers:?}");
            assert!(problem.detail().contains(names), "{headers:?}: {}", problem.detail());
        }
    }
}
