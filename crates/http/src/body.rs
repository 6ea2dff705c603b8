//! Bodies of requests, read into memory.

use std::pin::pin;

use axum::body::{Bytes, HttpBody};
use http_body_util::BodyExt as _;

/// Why a body can't be used.
#[derive(Debug)]
pub enum BodyError {
    /// It has more bytes than allowed.
    TooLarge,
    /// It did not arrive whole.
    Broken,
}

/// Reads a body of at most `most` bytes into one buffer: the parts that arrive may be small, and each keeps a
/// larger buffer alive.
///
/// # Errors
/// [`BodyError`].
pub async fn whole(body: impl HttpBody<Data = Bytes>, most: usize) -> Result<Bytes, BodyError> {
    let mut body = pin!(body);
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
        if data.len() > most - whole.len() {
            return Err(BodyError::TooLarge);
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    /// A part of a body; counts the parts that are alive.
    struct Part(Arc<AtomicUsize>);

    impl AsRef<[u8]> for Part {
        fn as_ref(&self) -> &[u8] {
            b"x"
        }
    }

    impl Drop for Part {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn parts_of_a_body_are_not_kept() {
        const PARTS: usize = 1_000;
        let (kept, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let body = || {
            let (kept, most) = (kept.clone(), most.clone());
            let parts = (0..PARTS).map(move |_| {
                most.fetch_max(kept.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
                Ok::<_, std::io::Error>(Frame::data(Bytes::from_owner(Part(kept.clone()))))
            });
            StreamBody::new(tonic::codegen::tokio_stream::iter(parts))
        };
        assert_eq!(whole(body(), PARTS).await.unwrap().len(), PARTS);
        assert!(most.load(Ordering::Relaxed) <= 1, "{most:?} parts were kept while the next one was read");
        assert!(matches!(whole(body(), PARTS - 1).await, Err(BodyError::TooLarge)));
    }
}
