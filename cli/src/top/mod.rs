//! `lotus top`: a running cluster, or a running benchmark, in a terminal. Imports `args`, `config`
//! and `operate`.
//!
//! * `gather`: sockets and threads that collect data;
//! * `parse`: the metrics of a node; `model`: from collected data to views;
//! * `draw`: from views to cells;
//! * `run`: the terminal, its keys, and the frames.
//!
//! `parse`, `model` and `draw` are pure. A silent node never delays the display: `gather` runs on
//! threads of its own, and `run` only takes data that has arrived.

mod draw;
mod gather;
mod model;
#[cfg(feature = "tcp")]
mod parse;
mod run;

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use lotus_benchmarks::stream::is_terminal;
use lotus_fabric::env::Env;

use crate::args::TopArgs;
use gather::bench;
#[cfg(feature = "tcp")]
use gather::cluster;
use model::bench::BenchModel;
#[cfg(feature = "tcp")]
use model::cluster::ClusterModel;

/// Time limit for the first line of a benchmark.
const FIRST_LINE: Duration = Duration::from_secs(5);

/// Shows the target named by the arguments, until the user leaves.
///
/// # Errors
/// A sentence.
pub fn run(args: &TopArgs) -> Result<(), String> {
    if !args.once && !is_terminal() {
        return Err(
            "lotus top draws on a terminal, and the standard output is none; --once prints \
                    a frame as text"
                .to_owned(),
        );
    }
    let path = &args.target;
    let found = fs::metadata(path);
    let found = found.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let env = Env::real(0);
    if found.file_type().is_socket() {
        let news = bench::watch(path, &env)?;
        let model = BenchModel::new(path.display().to_string());
        return run::run(model, &news, &env, args.once.then_some(FIRST_LINE));
    }
    if !found.is_file() {
        let path = path.display();
        return Err(format!("{path} is neither the description of a cluster nor a socket"));
    }
    run_on_cluster(args, path, &env)
}

#[cfg(feature = "tcp")]
fn run_on_cluster(args: &TopArgs, path: &Path, env: &Env) -> Result<(), String> {
    let file = crate::config::read(path, args.state.as_deref());
    let file = file.map_err(|error| {
        format!("{} is no socket, and no description of a cluster: {error}", path.display())
    })?;
    let nodes = cluster::nodes(&file).into_iter();
    let nodes = nodes.map(|(node, metrics)| (node, metrics.is_some()));
    let title = path.display().to_string();
    let model = ClusterModel::new(title, nodes, args.interval, env.now());
    let news = cluster::watch(file, args.interval, env)?;
    // Two answers of every node, of which the second may come late.
    let patience = args.interval + cluster::PATIENCE * 2;
    run::run(model, &news, env, args.once.then_some(patience))
}

#[cfg(not(feature = "tcp"))]
fn run_on_cluster(_args: &TopArgs, path: &Path, _env: &Env) -> Result<(), String> {
    Err(format!("{} is no socket, and clusters are not available in this build", path.display()))
}
