//! `advise`: the dialogue about a lock, and its end.

use std::io::{BufRead, IsTerminal, stdin};
use std::time::Duration;

use serde_json::{Value, json};

use crate::advise::{Advice, Answers, Kind, LockAdvice, OpenQuestion, TREE, markdown};
use crate::args::Advise;
use crate::exit::{Failure, OK, USAGE};
use crate::output;

pub(super) fn advise(args: &Advise) -> Result<u8, Failure> {
    if args.markdown {
        output::page(markdown(&TREE).trim_end())?;
        return Ok(OK);
    }
    let mut answers = args.answers();
    let mut lines = stdin().lock().lines();
    let advice = loop {
        match TREE.walk(&answers).map_err(|error| Failure::new(USAGE, error.to_string()))? {
            Ok(advice) => break advice,
            Err(asked) => {
                let answer = ask(&asked, &mut lines)?;
                answers.insert(asked.id, answer);
            }
        }
    };
    if args.json {
        output::json(&as_json(&answers, &advice))?;
    } else {
        print(&advice)?;
    }
    Ok(OK)
}

/// Asks until the answer is valid. Questions go to standard error, since standard output is for the advice.
fn ask(
    asked: &OpenQuestion,
    lines: &mut impl Iterator<Item = std::io::Result<String>>,
) -> Result<String, Failure> {
    let is_person = stdin().is_terminal();
    if is_person {
        eprintln!("\n{}", asked.text);
        for (number, (key, text)) in asked.answers.iter().enumerate() {
            eprintln!("  {}  {key}: {text}", number + 1);
        }
    }
    loop {
        if is_person {
            eprint!("> ");
        }
        let Some(line) = lines.next().transpose()? else {
            let keys = asked.keys();
            let known = if keys.is_empty() { keys } else { format!(" ({keys})") };
            return Err(Failure::new(USAGE, format!("{} Answer with --{}{known}", asked.text, asked.id)));
        };
        let line = line.trim();
        let by_number = line.parse().ok().and_then(|number: usize| asked.answers.get(number.checked_sub(1)?));
        let answer = by_number.map_or_else(|| line.to_owned(), |(key, _)| key.clone());
        match asked.check(&answer) {
            Ok(()) => return Ok(answer),
            Err(why) if is_person => eprintln!("{why}"),
            Err(why) => return Err(Failure::new(USAGE, why.to_string())),
        }
    }
}

/// Prints the advice for people. Commands are not wrapped, so that they can be copied.
fn print(advice: &Advice) -> Result<(), Failure> {
    let mut text = format!("Recommended: {}\n\n{}\n", advice.title, advice.why);
    if let Some(LockAdvice { url, ttl, lock_delay, max_hold, note, lacks, .. }) = &advice.lock {
        text.push_str(&format!("\nLock service: {url}\n  {note}\n"));
        if let Some(lacks) = lacks {
            text.push_str(&format!("  BUT {lacks}\n"));
        }
        let shown = |duration: &Duration| output::human(*duration);
        if let Some(ttl) = ttl {
            text.push_str(&format!(
                "  ttl {}: longer than its pauses; it is renewed, so it need not outlast the work\n",
                shown(ttl)
            ));
        }
        if let Some(delay) = lock_delay {
            text.push_str(&format!("  lock-delay {}: for a holder that wakes up late\n", shown(delay)));
        }
        if let Some(max) = max_hold {
            text.push_str(&format!("  max-hold {}: then it counts as hung\n", shown(max)));
        }
    }
    text.push_str("\nBegin with:");
    output::prose(text, "")?;
    for line in &advice.start {
        output::page(format!("  {line}"))?;
    }
    output::prose(format!("\nRead: {}", advice.read.join(", ")), "")?;
    if advice.kind == Kind::Correctness {
        output::prose(
            "Try it with a holder that stalls: lockkeeper torture --pause 30s (docs/torture.md)",
            "",
        )?;
    }
    Ok(())
}

fn as_json(answers: &Answers, advice: &Advice) -> Value {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let lock = advice.lock.as_ref().map(|lock| {
        json!({
            "url": lock.url,
            "ttl_ms": lock.ttl.map(ms),
            "lock_delay_ms": lock.lock_delay.map(ms),
            "max_hold_ms": lock.max_hold.map(ms),
            "note": lock.note,
            "lacks": lock.lacks,
        })
    });
    json!({
        "answers": answers,
        "advice": advice.id,
        "kind": match advice.kind {
            Kind::None => "none",
            Kind::Efficiency => "efficiency",
            Kind::Correctness => "correctness",
        },
        "title": advice.title,
        "why": advice.why,
        "lock": lock,
        "start": advice.start,
        "read": advice.read,
    })
}
