//! Tests of reloads of `segue run` that change some of the tunnels on a port: the others lose no packet in either
//! direction.

mod common;
#[path = "common/numbered.rs"]
mod numbered;
#[path = "common/service.rs"]
mod service;

use std::net::SocketAddr;
use std::time::Duration;

use numbered::Numbered;
use segue_lab::{Family, Peer};
use serde_json::Value;
use service::{PATIENCE, Pair};

/// Returns the configuration of a tunnel of network `net` with these words.
fn with(end: Peer, net: u8, words: &str) -> String {
    let family = if words.contains("ip6") { Family::V6 } else { Family::V4 };
    let (local, remote) = (end.address(0, family), end.other().address(0, family));
    format!(
        "[[tunnel]]\ndev = \"sg{net}\"\nlocal = \"{local}\"\nremote = \"{remote}\"\naddr = \"{}\"\n{words}\n",
        end.prefix(net, Family::V4)
    )
}

/// Returns the configuration of a tunnel that shares port 6080 with others of its kind.
fn keyed(end: Peer, net: u8, more: &str) -> String {
    with(end, net, &format!("encap = \"gue\"\nkey = {net}\n{more}"))
}

/// Returns the index of an interface of the first host, which changes when the interface is recreated.
fn index(pair: &Pair, dev: &str) -> String {
    pair.near.run("cat", &[&format!("/sys/class/net/{dev}/ifindex")]).unwrap()
}

fn interfaces(pair: &Pair) -> Vec<String> {
    let mut devices = pair.near.devices();
    devices.retain(|name| name.starts_with("sg"));
    devices.sort();
    devices
}

fn list(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
}

/// Starts streams in both directions through `sg1`.
fn streams(pair: &Pair) -> [Numbered; 2] {
    let at = |end: Peer| SocketAddr::new(end.address(1, Family::V4), 5003);
    [pair.numbered(), Numbered::start((&pair.far, at(Peer::B)), (&pair.near, at(Peer::A)), 600)]
}

/// Ends both streams and returns the smaller number of datagrams.
#[track_caller]
fn finish(streams: [Numbered; 2]) -> u64 {
    let [one, other] = streams.map(Numbered::finish);
    one.min(other)
}

#[track_caller]
fn stop(pair: Pair) {
    let Pair { mut service, mut other, .. } = pair;
    assert_eq!([&mut service, &mut other].map(|one| one.stop(PATIENCE).and_then(|end| end.code())), [Some(0); 2]);
}

#[test]
fn tunnels_of_a_port_lose_nothing_while_others_of_it_come_change_and_go() {
    let all =
        |tunnels: &[(u8, &str)]| -> String { tunnels.iter().map(|(net, more)| keyed(Peer::A, *net, more)).collect() };
    let Some(pair) = Pair::with(&all(&[(1, "")]), &keyed(Peer::B, 1, ""), &[]) else { return };
    let mut streams = streams(&pair);
    let mut pass = || streams.iter_mut().for_each(|stream| stream.pass(300));
    pass();
    let made = index(&pair, "sg1");
    // With a hold time there are always packets inside the instance.
    for (knob, value) in [("max_burst", "40000"), ("hold_us", "5000")] {
        pair.near.run(common::SEGUE, &["set", "sg1", &format!("net.gro.dev.sg1.{knob}"), value]).unwrap();
    }
    let mut before = pair.stat();
    for (tunnels, name) in [
        // Tunnels are added, one of them before sg1 in the file.
        (&[(1, ""), (2, "")][..], "sg1"),
        (&[(3, ""), (1, ""), (2, "")], "sg3"),
        // The other tunnels change, including the first one.
        (&[(3, "ttl = 9"), (1, ""), (2, "tos = 8"), (4, "")], "sg3"),
        // The first tunnel is removed, then another one.
        (&[(1, ""), (2, "tos = 8"), (4, "")], "sg1"),
        (&[(2, "tos = 8"), (1, "")], "sg2"),
        // Only sg1 is left.
        (&[(1, "")], "sg1"),
    ] {
        let kept = interfaces(&pair);
        let done = pair.reload(&all(tunnels));
        assert_eq!((done["event"].as_str(), list(&done["handed_over"])), (Some("reloaded"), vec![name]), "{done}");
        for others in ["unchanged", "restarted", "started", "stopped"] {
            assert!(list(&done[others]).is_empty(), "{done}");
        }
        pass();
        let now = pair.stat();
        assert_eq!(now.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), [name]);
        assert_ne!(now[0].1, before[0].1, "another process");
        before = now;
        let mut wanted: Vec<String> = tunnels.iter().map(|(net, _)| format!("sg{net}")).collect();
        wanted.sort();
        assert_eq!(interfaces(&pair), wanted, "of {kept:?}");
        assert_eq!(index(&pair, "sg1"), made, "the same interface");
        assert_eq!(pair.knob("sg1", "net.gro.dev.sg1.max_burst"), "40000", "what somebody has set stays");
    }
    // The processes that were replaced reported no event.
    let said = pair.events();
    let loud = said.iter().filter(|event| event["handover"].is_null()).filter_map(|event| event["event"].as_str());
    assert_eq!(loud.filter(|event| ["up", "down"].contains(event)).count(), 1, "sg1 came up once: {said:?}");
    assert_eq!(
        pair.near
            .run("sh", &["-c", "ls \"$SEGUE_RUNTIME_DIR\" /run/segue 2>/dev/null | grep -c next || true"])
            .unwrap()
            .trim(),
        "0"
    );
    assert!(finish(streams) > 2000);
    stop(pair);
}

#[test]
fn a_reload_while_an_instance_ends_by_itself_starts_what_the_file_has() {
    let file = |nets: &[u8], more: &str| -> String { nets.iter().map(|net| keyed(Peer::A, *net, more)).collect() };
    let Some(pair) = Pair::with(&file(&[1, 2, 3], ""), &keyed(Peer::B, 1, ""), &[]) else { return };
    for delay in [0, 20, 100, 300, 700] {
        assert_eq!(interfaces(&pair), ["sg1", "sg2", "sg3"]);
        pair.near.run("ip", &["link", "del", "sg2"]).unwrap();
        // The delays are the cases: before the end is noticed, in its middle, and after it.
        std::thread::sleep(Duration::from_millis(delay));
        let done = pair.reload(&file(&[1, 3], ""));
        assert_eq!(done["event"], "reloaded", "{delay}: {done}");
        // The reload may come before the instance has noticed the end, and after it was restarted: it is then handed
        // over. In between it has no process that could hand over anything.
        let how = if list(&done["handed_over"]).is_empty() { "restarted" } else { "handed_over" };
        for other in ["restarted", "unchanged", "handed_over", "started", "stopped"] {
            let names = if other == how { vec!["sg1"] } else { vec![] };
            assert_eq!(list(&done[other]), names, "{delay}: {other} in {done}");
        }
        // The removed tunnel does not come back: the pause is longer than a restart takes.
        std::thread::sleep(Duration::from_millis(if delay == 100 { 2500 } else { 0 }));
        assert_eq!(interfaces(&pair), ["sg1", "sg3"]);
        assert_eq!(pair.reload(&file(&[1, 2, 3], ""))["event"], "reloaded");
    }
    // If only a setting changes, the instance restarts with the new value.
    pair.near.run("ip", &["link", "del", "sg2"]).unwrap();
    let done = pair.reload(&file(&[1, 2, 3], "net.gro.dev.sg2.hold_us = 70"));
    assert_eq!(done["event"], "reloaded", "{done}");
    let begin = std::time::Instant::now();
    while interfaces(&pair).len() < 3 && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(interfaces(&pair), ["sg1", "sg2", "sg3"]);
    assert_eq!(list(&done["knobs"]), ["sg1"], "{done}");
    assert_eq!(pair.knob("sg1", "net.gro.dev.sg2.hold_us"), "70");
    let complaints = pair.service.stderr();
    assert!(!complaints.contains("no running instance"), "{complaints}");
    stop(pair);
}

#[test]
fn a_setting_that_comes_while_an_instance_starts_is_not_lost() {
    // Many tunnels, so that the start takes a while.
    let file =
        |more: &str| -> String { (1..=120).map(|net| keyed(Peer::A, net, if net == 1 { more } else { "" })).collect() };
    let Some(pair) = Pair::with(&file(""), &keyed(Peer::B, 1, ""), &[]) else { return };
    let children = format!("/proc/{0}/task/{0}/children", pair.service.id());
    let process = || std::fs::read_to_string(&children).unwrap();
    let before = process();
    pair.near.run("ip", &["link", "del", "sg50"]).unwrap();
    let begin = std::time::Instant::now();
    while process().is_empty() || process() == before {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    let done = pair.reload(&file("net.gro.dev.sg1.hold_us = 70"));
    assert_eq!(done["event"], "reloaded", "{done} {:?}", pair.events());
    assert_eq!(list(&done["knobs"]), ["sg1"], "{done}");
    // If interfaces of the old process still existed, the new process failed too and is started later.
    while pair.stat().is_empty() {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(pair.knob("sg1", "net.gro.dev.sg1.hold_us"), "70");
    stop(pair);
}

#[test]
fn every_kind_of_port_is_handed_over() {
    for (kind, words) in [
        ("raw sockets", "key = NET"),
        ("raw sockets, two protocols", "mode = \"ip6tnl\"\nttl = 33"),
        ("numbered packets", "key = NET\nseq = true"),
        ("numbered packets over UDP", "encap = \"gue\"\nkey = NET\nseq = true"),
        ("one source port", "encap = \"gue\"\nkey = NET\nencap-sport = 7000"),
        ("the port itself", "encap = \"gue\"\nkey = NET\nencap-sport = 6080"),
        ("frames", "mode = \"gretap\"\nencap = \"gue\"\nkey = NET"),
        ("VXLAN", "mode = \"vxlan\"\nid = NET\nsrcport = [7000, 7003]"),
        ("Geneve", "mode = \"geneve\"\nid = NET"),
        ("one system call a packet", "encap = \"gue\"\nkey = NET\ngso = false\ngro = false"),
    ] {
        let tunnel =
            |end: Peer, net: u8, more: &str| with(end, net, &(words.replace("NET", &net.to_string()) + "\n" + more));
        let first = tunnel(Peer::A, 1, "");
        // Tunnels without a key are distinguished by the remote.
        let second = match words.contains("NET") {
            true => tunnel(Peer::A, 2, ""),
            false => tunnel(Peer::A, 2, "").replace(&Peer::B.address(0, Family::V6).to_string(), "2001:db8::99"),
        };
        let Some(pair) = Pair::with(&first, &tunnel(Peer::B, 1, ""), &[]) else { return };
        let mut streams = streams(&pair);
        let made = index(&pair, "sg1");
        for file in [second.clone() + &first, first.clone() + &second, first.clone()] {
            streams.iter_mut().for_each(|stream| stream.pass(100));
            let done = pair.reload(&file);
            assert_eq!(done["handed_over"].as_array().map(Vec::len), Some(1), "{kind}: {done} {:?}", pair.events());
        }
        streams.iter_mut().for_each(|stream| stream.pass(100));
        assert_eq!(index(&pair, "sg1"), made, "{kind}");
        finish(streams);
        stop(pair);
    }
}

#[test]
fn failed_handover_leaves_the_port_unchanged() {
    let base = keyed(Peer::A, 1, "") + &keyed(Peer::A, 2, "ttl = 9");
    let Some(pair) = Pair::with(&base, &keyed(Peer::B, 1, ""), &[]) else { return };
    let mut streams = streams(&pair);
    let mut pass = || streams.iter_mut().for_each(|stream| stream.pass(200));
    pass();
    let made = index(&pair, "sg1");
    pair.near.run("ip", &["link", "add", "sg3", "type", "veth", "peer", "name", "taken"]).unwrap();
    // A tunnel is added, alone and together with a change, whose name an interface of another kind has.
    for more in ["ttl = 9", "ttl = 10"] {
        let refused = pair.reload(&(keyed(Peer::A, 1, "") + &keyed(Peer::A, 2, more) + &keyed(Peer::A, 3, "")));
        assert_eq!(refused["event"], "reload_refused", "{refused}");
        assert!(refused["reason"].as_str().unwrap().contains("sg3"), "{refused}");
        pass();
        assert_eq!(pair.stat().iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["sg1"]);
        assert_eq!(
            (interfaces(&pair), index(&pair, "sg1")),
            (vec!["sg1".into(), "sg2".into(), "sg3".into()], made.clone())
        );
    }
    pair.near.run("ip", &["link", "del", "sg3"]).unwrap();
    let done = pair.reload(&(base + &keyed(Peer::A, 3, "")));
    assert_eq!(list(&done["handed_over"]), ["sg1"], "{done}");
    pass();
    finish(streams);
    stop(pair);
}

#[test]
fn a_handover_that_fails_first_is_undone_without_an_instance_that_has_nothing_to_do_with_it() {
    let other = |net: u8| keyed(Peer::A, net, "port = 6085\nencap-dport = 6085");
    let base = keyed(Peer::A, 1, "") + &keyed(Peer::A, 2, "") + &other(4);
    let Some(pair) = Pair::with(&base, &keyed(Peer::B, 1, ""), &[]) else { return };
    let before = (pair.stat(), [1, 2, 4].map(|net| index(&pair, &format!("sg{net}"))));
    // sg1 moves to the port of sg4, whose instance then has the name of the present one; that one cannot give it up
    // first, since the name of its successor cannot be taken.
    pair.near.run("mkdir", &["-p", "/run/segue/sg2.sock/is not empty"]).unwrap();
    let refused = pair.reload(&(keyed(Peer::A, 2, "") + &other(1) + &other(4)));
    assert_eq!(refused["event"], "reload_refused", "{refused}");
    assert_eq!((pair.stat(), [1, 2, 4].map(|net| index(&pair, &format!("sg{net}")))), before);
    let errors: Vec<Value> = pair.events().into_iter().filter(|event| event["error"].is_object()).collect();
    assert_eq!(errors.len(), 1, "the undo needed nothing: {errors:?}");
    pair.near.run("rm", &["-r", "/run/segue/sg2.sock"]).unwrap();
    let done = pair.reload(&(keyed(Peer::A, 2, "") + &other(1) + &other(4)));
    assert_eq!(list(&done["handed_over"]), ["sg2", "sg1"], "{done}");
    stop(pair);
}

#[test]
fn a_tunnel_moves_from_one_port_to_another_and_those_of_both_lose_nothing() {
    let other = |net: u8| keyed(Peer::A, net, "port = 6085\nencap-dport = 6085");
    let Some(pair) = Pair::with(
        &(keyed(Peer::A, 1, "") + &keyed(Peer::A, 2, "") + &other(3) + &other(4)),
        &keyed(Peer::B, 1, ""),
        &[],
    ) else {
        return;
    };
    let mut streams = streams(&pair);
    let made = ["sg1", "sg2", "sg3", "sg4"].map(|dev| index(&pair, dev));
    for (file, moved) in [
        (keyed(Peer::A, 1, "") + &keyed(Peer::A, 2, "") + &keyed(Peer::A, 4, "") + &other(3), "sg4"),
        (keyed(Peer::A, 1, "") + &other(2) + &keyed(Peer::A, 4, "") + &other(3), "sg2"),
    ] {
        streams.iter_mut().for_each(|stream| stream.pass(200));
        let before = ["sg1", "sg2", "sg3", "sg4"].map(|dev| index(&pair, dev));
        let done = pair.reload(&file);
        assert_eq!(done["handed_over"].as_array().map(Vec::len), Some(2), "{done}");
        let after = ["sg1", "sg2", "sg3", "sg4"].map(|dev| index(&pair, dev));
        let changed: Vec<usize> = (0..4).filter(|at| before[*at] != after[*at]).collect();
        assert_eq!(changed, [moved[2..].parse::<usize>().unwrap() - 1], "only {moved} is made anew");
    }
    assert_eq!(index(&pair, "sg1"), made[0]);
    finish(streams);
    stop(pair);
}

#[test]
fn workers_take_over_their_queues_and_sockets_and_nothing_is_lost() {
    let two = |end: Peer, net: u8, more: &str| keyed(end, net, &format!("workers = 2\nfastpath = \"off\"\n{more}"));
    let Some(pair) = Pair::with(&two(Peer::A, 1, ""), &two(Peer::B, 1, ""), &[]) else { return };
    let mut streams = streams(&pair);
    let mut pass = || streams.iter_mut().for_each(|stream| stream.pass(300));
    pass();
    let made = index(&pair, "sg1");
    for (tunnels, name) in [
        (two(Peer::A, 1, "") + &two(Peer::A, 2, ""), "sg1"),
        (two(Peer::A, 2, "ttl = 9") + &two(Peer::A, 1, ""), "sg2"),
        (two(Peer::A, 1, ""), "sg1"),
    ] {
        let done = pair.reload(&tunnels);
        assert_eq!((done["event"].as_str(), list(&done["handed_over"])), (Some("reloaded"), vec![name]), "{done}");
        pass();
        assert_eq!(index(&pair, "sg1"), made, "the same interface");
    }
    let sent = finish(streams);
    assert!(sent >= 4 * 300, "{sent}");
    // Another number of workers is another interface.
    let done = pair.reload(&keyed(Peer::A, 1, "workers = 3\nfastpath = \"off\"\n"));
    assert_eq!(list(&done["restarted"]), ["sg1"], "{done}");
    assert_ne!(index(&pair, "sg1"), made, "another interface");
    stop(pair);
}
