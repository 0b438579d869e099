//! `/metrics` for Prometheus and `/health` for load balancers.
//!
//! The port asks for no key, so all connections are guests (`shared_guests`): their number is
//! bounded, a request must come within [`ASKING`] and be answered and read within [`ANSWERING`],
//! and a connection serves one request. A stopping server does not wait for these connections
//! (I339).

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use lotus_fabric::env::Env;
use lotus_security::{Lines, Rules, Source};
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::exposition::Format;
use crate::log_limiter::LogLimiter;
use crate::shared_guests::{GuestPlace, Received, SharedGuests};

/// Connections at a time.
pub const CONNECTIONS: usize = 64;
/// Time limit of a request's headers.
const ASKING: Duration = Duration::from_secs(2);
/// Time limit of a connection, from the first byte to the last.
const ANSWERING: Duration = Duration::from_secs(10);
/// Largest headers, in bytes.
const HEADER_BYTES: usize = 16 << 10;
/// Pause after a failed accept, for example when the system has no socket left.
const OUT_OF_SOCKETS: Duration = Duration::from_millis(50);

/// Metrics under way.
pub(crate) type Gathering = Pin<Box<dyn Future<Output = Registry> + Send>>;

/// A process that shows metrics and health.
pub(crate) trait MetricsSource: Send + Sync + 'static {
    /// Name for log lines.
    fn name(&self) -> String;
    /// Gathers all metrics of the process.
    fn gather(self: Arc<Self>) -> Gathering;
    /// Returns a word for the health; the error says why clients should not come.
    fn health(&self) -> Result<&'static str, &'static str>;
}

/// Serves metrics and health until told to stop.
pub(crate) async fn serve<S: MetricsSource>(
    shown: Arc<S>,
    listener: std::net::TcpListener,
    env: Env,
    mut stopped: watch::Receiver<bool>,
) {
    let node = shown.name();
    let routes = Router::new()
        .route("/metrics", get(scrape::<S>))
        .route("/health", get(health::<S>))
        .with_state(shown);
    match TcpListener::from_std(listener) {
        Ok(listener) => tokio::select! {
            () = stand(&node, &listener, &routes, &env) => {}
            // An error means a dropped server, with the same effect.
            _ = stopped.wait_for(|stopped| *stopped) => {}
        },
        Err(error) => tracing::error!(node, %error, "metrics are not served any more"),
    }
}

/// Accepts connections for ever. Dropping the future ends them.
async fn stand(node: &str, listener: &TcpListener, routes: &Router, env: &Env) {
    let guests = SharedGuests::new(Rules::of(CONNECTIONS), env);
    let complaints = LogLimiter::default();
    let (mut tasks, mut lines) = (JoinSet::new(), Lines::default());
    let accept = || async {
        let (socket, address) = listener.accept().await?;
        Ok((Source::from(address.ip()), socket))
    };
    loop {
        while tasks.try_join_next().is_some() {}
        let (socket, place) = match guests.receive(&mut lines, accept).await {
            Ok(Received::Guest { newcomer, place, .. }) => (newcomer, place),
            // The scraper will try again.
            Ok(Received::Surplus(_)) => continue,
            Err(error) => {
                if let Some(kept_back) = complaints.may_say("metrics", env.now()) {
                    let what = "cannot accept a connection for metrics";
                    tracing::warn!(node, %error, kept_back, "{what}");
                }
                tokio::time::sleep(OUT_OF_SOCKETS).await;
                continue;
            }
        };
        let guest = place.id;
        let task = tasks.spawn(answer(socket, routes.clone(), place));
        guests.serve(guest, task);
    }
}

/// Answers one request.
async fn answer(socket: TcpStream, routes: Router, place: GuestPlace) {
    let service = TowerToHyperService::new(routes);
    let place = Arc::new(place);
    let asked = Arc::clone(&place);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        // The headers are complete: newcomers wait for the answer, for its whole time limit.
        asked.keep(ANSWERING);
        hyper::service::Service::call(&service, request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ASKING)
        .keep_alive(false)
        .max_buf_size(HEADER_BYTES)
        .serve_connection(TokioIo::new(socket), service);
    // Errors belong to the scraper: it has gone, was too slow, or speaks no HTTP.
    let _ = tokio::time::timeout(ANSWERING, connection).await;
    drop(place);
}

async fn scrape<S: MetricsSource>(
    State(shown): State<Arc<S>>,
    headers: HeaderMap,
) -> impl IntoResponse {
    let accept = headers.get_all(header::ACCEPT).iter();
    let accept: Vec<&str> = accept.filter_map(|value| value.to_str().ok()).collect();
    let format = Format::accepted(&accept.join(","));
    match format.encode(&shown.gather().await) {
        Ok(text) => Ok(([(header::CONTENT_TYPE, format.content_type())], text)),
        Err(error) => Err((StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"))),
    }
}

/// Answers 200 while clients should use this node, 503 otherwise.
async fn health<S: MetricsSource>(State(shown): State<Arc<S>>) -> (StatusCode, String) {
    match shown.health() {
        Ok(how) => (StatusCode::OK, format!("{how}\n")),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}
