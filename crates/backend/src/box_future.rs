//! The future that methods of traits return.

use std::future::Future;
use std::pin::Pin;

/// A future of a trait's method.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
