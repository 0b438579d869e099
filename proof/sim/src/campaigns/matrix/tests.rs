//! Every point is struck at each of its places, and nothing falls.

use super::*;

#[test]
fn every_point_has_a_coordinate_at_each_place_and_every_scenario_can_be_run() {
    let all = all();
    for point in points() {
        for place in Place::of(point.pieces()).iter().copied() {
            let struck = all.iter().any(|one| one.point == point && one.place == place);
            assert!(struck || !exists(point, place, RecoveryOutcome::Back), "{point:?} {place:?}");
        }
    }
    for coordinate in &all {
        let scenario = coordinate.scenario();
        assert_eq!(scenario.check(), Ok(()), "{coordinate}");
        let again = Scenario::parse("again", scenario.to_toml().as_bytes());
        assert_eq!(again, Ok(scenario), "{coordinate}");
    }
    assert_eq!(short().len(), points().count());
}

#[test]
fn at_every_point_somebody_is_struck_and_nothing_falls() {
    let short = short();
    let cells = strike_all(&short, 0..SEEDS, 2, |_, _| ()).expect("they can be run");
    for (coordinate, cell) in short.iter().zip(cells) {
        assert!(matches!(cell, Cell::Passed(_)), "{coordinate}: {cell:?}");
    }
}
