//! Tests over the traits, in one process and in several.
