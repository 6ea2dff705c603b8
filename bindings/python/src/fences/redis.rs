//! The Redis fence, whose commands Python's client sends.
//!
//! A call of the Rust fence is a future. Its connection hands each command out, and the future waits for the
//! reply: so one call serves clients for threads and for asyncio.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use lockkeeper_fence::redis::{RedisCommand, RedisFenceError};
use lockkeeper_fence::{Action, RedisFence};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use redis::aio::ConnectionLike;
use redis::{Arg, Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, RedisResult, Value};

use super::Asked;
use crate::errors::exception;
use crate::options::token;

/// The command that a call has sent, or the reply to it, while the call is polled.
#[derive(Default)]
struct Exchange {
    command: Option<Vec<Vec<u8>>>,
    reply: Option<RedisResult<Value>>,
}

thread_local! {
    static EXCHANGE: RefCell<Exchange> = RefCell::default();
}

/// A connection through the thread that polls.
#[derive(Clone)]
struct Relay;

impl ConnectionLike for Relay {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        let word = |arg: Arg<&[u8]>| match arg {
            Arg::Simple(word) => word.to_vec(),
            // A cursor, which the fence never sends.
            _ => b"0".to_vec(),
        };
        let words = command.args_iter().map(word).collect();
        EXCHANGE.with_borrow_mut(|exchange| exchange.command = Some(words));
        Box::pin(poll_fn(|_| match EXCHANGE.with_borrow_mut(|exchange| exchange.reply.take()) {
            Some(reply) => Poll::Ready(reply),
            None => Poll::Pending,
        }))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async { Err((ErrorKind::Client, "the fence sends no pipelines").into()) })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

type Call = Pin<Box<dyn Future<Output = Result<Outcome, RedisFenceError>> + Send>>;

/// What a call ends with.
enum Outcome {
    Connected(RedisFence<Relay>),
    Replies(Vec<Value>),
}

/// A call in progress.
#[pyclass(frozen)]
pub(crate) struct RedisCall(Mutex<Call>);

impl RedisCall {
    fn new(call: impl Future<Output = Result<Outcome, RedisFenceError>> + Send + 'static) -> Self {
        Self(Mutex::new(Box::pin(call)))
    }
}

/// Python's reply to a command.
#[derive(FromPyObject)]
pub(crate) enum Reply<'py> {
    /// An error reply, as Redis writes it (`NOSCRIPT …`), or why there is none.
    Failed(bool, String),
    Replied((Bound<'py, PyAny>,)),
}

/// A command to send, or the result of the call.
type Step = (Option<Vec<Py<PyBytes>>>, Option<Py<PyAny>>);

#[pymethods]
impl RedisCall {
    /// Goes on with the reply to the last command; the first time with `None`.
    fn next(&self, py: Python<'_>, reply: Option<Reply<'_>>) -> PyResult<Step> {
        let reply = reply.map(|reply| -> PyResult<_> {
            Ok(match reply {
                Reply::Replied((value,)) => Ok(value_of(&value)?),
                Reply::Failed(true, text) => {
                    let line = format!("-{}\r\n", text.replace(['\r', '\n'], " "));
                    redis::parse_redis_value(line.as_bytes())
                }
                Reply::Failed(false, text) => Err(RedisError::from(std::io::Error::other(text))),
            })
        });
        let reply = reply.transpose()?;
        EXCHANGE.set(Exchange { command: None, reply });
        let mut call = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let words = EXCHANGE.take().command;
        match polled {
            Poll::Pending => {
                let words = words.unwrap_or_default();
                Ok((Some(words.iter().map(|word| PyBytes::new(py, word).unbind()).collect()), None))
            }
            Poll::Ready(Ok(Outcome::Connected(fence))) => {
                Ok((None, Some(Py::new(py, NativeRedisFence(fence))?.into_any())))
            }
            Poll::Ready(Ok(Outcome::Replies(replies))) => {
                let replies =
                    replies.into_iter().map(|reply| object(py, reply)).collect::<PyResult<Vec<_>>>()?;
                Ok((None, Some(replies.into_pyobject(py)?.into_any().unbind())))
            }
            Poll::Ready(Err(error)) => Err(exception(error)),
        }
    }
}

/// A reply of Python's client.
fn value_of(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    Ok(if value.is_none() {
        Value::Nil
    } else if let Ok(bytes) = value.cast::<PyBytes>() {
        Value::BulkString(bytes.as_bytes().to_vec())
    } else if let Ok(text) = value.extract::<String>() {
        // Of a client with `decode_responses`.
        Value::BulkString(text.into_bytes())
    } else if let Ok(number) = value.extract::<i64>() {
        Value::Int(number)
    } else if let Ok(items) = value.cast::<PyList>() {
        Value::Array(items.iter().map(|item| value_of(&item)).collect::<PyResult<_>>()?)
    } else if let Ok(pairs) = value.cast::<PyDict>() {
        let pair = |(name, value)| Ok((value_of(&name)?, value_of(&value)?));
        Value::Map(pairs.iter().map(pair).collect::<PyResult<_>>()?)
    } else {
        return Err(PyTypeError::new_err(format!("a reply of Redis that the fence does not know: {value}")));
    })
}

/// A reply, as a client without `decode_responses` returns it.
fn object(py: Python<'_>, value: Value) -> PyResult<Py<PyAny>> {
    Ok(match value {
        Value::Int(number) => number.into_pyobject(py)?.into_any().unbind(),
        Value::BulkString(bytes) => PyBytes::new(py, &bytes).into_any().unbind(),
        Value::SimpleString(text) => PyBytes::new(py, text.as_bytes()).into_any().unbind(),
        Value::Okay => PyBytes::new(py, b"OK").into_any().unbind(),
        Value::Array(items) => {
            let items = items.into_iter().map(|item| object(py, item)).collect::<PyResult<Vec<_>>>()?;
            items.into_pyobject(py)?.into_any().unbind()
        }
        _ => py.None(),
    })
}

/// The calls of the Redis fence.
#[pyclass(frozen, name = "RedisFence")]
pub(crate) struct NativeRedisFence(RedisFence<Relay>);

/// Connects a fence; the call ends with it.
#[pyfunction]
pub(crate) fn redis_fence(trusting_no_eviction: bool) -> RedisCall {
    RedisCall::new(async move {
        let connected = match trusting_no_eviction {
            true => RedisFence::trusting_no_eviction(Relay).await,
            false => RedisFence::connect(Relay).await,
        };
        connected.map(Outcome::Connected)
    })
}

/// The words of a command after its name: whether each is a key.
type Words = Vec<(bool, Vec<u8>)>;

#[pymethods]
impl NativeRedisFence {
    #[pyo3(name = "pass_")]
    fn pass(
        &self,
        resource: String,
        asked: Asked<'_>,
        commands: Vec<(String, Words)>,
    ) -> PyResult<RedisCall> {
        let (fence, (action, section)) = (self.0.clone(), asked.parse()?);
        let command = |(name, words): (String, Words)| {
            words.into_iter().fold(RedisCommand::new(&name), |command, (is_key, word)| match is_key {
                true => command.key(word),
                false => command.arg(word),
            })
        };
        let commands: Vec<RedisCommand> = commands.into_iter().map(command).collect();
        Ok(RedisCall::new(async move {
            let replies = match action {
                Action::Enter => fence.enter(&resource, section).await.map(|()| Vec::new()),
                Action::Write => fence.write(&resource, section, &commands).await,
                Action::CheckOnce => fence.check_once(&resource, section, &commands).await,
            };
            replies.map(Outcome::Replies)
        }))
    }

    /// Sets the marks to a token, unconditionally.
    fn reset(&self, resource: String, to: u64) -> PyResult<RedisCall> {
        let (fence, to) = (self.0.clone(), token(to)?);
        Ok(RedisCall::new(
            async move { fence.reset(&resource, to).await.map(|()| Outcome::Replies(Vec::new())) },
        ))
    }
}
