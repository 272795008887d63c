//! Tests of the text of `segue stat`.

use std::collections::BTreeMap;

use segue_control::model::{Complaint, Flow, OUTER_CSUM, Offload, Port, Recent, Seen, Side};

use super::table::WIDTH;
use super::*;

fn instance(name: &str) -> Instance {
    let inside = Port {
        transmit: Flow { packets: 19, bytes: 19 * 43_000, trains: 19, segments: 681, calls: 19 },
        flushes: BTreeMap::from([("full".into(), 71), ("psh".into(), 29), ("never".into(), 0)]),
        refusals: BTreeMap::from([("no_payload".into(), 9), ("ip_options".into(), 1)]),
        ..Port::default()
    };
    let outside = Port {
        side: Side::Outside,
        receive: Flow { packets: 19, bytes: 19 * 43_000, trains: 19, segments: 681, calls: 19 },
        drops: BTreeMap::from([("too_big".into(), 3)]),
        ..Port::default()
    };
    let mut made = Instance {
        name: name.into(),
        kind: "tunnel".into(),
        uptime_s: 8040.0,
        offloads: BTreeMap::from([("udp_gro".into(), Offload { on: true, ..Offload::default() })]),
        ..Instance::default()
    };
    made.ports = BTreeMap::from([(name.into(), inside), ("udp".into(), outside)]);
    made.count_drops();
    let before = Instance::default();
    made.recent = Some(Recent { cpu_share: 0.61, receive_bits_per_s: 7.92e9, ..made.recent_since(&before, 10.0) });
    made
}

#[test]
fn the_table_fits_80_columns_and_keeps_names_and_drops() {
    let long = instance("fifteen-letters");
    let mut sick = instance("gw0");
    sick.health.push(Complaint { what: "uso off, and a text of some length".into(), why: None, since: None });
    let text = table(&[long.clone(), sick.clone()], false, false);
    assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    for part in ["fifteen-letters", "7.92", "DROPS", "HEALTH"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let all = table(&[long, sick], false, true);
    assert!(all.contains("KIND") && all.contains("61%") && all.contains("2h14m"), "{all}");
}

#[test]
fn one_of_several_tunnels_is_told_from_all_of_them() {
    let shared = Instance { ports: [("sg1".to_owned(), Port::default())].into(), ..instance("sg0") };
    assert!(of_several("sg1", &shared).is_some_and(|note| note.contains("sg1 shares its port with sg0")));
    assert_eq!((of_several("sg0", &shared), of_several("sg2", &shared)), (None, None));
}

#[test]
fn numbers_stand_at_the_right_of_their_column() {
    let text = table(&[instance("a"), instance("bb")], false, false);
    let lines: Vec<&str> = text.lines().collect();
    let end = lines[0].find("RX Gbit/s").unwrap() + "RX Gbit/s".len();
    assert_eq!(&lines[1][end - 4..end], "7.92");
}

#[test]
fn why_shows_shares_that_add_up_and_leaves_out_what_never_happened() {
    let text = why(&instance("sg0"), false);
    assert!(text.starts_with("sg0, last 10 s: 681 packets in -> 19 units (mean 35.8 segments)\n"), "{text}");
    for part in ["full", "71.0 %", "29.0 %", "no payload", "90.0 %", "udp_gro on", "too big 3", "hint: most of what"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(!text.contains("never"));
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn why_says_what_to_do_about_outer_checksums_once_there_were_wrong_ones() {
    let with = |count| {
        let mut made = instance("sg0");
        made.ports.get_mut("udp").unwrap().drops.insert(OUTER_CSUM.to_owned(), count);
        why(&made, false)
    };
    let text = with(2);
    assert!(text.contains("outer csum 2") && text.contains("hint: outer csum"), "{text}");
    assert!(text.contains("udp6zerocsumrx") && text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(!with(0).contains("outer csum"));
}

#[test]
fn interfaces_that_share_a_port_are_one_line() {
    let mut many = instance("sg0");
    let one = Port { side: Side::Inside, ..Port::default() };
    for n in 0..1000 {
        let mut port = one.clone();
        port.receive.packets = n;
        let seen = Seen { packets: n, segments: n, ..Seen::default() };
        port.stages.insert("entry".to_owned(), seen);
        many.ports.insert(format!("t{n}"), port);
    }
    many.recent = None;
    let text = why(&many, true);
    assert!(text.contains("  interfaces  receive") && text.contains(" 499500 "), "{text}");
    assert!(text.lines().count() < 40, "{text}");
}

#[test]
fn every_cell_of_the_table_has_a_key_in_json() {
    let json = json!(instance("sg0"));
    for key in ["name", "kind", "uptime_s", "drops", "health"] {
        assert!(json.get(key).is_some(), "{key}");
    }
    for key in ["receive_bits_per_s", "transmit_bits_per_s", "receive_train_bytes", "transmit_train_bytes", "cpu_share"]
    {
        assert!(json["recent"].get(key).is_some(), "{key}");
    }
}
