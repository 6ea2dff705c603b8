//! The Rust fences, on the connections of JavaScript.

mod dynamodb;
mod http;
mod postgres;
pub(crate) mod redis;

use lockkeeper_fence::{Action, ModeKind, Section, Token};
use napi_derive::napi;

use crate::errors::{NativeError, throw};

/// The hold under which a section runs; a guard has these fields.
#[napi(object, object_to_js = false)]
pub struct SectionOf {
    pub token: f64,
    pub mode: Option<String>,
    pub slot: Option<u32>,
}

impl SectionOf {
    fn checked(self) -> Result<Section, NativeError> {
        let option = |option, value: String, allowed| NativeError::Option { option, value, allowed };
        let mode = match self.mode.as_deref() {
            None | Some("exclusive") => ModeKind::Exclusive,
            Some("shared") => ModeKind::Shared,
            Some("permit") => ModeKind::Permit,
            Some(other) => {
                return Err(option("mode", other.to_owned(), "give exclusive, shared, or permit"));
            }
        };
        let whole = (self.token.fract() == 0.0 && self.token >= 1.0).then_some(self.token as u64);
        let token = whole
            .and_then(Token::new)
            .ok_or_else(|| option("token", self.token.to_string(), "give a guard's token: 1 to 2^53 - 1"))?;
        Ok(Section::new(mode, self.slot, token)?)
    }
}

/// # Errors
/// It is none of the three.
fn action(name: &str) -> napi::Result<Action> {
    match name {
        "enter" => Ok(Action::Enter),
        "write" => Ok(Action::Write),
        "once" => Ok(Action::CheckOnce),
        other => Err(throw(NativeError::Option {
            option: "action",
            value: other.to_owned(),
            allowed: "give enter, write, or once",
        })),
    }
}
