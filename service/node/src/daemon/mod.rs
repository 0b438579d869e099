//! The process of a node, from its start to its end. Imports all other rooms.
//!
//! * `process`: its start, its services and its end; `log`: its log lines; `memory`: memory that it
//!   lends, and `standing`: whether that is used; `turned_away`: connections that it refuses;
//! * `service`: its work for applications; `watch`: log lines about the other nodes;
//! * `lives`: the life of its cluster; `founding`: before one begins: with which data.
//!
//! Not here: the protocol, which the engine carries out. A node that is started by hand, or by an
//! init system, is as good as one that `lotus cluster up` has started.

mod founding;
mod lives;
mod log;
mod memory;
mod process;
mod service;
mod standing;
mod turned_away;
mod watch;

pub(crate) use process::run;
