//! The protocol between the harness and a driver, as docs/write-a-client.md describes it: JSON, one object a
//! line.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The version of the protocol.
pub const PROTOCOL: u64 = 1;

/// A driver's first line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The driver's name: language and API.
    pub driver: String,
    /// The client's version.
    pub version: String,
    /// [`PROTOCOL`].
    pub protocol: u64,
    /// The schemes of the URLs that `connect` takes.
    pub schemes: Vec<String>,
    /// The modes of `acquire`.
    pub modes: Vec<LockMode>,
    /// What else it can do: `all`, `subtree`, `election`.
    #[serde(default)]
    pub features: Vec<String>,
}

/// How a lock is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LockMode {
    /// Alone.
    Exclusive,
    /// Together with other shared holds.
    Shared,
    /// One of several permits.
    Permit,
}

/// A command to a driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub enum DriverCommand {
    /// Connects to a lock service: once, first.
    Connect {
        /// The service.
        url: String,
        /// The ttl of its sessions, in milliseconds.
        ttl_ms: u64,
        /// The client's label, for operators.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        label: Option<String>,
    },
    /// Acquires a lock.
    Acquire(AcquireCommand),
    /// Campaigns in an election.
    Lead(LeadCommand),
    /// Abandons a waiting acquire.
    Cancel {
        /// The id of the acquire.
        acquire: u64,
    },
    /// Releases a hold.
    Release {
        /// The hold's name.
        hold: String,
    },
    /// Whether a hold may still be used.
    Check {
        /// The hold's name.
        hold: String,
    },
    /// Blocks the program's own thread.
    Stall {
        /// For how long, in milliseconds.
        ms: u64,
    },
    /// Ends the process without any release.
    Die {},
}

/// `acquire`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcquireCommand {
    /// The name that the harness gives to the hold.
    pub hold: String,
    /// The lock.
    pub lock: String,
    /// Further locks, all or nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// The mode.
    pub mode: LockMode,
    /// The semaphore's number of permits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permits: Option<u32>,
    /// Covers all names below the lock's, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub subtree: bool,
    /// How long to wait, in milliseconds: absent or null without end, 0 not at all.
    #[serde(default)]
    pub wait_ms: Option<u64>,
}

/// `lead`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeadCommand {
    /// The name that the harness gives to the hold.
    pub hold: String,
    /// The election.
    pub election: String,
    /// As in [`AcquireCommand`].
    #[serde(default)]
    pub wait_ms: Option<u64>,
}

/// A command with its id.
#[derive(Clone, Debug)]
pub struct NumberedCommand {
    /// Identifies the answer.
    pub id: u64,
    /// The command.
    pub command: DriverCommand,
}

impl NumberedCommand {
    /// Parses a line.
    ///
    /// # Errors
    /// The id, if it can be read, and what is wrong with the line.
    pub fn parse(text: &str) -> Result<Self, (Option<u64>, String)> {
        let wrong = |id| move |error: serde_json::Error| (id, format!("the command can't be read: {error}"));
        let mut fields: Map<String, Value> = serde_json::from_str(text).map_err(wrong(None))?;
        let id = fields.remove("id").and_then(|id| id.as_u64());
        let Some(id) = id else { return Err((None, "the command has no `id`, a number".to_owned())) };
        let command = serde_json::from_value(Value::Object(fields)).map_err(wrong(Some(id)))?;
        Ok(Self { id, command })
    }

    /// Its line.
    #[must_use]
    pub fn text(&self) -> String {
        let mut line = serde_json::to_value(&self.command).unwrap_or_default();
        line["id"] = json!(self.id);
        line.to_string()
    }
}

/// Why a command failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The lock is not free, and the acquire does not wait.
    Busy,
    /// The lock did not become free in time.
    TimedOut,
    /// The acquire was abandoned.
    Cancelled,
    /// The service, the client or the driver refuses the command.
    Refused,
    /// The service can't be reached, or the outcome is unknown (P12).
    Unreachable,
    /// The hold is lost, or the session ended while the acquire waited.
    Lost,
}

/// A failed command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CommandError {
    /// For programs.
    pub kind: ErrorKind,
    /// For people.
    #[serde(default)]
    pub text: String,
}

/// What a driver says.
#[derive(Debug)]
pub enum Said {
    /// The answer to a command.
    Answer {
        /// That of the command; none if its line had none.
        id: Option<u64>,
        /// The answer.
        answer: Result<Value, CommandError>,
    },
    /// A hold was lost.
    Lost {
        /// The hold's name.
        hold: String,
    },
}

impl Said {
    /// Parses a line.
    ///
    /// # Errors
    /// What is wrong with the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let line: Map<String, Value> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if let Some(event) = line.get("event") {
            let hold = line.get("hold").and_then(Value::as_str);
            return match (event.as_str(), hold) {
                (Some("lost"), Some(hold)) => Ok(Self::Lost { hold: hold.to_owned() }),
                _ => Err("an event is {\"event\":\"lost\",\"hold\":\"…\"}".to_owned()),
            };
        }
        let id = line.get("id").and_then(Value::as_u64);
        match (line.get("ok"), line.get("error")) {
            (Some(ok), None) => Ok(Self::Answer { id, answer: Ok(ok.clone()) }),
            (None, Some(error)) => {
                let error = serde_json::from_value(error.clone()).map_err(|error| error.to_string())?;
                Ok(Self::Answer { id, answer: Err(error) })
            }
            _ => Err("an answer has `id` and either `ok` or `error`".to_owned()),
        }
    }
}

/// The answer to `acquire`, `lead` and `check`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Granted {
    /// The fencing token; not in the answer to `check`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// How long the hold may be used from now on, in milliseconds, rounded down; `None` if it has no
    /// deadline.
    pub valid_ms: Option<u64>,
}

/// The answer to `release`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Was {
    /// The hold was valid until its release.
    Held,
    /// The hold was lost before.
    Lost,
    /// It was released before, and the client has done nothing.
    Released,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_survive_their_text() {
        let command = AcquireCommand {
            hold: "a".into(),
            lock: "orders/42".into(),
            also: vec![],
            mode: LockMode::Permit,
            permits: Some(2),
            subtree: false,
            wait_ms: Some(0),
        };
        let line = NumberedCommand { id: 7, command: DriverCommand::Acquire(command) }.text();
        let back = NumberedCommand::parse(&line).unwrap();
        assert_eq!((back.id, back.text()), (7, line));
        assert!(matches!(
            NumberedCommand::parse(r#"{"id":1,"do":"die"}"#).unwrap().command,
            DriverCommand::Die {}
        ));
    }

    #[test]
    fn wrong_commands_are_refused_with_their_id() {
        for (line, id) in [
            ("not json", None),
            (r#"{"do":"check","hold":"a"}"#, None),
            (r#"{"id":3,"do":"dance"}"#, Some(3)),
            (r#"{"id":4,"do":"check","hold":"a","color":"red"}"#, Some(4)),
            (r#"{"id":5,"do":"acquire","hold":"a","lock":"x","mode":"mine"}"#, Some(5)),
            (r#"{"id":6,"do":"acquire","hold":"a","lock":"x","mode":"shared","color":1}"#, Some(6)),
        ] {
            assert_eq!(NumberedCommand::parse(line).unwrap_err().0, id, "{line}");
        }
    }

    #[test]
    fn answers_and_events_are_told_apart() {
        let lost = Said::parse(r#"{"event":"lost","hold":"a"}"#).unwrap();
        assert!(matches!(lost, Said::Lost { hold } if hold == "a"));
        let busy = Said::parse(r#"{"id":1,"error":{"kind":"busy","text":""}}"#).unwrap();
        assert!(
            matches!(busy, Said::Answer { id: Some(1), answer: Err(error) } if error.kind == ErrorKind::Busy)
        );
        for line in [r#"{"id":1}"#, r#"{"event":"lost"}"#, r#"{"id":1,"error":{"kind":"odd"}}"#, "[]"] {
            assert!(Said::parse(line).is_err(), "{line}");
        }
    }
}
