//! Resource names: the keys of the marks in the fences that keep marks of many resources.
//!
//! One set of limits for all fences, so that marks can be moved from one fence to another.

use std::fmt;
use std::sync::Arc;

/// Longest name of a resource, in bytes: the limit of a lock name, so that a resource can be named like its
/// lock.
pub const RESOURCE_BYTES_MAX: usize = 512;

/// A validated resource name. Names are compared byte by byte. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Resource(Arc<str>);

impl Resource {
    /// Validates `name`.
    ///
    /// # Errors
    /// [`BadResource`], with the rule that `name` violates.
    pub fn new(name: &str) -> Result<Self, BadResource> {
        checked(name).map(|name| Self(name.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name that no resource can have.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BadResource {
    /// The name is empty.
    Empty,
    /// The name is too long.
    TooLong {
        /// The name's length in bytes.
        bytes: usize,
    },
    /// The name has a control character, which would be invisible in errors and logs.
    Control {
        /// The name, with control characters escaped.
        shown: String,
    },
}

impl fmt::Display for BadResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => {
                write!(f, "the name of the resource is empty; give 1 to {RESOURCE_BYTES_MAX} bytes")
            }
            Self::TooLong { bytes } => write!(
                f,
                "the name of the resource has {bytes} bytes, and {RESOURCE_BYTES_MAX} are the limit; give a shorter \
                 one, such as a digest of it"
            ),
            Self::Control { shown } => write!(
                f,
                "the name `{shown}` of the resource has a control character (a line's end, a tab, …); leave it out"
            ),
        }
    }
}

impl std::error::Error for BadResource {}

/// Returns `resource` if it is a valid name: 1 to 512 bytes, no control characters.
pub fn checked(resource: &str) -> Result<&str, BadResource> {
    match resource {
        "" => Err(BadResource::Empty),
        _ if resource.len() > RESOURCE_BYTES_MAX => Err(BadResource::TooLong { bytes: resource.len() }),
        _ if resource.chars().any(char::is_control) => {
            Err(BadResource::Control { shown: resource.escape_debug().to_string() })
        }
        _ => Ok(resource),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_1_to_512_bytes_and_no_control_characters() {
        let (longest, longer) = ("é".repeat(256), "é".repeat(256) + "x");
        for good in ["a", "orders/42", "{user:1}", "größe 3", longest.as_str()] {
            assert_eq!(checked(good), Ok(good));
        }
        assert_eq!(checked(""), Err(BadResource::Empty));
        assert_eq!(checked(&longer), Err(BadResource::TooLong { bytes: 513 }));
        let told = checked("a\nb").expect_err("a line's end").to_string();
        assert!(told.contains("`a\\nb`"), "{told}");
    }
}
