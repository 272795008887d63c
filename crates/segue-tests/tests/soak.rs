//! Tests of the criteria of a long run (`segue_tests::soak`).

use std::time::Duration;

use segue_tests::soak::{Account, Balance, Series, Slope, dropped_of, mean, p99};
use serde_json::json;

#[test]
fn a_slope_has_the_interval_of_its_points() {
    let points = [(0.0, 1.0), (1.0, 3.0), (2.0, 2.0), (3.0, 5.0)];
    let found = Slope::of(&points).unwrap();
    assert!((found.slope - 1.1).abs() < 1e-9, "{found:?}");
    // The error of the slope is 0.5196; of two degrees of freedom the approximation of 4.30 is a tenth too small.
    assert!((found.most - (1.1 + 0.5196 * 3.85)).abs() < 0.02, "{found:?}");
    assert!((found.most + found.least - 2.2).abs() < 1e-9, "{found:?}");
    assert_eq!(Slope::of(&points[..3]), None);
}

#[test]
fn what_goes_with_the_machine_is_not_in_the_slope_beside_it() {
    let hours = |n: u32| f64::from(n) / 12.0;
    let uneven = |n: u32, by: u32| f64::from(n * by % 13) / 13.0;
    // The machine has its bad times, and becomes slower; the route takes twice of both, and has a slope of its own.
    let machine: Vec<(f64, f64)> = (0..24).map(|n| (hours(n), 1.0 + 0.5 * uneven(n, 5) + 0.1 * hours(n))).collect();
    let route = |(n, (at, machine)): (u32, &(f64, f64))| (*at, 2.0 * machine + 0.05 * at + 0.01 * uneven(n, 7));
    let points: Vec<(f64, f64)> = (0..).zip(&machine).map(route).collect();
    let [plain, beside] = [Slope::of(&points), Slope::beside(&points, &machine)].map(Option::unwrap);
    assert!((beside.slope - 0.05).abs() < 0.005, "{beside:?}");
    assert!(beside.most - beside.least < 0.1 * (plain.most - plain.least), "{beside:?} {plain:?}");
    // Nothing is known of a machine that is always the same.
    let same = Slope::beside(&points, &machine.iter().map(|(at, _)| (*at, 1.0)).collect::<Vec<_>>()).unwrap();
    assert!((same.slope - plain.slope).abs() < 1e-9, "{same:?} {plain:?}");
    assert_eq!(Slope::beside(&points, &machine[1..]), None);
}

#[test]
fn windows_have_the_values_of_whole_cycles() {
    // 101 cycles of ten samples, of which the last one may not be whole, and the first ten are the warm-up.
    let mut series = Series::default();
    for n in 0..1010_u32 {
        series.add(n / 10, Duration::from_secs(n.into()), n.into());
    }
    let found = series.windows(0.095, mean);
    // 90 cycles: at most 24 windows have four each, and two cycles are left over.
    assert_eq!(found.len(), 22);
    assert!((found[0].0 * 3600.0 - 139.5).abs() < 1e-6 && (found[21].1 - 979.5).abs() < 1e-6, "{found:?}");
    let slope = Slope::of(&found).unwrap();
    assert!((slope.slope - 3600.0).abs() < 1e-6 && (slope.most - slope.least).abs() < 1e-3, "{slope:?}");
    assert_eq!(series.ends(0.25), Some((253.0, 1009.0)));
    assert_eq!(Series::default().ends(0.25), None);
    assert!(Series::default().windows(0.25, mean).is_empty());
    assert_eq!(p99(&mut (0..200).map(f64::from).collect::<Vec<_>>()), 198.0);
}

#[test]
fn the_drops_of_a_kernel_are_those_of_the_interfaces_of_ip_and_of_sockets() {
    let dev = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop|\n  \
               lo: 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9\n eth0: 100 1 2 3 0 0 0 0 100 1 4 5 0 0 0 0\n";
    let v4 = "Ip: Forwarding InDiscards OutDiscards\nIp: 1 6 7\nUdp: InDatagrams NoPorts InErrors\nUdp: 50 60 8\n\
              UdpLite: InDatagrams NoPorts InErrors\nUdpLite: 50 60 70\n";
    let v6 = "Ip6InReceives \t10\nIp6InDiscards                   \t9\nUdp6NoPorts \t70\nUdp6InErrors \t10\n";
    let devices = ["eth0".to_owned(), "sg1".to_owned()];
    assert_eq!(dropped_of(dev, v4, v6, &devices), 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10);
    assert_eq!(dropped_of(dev, "", "", &[]), 0);
}

#[test]
fn a_balance_counts_each_packet_once_and_unsure_ones_as_it_needs_them() {
    let account = Account { made: &["made"], taken: &["taken"], unsure: &["down"] };
    let missing = |received: u64| {
        let drops = json!({"early": 100, "late": 2, "down": 3});
        let ports = json!({
            "in": {"receive": {"segments": received}, "transmit": {"segments": 1}, "numbers": {"made": 5}, "drops": drops},
            "out": {"receive": {"segments": 7}, "transmit": {"segments": 20}, "numbers": {"taken": 4}},
        });
        Balance::of(&json!({ "ports": ports }), &["early"], account).missing()
    };
    // 27 left, of which 12 came by the other port or were made; and 0 to 3 of the others.
    assert_eq!([13, 14, 15, 17, 18, 19, 20].map(missing), [-2, -1, 0, 0, 0, 1, 2]);
}
