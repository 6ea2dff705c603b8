//! The resource's side: fences.
