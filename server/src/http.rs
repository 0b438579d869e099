//! `/metrics` for Prometheus and `/health` for whoever decides where clients go.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::metrics;
use crate::node::Node;

/// Serves both until the server stops.
pub(crate) async fn serve(
    node: Arc<Node>,
    listener: std::net::TcpListener,
    mut stopped: watch::Receiver<bool>,
) {
    let index = node.index;
    let routes = axum::Router::new()
        .route("/metrics", get(scrape))
        .route("/health", get(health))
        .with_state(node);
    let stop = async move {
        // An error means that the server itself is gone, which is the same.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let served = match TcpListener::from_std(listener) {
        Ok(listener) => axum::serve(listener, routes).with_graceful_shutdown(stop).await,
        Err(error) => Err(error),
    };
    if let Err(error) = served {
        tracing::error!(node = index, %error, "metrics are not served any more");
    }
}

async fn scrape(State(node): State<Arc<Node>>) -> impl IntoResponse {
    match metrics::scrape(node).await {
        Ok(text) => Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text)),
        Err(error) => Err((StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"))),
    }
}

/// 200 while clients should come here, 503 otherwise.
async fn health(State(node): State<Arc<Node>>) -> (StatusCode, &'static str) {
    let figures = node.host().node_figures(node.index);
    if node.is_draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
    } else if !figures.takes_part {
        (StatusCode::SERVICE_UNAVAILABLE, "expelled\n")
    } else if !figures.serves {
        (StatusCode::SERVICE_UNAVAILABLE, "suspended\n")
    } else if !node.host().silent_memory(node.index).is_empty() {
        (StatusCode::SERVICE_UNAVAILABLE, "a memory node does not answer\n")
    } else {
        (StatusCode::OK, "serving\n")
    }
}
