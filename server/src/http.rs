//! `/metrics` for Prometheus and `/health` for load balancers.

use std::pin::Pin;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::exposition::Format;

/// Metrics under way.
pub(crate) type Gathering = Pin<Box<dyn Future<Output = Registry> + Send>>;

/// A process that shows metrics and health.
pub(crate) trait Shown: Send + Sync + 'static {
    /// Name for log lines.
    fn name(&self) -> String;
    /// All its metrics.
    fn gather(self: Arc<Self>) -> Gathering;
    /// A word for its health; the error says why clients should not come.
    fn health(&self) -> Result<&'static str, &'static str>;
}

/// Serves both until told to stop.
pub(crate) async fn serve<S: Shown>(
    shown: Arc<S>,
    listener: std::net::TcpListener,
    mut stopped: watch::Receiver<bool>,
) {
    let node = shown.name();
    let routes = axum::Router::new()
        .route("/metrics", get(scrape::<S>))
        .route("/health", get(health::<S>))
        .with_state(shown);
    let stop = async move {
        // An error means that the server itself is gone, which is the same.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let served = match TcpListener::from_std(listener) {
        Ok(listener) => axum::serve(listener, routes).with_graceful_shutdown(stop).await,
        Err(error) => Err(error),
    };
    if let Err(error) = served {
        tracing::error!(node, %error, "metrics are not served any more");
    }
}

async fn scrape<S: Shown>(State(shown): State<Arc<S>>, headers: HeaderMap) -> impl IntoResponse {
    let accept = headers.get_all(header::ACCEPT).iter();
    let accept: Vec<&str> = accept.filter_map(|value| value.to_str().ok()).collect();
    let format = Format::accepted(&accept.join(","));
    match format.encode(&shown.gather().await) {
        Ok(text) => Ok(([(header::CONTENT_TYPE, format.content_type())], text)),
        Err(error) => Err((StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"))),
    }
}

/// 200 while clients should come here, 503 otherwise.
async fn health<S: Shown>(State(shown): State<Arc<S>>) -> (StatusCode, String) {
    match shown.health() {
        Ok(how) => (StatusCode::OK, format!("{how}\n")),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}
