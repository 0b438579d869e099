//! A benchmark, with its last line and its last minute. Pure.

use std::collections::VecDeque;

use lotus_benchmarks::live::LiveFrame;
use lotus_fabric::env::Nanos;

use super::Watched;
use super::view::{BenchView, HISTORY, View};

/// Lines per second.
const LINES: usize = 4;

/// News of a benchmark.
#[derive(Clone, PartialEq, Debug)]
pub enum BenchNews {
    /// A line of the benchmark.
    Frame(Box<LiveFrame>),
    /// The news have ended: the reason, as a sentence.
    Ended(String),
}

/// A watched benchmark.
#[derive(Debug)]
pub struct BenchModel {
    title: String,
    last: Option<LiveFrame>,
    /// Rates of the last minute: means over the lines of a second, and the number of lines; the
    /// last second is incomplete.
    history: VecDeque<(f64, usize)>,
    ended: Option<String>,
}

impl BenchModel {
    /// A benchmark with the path of its socket as title.
    pub fn new(title: String) -> Self {
        Self { title, last: None, history: VecDeque::new(), ended: None }
    }

    fn note(&mut self, rate: f64) {
        match self.history.back_mut() {
            Some((mean, lines)) if *lines < LINES => {
                *mean += (rate - *mean) / (*lines + 1) as f64;
                *lines += 1;
            }
            _ => self.history.push_back((rate, 1)),
        }
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }
}

impl Watched for BenchModel {
    type News = BenchNews;

    fn take(&mut self, news: BenchNews) {
        match news {
            BenchNews::Frame(frame) => {
                self.note(frame.per_s);
                self.last = Some(*frame);
            }
            BenchNews::Ended(why) => self.ended = Some(why),
        }
    }

    fn tick(&mut self, _now: Nanos) {}

    fn view(&self, _now: Nanos) -> View {
        let (title, ended) = (self.title.clone(), self.ended.clone());
        let Some(frame) = self.last.clone() else {
            return View::Bench(BenchView { title, ended, ..BenchView::default() });
        };
        View::Bench(BenchView {
            title,
            ended,
            what: format!("{} on {}", frame.bench, frame.fabric),
            phase: frame.phase,
            is_virtual: frame.is_virtual,
            elapsed_s: frame.elapsed_s,
            left_s: frame.left_s,
            counted: frame.counted,
            done: frame.done,
            per_s: frame.per_s,
            history: self.history.iter().map(|(mean, _)| *mean).collect(),
            history_step_s: 1.0,
            p50_us: frame.p50_us,
            p99_us: frame.p99_us,
            has_aborts: frame.has_aborts,
            aborts: frame.aborts_per_s,
            moved: frame.shards_moved,
            hits: frame.hits,
        })
    }

    fn is_complete(&self) -> bool {
        self.last.is_some() || self.ended.is_some()
    }
}

#[cfg(test)]
pub mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A line of a benchmark in the middle of its load.
    pub fn frame(per_s: f64) -> LiveFrame {
        LiveFrame {
            bench: "smallbank".to_owned(),
            fabric: "local".to_owned(),
            counted: "committed".to_owned(),
            phase: "running".to_owned(),
            is_virtual: false,
            elapsed_s: 4.25,
            left_s: 6.75,
            done: 1_234_567,
            per_s,
            p50_us: Some(36.2),
            p99_us: Some(1_480.0),
            aborts_per_s: BTreeMap::from([
                ("logic".to_owned(), 9_000.0),
                ("conflict".to_owned(), 120.4),
            ]),
            has_aborts: true,
            shards_moved: 12,
            hits: BTreeMap::from([("addresses".to_owned(), 0.97), ("own locks".to_owned(), 0.885)]),
        }
    }

    fn view(model: &BenchModel) -> BenchView {
        match model.view(Nanos(0)) {
            View::Bench(view) => view,
            #[cfg(feature = "tcp")]
            View::Cluster(_) => panic!("it is a benchmark"),
        }
    }

    #[test]
    fn a_point_of_the_last_minute_is_the_mean_of_a_second() {
        let mut model = BenchModel::new("live.sock".to_owned());
        assert!(!model.is_complete() && view(&model).what.is_empty());
        for rate in [10.0, 20.0, 30.0, 40.0, 100.0, 300.0] {
            model.take(BenchNews::Frame(Box::new(frame(rate))));
        }
        assert_eq!(view(&model).history, [25.0, 200.0]);
        (0..1_000).for_each(|_| model.take(BenchNews::Frame(Box::new(frame(7.0)))));
        assert_eq!(view(&model).history.len(), HISTORY);
        assert!(model.is_complete());
    }

    #[test]
    fn the_last_line_stays_when_the_benchmark_has_ended() {
        let mut model = BenchModel::new("live.sock".to_owned());
        model.take(BenchNews::Frame(Box::new(frame(7.0))));
        model.take(BenchNews::Ended("it has ended".to_owned()));
        let view = view(&model);
        assert_eq!((view.ended.as_deref(), view.done), (Some("it has ended"), 1_234_567));
        assert_eq!(view.what, "smallbank on local");
    }
}
