//! The common suite on the memory fence and on the file fence, and the memory fence's own tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::suite::{Subject, token};
use lockkeeper_fence::{Marks, MemoryFence, Refused, Section};

crate::suite::contract!(memory => Memory);

#[cfg(target_os = "linux")]
crate::suite::contract!(file => file_subject::File, lasting);

#[derive(Clone)]
struct Memory(Arc<(MemoryFence, AtomicU64)>);

impl Subject for Memory {
    type World = ();
    const STEPS: u32 = 3;
    const CASES: u32 = 256;
    const ROUNDS: u64 = 200;

    async fn world() {}

    async fn fresh((): &()) -> Self {
        Self(Arc::new((MemoryFence::new(), AtomicU64::new(0))))
    }

    async fn another(&self) -> Self {
        self.clone()
    }

    async fn enter(&self, section: Section) -> Result<(), Refused> {
        self.0.0.enter("number", section)
    }

    async fn read(&self) -> u64 {
        self.0.1.load(Ordering::SeqCst)
    }

    async fn write(&self, section: Section, number: u64) -> Result<(), Refused> {
        self.0.0.write("number", section, || self.0.1.store(number, Ordering::SeqCst))
    }

    async fn check_once(&self, section: Section) -> Result<(), Refused> {
        self.0.0.check_once("number", section, || ())
    }

    async fn marks(&self) -> Marks {
        self.0.0.marks("number")
    }
}

#[cfg(target_os = "linux")]
mod file_subject {
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};

    use lockkeeper_fence::{FileError, FileFence, Marks, Refused, Section};

    use crate::suite::{Lasting, Subject};

    pub(crate) struct File(FileFence);

    fn refusal<T>(result: Result<T, FileError>) -> Result<T, Refused> {
        result.map_err(|error| match error {
            FileError::Refused(refused) => refused,
            other => panic!("{other}: {other:?}"),
        })
    }

    impl Subject for File {
        type World = (tempfile::TempDir, AtomicU64);

        async fn world() -> Self::World {
            (tempfile::tempdir().expect("a directory"), AtomicU64::new(0))
        }

        async fn fresh((dir, made): &Self::World) -> Self {
            let name = made.fetch_add(1, Ordering::SeqCst).to_string();
            Self(FileFence::new(dir.path().join(name)).expect("a fence"))
        }

        async fn another(&self) -> Self {
            Self::at(&self.address()).await
        }

        async fn enter(&self, section: Section) -> Result<(), Refused> {
            refusal(self.0.enter(section))
        }

        async fn read(&self) -> u64 {
            let Some(bytes) = refusal(self.0.read()).expect("no refusal") else { return 0 };
            let text = String::from_utf8(bytes).expect("text");
            text.strip_suffix(" end\n").expect("whole, never torn").parse().expect("a number")
        }

        async fn write(&self, section: Section, number: u64) -> Result<(), Refused> {
            refusal(self.0.write(section, format!("{number} end\n").as_bytes()))
        }

        async fn check_once(&self, section: Section) -> Result<(), Refused> {
            refusal(self.0.check_once(section, || ()))
        }

        async fn marks(&self) -> Marks {
            refusal(self.0.marks()).expect("no refusal")
        }
    }

    impl Lasting for File {
        const KILLS: u64 = 120;

        fn address(&self) -> String {
            self.0.path().to_str().expect("a temporary directory of text").to_owned()
        }

        async fn at(address: &str) -> Self {
            Self(FileFence::new(Path::new(address)).expect("a fence"))
        }
    }
}

#[test]
fn resources_of_a_memory_fence_are_independent() {
    let fence = MemoryFence::new();
    fence.enter("a", Section::exclusive(token(9))).expect("never seen");
    fence.enter("b", Section::exclusive(token(1))).expect("never seen");
    assert_eq!(fence.marks("c"), Marks::default());
    assert_eq!(fence.marks("a").base.any, Some(token(9)));
    // An effect may use another resource of the same fence, and its result is returned.
    let inner =
        fence.write("a", Section::exclusive(token(9)), || fence.enter("b", Section::exclusive(token(2))));
    assert_eq!(inner, Ok(Ok(())));
}

#[test]
fn a_panic_in_an_effect_leaves_the_memory_fence_usable() {
    let fence = Arc::new(MemoryFence::new());
    let panicking = Arc::clone(&fence);
    let ended = thread::spawn(move || {
        let _ = panicking.write("a", Section::exclusive(token(2)), || panic!("the effect fails"));
    });
    assert!(ended.join().is_err());
    assert!(matches!(fence.enter("a", Section::exclusive(token(1))), Err(Refused::Stale { .. })));
    fence.enter("a", Section::exclusive(token(3))).expect("live");
}
