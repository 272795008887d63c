//! Tests of tunnels without offloads, and on links that offload more than a plain network card: the same bytes arrive.

use std::thread;
use std::time::Duration;

use segue_lab::Family::{V4, V6};
use segue_lab::{LinkForm, Peer};
use segue_tests::Carrier::{Fou, Gue, GueRemcsum};
use segue_tests::Inside::{Gre, Ipip, Sit};
use segue_tests::capture::Directory;
use segue_tests::inject::Traced;
use segue_tests::{Ground, Pair, Shape, Stat, Tunnel, test_name, traffic};

fn carries(pair: &Pair<'_>) {
    for family in pair.shape().inside.families() {
        let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, *family));
        traffic::everything(a, b, traffic::SHORT, 21);
        traffic::datagram_train(a, b, 1200, 40, 22);
    }
    pair.assert_nothing_dropped();
}

fn with(
    inside: segue_tests::Inside,
    carrier: segue_tests::Carrier,
    outer: segue_lab::Family,
    extra: &'static [&'static str],
) -> Shape {
    Shape { extra, ..Shape::new(inside, carrier, outer) }
}

#[test]
fn a_tunnel_without_trains_carries_everything() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["ping"]) else { return };
    for (net, extra) in (1..).zip([&["gso", "off", "gro", "off"][..], &["gso", "off"], &["gro", "off"]]) {
        for outer in [V4, V6] {
            let pair = Pair::start(&ground, with(Gre, GueRemcsum, outer, extra), net);
            carries(&pair);
            if extra.len() == 4 {
                for (stat, direction) in pair.stat().iter().flat_map(|stat| [(stat, "receive"), (stat, "transmit")]) {
                    assert_eq!(stat.count(&Shape::device(net), direction, "trains"), 0, "{}", pair.shape());
                }
            }
        }
    }
}

#[test]
fn a_tunnel_without_outer_checksums_carries_everything_and_says_what_it_costs() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["ping"]) else { return };
    for (inside, carrier, outer) in [(Gre, Gue, V4), (Gre, Gue, V6), (Ipip, Fou, V4), (Sit, Fou, V6)] {
        let pair = Pair::start(&ground, with(inside, carrier, outer, &["noencap-csum"]), 1);
        carries(&pair);
        for tunnel in [&pair.at_a, &pair.at_b] {
            let words = tunnel.process.stderr() + &tunnel.process.stdout();
            assert!(words.contains("one datagram at a time"), "{words}");
        }
    }
}

#[test]
fn gre_with_sequence_numbers_carries_everything() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["ping"]) else { return };
    for (carrier, outer) in [(GueRemcsum, V4), (Fou, V6)] {
        carries(&Pair::start(&ground, with(Gre, carrier, outer, &["seq", "key", "0.0.1.2", "csum"]), 1));
    }
}

#[test]
fn a_tunnel_follows_the_sequence_numbers_of_an_end_that_was_started_again() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let pair = Pair::start(&ground, with(Gre, Gue, V4, &["seq"]), 1);
    let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, V4));
    // So many that those below do not make up for them.
    traffic::datagrams(a, b, &[64; 1500], 23);
    let words = pair.shape().words(Peer::A, 1);
    let Pair { at_a, at_b: _at_b, .. } = pair;
    drop(at_a);
    let _again = Tunnel::start(&ground.a, &ground.program, &words);
    segue_lab::reach((&ground.a, a.address), (&ground.b, b.address), Duration::from_secs(20)).unwrap();
    let stat = Stat::read(&ground.b, &ground.program, &Shape::device(1));
    assert!((1..100).contains(&stat.dropped("gre_seq")), "{:?}", stat.drops());
}

#[test]
fn a_link_that_passes_trains_whole_carries_everything() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ping"]) else { return };
    for (carrier, outer) in [(GueRemcsum, V4), (GueRemcsum, V6), (Gue, V4), (Fou, V6)] {
        carries(&Pair::start(&ground, Shape::new(Gre, carrier, outer), 1));
    }
}

#[test]
fn the_linux_profile_and_one_source_port_carry_everything() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["ping"]) else { return };
    carries(&Pair::start(&ground, with(Gre, GueRemcsum, V4, &["profile", "linux"]), 1));
    carries(&Pair::start(&ground, with(Gre, GueRemcsum, V6, &["encap-sport", "50000", "mtu", "1300"]), 2));
}

#[test]
fn several_tunnels_at_once_do_not_meet() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["ping"]) else { return };
    let shapes = [
        Shape::new(Ipip, GueRemcsum, V4),
        Shape::new(Sit, Gue, V4),
        Shape::new(Gre, Fou, V6),
        Shape::new(Gre, GueRemcsum, V6),
    ];
    let pairs: Vec<_> = (1..).zip(shapes).map(|(net, shape)| Pair::start(&ground, shape, net)).collect();
    std::thread::scope(|scope| {
        for pair in &pairs {
            scope.spawn(|| carries(pair));
        }
    });
}

/// Tests that a packet dropped by the kernel's full transmit queue (ENOBUFS) is not sent again: the socket stays
/// writable, so the loop would never sleep.
#[test]
fn what_a_queue_of_the_kernel_drops_is_counted_once_and_the_tunnel_goes_on() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["tc"]) else { return };
    let pair = Pair::start(&ground, Shape::new(segue_tests::Inside::Ip6tnl, segue_tests::Carrier::Bare, V6), 1);
    let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, V4));
    let [near, far] = [a, b].map(traffic::socket);
    // Room for a packet of one byte.
    ground.a.run("tc", &["qdisc", "replace", "dev", "eth0", "root", "bfifo", "limit", "1"]).unwrap();
    for _ in 0..50 {
        near.send_to(b"lost", far.local_addr().unwrap()).unwrap();
    }
    let lost = |stat: &Stat| stat.dropped("queue_full");
    let program = &ground.program;
    let stat = Stat::until(&ground.a, program, "sg1", Duration::from_secs(10), |stat| lost(stat) >= 50);
    assert!(lost(&stat) >= 50, "{:?}, blocked {}", stat.drops(), stat.json()["ports"]);
    ground.a.run("tc", &["qdisc", "del", "dev", "eth0", "root"]).unwrap();
    traffic::datagrams(a, b, &[1, 1000], 3);
}

/// Tests an answer that the kernel never gives, but a tracer or a filter of system calls may give.
#[test]
fn a_tunnel_goes_on_though_it_was_told_that_more_messages_were_sent_than_it_had() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["strace"]) else { return };
    let pair = Pair::start(&ground, Shape::new(segue_tests::Inside::Ip6tnl, segue_tests::Carrier::Bare, V6), 1);
    let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, V4));
    let [near, far] = [a, b].map(traffic::socket);
    traffic::datagrams(a, b, &[1, 1000], 3);
    let pid = || Stat::read(&ground.a, &ground.program, "sg1").json()["pid"].as_u64().unwrap() as u32;
    let (before, directory) = (pid(), Directory::new());
    let traced = Traced::attach(before, Some(("sendmmsg", "retval=1000")), &directory.file("calls"));
    // Of those that wait for it, it sends several by one call.
    for _ in 0..20 {
        for _ in 0..50 {
            near.send_to(b"lost", far.local_addr().unwrap()).unwrap();
        }
        thread::sleep(Duration::from_millis(10));
    }
    let calls = traced.detach();
    assert!(calls.injected > 0, "{calls:?}");
    traffic::datagrams(a, b, &[1, 1000], 3);
    assert_eq!(pid(), before);
}
