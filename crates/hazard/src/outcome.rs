//! The outcome of a play.

use crate::resource::{PlayedAccount, Withdrawal, withdrawals_text};
use crate::trace::{DataVerdict, Lane, PlayOutcome};

/// The outcome. `torn`: a reader that has read two different balances under one lock. `is_over`: all programs
/// have ended.
pub(crate) fn of(resource: &PlayedAccount, torn: Option<(Lane, i64, i64)>, is_over: bool) -> PlayOutcome {
    let (balance, expected, refused) = (resource.content().balance, resource.expected(), resource.refused);
    let lost: Vec<&Withdrawal> = resource.lost().collect();
    let fence = match refused {
        0 => String::new(),
        1 => "; the fence has refused a stale token".to_owned(),
        _ => format!("; the fence has refused a stale token {refused} times"),
    };
    let (verdict, text) = if !lost.is_empty() {
        let lost = withdrawals_text(lost);
        let text = format!("the balance is {balance} instead of {expected}: {lost} is lost");
        (DataVerdict::Lost, text)
    } else if let Some((reader, first, second)) = torn {
        let text = format!(
            "{} has read {first} and then {second} under one lock: what it makes of them was never true",
            reader.name()
        );
        (DataVerdict::Torn, text)
    } else if !is_over {
        (
            DataVerdict::Kept,
            format!("the balance is {balance}, and nothing is lost so far; the play was too long{fence}"),
        )
    } else {
        (DataVerdict::Kept, format!("the balance is {balance}, as it must be{fence}"))
    };
    PlayOutcome { verdict, balance, expected, refused, text }
}
