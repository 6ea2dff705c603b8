//! Properties specific to a majority of Redis servers, on real ones: tolerated failures, remaining entries,
//! and the faults that Redlock does not survive. The promises of every backend are tested in the contract
//! suite, and the rules of the quorum with every fault in `src/backends/redlock/tests`.

mod connecting;
mod contract;
mod faults;
mod leftovers;
mod not_promised;
mod people;
mod support;
