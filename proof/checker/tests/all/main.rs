//! The checker's integration tests, as one program.

mod brute_force;
mod common;
mod histories;
mod reading;
mod second_opinion;
