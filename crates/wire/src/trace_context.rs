//! W3C Trace Context: the span under which a leader traces a request.

use std::fmt;

/// The span of a client, which is sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceContext {
    /// The trace's id; never 0.
    pub trace_id: u128,
    /// The span's id; never 0.
    pub span_id: u64,
}

impl TraceContext {
    /// Parses a `traceparent` header of version 00. `None` for a span that is not sampled, and for a header
    /// that can't be read: W3C Trace Context has receivers ignore such a header, so the request is served
    /// without a trace.
    #[must_use]
    pub fn sampled(traceparent: &str) -> Option<Self> {
        let mut fields = traceparent.split('-');
        let mut field = |digits: usize| {
            let field = fields.next().filter(|field| field.len() == digits)?;
            let is_lower_hex = field.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
            is_lower_hex.then(|| u128::from_str_radix(field, 16).ok())?
        };
        let (version, trace_id, span_id, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        let span_id = u64::try_from(span_id).ok()?;
        let is_valid = version == 0 && trace_id != 0 && span_id != 0 && fields.next().is_none();
        (is_valid && flags & 1 == 1).then_some(Self { trace_id, span_id })
    }
}

/// As a `traceparent` header.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-01", self.trace_id, self.span_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn sampled_header_is_parsed_and_printed() {
        let context = TraceContext::sampled(SAMPLED).unwrap();
        assert_eq!(context.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(context.span_id, 0x00f0_67aa_0ba9_02b7);
        assert_eq!(context.to_string(), SAMPLED);
        // Another flag beside `sampled`.
        assert_eq!(TraceContext::sampled(&SAMPLED.replace("-01", "-03")), Some(context));
    }

    #[test]
    fn everything_else_is_ignored() {
        let wrong = [
            String::new(),
            "x".repeat(100_000),
            SAMPLED.replace("-01", "-00"),
            SAMPLED.replace("-01", "-02"),
            SAMPLED.replace("00-4b", "ff-4b"),
            SAMPLED.replace("00-4b", "01-4b"),
            SAMPLED.replace("4bf9", "4BF9"),
            SAMPLED.replace("4bf9", "+bf9"),
            SAMPLED.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            SAMPLED.replace("00f067aa0ba902b7", &"0".repeat(16)),
            SAMPLED.replace("00f067aa0ba902b7", "0f067aa0ba902b7"),
            format!("{SAMPLED}-00"),
            SAMPLED.replace("-01", ""),
        ];
        for text in wrong {
            assert_eq!(TraceContext::sampled(&text), None, "{text}");
        }
    }
}
