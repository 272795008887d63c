use super::fit::TARGETS;
use super::*;

/// A computer without published figures.
const ROUND: Target = Target { name: "round", cores: 4, speed: 50.0, urb: 10_000.0 };

fn measure(target: Target, form: Form, traffic: Traffic) -> Outcome {
    run(Case { target, form, traffic, seed: 1, millis: 40 }).unwrap()
}

#[test]
fn the_fitted_prices_give_the_cells_that_they_were_fitted_to() {
    for one in &TARGETS {
        let (mbps, idle) = fit::cell(one.target, 1, 100).unwrap();
        if one.mbps < fit::WIRE {
            assert!((mbps / one.mbps - 1.0).abs() < 0.02, "{}: {mbps} {idle}", one.target.name);
        } else if one.target.urb > 0.0 {
            assert!((idle - one.idle_percent).abs() < 0.5, "{}: {mbps} {idle}", one.target.name);
        } else {
            assert!(idle < one.idle_percent, "{}: {mbps} {idle}", one.target.name);
        }
    }
}

#[test]
fn the_same_case_gives_the_same_figures_and_another_course_others() {
    let case = Case { target: ROUND, form: Form::Napi, traffic: Traffic::TcpRx, seed: 1, millis: 20 };
    let figures = |case| format!("{:?}", run(case).unwrap());
    assert_eq!(figures(case), figures(case));
    assert_ne!(figures(case), figures(Case { seed: 2, ..case }));
}

#[test]
fn a_host_without_costs_is_idle_and_at_the_wires_limit() {
    let free = Target { speed: 1e9, urb: 0.0, ..ROUND };
    for traffic in Traffic::ALL {
        // Of 1538 bytes on the wire 1448 are payload.
        let limit = 1000.0 * 1448.0 / if matches!(traffic, Traffic::TcpRx | Traffic::TcpTx) { 1538.0 } else { 1514.0 };
        for form in [Form::Standard, Form::Napi] {
            let outcome = measure(free, form, traffic);
            let named = (traffic, form, &outcome);
            assert!((outcome.mbps / limit - 1.0).abs() < 0.02, "{named:?}");
            assert!(outcome.idle_percent > 99.9 && outcome.lost_percent == 0.0, "{named:?}");
        }
    }
}

#[test]
fn overload_losses_of_a_slow_host_are_counted_where_they_occur() {
    // Both forms submit a bounded number of transfers, so that the wire is paused and the switch fills up, not the
    // chip. Only the old form has a queue in front of the stack.
    let slow = Target { speed: 6.0, ..ROUND };
    for (form, places) in [(Form::Standard, [true, false, true, true]), (Form::Napi, [true, false, false, true])] {
        let outcome = run(Case { target: slow, form, traffic: Traffic::UdpRx, seed: 1, millis: 300 }).unwrap();
        let drops: u64 = outcome.drops.iter().sum();
        assert!(drops > 0 && outcome.lost_percent > 10.0, "{form:?} {outcome:?}");
        for (lost, may) in outcome.drops.iter().zip(places) {
            assert!(may || *lost == 0, "{form:?} {outcome:?}");
        }
        let reached = outcome.mbps / 956.4 * 100.0;
        assert!((reached + outcome.lost_percent - 100.0).abs() < 6.0, "{form:?} {outcome:?}");
    }
}

#[test]
fn higher_transfer_cost_penalizes_the_form_with_more_transfers() {
    let idle = |urb, form| measure(Target { urb, ..ROUND }, form, Traffic::TcpRx).idle_percent;
    let cost = |form| idle(0.0, form) - idle(20_000.0, form);
    assert!(cost(Form::Standard) > 1.5 * cost(Form::Napi) && cost(Form::Napi) > 1.0);
}
