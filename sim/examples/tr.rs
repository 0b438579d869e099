//! tr
#![allow(clippy::print_stdout, missing_docs)]
use lotus_sim::{run::{run, Budget}, swarm};
fn main() {
    let seed: u64 = std::env::args().nth(1).expect("n").parse().expect("n");
    let o = run(&swarm::scenario(seed), seed, Budget::default(), Some(Box::new(|e| println!("{e}"))));
    println!("{:?}", o.map(|o| o.violations));
}
