//! The Rust fences, on the connections of JavaScript.

mod dynamodb;
mod http;
mod postgres;
pub(crate) mod redis;

use lockkeeper_bindings::fences::section;
use lockkeeper_fence::{Action, Section};
use napi_derive::napi;

use crate::errors::throw;
use crate::options::token_of;

/// The hold under which a section runs; a guard has these fields.
#[napi(object, object_to_js = false)]
pub struct SectionOf {
    pub token: f64,
    pub mode: Option<String>,
    pub slot: Option<u32>,
}

impl SectionOf {
    fn checked(self) -> napi::Result<Section> {
        let mode = self.mode.as_deref().unwrap_or("exclusive");
        token_of(self.token).and_then(|token| section(mode, self.slot, token)).map_err(throw)
    }
}

/// # Errors
/// It is none of the three.
fn action(name: &str) -> napi::Result<Action> {
    lockkeeper_bindings::fences::action(name).map_err(throw)
}
