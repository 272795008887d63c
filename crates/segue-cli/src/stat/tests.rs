//! Tests of the text of `segue stat`.

use std::collections::BTreeMap;

use segue_control::model::{
    Complaint, Fastpath, FastpathPeers, Flow, OUTER_CSUM, Offload, Port, Probe, Recent, Seen, Side, TX_DROPPED, Tunnel,
};

use super::table::within;
use super::*;

const WIDTH: usize = 80;
const FULL: Form = Form { raw: false, details: true };

fn table(instances: &[Instance], form: Form) -> String {
    within(instances, None, form, WIDTH)
}

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
fn raw_shows_exact_numbers_where_the_table_has_units() {
    let one = [instance("sg0")];
    let (scaled, raw) = (table(&one, FULL), table(&one, Form { raw: true, details: true }));
    // Time, and of 19 trains in ten seconds the rate, the sum and the mean.
    for (with_unit, exact) in [("2h14m", "8040"), ("654k", "653600"), ("817 kB", "817000"), ("43.0k", "43000")] {
        assert!(scaled.contains(with_unit) && !scaled.contains(exact), "{with_unit} and not {exact}: {scaled}");
        assert!(raw.contains(exact) && !raw.contains(with_unit), "{exact} and not {with_unit}: {raw}");
    }
}

#[test]
fn the_table_fits_80_columns_and_keeps_names_and_drops() {
    let long = instance("fifteen-letters");
    let mut sick = instance("gw0");
    sick.health.push(Complaint { what: "uso off, and a text of some length".into(), ..Complaint::default() });
    let text = table(&[long.clone(), sick.clone()], Form::default());
    assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    for part in ["fifteen-letters", "RX bit/s", "DROPS", "HEALTH"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let all = table(&[long, sick], FULL);
    assert!(all.contains("KIND") && all.contains("61%") && all.contains("2h14m"), "{all}");
    // A narrow terminal has fewer columns, a wide one has more.
    for (width, has_kind) in [(60, false), (WIDTH, false), (132, true)] {
        let text = within(&[instance("fifteen-letters")], None, Form::default(), width);
        assert!(text.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
        assert_eq!(text.contains("KIND"), has_kind, "{width}: {text}");
    }
}

#[test]
fn each_tunnel_of_a_shared_port_has_a_line_with_its_own_figures() {
    let mut shared = instance("sg0");
    for (at, name) in ["sg0", "sg1", "sg2"].into_iter().enumerate() {
        let tunnel = Tunnel { mode: "gre in GUE".into(), remote: format!("198.18.0.{at}:6080"), ..Tunnel::default() };
        shared.tunnels.insert(name.into(), tunnel);
        let mut port = shared.ports["sg0"].clone();
        port.transmit.bytes = 1_000_000 * at as u64;
        shared.ports.insert(name.into(), port);
    }
    shared.recent = Some(shared.recent_since(&Instance::default(), 2.0));
    let what = "198.18.0.1 refuses UDP 6080".to_owned();
    shared.health = vec![Complaint { what, tunnels: vec!["sg1".into()], ..Complaint::default() }];
    let text = table(&[shared.clone()], Form::default());
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.iter().map(|line| line[0]).collect::<Vec<_>>(), ["NAME", "sg0", "sg1", "sg2"], "{text}");
    assert!(lines[2].contains(&"4.00M") && lines[3].contains(&"8.00M"), "{text}");
    assert!(lines[1].ends_with(&["ok"]) && lines[2].ends_with(&["refuses", "UDP", "6080"]), "{text}");
    let one = within(&[shared.clone()], Some("sg2"), Form::default(), WIDTH);
    assert!(one.lines().count() == 2 && one.contains("sg2"), "{one}");
    let full = table(&[shared], FULL);
    assert!(full.contains("198.18.0.2:6080") && full.contains("PID"), "{full}");
}

#[test]
fn a_thousand_tunnels_are_a_thousand_lines() {
    let mut many = instance("t0");
    for n in 0..1000 {
        many.tunnels.insert(format!("t{n}"), Tunnel::default());
        many.ports.insert(format!("t{n}"), Port::default());
    }
    assert_eq!(table(&[many], Form::default()).lines().count(), 1001);
}

#[test]
fn rates_of_a_watch_are_those_of_its_own_interval() {
    let before = Instance { uptime_s: 10.0, pid: 7, ..instance("sg0") };
    let mut now = Instance { uptime_s: 12.0, ..before.clone() };
    now.ports.get_mut("udp").unwrap().receive.bytes += 250_000;
    let document = |instance: &Instance| Document {
        schema: String::new(),
        t: String::new(),
        instances: vec![instance.clone()],
        fleet: Default::default(),
        unanswered: Default::default(),
    };
    measure(&mut now, &document(&before));
    let recent = now.recent.unwrap();
    assert_eq!((recent.interval_s, recent.receive_bits_per_s), (2.0, 1e6));
    // Another process of the same name has counters of its own.
    let mut other = Instance { pid: 8, uptime_s: 13.0, recent: None, ..before.clone() };
    measure(&mut other, &document(&before));
    assert_eq!(other.recent, None);
}

#[test]
fn numbers_stand_at_the_right_of_their_column() {
    let text = table(&[instance("a"), instance("bb")], Form::default());
    let lines: Vec<&str> = text.lines().collect();
    let end = lines[0].find("RX bit/s").unwrap() + "RX bit/s".len();
    assert_eq!(&lines[1][end - 4..end], "654k");
}

#[test]
fn problems_come_first_with_reason_and_remedy_and_a_notice_is_no_failure() {
    let mut sick = instance("sg0");
    sick.health = vec![
        Complaint {
            what: "e0 is down".into(),
            why: Some("packets to 198.18.0.2 leave by it".into()),
            fix: Some("sudo ip link set dev e0 up".into()),
            ..Complaint::default()
        },
        Complaint { what: "unanswered 12 s".into(), notice: true, ..Complaint::default() },
    ];
    sick.reasons =
        [("drops".to_owned(), [("too_big".to_owned(), "Larger than the path takes.".to_owned())].into())].into();
    let text = why(&sick, None, false);
    let begin =
        "problem: e0 is down\n  why: packets to 198.18.0.2 leave by it\n  fix: sudo ip link set dev e0 up\nnotice: un";
    assert!(text.starts_with(begin), "{text}");
    assert!(text.contains("too big: Larger than the path takes.\n"), "{text}");
    assert_eq!(sick.failures().count(), 1);
    assert!(table(&[sick], Form::default()).contains("e0 is down"));
}

#[test]
fn why_shows_shares_that_add_up_and_leaves_out_what_never_happened() {
    let text = why(&instance("sg0"), None, false);
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
        why(&made, None, false)
    };
    let text = with(2);
    assert!(text.contains("outer csum 2") && text.contains("hint: outer csum"), "{text}");
    assert!(text.contains("udp6zerocsumrx") && text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(!with(0).contains("outer csum"));
}

#[test]
fn why_says_what_the_queue_of_an_interface_had_no_room_for() {
    let with = |count| {
        let mut made = instance("sg0");
        made.ports.get_mut("sg0").unwrap().numbers.insert(TX_DROPPED.to_owned(), count);
        why(&made, None, false)
    };
    let text = with(123_456_789);
    assert!(text.contains("hint: tx_dropped 123456789: "), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(!with(0).contains(TX_DROPPED));
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
    let text = why(&many, None, true);
    assert!(text.contains("  interfaces  receive") && text.contains(" 499500 "), "{text}");
    assert!(text.lines().count() < 40, "{text}");
}

#[test]
fn every_cell_of_the_table_has_a_key_in_json() {
    let mut one = instance("sg0");
    let tunnel = Tunnel { received_age_s: Some(1.0), probe: Some(Probe::default()), ..Tunnel::default() };
    one.tunnels.insert("sg0".into(), tunnel);
    one.ports.get_mut("sg0").unwrap().fastpath.insert("received".into(), 1);
    let json = json!(one);
    // Of each column what it shows, or is computed from.
    let columns = [
        ("NAME", "/name"),
        ("KIND", "/tunnels/sg0/mode"),
        ("PID", "/pid"),
        ("UP", "/uptime_s"),
        ("UNDERLAY", "/tunnels/sg0/underlay"),
        ("LOCAL", "/tunnels/sg0/local"),
        ("REMOTE", "/tunnels/sg0/remote"),
        ("MTU", "/tunnels/sg0/mtu"),
        ("RX bit/s", "/recent/receive_bits_per_s"),
        ("TX bit/s", "/recent/transmit_bits_per_s"),
        ("RX pkt/s", "/recent/ports/udp/receive/segments"),
        ("TX pkt/s", "/recent/ports/udp/transmit/segments"),
        ("RX bytes", "/ports/udp/receive/bytes"),
        ("TX bytes", "/ports/udp/transmit/bytes"),
        ("TRAIN rx/tx", "/recent/receive_train_bytes"),
        ("KERNEL rx/tx", "/ports/sg0/fastpath/received"),
        ("CPU", "/recent/cpu_share"),
        ("DROPS", "/drops"),
        ("HEARD", "/tunnels/sg0/received_age_s"),
        ("PROBE", "/tunnels/sg0/probe"),
        ("HEALTH", "/health"),
    ];
    let text = table(&[one], FULL);
    let heads = text.lines().next().unwrap().split("  ").map(str::trim).filter(|head| !head.is_empty());
    assert_eq!(heads.collect::<Vec<_>>(), columns.map(|(head, _)| head));
    for (head, place) in columns {
        assert!(json.pointer(place).is_some(), "{head}: no {place} in {json}");
    }
}

#[test]
fn each_tunnel_says_who_carried_its_packets_and_why_segue_did() {
    let taken = BTreeMap::from([("received".to_owned(), 600), ("sent".to_owned(), 0)]);
    let mut one = instance("sg0");
    one.tunnels.insert("sg0".into(), Tunnel::default());
    one.fastpath = Some(Fastpath { mode: "auto".into(), on: true, ..Fastpath::default() });
    let inside = one.ports.get_mut("sg0").unwrap();
    (inside.fastpath, inside.left) = (taken, BTreeMap::from([("no_route".into(), 3), ("ecn".into(), 81)]));
    one.ports.get_mut("udp").unwrap().left.insert("gue_header".into(), 4);
    let text = path::lines(&[one.clone()], None, false);
    let words: Vec<&str> = text.split_whitespace().collect();
    let expected = "sg0: packets by the kernel 600 received, 0 sent; \
                    by segue 81 received, 0 sent [ecn 81, no route 3, gue header 4]";
    assert_eq!(words.join(" "), expected);
    assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");

    // Of several tunnels the port's own reasons belong to no single tunnel.
    let mut both = one.clone();
    both.tunnels.insert("sg1".into(), Tunnel::default());
    both.ports.insert("sg1".into(), Port::default());
    let text = path::lines(&[both.clone()], None, false);
    assert!(text.contains("sg1: packets by the kernel 0 received, 0 sent; by segue 0 received, 0 sent\n"), "{text}");
    assert!(text.ends_with("udp of sg0: left to segue before the tunnel was known [gue header 4]\n"), "{text}");
    assert_eq!(path::lines(&[both], Some("sg1"), false).lines().count(), 1);

    let mut off = instance("sg0");
    off.tunnels.insert("sg0".into(), Tunnel::default());
    let why = Some("remote checksum offload is done by the daemon".to_owned());
    off.fastpath = Some(Fastpath { mode: "auto".into(), why, ..Fastpath::default() });
    let text = path::lines(&[off.clone()], None, false);
    let words: Vec<&str> = text.split_whitespace().collect();
    let expected = "sg0: packets by segue 681 received, 0 sent [remote checksum offload is done by the daemon]";
    assert_eq!(words.join(" "), expected);
    let segue = BTreeMap::from([("remote checksum offload is done by the daemon".to_owned(), 2)]);
    let peers = Some(Box::new(FastpathPeers { kernel: 3, segue }));
    (off.fastpath, off.tunnels) =
        (Some(Fastpath { mode: "auto".into(), on: true, peers, ..Fastpath::default() }), BTreeMap::new());
    let text = path::lines(&[off.clone()], None, false);
    let words: Vec<&str> = text.split_whitespace().collect();
    let expected = "sg0: packets by the kernel 0 received, 0 sent; by segue 681 received, 0 sent \
                    [peers by the kernel 3, by segue 2: remote checksum offload is done by the daemon]";
    assert_eq!(words.join(" "), expected);
    off.fastpath = Some(Fastpath { mode: "off".into(), ..Fastpath::default() });
    assert_eq!(path::lines(&[off, instance("gw0")], None, false), "");
}
