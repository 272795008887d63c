use super::fit::TARGETS;
use super::*;

#[test]
fn the_fitted_prices_give_the_cells_that_they_were_fitted_to() {
    for one in &TARGETS {
        let (mbps, idle) = fit::cell(one.target).unwrap();
        if one.mbps < fit::WIRE {
            assert!((mbps / one.mbps - 1.0).abs() < 0.01, "{}: {mbps} {idle}", one.target.name);
        } else if one.target.urb > 0.0 {
            assert!((idle - one.idle_percent).abs() < 0.5, "{}: {mbps} {idle}", one.target.name);
        } else {
            assert!(idle < one.idle_percent, "{}: {mbps} {idle}", one.target.name);
        }
    }
}
