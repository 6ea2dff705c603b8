//! Both fences on every store, as subjects of the common suite.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_fence::{Marks, ObjectError, ObjectFence, PointerFence, Refused, Section};
use object_store::ObjectStore;

use crate::object_store::stores::{StandIn, in_memory};
use crate::suite::{Lasting, Subject};

/// The common calls of the two fences. Any error but a refusal is a panic.
pub(crate) trait Fence: Clone + Send + Sync + 'static {
    fn connect(store: Arc<dyn ObjectStore>) -> impl Future<Output = Self> + Send;
    fn enter(&self, resource: &str, section: Section) -> impl Future<Output = Result<(), Refused>> + Send;
    fn read(&self, resource: &str) -> impl Future<Output = Option<Vec<u8>>> + Send;
    fn write(
        &self,
        resource: &str,
        section: Section,
        content: Vec<u8>,
    ) -> impl Future<Output = Result<(), Refused>> + Send;
    fn check_once(
        &self,
        resource: &str,
        section: Section,
        content: Vec<u8>,
    ) -> impl Future<Output = Result<(), Refused>> + Send;
    fn marks(&self, resource: &str) -> impl Future<Output = Marks> + Send;
}

fn refusal<T>(result: Result<T, ObjectError>) -> Result<T, Refused> {
    result.map_err(|error| match error {
        ObjectError::Refused(refused) => refused,
        other => panic!("{other}: {other:?}"),
    })
}

macro_rules! fence {
    ($fence:ty) => {
        impl Fence for $fence {
            async fn connect(store: Arc<dyn ObjectStore>) -> Self {
                refusal(<$fence>::connect(store).await).expect("fit")
            }

            async fn enter(&self, resource: &str, section: Section) -> Result<(), Refused> {
                refusal(<$fence>::enter(self, resource, section).await).map(drop)
            }

            async fn read(&self, resource: &str) -> Option<Vec<u8>> {
                refusal(<$fence>::read(self, resource).await).expect("no refusal").map(Vec::from)
            }

            async fn write(&self, resource: &str, section: Section, content: Vec<u8>) -> Result<(), Refused> {
                refusal(<$fence>::write(self, resource, section, content).await)
            }

            async fn check_once(
                &self,
                resource: &str,
                section: Section,
                content: Vec<u8>,
            ) -> Result<(), Refused> {
                refusal(<$fence>::check_once(self, resource, section, content).await)
            }

            async fn marks(&self, resource: &str) -> Marks {
                refusal(<$fence>::marks(self, resource).await).expect("no refusal")
            }
        }
    };
}

fence!(ObjectFence);
fence!(PointerFence);

/// A resource that holds a number.
#[derive(Clone)]
pub(crate) struct Number<F> {
    fence: F,
    resource: String,
}

impl<F: Fence> Number<F> {
    async fn fence_enter(&self, section: Section) -> Result<(), Refused> {
        self.fence.enter(&self.resource, section).await
    }

    async fn number(&self) -> u64 {
        let Some(content) = self.fence.read(&self.resource).await else { return 0 };
        let text = String::from_utf8(content).expect("text");
        text.strip_suffix(" end").expect("whole, never torn").parse().expect("a number")
    }

    async fn put(&self, section: Section, number: u64) -> Result<(), Refused> {
        self.fence.write(&self.resource, section, format!("{number} end").into_bytes()).await
    }

    /// A blind effect, which does not change the number.
    async fn put_once(&self, section: Section) -> Result<(), Refused> {
        let number = self.number().await;
        self.fence.check_once(&self.resource, section, format!("{number} end").into_bytes()).await
    }
}

/// The calls of a subject that wraps a [`Number`].
macro_rules! calls {
    () => {
        async fn another(&self) -> Self {
            self.clone()
        }

        async fn enter(&self, section: Section) -> Result<(), Refused> {
            self.number.fence_enter(section).await
        }

        async fn read(&self) -> u64 {
            self.number.number().await
        }

        async fn write(&self, section: Section, number: u64) -> Result<(), Refused> {
            self.number.put(section, number).await
        }

        async fn check_once(&self, section: Section) -> Result<(), Refused> {
            self.number.put_once(section).await
        }

        async fn marks(&self) -> Marks {
            self.number.fence.marks(&self.number.resource).await
        }
    };
}

/// A number in an in-memory store.
#[derive(Clone)]
pub(crate) struct Memory<F> {
    number: Number<F>,
}

impl<F: Fence> Subject for Memory<F> {
    type World = (F, AtomicU64);
    const STEPS: u32 = 3;
    const CASES: u32 = 256;

    async fn world() -> Self::World {
        (F::connect(in_memory()).await, AtomicU64::new(0))
    }

    async fn fresh((fence, made): &Self::World) -> Self {
        let resource = format!("numbers/{}", made.fetch_add(1, Ordering::SeqCst));
        Self { number: Number { fence: fence.clone(), resource } }
    }

    calls!();
}

/// A number in a stand-in for a real store. Every call takes a few requests, so it runs fewer histories.
pub(crate) struct Remote<S, F> {
    number: Number<F>,
    address: String,
    stand_in: PhantomData<fn() -> S>,
}

impl<S, F: Clone> Clone for Remote<S, F> {
    fn clone(&self) -> Self {
        Self { number: self.number.clone(), address: self.address.clone(), stand_in: PhantomData }
    }
}

impl<S: StandIn, F: Fence> Subject for Remote<S, F> {
    type World = (S, F, AtomicU64);
    const STEPS: u32 = 1;
    const CASES: u32 = 8;
    const ROUNDS: u64 = 20;

    async fn world() -> Self::World {
        let stand_in = S::start();
        let fence = F::connect(S::client(&stand_in.address())).await;
        (stand_in, fence, AtomicU64::new(0))
    }

    async fn fresh((stand_in, fence, made): &Self::World) -> Self {
        let resource = format!("numbers/{}", made.fetch_add(1, Ordering::SeqCst));
        let number = Number { fence: fence.clone(), resource };
        Self { number, address: stand_in.address(), stand_in: PhantomData }
    }

    calls!();
}

impl<S: StandIn, F: Fence> Lasting for Remote<S, F> {
    const KILLS: u64 = 25;
    const KILLS_SPREAD_US: u64 = 20_011;

    fn address(&self) -> String {
        format!("{} {}", self.address, self.number.resource)
    }

    async fn at(address: &str) -> Self {
        let (address, resource) = address.split_once(' ').expect("an address and a resource");
        let fence = F::connect(S::client(address)).await;
        let number = Number { fence, resource: resource.to_owned() };
        Self { number, address: address.to_owned(), stand_in: PhantomData }
    }
}
