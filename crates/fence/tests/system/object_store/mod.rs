//! The object fences: the common suite on every store, stores with faults, and the fences' own tests.

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

crate::suite::contract!(object_in_memory => Memory<ObjectFence>);
crate::suite::contract!(pointer_in_memory => Memory<PointerFence>);
crate::suite::contract!(object_in_s3 => Remote<S3, ObjectFence>, lasting);
crate::suite::contract!(pointer_in_s3 => Remote<S3, PointerFence>, lasting);
crate::suite::contract!(object_in_azure => Remote<Azurite, ObjectFence>, lasting);
crate::suite::contract!(pointer_in_azure => Remote<Azurite, PointerFence>, lasting);
