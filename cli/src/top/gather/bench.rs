//! The lines of a benchmark, from its socket.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};

use lotus_benchmarks::live::LiveFrame;
use lotus_fabric::env::Env;

use crate::top::model::bench::BenchNews;

/// Maximum length of a line, in bytes: a benchmark's lines have less than a thousand.
const LONGEST: u64 = 64 << 10;

/// Reads the lines of the benchmark at a socket, until it ends or the receiver is dropped.
///
/// # Errors
/// A sentence: no benchmark listens at the socket.
pub fn watch(path: &Path, env: &Env) -> Result<Receiver<BenchNews>, String> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            format!("the benchmark that was shown at {} has ended", path.display())
        }
        _ => format!("cannot reach {}: {error}", path.display()),
    };
    let stream = UnixStream::connect(path).map_err(failed)?;
    let (sender, receiver) = mpsc::channel();
    let reading = move || read(stream, &sender);
    env.spawn("lotus-top-bench", reading)
        .map_err(|error| format!("there is no thread to gather: {error}"))?;
    Ok(receiver)
}

/// Passes on the lines in order, and then the reason for the end.
fn read(source: impl Read, news: &Sender<BenchNews>) {
    let mut source = BufReader::new(source);
    loop {
        let told = line(&mut source);
        let is_last = matches!(told, BenchNews::Ended(_));
        if news.send(told).is_err() || is_last {
            return;
        }
    }
}

fn line(source: &mut impl BufRead) -> BenchNews {
    let mut line = Vec::new();
    let ended = |why: &str| BenchNews::Ended(why.to_owned());
    match source.take(LONGEST).read_until(b'\n', &mut line) {
        Err(error) => ended(&format!("the benchmark cannot be read any more: {error}")),
        Ok(0) => ended("the benchmark has ended"),
        Ok(_) => match (line.ends_with(b"\n"), serde_json::from_slice::<LiveFrame>(&line)) {
            (true, Ok(frame)) => BenchNews::Frame(Box::new(frame)),
            (false, _) if line.len() as u64 == LONGEST => {
                ended("it is no benchmark: a line has no end")
            }
            (false, _) => ended("the benchmark has ended in the middle of a line"),
            (true, Err(error)) => ended(&format!("it is no benchmark of this version: {error}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::model::bench::tests::frame;

    fn all(text: &[u8]) -> Vec<BenchNews> {
        let (sender, receiver) = mpsc::channel();
        read(text, &sender);
        drop(sender);
        receiver.iter().collect()
    }

    #[test]
    fn lines_are_frames_until_one_is_not() {
        let sound = serde_json::to_string(&frame(5.0)).expect("numbers and strings");
        let ended = |why: &str| BenchNews::Ended(why.to_owned());
        let one = BenchNews::Frame(Box::new(frame(5.0)));
        let found = all(format!("{sound}\n{sound}\n").as_bytes());
        assert_eq!(found, [one.clone(), one.clone(), ended("the benchmark has ended")]);
        let cut = all(format!("{sound}\n{}", &sound[..40]).as_bytes());
        assert_eq!(cut, [one, ended("the benchmark has ended in the middle of a line")]);
        let endless = all(&vec![b'a'; 1 << 20]);
        assert_eq!(endless, [ended("it is no benchmark: a line has no end")]);
        for nonsense in ["{}\n", "garbage\n", "\n", "[1, 2]\n"] {
            let [BenchNews::Ended(why)] = &all(nonsense.as_bytes())[..] else {
                panic!("{nonsense}")
            };
            assert!(why.starts_with("it is no benchmark of this version"), "{why}");
        }
    }
}
