//! The object fences: the common suite on every store, stores with faults, and the fences' own tests.

#[path = "../suite/mod.rs"]
mod suite;

mod faults;
mod fitness;
mod lost;
mod object;
mod pointer;
mod stores;
mod subjects;

use lockkeeper_fence::{ObjectFence, PointerFence};
use lockkeeper_rig::{Azurite, S3};
use subjects::{Memory, Remote};

suite::contract!(object_in_memory => Memory<ObjectFence>);
suite::contract!(pointer_in_memory => Memory<PointerFence>);
suite::contract!(object_in_s3 => Remote<S3, ObjectFence>, lasting);
suite::contract!(pointer_in_s3 => Remote<S3, PointerFence>, lasting);
suite::contract!(object_in_azure => Remote<Azurite, ObjectFence>, lasting);
suite::contract!(pointer_in_azure => Remote<Azurite, PointerFence>, lasting);
