//! How long it takes until others serve the rows of a process that was killed. It measures, and
//! only demands that nothing is lost.

use std::time::Duration;

use lotus_fabric::env::Env;

use super::{BALANCE, Kind, Place, ROWS, with_cluster};

/// How often a process is killed.
const TIMES: usize = 15;

/// From the kill until each row of the dead process has been written again, detection included.
#[test]
#[ignore = "it measures, which takes a machine that does nothing else"]
fn how_long_the_rows_of_a_killed_process_stay_out_of_reach() {
    for lease_ms in [20, 50, 200] {
        let mut took: Vec<f64> =
            (0..TIMES).map(|_| once(Duration::from_millis(lease_ms))).collect();
        took.sort_unstable_by(f64::total_cmp);
        let [least, median, most] = [0, TIMES / 2, TIMES - 1].map(|place| took[place]);
        let text =
            format!("lease {lease_ms} ms: {least:.0} to {most:.0} ms, median {median:.0} ms");
        std::io::Write::write_all(&mut std::io::stdout(), format!("{text}\n").as_bytes())
            .expect("somebody reads it");
    }
}

fn once(lease: Duration) -> f64 {
    let env = Env::real(0);
    let (place, _directory) = Place::new(Kind::Shm, Some(lease));
    let took_ms = std::cell::Cell::new(0.0);
    with_cluster(&place, |transfer, other, total| {
        other.ask("transfer 20", "done");
        let killed_at = env.now();
        other.kill();
        for key in 0..ROWS {
            while transfer(key, (key + 1) % ROWS).is_err() {}
        }
        took_ms.set(env.now().since(killed_at).as_secs_f64() * 1e3);
        assert_eq!(total(), ROWS * BALANCE);
    });
    took_ms.get()
}
