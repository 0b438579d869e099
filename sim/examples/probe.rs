//! probe
#![allow(clippy::print_stdout, missing_docs)]
use lotus_sim::{campaign::campaign, run::Budget, swarm};
fn main() {
    let args: Vec<u64> = std::env::args().skip(1).map(|a| a.parse().expect("number")).collect();
    let t = std::time::Instant::now();
    let s = campaign(args[0]..args[1], swarm::scenario, 1, Budget::default(), |seed, o| {
        if !o.is_clean() {
            for v in &o.violations {
                println!("seed {seed}: {}: {}", v.property, v.detail);
            }
        }
        true
    });
    let s = s.expect("possible");
    println!(
        "{} runs, {} failures, {:?} virtual, committed {} unknown {} aborted {:?}",
        s.runs,
        s.failures.len(),
        s.virtual_time,
        s.committed,
        s.unknown,
        s.aborted
    );
    println!("{:?}\n{:?} verbs {} {:?}", s.faults, s.hazards, s.verbs, t.elapsed());
}
