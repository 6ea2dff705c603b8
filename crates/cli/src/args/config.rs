//! The configuration file of `serve`: TOML whose keys are the long names of the options. The command line
//! takes precedence.

use std::ffi::OsString;
use std::path::Path;

use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::{Table, Value};

use super::suggest::nearest;
use crate::exit::{Failure, USAGE};

/// Options of `serve` that have no place in a file.
const NOT_IN_A_FILE: [&str; 5] = ["config", "help", "json", "print-config", "version"];

/// A configuration file that was read, for errors about its values.
pub(super) struct ConfigFile {
    path: String,
    text: String,
    keys: Vec<String>,
}

impl ConfigFile {
    /// The file and line of the option in an error of the command line's parser, as in `a.toml:3: `. Empty if
    /// the option was typed.
    pub(super) fn position_of(&self, error: &str, typed: &[OsString]) -> String {
        let is_option = |word: &OsString, key: &str| {
            let word = word.to_string_lossy();
            word.strip_prefix("--").is_some_and(|word| word.split('=').next() == Some(key))
        };
        let is_meant = |key: &&String| {
            error
                .split(|c: char| !(c.is_alphanumeric() || c == '-'))
                .any(|word| word.strip_prefix("--") == Some(key))
        };
        let key = self.keys.iter().find(is_meant);
        let Some(key) = key.filter(|key| !typed.iter().any(|word| is_option(word, key))) else {
            return String::new();
        };
        format!("{}:{}: ", self.path, self.line_of(key))
    }

    /// The line with the key, from 1.
    fn line_of(&self, key: &str) -> usize {
        let is_key =
            |line: &str| line.split('=').next().is_some_and(|name| name.trim().trim_matches('"') == key);
        self.text.lines().position(is_key).map_or(1, |at| at + 1)
    }
}

/// Adds the options of the file named by `--config`, if there is one, in front of those of the command line.
///
/// # Errors
/// [`USAGE`]: the file can't be read, is no TOML, or has an unknown key or a value of another type than text,
/// number, boolean, or a list of texts. The message begins with the file and, where it is known, the line.
pub(super) fn with_file(
    mut words: Vec<OsString>,
    serve: &Command,
) -> Result<(Vec<OsString>, Option<ConfigFile>), Failure> {
    let Some(path) = path(&words) else { return Ok((words, None)) };
    let path = Path::new(&path).display().to_string();
    let text = std::fs::read_to_string(&path)
        .map_err(|error| Failure::new(USAGE, format!("{path}: it can't be read: {error}")))?;
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        Failure::new(USAGE, format!("{path}:{line}: {}", error.message()))
    })?;
    let file = ConfigFile { path, text, keys: table.keys().cloned().collect() };
    let refused =
        |key: &str, what: String| Failure::new(USAGE, format!("{}:{}: {what}", file.path, file.line_of(key)));
    let mut given = Vec::new();
    for (key, value) in table {
        let options = options(serve);
        let Some(option) = options.iter().find(|option| option.get_long() == Some(&key)) else {
            let names: Vec<String> =
                options.iter().filter_map(|option| option.get_long().map(str::to_owned)).collect();
            let hint =
                nearest(&key, &names).map_or_else(String::new, |name| format!("; did you mean `{name}`?"));
            return Err(refused(&key, format!("`serve` has no option `{key}`{hint}")));
        };
        let is_switch = matches!(option.get_action(), ArgAction::SetTrue);
        match (is_switch, value) {
            (true, Value::Boolean(false)) => {}
            (true, Value::Boolean(true)) => given.push(format!("--{key}").into()),
            (true, _) => return Err(refused(&key, format!("`{key}` is true or false"))),
            (false, value) => {
                let value = plain(value).ok_or_else(|| {
                    refused(&key, format!("`{key}` is neither a text nor a number, and no list of texts"))
                })?;
                given.push(format!("--{key}={value}").into());
            }
        }
    }
    // After the word `serve`: of an option that is given twice, the last one counts.
    words.splice(2..2, given);
    Ok((words, Some(file)))
}

/// The options in force, as a configuration file. Those without a value are in comments.
pub(super) fn in_force(serve: &Command, matches: &ArgMatches) -> String {
    let (mut table, mut unset) = (Table::new(), String::new());
    for option in options(serve) {
        let (id, Some(long)) = (option.get_id().as_str(), option.get_long()) else { continue };
        let is_switch = matches!(option.get_action(), ArgAction::SetTrue);
        if is_switch {
            table.insert(long.to_owned(), Value::Boolean(matches.get_flag(id)));
            continue;
        }
        let Some(values) = matches.get_raw(id) else {
            unset.push_str(&format!("# {long} = not set\n"));
            continue;
        };
        let mut values: Vec<String> = values.map(|value| value.to_string_lossy().into_owned()).collect();
        let value = match option.get_value_delimiter() {
            Some(_) => Value::Array(values.into_iter().map(Value::String).collect()),
            None => values
                .pop()
                .map(|text| text.parse().map_or(Value::String(text), Value::Integer))
                .unwrap_or_else(|| Value::String(String::new())),
        };
        table.insert(long.to_owned(), value);
    }
    table.to_string() + &unset
}

fn options(serve: &Command) -> Vec<&Arg> {
    let is_in_file = |option: &&Arg| option.get_long().is_some_and(|name| !NOT_IN_A_FILE.contains(&name));
    serve.get_arguments().filter(|option| !option.is_hide_set()).filter(is_in_file).collect()
}

/// The file named by `--config FILE` or `--config=FILE`.
fn path(words: &[OsString]) -> Option<OsString> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(word) = word.to_str() else { continue };
        match word.split_once('=') {
            _ if word == "--config" => return words.next().cloned(),
            Some(("--config", file)) => return Some(file.into()),
            _ => {}
        }
    }
    None
}

fn plain(value: Value) -> Option<String> {
    Some(match value {
        Value::String(text) => text,
        Value::Integer(number) => number.to_string(),
        Value::Array(items) => {
            let texts: Option<Vec<String>> = items.into_iter().map(plain).collect();
            texts?.join(",")
        }
        Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) | Value::Table(_) => return None,
    })
}
