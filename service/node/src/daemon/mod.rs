//! The process of a node, from start to end. Imports all other rooms.
//!
//! * `process`: start, services and end of the process; `log`: log lines; `memory`: lent memory;
//!   `standing`: whether the memory is used; `refusal_log`: refused connections;
//! * `service`: services for applications; `watch`: log lines about the other nodes;
//! * `lives`: the life of the cluster; `founding`: the initial data, before a life begins.
//!
//! Not in this folder: the protocol, which the engine carries out. A node may be started by hand,
//! or by an init system, as well as by `lotus cluster up`.

mod founding;
mod lives;
mod log;
mod memory;
mod process;
mod refusal_log;
mod service;
mod standing;
mod watch;

pub(crate) use process::run;
