//! The Redis fence on a connection of JavaScript: its commands go to the event loop, which sends them.

use std::io;
use std::sync::Arc;

use lockkeeper_fence::redis::RedisCommand;
use lockkeeper_fence::{Action, RedisFence};
use napi::bindgen_prelude::{Buffer, FromNapiValue, Unknown, sys};
use napi::{JsValue as _, ValueType};
use napi_derive::napi;
use redis::aio::ConnectionLike;
use redis::{Arg, Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, Value};

use super::{SectionOf, action};
use crate::bridge::{Bridge, CallAnswer, Shared};

/// A connection of the event loop, by its number.
#[derive(Clone)]
struct LoopConnection {
    shared: Arc<Shared>,
    connection: u32,
}

impl ConnectionLike for LoopConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let word = |arg| match arg {
                Arg::Simple(word) => Some(<[u8]>::to_vec(word)),
                _ => None,
            };
            let words = command.args_iter().filter_map(word).collect();
            match self.shared.command(self.connection, words).await {
                Ok(reply) => Ok(reply),
                Err(text) => error_reply(&text),
            }
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        let error = (ErrorKind::Client, "this connection takes one command at a time");
        Box::pin(async move { Err(RedisError::from(error)) })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// An error as the client library in JavaScript has reported it: a reply of the server begins with a code in
/// capitals (`NOSCRIPT …`); anything else means that there was no reply.
fn error_reply(text: &str) -> Result<Value, RedisError> {
    let code = text.split(' ').next().unwrap_or_default();
    if code.is_empty() || !code.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return Err(io::Error::other(text.to_owned()).into());
    }
    let line = text.lines().next().unwrap_or_default();
    redis::parse_redis_value(format!("-{line}\r\n").as_bytes())
}

/// A reply of the client library in JavaScript.
pub struct CommandReply(pub(crate) Value);

impl FromNapiValue for CommandReply {
    unsafe fn from_napi_value(env: sys::napi_env, reply: sys::napi_value) -> napi::Result<Self> {
        // SAFETY: the environment and the value are the caller's.
        unsafe {
            let value = Unknown::from_napi_value(env, reply)?;
            Ok(Self(match value.get_type()? {
                ValueType::Number => Value::Int(i64::from_napi_value(env, reply)?),
                ValueType::String => Value::BulkString(String::from_napi_value(env, reply)?.into_bytes()),
                ValueType::Object if value.is_buffer()? => {
                    Value::BulkString(Buffer::from_napi_value(env, reply)?.to_vec())
                }
                ValueType::Object if value.is_array()? => {
                    let items = Vec::<Self>::from_napi_value(env, reply)?;
                    Value::Array(items.into_iter().map(|item| item.0).collect())
                }
                _ => Value::Nil,
            }))
        }
    }
}

/// A reply for JavaScript: bytes that are not UTF-8 are replaced.
fn to_json(reply: Value) -> serde_json::Value {
    match reply {
        Value::Int(number) => number.into(),
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into(),
        Value::SimpleString(text) => text.into(),
        Value::Okay => "OK".into(),
        Value::Array(items) => items.into_iter().map(to_json).collect(),
        _ => serde_json::Value::Null,
    }
}

/// A command of a fenced write.
#[napi(object, object_to_js = false)]
pub struct CommandOf {
    /// Its name, its keys and its arguments.
    pub words: Vec<Buffer>,
    /// Which of the words are keys.
    pub keys: Vec<u32>,
}

impl From<CommandOf> for RedisCommand {
    fn from(given: CommandOf) -> Self {
        let mut words = given.words.iter().zip(0..);
        let name = words.next().map(|(name, _)| String::from_utf8_lossy(name).into_owned());
        words.fold(Self::new(&name.unwrap_or_default()), |command, (word, at)| {
            if given.keys.contains(&at) { command.key(word) } else { command.arg(word.to_vec()) }
        })
    }
}

/// The fence of a Redis server.
#[napi(js_name = "RedisFence")]
pub struct NativeRedisFence(RedisFence<LoopConnection>);

#[napi]
impl Bridge {
    /// Makes a fence of a connection.
    #[napi]
    pub fn redis_fence(&self, call: u32, connection: u32, trusts_no_eviction: bool) {
        let connection = LoopConnection { shared: self.shared.clone(), connection };
        self.begin(call, async move {
            let fence = if trusts_no_eviction {
                RedisFence::trusting_no_eviction(connection).await?
            } else {
                RedisFence::connect(connection).await?
            };
            Ok(CallAnswer::object(NativeRedisFence(fence)))
        });
    }

    /// Enters, or checks and runs commands in one step; the replies of these.
    #[napi]
    pub fn redis_pass(
        &self,
        call: u32,
        fence: &NativeRedisFence,
        action: String,
        resource: String,
        section: SectionOf,
        commands: Vec<CommandOf>,
    ) -> napi::Result<()> {
        let (action, section) = (self::action(&action)?, section.checked()?);
        let commands: Vec<_> = commands.into_iter().map(RedisCommand::from).collect();
        let fence = fence.0.clone();
        self.begin(call, async move {
            let replies = match action {
                Action::Enter => fence.enter(&resource, section).await.map(|()| Vec::new()),
                Action::Write => fence.write(&resource, section, &commands).await,
                Action::CheckOnce => fence.check_once(&resource, section, &commands).await,
            };
            Ok(CallAnswer::Json(replies?.into_iter().map(to_json).collect()))
        });
        Ok(())
    }
}
