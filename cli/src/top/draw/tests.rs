//! Tests of frames, on a terminal that keeps what is drawn.

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;

/// A frame as text, on a terminal of this size.
fn drawn(view: &View, choices: Choices, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("it is made up");
    let drawn = terminal.draw(|page| {
        let area = page.area();
        frame(view, &choices, area, page.buffer_mut());
    });
    parts::text(drawn.expect("it is made up").buffer)
}

/// Sizes from nothing to more than there is to show.
fn sizes() -> impl Iterator<Item = (u16, u16)> {
    let odd = [1, 2, 3, 5, 9, 17, 40, 79, 80, 81, 200];
    odd.into_iter().flat_map(move |width| odd.map(|height| (width, height)))
}

mod of_benchmarks {
    use super::*;
    use crate::top::model::Watched as _;
    use crate::top::model::bench::tests::frame as line;
    use crate::top::model::bench::{BenchModel, BenchNews};
    use lotus_fabric::env::Nanos;

    fn view(lines: &[f64]) -> View {
        let mut model = BenchModel::new("live.sock".to_owned());
        for rate in lines {
            model.take(BenchNews::Frame(Box::new(line(*rate))));
        }
        model.view(Nanos(0))
    }

    #[test]
    fn a_benchmark_in_a_small_terminal() {
        let expected = "\
lotus top  live.sock
smallbank on local: running, 4.25 s, 6.7
committed 48,000/s   p50 36.2 µs   p99 1
[==============                        ]
aborts 9,120/s: logic 9,000, conflict 12
moves 12 shards so far
found addresses 97.0 %, own locks 88.5 %
committed/s, last 2 s, at most 48,000
▄█
q leave  p pause  ? help
";
        let rates = [24_000.0, 24_000.0, 24_000.0, 24_000.0, 48_000.0];
        assert_eq!(drawn(&view(&rates), Choices::default(), (40, 10)), expected);
    }

    #[test]
    fn a_benchmark_as_text() {
        let expected = "\
lotus top  live.sock
smallbank on local: running, 4.25 s, 6.75 s left
committed 48,000/s   p50 36.2 µs   p99 1.48 ms   in all 1,234,567
[=======================                                     ]
aborts 9,120/s: logic 9,000, conflict 120
moves 12 shards so far
found addresses 97.0 %, own locks 88.5 %
committed/s, last 1 s, at most 48,000
█
█
";
        assert_eq!(text(&view(&[48_000.0]), 100), expected);
    }

    #[test]
    fn a_benchmark_that_has_not_begun_or_has_ended_says_so() {
        let waiting = drawn(&view(&[]), Choices::default(), (60, 10));
        assert!(waiting.contains("waiting for its first line"), "{waiting}");
        let mut model = BenchModel::new("live.sock".to_owned());
        let mut simulated = line(7.0);
        (simulated.is_virtual, simulated.has_aborts) = (true, false);
        model.take(BenchNews::Frame(Box::new(simulated)));
        model.take(BenchNews::Ended("the benchmark has ended".to_owned()));
        let text = text(&model.view(Nanos(0)), 100);
        assert!(
            text.contains("the benchmark has ended, 4.25 virtual s, 6.75 virtual s left"),
            "{text}"
        );
        assert!(
            text.contains("7.0/virtual s") && text.contains("aborts not counted here"),
            "{text}"
        );
    }

    #[test]
    fn a_benchmark_fits_every_terminal() {
        for size in sizes() {
            drawn(&view(&[1.0, 2.0]), Choices { help: true, ..Choices::default() }, size);
            drawn(&view(&[]), Choices::default(), size);
        }
    }
}

#[cfg(feature = "tcp")]
mod of_clusters {
    use super::*;
    use crate::operate::status::SERVING;
    use crate::top::model::cluster::tests::{at, busy, outline, sample, tell, view};
    use crate::top::model::cluster::{ClusterModel, ClusterNews, MetricsError};
    use crate::top::model::{Watched as _, view::ClusterView};

    /// A minute of a cluster that commits more and more.
    fn minute() -> ClusterModel {
        let mut model = busy();
        for second in 2..=60_u64 {
            let committed = (second * second) as f64 * 100.0;
            model.take(ClusterNews::Surveyed {
                at: at(second * 1_000),
                outline: outline([SERVING; 4]),
            });
            tell(
                &mut model,
                "cn-0",
                second * 1_000,
                Ok(sample(second as f64 + 10.0, 30_000.0 + committed)),
            );
            model.tick(at(second * 1_000));
        }
        model
    }

    fn with_losses() -> View {
        let mut model = minute();
        let states = [SERVING, "lost", SERVING, "in recovery"];
        model.take(ClusterNews::Surveyed { at: at(60_000), outline: outline(states) });
        let refused =
            || Err(MetricsError::Unreachable("Connection refused (os error 111)".to_owned()));
        tell(&mut model, "cn-1", 60_000, refused());
        tell(&mut model, "mn-1", 60_000, refused());
        View::Cluster(view(&model, 60_000))
    }

    #[test]
    fn a_cluster_in_a_terminal_of_80_columns() {
        let expected = "\
lotus top  c.toml
4 of 4 nodes serve, epoch 4, copies 2, data loaded; authority: answers
committed 12,900/s   p50 0.120 ms   p99 4.52 ms   memory 1.2 %
aborts 1,290/s: conflict 1,290
moves 0 shards/s, 6 so far
txn/s, last 60 s, at most 12,900
                                                    ▁▂▃▄▅▆▇█
                                            ▁▂▃▄▅▆▇█████████
▆▆                                  ▁▂▃▄▅▆▇█████████████████
██                          ▁▂▃▄▅▆▇█████████████████████████
██                  ▁▂▃▄▅▆▇█████████████████████████████████
██          ▁▂▃▄▅▆▇█████████████████████████████████████████
██  ▁▂▃▄▅▆▇█████████████████████████████████████████████████
██▇█████████████████████████████████████████████████████████

node  state       epoch   txn/s p50 ms p99 ms abort/s locks/s own % shards moved
cn-0  serving         4  11,900  0.120   4.52   1,190  47,600  75.0   2048     3
cn-1  serving         4   1,000  0.120   4.52     100   4,000  75.0   2048     3

node  state            used        of                %   process cpu %
mn-0  serving             -         -                -         -     -
mn-1  serving       2.9 MiB 244.1 MiB ░░░░░░░░░░   1.2         -   0.0

q leave  s sort by name  r reverse  p pause  ? help
";
        let view = View::Cluster(view(&minute(), 60_000));
        assert_eq!(drawn(&view, Choices::default(), (80, 24)), expected);
    }

    #[test]
    fn a_cluster_with_losses_in_a_small_terminal() {
        let expected = "\
lotus top  c.toml
2 of 4 nodes serve, epoch 4, copies 2, d
committed 11,900/s   p50 0.120 ms   p99
node  state         txn/s p99 ms abort/s
cn-0  serving      11,900   4.52   1,190
cn-1  in recovery       -      -       -
node  state            used        of
mn-0  serving             -         -
mn-1  lost          2.9 MiB 244.1 MiB
q leave  s sort by name  r reverse  p pa
";
        assert_eq!(drawn(&with_losses(), Choices::default(), (40, 10)), expected);
    }

    #[test]
    fn a_wide_terminal_has_room_for_reasons() {
        let shown = drawn(&with_losses(), Choices::default(), (200, 60));
        assert_eq!(shown.matches("Connection refused (os error 111)").count(), 2, "{shown}");
        assert!(shown.contains("lease") && shown.contains("q leave"), "{shown}");
        let text = text(&with_losses(), 100);
        assert!(text.contains("cn-1  in recovery") && !text.contains("q leave"), "{text}");
    }

    #[test]
    fn nodes_that_do_not_fit_are_counted() {
        let View::Cluster(mut view) = with_losses() else { panic!("it is a cluster") };
        let row = view.compute[0].clone();
        view.compute = std::iter::repeat_n(row, 30).collect();
        let shown = drawn(&View::Cluster(view), Choices::default(), (80, 24));
        assert!(shown.contains("… 14 more"), "{shown}");
        assert!(shown.contains("mn-1  lost"), "{shown}");
    }

    #[test]
    fn a_cluster_fits_every_terminal() {
        let choices = Choices { help: true, paused: true, ..Choices::default() };
        for size in sizes() {
            drawn(&with_losses(), choices, size);
            drawn(&View::Cluster(ClusterView::default()), Choices::default(), size);
        }
    }

    #[test]
    fn compute_nodes_are_in_the_order_that_was_asked_for() {
        let View::Cluster(view) = with_losses() else { panic!("it is a cluster") };
        let order = |by, backwards| {
            let mut view = view.clone();
            view.sort(by, backwards);
            view.compute.iter().map(|row| row.node.index).collect::<Vec<_>>()
        };
        assert_eq!(
            (order(SortBy::Name, false), order(SortBy::Name, true)),
            (vec![0, 1], vec![1, 0])
        );
        assert_eq!(order(SortBy::State, false), [1, 0], "bad ones first");
        assert_eq!(order(SortBy::Committed, false), [0, 1], "what is not known comes last");
    }

    #[test]
    fn help_and_pause_are_shown() {
        let choices = Choices { help: true, paused: true, ..Choices::default() };
        let shown = drawn(&with_losses(), choices, (80, 24));
        assert!(shown.contains("keys and columns") && shown.contains("  paused"), "{shown}");
    }
}
