//! The metrics of one node over HTTP, within limits on time and size, whatever process answers.

use std::error::Error;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::top::model::cluster::MetricsError;
use crate::top::parse::Sample;

/// Time limit for an answer, from the address lookup to the last byte.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Size limit of an answer in bytes: the size for a node with 10,000 tables.
const LARGEST: usize = 8 << 20;

/// Asks the node at `address`, a host and a port.
///
/// # Errors
/// [`MetricsError`].
pub async fn ask(address: &str) -> Result<Sample, MetricsError> {
    let answer = tokio::time::timeout(PATIENCE, answer(address)).await;
    let text = answer.map_err(|_| MetricsError::Silent)??;
    Sample::read(&text).map_err(MetricsError::Nonsense)
}

async fn answer(address: &str) -> Result<String, MetricsError> {
    let unreachable = |error: std::io::Error| MetricsError::Unreachable(error.to_string());
    let stream = TcpStream::connect(address).await.map_err(unreachable)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(of_http)?;
    let request = Request::get("/metrics")
        .header(header::HOST, address)
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| MetricsError::Unreachable(error.to_string()))?;
    let exchange = async move {
        let response = sender.send_request(request).await.map_err(of_http)?;
        if response.status() != StatusCode::OK {
            return Err(MetricsError::Nonsense(format!("it answers {}", response.status())));
        }
        let body = Limited::new(response.into_body(), LARGEST).collect().await;
        let body = body.map_err(|error| of_body(&*error))?.to_bytes();
        String::from_utf8(body.into())
            .map_err(|_| MetricsError::Nonsense("the answer is no text".to_owned()))
    };
    // Exchange and connection are dropped together, and the socket with them.
    let (mut exchange, mut connection) = (std::pin::pin!(exchange), std::pin::pin!(connection));
    tokio::select! {
        biased;
        answer = &mut exchange => answer,
        ended = &mut connection => match ended {
            // Data that has arrived must still be read.
            Ok(()) => exchange.await,
            Err(error) => Err(of_http(error)),
        },
    }
}

fn of_http(error: hyper::Error) -> MetricsError {
    let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    match error.is_parse() || error.is_parse_status() || error.is_incomplete_message() {
        true if error.is_incomplete_message() => {
            MetricsError::Nonsense("the answer is cut".to_owned())
        }
        true => MetricsError::Nonsense("the answer is no HTTP".to_owned()),
        false => MetricsError::Unreachable(why),
    }
}

fn of_body(error: &(dyn Error + 'static)) -> MetricsError {
    if error.is::<LengthLimitError>() {
        return MetricsError::Nonsense("the answer is too long".to_owned());
    }
    MetricsError::Nonsense("the answer is cut".to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use lotus_fabric::env::Env;

    use super::*;

    /// Outcome of asking something that answers this much, and closes the connection unless it
    /// `stays`.
    fn asked(parts: Vec<Vec<u8>>, stays: bool) -> Result<Sample, MetricsError> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let answers = move || {
            let (mut stream, _) = listener.accept().expect("it is asked");
            let mut request = [0; 1024];
            let _ = stream.read(&mut request);
            // The asker may have gone.
            let gone = parts.iter().any(|part| stream.write_all(part).is_err());
            if stays && !gone {
                // Until the asker closes the connection.
                let _ = stream.read(&mut request);
            }
        };
        let thread = Env::real(0).spawn("answers", answers).expect("a thread");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let found = runtime.expect("a runtime").block_on(ask(&address));
        thread.join().expect("it does not panic");
        found
    }

    fn nonsense(parts: Vec<Vec<u8>>, stays: bool) -> String {
        match asked(parts, stays) {
            Err(MetricsError::Nonsense(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    fn http(length: usize, body: &str) -> Vec<u8> {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
    }

    #[test]
    fn whatever_answers_is_a_sample_or_nonsense() {
        let body = "lotus_uptime_seconds 3\n";
        let sample = asked(vec![http(body.len(), body)], true).expect("metrics");
        assert!((sample.uptime_s - 3.0).abs() < 1e-9);
        assert_eq!(
            nonsense(vec![b"\x00\xff garbage\r\n\r\n".to_vec()], true),
            "the answer is no HTTP"
        );
        assert_eq!(nonsense(vec![http(500, body)], false), "the answer is cut");
        assert_eq!(nonsense(vec![b"HTTP/1.1 200 OK\r\nCont".to_vec()], false), "the answer is cut");
        assert_eq!(nonsense(vec![http(3, "a b")], true), "line 1 is no metric");
        let binary = [&b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"[..], &[0xff, 0xfe]].concat();
        assert_eq!(nonsense(vec![binary], true), "the answer is no text");
        let gone = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec();
        assert!(nonsense(vec![gone], true).contains("404"));
    }

    #[test]
    fn an_answer_that_does_not_end_is_given_up() {
        let head = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        let lines = vec![b"lotus_a 1\n".repeat(100_000); 20];
        let parts = std::iter::once(head).chain(lines).collect();
        assert_eq!(nonsense(parts, true), "the answer is too long");
    }

    #[test]
    fn silence_and_closed_ports_are_told_apart() {
        assert_eq!(asked(vec![], true), Err(MetricsError::Silent));
        assert_eq!(asked(vec![http(500, "a 1\n")], true), Err(MetricsError::Silent));
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr();
        let address = port.expect("it was bound").to_string();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let found = runtime.expect("a runtime").block_on(ask(&address));
        assert!(matches!(found, Err(MetricsError::Unreachable(_))), "{found:?}");
    }
}
