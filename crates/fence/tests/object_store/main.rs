//! Fences of objects.
