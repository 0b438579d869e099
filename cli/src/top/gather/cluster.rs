//! Gathers state from the nodes of a cluster. Each node is asked for its metrics by a task of its
//! own, with a time-out, and the authority by a thread of its own, so that a silent node delays
//! nothing else.
//!
//! Only reads: no question goes to a node's mailbox, and nothing is written at the authority.

use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_node::agree::cluster_authority::authority;
use lotus_node::config::file::ClusterFile;
use lotus_node::config::name::NodeName;
use lotus_node::host::processes::StateFolder;

use super::scrape;
pub use super::scrape::PATIENCE;
use crate::operate::status::{Addresses, Survey};
use crate::top::model::cluster::ClusterNews;

/// Nodes of a cluster, with the addresses of their metrics, if any.
pub fn nodes(file: &ClusterFile) -> Vec<(NodeName, Option<String>)> {
    let metrics = |node| Addresses::of(file, node).metrics.map(|address| address.to_string());
    NodeName::all(file).map(|node| (node, metrics(node))).collect()
}

/// Asks all nodes and the authority repeatedly, until the receiver is dropped.
///
/// # Errors
/// A sentence: a key is unusable, or a thread cannot be started.
pub fn watch(
    file: ClusterFile,
    interval: Duration,
    env: &Env,
) -> Result<Receiver<ClusterNews>, String> {
    // Bad keys and certificates are refused before the display starts.
    authority(&file)?;
    let no_thread = |error: std::io::Error| format!("there is no thread to gather: {error}");
    let (sender, receiver) = mpsc::channel();
    let nodes = nodes(&file);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(no_thread)?;
    let (clock, news) = (env.clone(), sender.clone());
    let asking = move || {
        runtime.block_on(async move {
            let mut tasks = tokio::task::JoinSet::new();
            for (node, address) in nodes {
                let Some(address) = address else { continue };
                tasks.spawn(ask(node, address, interval, clock.clone(), news.clone()));
            }
            while tasks.join_next().await.is_some() {}
        });
    };
    env.spawn("lotus-top-nodes", asking).map_err(no_thread)?;
    let clock = env.clone();
    let surveying = move || survey(&file, interval, &clock, &sender);
    env.spawn("lotus-top-survey", surveying).map_err(no_thread)?;
    Ok(receiver)
}

/// Asks one node repeatedly, until the receiver is dropped.
async fn ask(
    node: NodeName,
    address: String,
    interval: Duration,
    clock: Env,
    news: Sender<ClusterNews>,
) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = scrape::ask(&address).await.map(Box::new);
        let told = ClusterNews::Asked { node, at: clock.now(), answer };
        if news.send(told).is_err() {
            return;
        }
    }
}

/// Asks the authority, and looks at this host, until the receiver is dropped.
fn survey(file: &ClusterFile, interval: Duration, clock: &Env, news: &Sender<ClusterNews>) {
    // This channel never carries a message: it only serves to wait for an interval.
    let (_never, waiting) = mpsc::channel::<()>();
    loop {
        // A new connection each time: an old connection to a host that was paused looks sound.
        let Ok(authority) = authority(file) else { return };
        let outline = Survey::take(file, &StateFolder::look(file), &authority).outline();
        if news.send(ClusterNews::Surveyed { at: clock.now(), outline }).is_err() {
            return;
        }
        let _ = waiting.recv_timeout(interval);
    }
}
