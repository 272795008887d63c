//! Tests of interfaces that are renamed or moved to another network namespace while an instance uses them: packets pass
//! again, HEALTH names what is missing meanwhile, no processor is kept busy, and no other instance is affected.

use std::thread;
use std::time::Duration;

use segue_lab::{Family, Host, Peer, reach};
use segue_tests::faults::{Forwarder, PATIENCE, Service, tail};
use segue_tests::routed::ip;
use segue_tests::{sys, test_name, until};
use serde_json::Value;

/// Time in which an instance whose interface is away is watched.
const WATCHED: Duration = Duration::from_secs(1);
/// Most processor time that it may use then: waking up a few times takes a hundredth of that.
const IDLE: f64 = 0.2;

#[test]
fn a_tunnel_whose_interface_is_renamed_goes_on_and_health_has_the_new_name() {
    let Some(service) = Service::start(test_name!(), 1, "", &[]) else { return };
    let host = &service.ground.a;
    assert!(service.passes(1, PATIENCE), "{}", tail(&service.near));
    let pid = service.patient_pid("sg1");
    ip(host, "link set dev sg1 down");
    ip(host, "link set dev sg1 name vpn0");
    until("its new name", || {
        let found = problem(&service, "sg1", "interface_down")??;
        let is_named = found["why"].as_str()?.contains("sg1 at the start");
        (is_named && found["fix"] == "sudo ip link set dev vpn0 up").then_some(())
    });
    ip(host, "link set dev vpn0 up");
    assert!(service.passes(1, PATIENCE), "{}", tail(&service.near));
    until("no problem", || problem(&service, "sg1", "interface_down")?.is_none().then_some(()));
    assert_eq!(service.patient_pid("sg1"), pid);
}

#[test]
fn gateways_and_routers_go_on_with_a_renamed_port_until_a_start_that_misses_it() {
    let made = Service::prepared(test_name!(), 1, Forwarder::TABLES, &[], Forwarder::both);
    let Some((service, forwarders)) = &made else { return };
    let host = &service.ground.a;
    let rename = |from: &str, to: &str| {
        ip(host, &format!("link set dev {from} down"));
        ip(host, &format!("link set dev {from} name {to}"));
        ip(host, &format!("link set dev {to} up"));
    };
    for (Forwarder { name, .. }, port) in forwarders.iter().zip(["br-c", "rt-c"]) {
        let passes = || forwarders.iter().all(|forwarder| forwarder.passes(service, PATIENCE));
        assert!(passes(), "{}", tail(&service.near));
        let pid = service.patient_pid(name).expect("it runs");
        rename(port, "other");
        assert!(passes(), "{name}: {}", tail(&service.near));
        assert_eq!(service.patient_pid(name), Some(pid));
        sys::signal(pid, libc::SIGKILL).unwrap();
        until("the missing port", || is_missed(service, name, port));
        rename("other", port);
        assert!(passes(), "{name}: {}", tail(&service.near));
    }
}

#[test]
fn a_gateway_whose_port_is_moved_to_another_namespace_names_it_and_is_started_when_it_is_back() {
    let made = Service::prepared(test_name!(), 1, Forwarder::TABLES, &[], Forwarder::both);
    let Some((service, [bridge, router])) = &made else { return };
    let [a, b] = [&service.ground.a, &service.ground.b];
    assert!(bridge.passes(service, PATIENCE) && router.passes(service, PATIENCE), "{}", tail(&service.near));
    let others = || ["sg1", router.name].map(|name| service.patient_pid(name));
    let before = others();
    ip(a, &format!("link set dev br-c netns {}", b.net_path()));
    until("the missing port", || is_missed(service, bridge.name, "br-c"));
    assert!(service.passes(1, PATIENCE) && router.passes(service, PATIENCE), "{}", tail(&service.near));
    ip(b, &format!("link set dev br-c netns {}", a.net_path()));
    ip(a, "link set dev br-c up");
    assert!(bridge.passes(service, PATIENCE), "{}", tail(&service.near));
    until("no problem", || problem(service, bridge.name, "down")?.is_none().then_some(()));
    assert_eq!(others(), before);
}

#[test]
fn a_router_whose_port_is_moved_to_another_namespace_names_it_and_is_started_when_it_is_back() {
    let made = Service::prepared(test_name!(), 1, Forwarder::TABLES, &[], Forwarder::both);
    let Some((service, [bridge, router])) = &made else { return };
    let [a, b] = [&service.ground.a, &service.ground.b];
    assert!(bridge.passes(service, PATIENCE) && router.passes(service, PATIENCE), "{}", tail(&service.near));
    let others = || ["sg1", bridge.name].map(|name| service.patient_pid(name));
    let before = others();
    ip(a, &format!("link set dev rt-c netns {}", b.net_path()));
    until("the missing port", || is_missed(service, router.name, "rt-c"));
    assert!(service.passes(1, PATIENCE) && bridge.passes(service, PATIENCE), "{}", tail(&service.near));
    ip(b, &format!("link set dev rt-c netns {}", a.net_path()));
    ip(a, "link set dev rt-c up");
    ip(a, "address add 198.19.203.1/24 dev rt-c");
    assert!(router.passes(service, PATIENCE), "{}", tail(&service.near));
    until("no problem", || problem(service, router.name, "down")?.is_none().then_some(()));
    assert_eq!(others(), before);
}

/// Tests a use that is meant: a tunnel of this host for a namespace that has no other way out.
#[test]
fn a_tunnel_whose_interface_is_moved_to_another_namespace_carries_its_packets_there_and_back_again() {
    let Some(service) = Service::start(test_name!(), 2, "", &[]) else { return };
    let (a, other) = (&service.ground.a, Host::new("other").expect("a host, since two could be made a moment ago"));
    assert!(service.passes(1, PATIENCE), "{}", tail(&service.near));
    let pids = service.pids(2);
    ip(a, &format!("link set dev sg1 netns {}", other.net_path()));
    // It is down, and without its address.
    assert_idle(&service, "sg1");
    let raise = |host: &Host| {
        ip(host, &format!("address add {} dev sg1", Peer::A.prefix(1, Family::V4)));
        ip(host, "link set dev sg1 up");
    };
    raise(&other);
    let [near, far] = [Peer::A, Peer::B].map(|end| end.address(1, Family::V4));
    reach((&other, near), (&service.ground.b, far), PATIENCE).unwrap_or_else(|_| panic!("{}", tail(&service.near)));
    ip(&other, &format!("link set dev sg1 netns {}", a.net_path()));
    until("HEALTH says that it is down", || problem(&service, "sg1", "interface_down")?.map(|_| ()));
    raise(a);
    assert!(service.passes(1, PATIENCE) && service.passes(2, PATIENCE), "{}", tail(&service.near));
    until("no problem", || problem(&service, "sg1", "interface_down")?.is_none().then_some(()));
    assert_eq!(service.pids(2), pids);
}

#[test]
fn tunnels_whose_link_is_moved_to_another_namespace_name_it_and_go_on_when_it_is_back() {
    let Some(service) = Service::start(test_name!(), 2, "", &[]) else { return };
    let [a, b] = [&service.ground.a, &service.ground.b];
    assert!(service.passes(1, PATIENCE) && service.passes(2, PATIENCE), "{}", tail(&service.near));
    let pids = service.pids(2);
    ip(a, "link set dev eth0 name moved");
    ip(a, &format!("link set dev moved netns {}", b.net_path()));
    for name in ["sg1", "sg2"] {
        until("the missing link", || problem(&service, name, "link_gone")?.map(|_| ()));
        assert_idle(&service, name);
    }
    ip(b, &format!("link set dev moved netns {}", a.net_path()));
    ip(a, &format!("address add {} dev moved", Peer::A.prefix(0, Family::V4)));
    ip(a, "link set dev moved up");
    assert!(service.passes(1, PATIENCE) && service.passes(2, PATIENCE), "{}", tail(&service.near));
    for name in ["sg1", "sg2"] {
        until("no problem", || problem(&service, name, "link_gone")?.is_none().then_some(()));
    }
    assert_eq!(service.pids(2), pids);
}

/// Asserts that an instance that cannot move packets keeps no processor busy.
#[track_caller]
fn assert_idle(service: &Service, name: &str) {
    let processor = || service.stat(name).and_then(|stat| stat["cpu_s"].as_f64());
    let before = until("an answer", processor);
    thread::sleep(WATCHED);
    let took = until("an answer", processor) - before;
    assert!(took < IDLE, "{name}: {took} s of processor time; {}", tail(&service.near));
}

/// Returns the problem with this code of an instance that answers, if it has one.
fn problem(service: &Service, name: &str, code: &str) -> Option<Option<Value>> {
    let stat = service.stat(name)?;
    Some(stat["health"].as_array()?.iter().find(|problem| problem["code"] == code).cloned())
}

/// Returns a value where an instance has no process, and HEALTH says that for lack of the interface `port`.
fn is_missed(service: &Service, name: &str, port: &str) -> Option<()> {
    let found = problem(service, name, "down")??;
    found["what"].as_str()?.contains(&format!("no interface {port}")).then_some(())
}
