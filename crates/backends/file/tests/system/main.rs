//! `file:` from outside: the contract suite.

mod contract;
