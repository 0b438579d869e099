//! Locks of servers: `table` and `model` are their tables alone, over a network that the test drives;
//! `families` is the services on the fabrics, on the grounds of `grounds`.

mod families;
mod grounds;
mod model;
mod table;
