//! Tests of HEALTH where this host itself keeps the packets of a tunnel: by a route that leads back into the tunnel,
//! and by a packet filter.

use std::time::Duration;

use segue_lab::Family::V4;
use segue_lab::{LinkForm, Peer, Process};
use segue_tests::Carrier::Gue;
use segue_tests::Inside::{Gre, Ipip};
use segue_tests::{Ground, Pair, Shape, Stat, test_name, until};
use serde_json::Value;

#[test]
fn a_route_back_into_the_tunnel_and_a_filter_of_this_host_are_named_until_they_are_gone() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ping", "nft"]) else { return };
    let (a, program) = (&ground.a, ground.program.as_path());
    let pair = Pair::start(&ground, Shape::new(Gre, Gue, V4), 1);
    // So few packets that their number is no problem.
    let mut command = a.command("ping");
    command.args(["-q", "-i", "0.5", &Peer::B.address(1, V4).to_string()]);
    let traffic = Process::spawn(command, b"").expect("ping starts");
    let problem = |code: &str| -> Option<Value> {
        let stat = Stat::read(a, program, &Shape::device(1));
        let problems = stat.json()["health"].as_array()?.clone();
        problems.into_iter().find(|problem| problem["code"] == code)
    };
    let ends = |code: &str| until(&format!("{code} does not end"), || problem(code).is_none().then_some(()));

    a.run("ip", &["route", "add", "198.18.0.2", "dev", "sg1"]).expect("a route");
    let looped = until("no route_loop", || problem("route_loop"));
    assert_eq!(problem("mtu"), None, "the path is as wide as before");
    until("no packet is dropped as loop", || (Stat::read(a, program, "sg1").dropped("loop") > 0).then_some(()));
    let words: Vec<&str> = looped["fix"].as_str().unwrap().split(' ').collect();
    assert_eq!(words[..2], ["sudo", "ip"], "{looped}");
    a.run("ip", &words[2..]).expect("the remedy");
    ends("route_loop");

    let is_filtered = || {
        let rules = "add table inet t; add chain inet t out { type filter hook output priority 0; }; \
                     add rule inet t out udp dport 6081 drop";
        a.run("nft", &[rules]).expect("rules");
        let filtered = until("no filtered", || problem("filtered"));
        assert_eq!(filtered["what"], "a filter of this host refuses packets from 198.18.0.1");
        assert_eq!(problem("drops"), None, "they are too few");
        a.run("nft", &["delete table inet t"]).expect("no rules");
        ends("filtered");
    };
    is_filtered();
    drop((traffic, pair));
    // Without traffic, answers to another end, and what the kernel sends by an interface for IPv6, the probes tell.
    let shape = Shape { extra: &["probe", "1"], ..Shape::new(Ipip, Gue, V4) };
    let Pair { at_a, mut at_b, .. } = Pair::start(&ground, shape, 1);
    let answered = || Stat::read(a, program, "sg1").json()["tunnels"]["sg1"]["probe"]["answered"].as_u64();
    until("no answer", || answered().filter(|count| *count > 0));
    at_b.process.stop(Duration::from_secs(5)).expect("it ends");
    is_filtered();
    drop((at_a, at_b));
}
