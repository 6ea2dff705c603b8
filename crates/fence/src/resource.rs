//! The names under which a fence keeps its marks, where one fence guards many resources.
//!
//! Responsible for what a name may be, alike in every such fence: marks that one fence takes and another refuses could
//! not be moved.

use std::fmt;
use std::sync::Arc;

/// Longest name of a resource, in bytes: that of a lock, so that the two can have one name.
pub const RESOURCE_BYTES_MAX: usize = 512;

/// The name of a resource that was checked. Names are compared byte by byte. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Resource(Arc<str>);

impl Resource {
    /// A name from what came in.
    ///
    /// # Errors
    /// [`BadResource`], with the limit that it breaks.
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
    /// No name at all.
    Empty,
    /// A name that is too long.
    TooLong {
        /// How long it is, in bytes.
        bytes: usize,
    },
    /// A name with a control character: it would not show in an error or a log.
    Control {
        /// The name, with such characters written out.
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

/// `resource`, if it is a name: 1 to 512 bytes, no control characters.
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
