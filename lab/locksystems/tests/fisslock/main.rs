//! FissLock's protocol: pools, a switch, and a network between them that the test drives.
//!
//! `workflows` has the nine of the paper's Fig. 5, `holes` what the published rules lead to,
//! `model` random runs over a network that loses, repeats, delays and reorders packets, and deaths.

mod holes;
mod model;
mod resting;
mod table;
mod workflows;
