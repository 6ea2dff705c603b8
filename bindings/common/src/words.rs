//! Words for what operators see.

use lockkeeper::{Broken, HolderState, Token, TokenStatus};

/// The status of a token, and the tokens of the live holds.
pub fn token_status(token: Token, status: TokenStatus) -> (&'static str, Vec<Token>) {
    match status {
        TokenStatus::Current => ("current", vec![token]),
        TokenStatus::NotCurrent { live } => ("not-current", live),
        TokenStatus::NeverIssued => ("never-issued", Vec::new()),
    }
}

/// The result of a break, and the tokens of the live holds.
pub fn broken(broken: Broken) -> (&'static str, Vec<Token>) {
    match broken {
        Broken::Done => ("done", Vec::new()),
        Broken::NotCurrent { live } => ("not-current", live),
        Broken::StillClosed => ("still-closed", Vec::new()),
        _ => ("unknown", Vec::new()),
    }
}

/// The state of a hold.
pub fn hold_state(state: &HolderState) -> &'static str {
    match state {
        HolderState::Held => "held",
        HolderState::Revoked { .. } => "revoked",
        HolderState::Closed { .. } => "closed",
        _ => "unknown",
    }
}
