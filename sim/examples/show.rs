//! show
#![allow(clippy::print_stdout, missing_docs)]
fn main() {
    for a in std::env::args().skip(1) {
        println!("{}", lotus_sim::swarm::scenario(a.parse().expect("n")).to_toml());
    }
}
