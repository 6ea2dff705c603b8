//! The parser of scenario lines. Refuses unknown words.

use lockkeeper_core::{
    Acquire, Break, Command, IfBusy, LockName, Mode, OpenSession, Seq, SessionId, Token, WallTime,
};

/// A parsed line. The command of a session is built later, once the session's id is known.
pub(crate) enum Line {
    Open { name: String, open: OpenSession },
    Of { session: String, make: Box<dyn FnOnce(SessionId) -> Command> },
    Plain(Command),
    CheckToken { name: LockName, token: u64 },
    Restart,
    Show,
}

/// The words of a line. Each is removed when it is parsed, flags and `key=value` at any position; words that
/// are left at the end are an error.
struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    fn first(&mut self, what: &str) -> Result<&'a str, String> {
        if self.0.is_empty() { Err(format!("{what} is missing")) } else { Ok(self.0.remove(0)) }
    }
    fn flag(&mut self, word: &str) -> bool {
        let at = self.0.iter().position(|w| *w == word);
        at.map(|at| self.0.remove(at)).is_some()
    }
    /// The text after `key=`.
    fn text(&mut self, key: &str) -> Option<&'a str> {
        let value = |w: &&'a str| w.strip_prefix(key)?.strip_prefix('=');
        let at = self.0.iter().position(|w| value(w).is_some())?;
        value(&self.0.remove(at))
    }
    fn number<N: std::str::FromStr>(&mut self, key: &str) -> Result<Option<N>, String> {
        self.text(key).map(|text| number(text)).transpose()
    }
    fn duration(&mut self, key: &str) -> Result<Option<u64>, String> {
        self.text(key).map(duration).transpose()
    }
    fn seq(&mut self, key: &str) -> Result<Seq, String> {
        Ok(Seq(self.number(key)?.ok_or_else(|| format!("{key}= is missing"))?))
    }
    fn done_through(&mut self) -> Result<Seq, String> {
        Ok(Seq(self.number("done")?.unwrap_or(0)))
    }
    fn end(self) -> Result<(), String> {
        if self.0.is_empty() { Ok(()) } else { Err(format!("not understood: {}", self.0.join(" "))) }
    }
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

/// Parses `5s`, `1h` or `20ms` into milliseconds.
fn duration(text: &str) -> Result<u64, String> {
    for (unit, ms) in [("ms", 1), ("h", 3_600_000), ("s", 1000)] {
        if let Some(count) = text.strip_suffix(unit) {
            return number::<u64>(count).map(|count| count * ms);
        }
    }
    Err(format!("{text:?} is not a duration such as 5s"))
}

fn name(text: &str) -> Result<LockName, String> {
    LockName::parse(text).map_err(|why| why.to_string())
}

fn token(text: &str) -> Result<Token, String> {
    Token::new(number(text)?).ok_or_else(|| format!("{text} is no token"))
}

/// Parses `alice/3` into session and seq.
fn request(text: &str) -> Result<(String, Seq), String> {
    let (session, seq) = text.split_once('/').ok_or_else(|| format!("{text:?} is not SESSION/SEQ"))?;
    Ok((session.to_owned(), Seq(number(seq)?)))
}

/// `bytes:N` stands for a text of N bytes, to keep scenarios short. Any other text is taken literally.
fn bytes(text: &str) -> String {
    match text.strip_prefix("bytes:").map(str::parse) {
        Some(Ok(count)) => "x".repeat(count),
        _ => text.to_owned(),
    }
}

/// The command that opens a session of this name if the line says no more. The hash of its secret is its
/// name.
pub(crate) fn opening(name: &str) -> OpenSession {
    let mut secret_hash = [0; 32];
    for (to, from) in secret_hash.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    OpenSession {
        secret_hash,
        ttl_ms: 10_000,
        lock_delay_ms: 0,
        linger_ms: 0,
        label: Box::default(),
        identity: Box::default(),
    }
}

impl Line {
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let mut words = Words(line.split_whitespace().collect());
        let verb = words.first("a command")?;
        let parsed = match verb {
            "open" => Self::open(&mut words)?,
            "close" => {
                let session = words.first("a session")?.to_owned();
                Self::of(session, |session| Command::CloseSession { session })
            }
            "expire" => {
                let session = words.first("a session")?.to_owned();
                Self::of(session, |session| Command::ExpireSession { session })
            }
            "time-out" => {
                let (session, target) = request(words.first("a request")?)?;
                Self::of(session, move |session| Command::TimeOut { session, target })
            }
            "acquire" => Self::acquire(&mut words)?,
            "finish" | "set-value" | "downgrade" | "settle" => Self::on_target(verb, &mut words)?,
            "end-delay" => Self::Plain(Command::EndDelay { token: token(words.first("a token")?)? }),
            "end-revoked" => Self::Plain(Command::EndRevoked { token: token(words.first("a token")?)? }),
            "break" => Self::break_hold(&mut words)?,
            "set-limit" => {
                let name = name(words.first("a name")?)?;
                let limit = match words.first("a limit")? {
                    "none" => None,
                    limit => Some(number(limit)?),
                };
                Self::Plain(Command::SetLimit { name, limit })
            }
            "raise-tokens" => Self::Plain(Command::RaiseTokens { above: number(words.first("a number")?)? }),
            "clock" => Self::Plain(Command::SetClock { now: WallTime(number(words.first("a time")?)?) }),
            "resume" => Self::Plain(Command::Resume),
            "raise-rules" => Self::Plain(Command::RaiseRules { version: number(words.first("a number")?)? }),
            "check-token" => Self::CheckToken {
                name: name(words.first("a name")?)?,
                token: number(words.first("a token")?)?,
            },
            "restart" => Self::Restart,
            "show" => Self::Show,
            _ => return Err(format!("no command is called {verb:?}")),
        };
        words.end()?;
        Ok(parsed)
    }

    fn of(session: String, make: impl FnOnce(SessionId) -> Command + 'static) -> Self {
        Self::Of { session, make: Box::new(make) }
    }

    fn open(words: &mut Words<'_>) -> Result<Self, String> {
        let name = words.first("a session")?.to_owned();
        let open = opening(&name);
        let open = OpenSession {
            ttl_ms: words.duration("ttl")?.unwrap_or(open.ttl_ms),
            lock_delay_ms: words.duration("delay")?.unwrap_or(0),
            linger_ms: words.duration("linger")?.unwrap_or(0),
            label: bytes(words.text("label").unwrap_or_default()).into(),
            identity: bytes(words.text("as").unwrap_or_default()).into(),
            ..open
        };
        Ok(Self::Open { name, open })
    }

    fn acquire(words: &mut Words<'_>) -> Result<Self, String> {
        let (session, seq) = request(words.first("a request")?)?;
        let names = match words.first("names")? {
            "-" => Vec::new(),
            names => names.split(',').map(name).collect::<Result<Vec<_>, _>>()?,
        };
        let shared = words.flag("shared");
        let mode = match words.text("permit") {
            _ if shared => Mode::Shared,
            Some("any") => Mode::Permit { of: None },
            Some(of) => Mode::Permit { of: Some(number(of)?) },
            None => Mode::Exclusive,
        };
        let waiters_max = words.text("max-waiters").map(number).transpose()?;
        let if_busy = match words.duration("wait")? {
            Some(ms) => IfBusy::Wait { at_most_ms: Some(ms), waiters_max },
            None if words.flag("wait") => IfBusy::Wait { at_most_ms: None, waiters_max },
            None => IfBusy::Fail,
        };
        let subtree = words.flag("subtree");
        let keep_closed_ms = words.duration("keep-closed")?.unwrap_or(0);
        let value: Box<[u8]> = bytes(words.text("value").unwrap_or_default()).into_bytes().into();
        let meta: Box<[u8]> = bytes(words.text("meta").unwrap_or_default()).into_bytes().into();
        let spare_tokens = words.number("spare")?.unwrap_or(0);
        let holding =
            words.text("holding").map_or(Ok(Box::default()), |list| list.split(',').map(token).collect())?;
        let done_through = words.done_through()?;
        Ok(Self::of(session, move |session| {
            Command::Acquire(Acquire {
                session,
                seq,
                done_through,
                names,
                mode,
                subtree,
                if_busy,
                keep_closed_ms,
                value,
                meta,
                spare_tokens,
                holding,
            })
        }))
    }

    fn on_target(verb: &str, words: &mut Words<'_>) -> Result<Self, String> {
        let (session, seq) = request(words.first("a request")?)?;
        let target = words.seq("target")?;
        let done_through = words.done_through()?;
        Ok(match verb {
            "finish" => {
                Self::of(session, move |session| Command::Finish { session, seq, target, done_through })
            }
            "settle" => {
                Self::of(session, move |session| Command::Settle { session, seq, target, done_through })
            }
            "downgrade" => {
                Self::of(session, move |session| Command::Downgrade { session, seq, target, done_through })
            }
            _ => {
                let value = words.text("value").ok_or("value= is missing")?;
                let value: Box<[u8]> = bytes(value).into_bytes().into();
                Self::of(session, move |session| Command::SetValue {
                    session,
                    seq,
                    target,
                    value,
                    done_through,
                })
            }
        })
    }

    fn break_hold(words: &mut Words<'_>) -> Result<Self, String> {
        Ok(Self::Plain(Command::Break(Break {
            name: name(words.first("a name")?)?,
            token: token(words.first("a token")?)?,
            now: words.flag("now"),
            reason: bytes(words.text("reason").unwrap_or("stuck")).into(),
            by: bytes(words.text("by").unwrap_or("olga")).into(),
        })))
    }
}
