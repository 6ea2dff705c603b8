//! What the fence's functions have reported, by the parts of a client library's error.

use lockkeeper_core::Token;

use super::error::PostgresError;
use crate::rule::{Action, Refused};

/// The parts of a client library's error that this module needs.
pub(super) struct Reported<'a> {
    pub(super) sqlstate: Option<&'a str>,
    pub(super) message: &'a str,
    pub(super) detail: Option<&'a str>,
}

impl Reported<'_> {
    /// The refusal, if the fence's functions raised one. `action` is the requested action, which the server's
    /// error does not contain.
    pub(super) fn refused(&self, action: Action) -> Option<Refused> {
        match self.sqlstate? {
            "LK001" => {
                let (offered, highest) = self.tokens()?;
                Some(Refused::Stale { offered, highest })
            }
            "LK002" => Some(Refused::Repeated { token: self.tokens()?.0 }),
            "LK003" => Some(Refused::SharedWrite { action }),
            _ => None,
        }
    }

    /// Parses `offered=5 highest=7`.
    fn tokens(&self) -> Option<(Token, Token)> {
        let (offered, highest) = self.detail?.strip_prefix("offered=")?.split_once(" highest=")?;
        Some((Token::new(offered.parse().ok()?)?, Token::new(highest.parse().ok()?)?))
    }

    /// Classifies the error by its SQLSTATE.
    pub(super) fn verdict(&self, action: Action) -> PostgresErrorKind {
        if let Some(refused) = self.refused(action) {
            return PostgresErrorKind::Refused(refused);
        }
        match self.sqlstate {
            Some("40001" | "40P01") => PostgresErrorKind::TryAgain,
            // A schema or function is missing, or the role lacks rights. The message shows whether this
            // concerns the fence or the caller's own objects.
            Some("3F000" | "42883" | "42501") if names_the_fence(self.message) => {
                PostgresErrorKind::NotInstalled
            }
            Some("25006") => PostgresErrorKind::Replica,
            Some("LK005") => PostgresErrorKind::NoToken { message: self.message.to_owned() },
            _ => PostgresErrorKind::Other,
        }
    }
}

/// Whether the message concerns the fence. For a function without EXECUTE it contains only the unqualified
/// function name.
fn names_the_fence(message: &str) -> bool {
    message.contains("lockkeeper_fence")
        || ["enter", "check_write", "check_once", "read_marks", "version", "reset_marks"]
            .into_iter()
            .any(|name| message.ends_with(&format!(" {name}")))
}

/// [`PostgresError`] without its source: the caller adds the library error that it owns.
pub(super) enum PostgresErrorKind {
    Refused(Refused),
    TryAgain,
    NotInstalled,
    Replica,
    NoToken { message: String },
    Other,
}

impl PostgresErrorKind {
    pub(super) fn of(
        self,
        doing: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    ) -> PostgresError {
        match self {
            Self::Refused(refused) => refused.into(),
            Self::TryAgain => PostgresError::TryAgain(source),
            Self::NotInstalled => PostgresError::NotInstalled(source),
            Self::Replica => PostgresError::Replica,
            Self::NoToken { message } => PostgresError::NoToken { message },
            Self::Other => PostgresError::Database { doing, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported<'a>(sqlstate: &'a str, detail: Option<&'a str>) -> Reported<'a> {
        Reported { sqlstate: Some(sqlstate), message: "", detail }
    }

    #[test]
    fn refusals_are_decoded_and_other_errors_are_not() {
        let [five, seven] = [5, 7].map(|value| Token::new(value).expect("a token"));
        let both = Some("offered=5 highest=7");
        let stale = Refused::Stale { offered: five, highest: seven };
        assert_eq!(reported("LK001", both).refused(Action::Write), Some(stale));
        let equal = Some("offered=5 highest=5");
        assert_eq!(
            reported("LK002", equal).refused(Action::CheckOnce),
            Some(Refused::Repeated { token: five })
        );
        for detail in
            [None, Some(""), Some("offered=5"), Some("offered=0 highest=7"), Some("offered=x highest=7")]
        {
            assert_eq!(reported("LK001", detail).refused(Action::Write), None, "{detail:?}");
        }
        assert_eq!(reported("23505", both).refused(Action::Write), None);
    }
}
