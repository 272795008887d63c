//! Tests of delivery by callback, for receivers without a poll loop: it yields the same packets as popping.

use segue::gro::{Config, Flush, Gro};
use segue::packet::{Frag, Pool, Start, Tunnels};
use segue::time::Nanos;
use segue_testkit::Rng;
use segue_testkit::flow;

#[test]
fn a_callback_gets_what_pulling_gives_in_the_same_order() {
    let sent = flow::mixed(&mut Rng::new(4), 12, 2000);
    let config = Config { hold: Nanos(40), max_held_packets: 30, ..Config::default() };
    let (mut pulled, mut called) = (Vec::new(), Vec::new());
    let mut pools = [Pool::new(64), Pool::new(64)];
    let (mut puller, mut caller) = (Gro::new(config), Gro::new(config));
    for (now, packet) in sent.iter().enumerate() {
        let now = Nanos(now as u64);
        let [first, second] = pools.each_mut().map(|pool| {
            let mut packet_of = pool.take();
            packet_of.load(Frag::all(packet.bytes.clone()), Start::Ip, &Tunnels::NONE);
            packet_of
        });
        puller.push(first, now, &mut pools[0]);
        caller.deliver(second, now, &mut pools[1], |packet, pool| {
            called.push((packet.head.bytes().to_vec(), packet.payload.len()));
            pool.put(packet);
        });
        assert!(caller.pop().is_none(), "nothing is left behind");
        if now.0.is_multiple_of(16) {
            puller.expire(now);
            caller.end_poll(now, &mut pools[1], |packet, _| {
                called.push((packet.head.bytes().to_vec(), packet.payload.len()));
            });
        }
        pulled.extend(std::iter::from_fn(|| puller.pop()).map(|p| (p.head.bytes().to_vec(), p.payload.len())));
        assert_eq!(pulled, called);
    }
    assert!(caller.stats().trains > 100 && caller.stats().flushes.of(Flush::Pressure) > 10, "{:?}", caller.stats());
}

#[test]
fn the_end_of_a_poll_delivers_everything_where_nothing_is_to_be_held() {
    let mut gro = Gro::new(Config::default());
    let mut pool = Pool::new(8);
    let mut out = 0;
    for packet in crate::bench::run(&mut crate::bench::tcp4(), 3) {
        let mut held = pool.take();
        held.load(Frag::all(packet), Start::Ip, &Tunnels::NONE);
        gro.deliver(held, Nanos(7), &mut pool, |_, _| out += 1);
    }
    assert_eq!((out, gro.held(), gro.held_packets()), (0, 1, 3));
    gro.end_poll(Nanos(7), &mut pool, |_, _| out += 1);
    assert_eq!((out, gro.held(), gro.held_packets()), (1, 0, 0));
}
