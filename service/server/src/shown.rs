//! Metrics of a process that serves no clients: a memory node.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use lotus_fabric::env::Env;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::exposition::{self, Gauge, Process};
use crate::http::{self, Gathering, MetricsSource};

/// Serves `/metrics` and `/health` on a separate thread. Dropping the value stops the thread.
#[must_use = "metrics that are dropped are not shown"]
pub struct Metrics {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Metrics {
    /// Shows these gauges and the cost of the process under the name `node`, with the health that
    /// `health` returns: the error says why the node does not take part.
    ///
    /// # Errors
    /// The system cannot start a thread, or the listener cannot be used.
    pub fn start(
        listener: TcpListener,
        node: impl Into<String>,
        gauges: Vec<Gauge>,
        health: Health,
        env: &Env,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = watch::channel(false);
        let process = Process::new(env.clone());
        let shown = Arc::new(Figures { node: node.into(), process, gauges, health });
        let served = env.clone();
        let body = move || runtime.block_on(http::serve(shown, listener, served, stopped));
        let thread = Some(env.spawn("lotus-metrics", body)?);
        Ok(Self { address, stop, thread })
    }

    /// Address at which the metrics are served.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        // Fails if the thread has already ended.
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has been reported already.
            let _ = thread.join();
        }
    }
}

/// Returns a word for a node's health at this moment; the error says why the node does not take
/// part.
pub type Health = Box<dyn Fn() -> Result<&'static str, &'static str> + Send + Sync>;

struct Figures {
    node: String,
    process: Process,
    gauges: Vec<Gauge>,
    health: Health,
}

impl MetricsSource for Figures {
    fn name(&self) -> String {
        self.node.clone()
    }

    fn gather(self: Arc<Self>) -> Gathering {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.process.shown()));
        registry.sub_registry_with_prefix("lotus").register_collector(Box::new(Gauges(self)));
        Box::pin(std::future::ready(registry))
    }

    fn health(&self) -> Result<&'static str, &'static str> {
        (self.health)()
    }
}

struct Gauges(Arc<Figures>);

impl fmt::Debug for Gauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gauges").field(&self.0.node).finish()
    }
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        exposition::gauges(&mut encoder, &self.0.gauges)
    }
}
