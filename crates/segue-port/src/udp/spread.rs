//! Several ports on one UDP port number, each for a separate thread.

use std::net::SocketAddr;
use std::ops::Range;

use super::config::{AUTO_SLOTS, OpenError, Source, UdpConfig};
use super::receiver::Receiver;
use super::schedule::Schedule;
use super::sockets::{
    all_peers, call, missing, name_of, receiving_socket, sending_socket, share_port, sockets_between,
};
use super::{Sockets, UdpPort};
use crate::messages::SendScratch;

impl UdpPort {
    /// Opens `count` ports that receive on one UDP port (SO_REUSEPORT): the kernel chooses among them by a hash of
    /// addresses and ports, so that the packets of one source port all arrive at one of them. Each sends from source
    /// ports of its own, the parts of a range where one is given. The first socket has the UDP port for itself before
    /// it shares it, so that a port in use is found as by [`UdpPort::open_to`].
    ///
    /// # Errors
    /// See [`OpenError`]; [`OpenError::Call`] with EINVAL for one fixed source port, or a range of fewer ports than
    /// `count`.
    pub fn open_spread(config: UdpConfig, others: &[SocketAddr], count: u16) -> Result<Vec<UdpPort>, OpenError> {
        let peers = all_peers(&config, others)?;
        let is_single = others.is_empty();
        let first = receiving_socket(&config, false)?;
        let listen = name_of(&first)?;
        share_port(&first)?;
        let mut receive = vec![first];
        let config = UdpConfig { port: listen.port(), ..config };
        for _ in 1..count {
            receive.push(receiving_socket(&config, true)?);
        }
        let ports = receive.into_iter().zip(0..count).map(|(rx, at)| {
            let slots = match config.source {
                Source::Auto => {
                    (0..AUTO_SLOTS).map(|_| sending_socket(&config, 0, is_single)).collect::<Result<Vec<_>, _>>()?
                }
                Source::Range(first, last) => {
                    let part = part(first..=last, at, count);
                    sockets_between(&config, part.ok_or_else(too_few)?, is_single)?
                }
                Source::Fixed(_) => return Err(too_few()),
            };
            UdpPort::over(config, peers.clone(), rx, listen, slots)
        });
        ports.collect()
    }

    /// Creates `count` ports from the sockets of as many ports, like [`UdpPort::adopt`].
    ///
    /// # Errors
    /// See [`UdpPort::adopt`].
    pub fn adopt_spread(
        config: UdpConfig,
        others: &[SocketAddr],
        sockets: Sockets,
        count: u16,
    ) -> Result<Vec<UdpPort>, OpenError> {
        let Sockets { receive, send } = sockets;
        if receive.len() < usize::from(count) {
            return Err(missing());
        }
        let sent = send.len();
        let mut send = send.into_iter();
        let ports = receive.into_iter().zip(0..count).map(|(fd, at)| {
            let own = share(sent, at, count).len();
            UdpPort::adopt(config, others, Sockets { receive: vec![fd], send: send.by_ref().take(own).collect() })
        });
        ports.collect()
    }

    /// Returns a function that recreates the port in another thread, because packet memory belongs to one thread. A
    /// port is packed before its first use.
    pub fn pack(self) -> impl FnOnce() -> UdpPort + Send {
        let UdpPort { config, peers, mtu_sockets, mtu_probe, rx, strips, listen, slots, limits, segment, gro, .. } =
            self;
        let (max_segments, max_burst) = (self.max_segments, self.max_burst);
        move || UdpPort {
            config,
            peers,
            mtu_sockets,
            mtu_probe,
            receiver: Receiver::new(&rx),
            rx,
            strips,
            listen,
            slots,
            blocked_slot: 0,
            limits,
            segment,
            gro,
            retry: None,
            max_segments,
            max_burst,
            counters: crate::port::Counters::default(),
            scratch: SendScratch::default(),
            schedule: Schedule::default(),
            #[cfg(test)]
            inject: None,
        }
    }
}

/// Divides a range into `count` parts and returns the part with the index `at`, unless it is empty.
fn part(range: std::ops::RangeInclusive<u16>, at: u16, count: u16) -> Option<std::ops::RangeInclusive<u16>> {
    let share = share(range.len(), at, count);
    let mut part = range.clone().skip(share.start).take(share.len());
    Some(part.clone().next()?..=part.next_back()?)
}

/// Divides `len` places into `count` shares, which differ by one at most, and returns that with the index `at`.
fn share(len: usize, at: u16, count: u16) -> Range<usize> {
    let place = |at: u16| len * usize::from(at) / usize::from(count);
    place(at)..place(at + 1)
}

fn too_few() -> OpenError {
    call("bind")(std::io::Error::from_raw_os_error(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::super::Carries;
    use super::*;
    use crate::batch::RxBatch;
    use crate::port::Port;
    use crate::testing;

    const SOURCES: usize = 64;
    const EACH: u8 = 4;

    #[test]
    fn the_datagrams_of_a_source_arrive_at_one_of_the_ports_and_those_of_many_at_each() {
        if testing::namespace().is_none() {
            return;
        }
        testing::wait_for_local(Ipv6Addr::LOCALHOST);
        for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let config = UdpConfig { carries: Carries::Other, ..UdpConfig::new(ip, 0, SocketAddr::new(ip, 9)) };
            let ports = UdpPort::open_spread(config, &[], 2).unwrap();
            let listen = ports[0].listen();
            assert_eq!(ports[1].listen(), listen);
            // Another thread has them from here on.
            let makers: Vec<_> = ports.into_iter().map(UdpPort::pack).collect();
            let sources: Vec<_> = (0..SOURCES).map(|_| UdpSocket::bind((ip, 0)).unwrap()).collect();
            for number in 0..EACH {
                sources.iter().for_each(|source| assert_eq!(source.send_to(&[number], listen).unwrap(), 1));
            }
            let seen = thread::spawn(move || {
                let mut ports: Vec<UdpPort> = makers.into_iter().map(|make| make()).collect();
                let mut seen: BTreeMap<(usize, SocketAddr), Vec<u8>> = BTreeMap::new();
                let (mut batch, begin) = (RxBatch::new(64), Instant::now());
                while seen.values().map(Vec::len).sum::<usize>() < SOURCES * usize::from(EACH) {
                    assert!(begin.elapsed() < Duration::from_secs(30), "{seen:?}");
                    for (at, port) in ports.iter_mut().enumerate() {
                        port.receive(&mut batch, 64).unwrap();
                        for burst in batch.bursts.drain(..) {
                            let numbers = seen.entry((at, burst.peer)).or_default();
                            burst.datagrams().for_each(|datagram| numbers.push(datagram.as_ref()[0]));
                        }
                    }
                }
                seen
            });
            let seen = seen.join().unwrap();
            assert_eq!(seen.len(), SOURCES, "a source has one port");
            // In whatever order: a sender that changes processors may overtake itself in the kernel.
            let once = |numbers: &Vec<u8>| (0..EACH).all(|number| numbers.contains(&number));
            assert!(seen.values().all(|numbers| numbers.len() == usize::from(EACH) && once(numbers)), "{seen:?}");
            let at = |at: usize| seen.keys().filter(|(port, _)| *port == at).count();
            // With 64 sources it is once in 2^63 that one of two gets none.
            assert!(at(0) > 0 && at(1) > 0, "{} and {}", at(0), at(1));
        }
    }

    #[test]
    fn a_port_in_use_is_not_shared_with_other_instances() {
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let ports = UdpPort::open_spread(UdpConfig::new(ip, 0, SocketAddr::new(ip, 9)), &[], 3).unwrap();
        let config = UdpConfig::new(ip, ports[0].listen().port(), SocketAddr::new(ip, 9));
        assert!(matches!(UdpPort::open_spread(config, &[], 3), Err(OpenError::InUse(_))));
        assert!(matches!(UdpPort::open(config), Err(OpenError::InUse(_))));
    }

    #[test]
    fn ports_that_take_a_range_over_have_all_of_its_sockets() {
        if testing::namespace().is_none() {
            return;
        }
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let config = UdpConfig::new(ip, 0, SocketAddr::new(ip, 9));
        let config = UdpConfig { source: Source::Range(20_000, 20_002), ..config };
        let ports = UdpPort::open_spread(config, &[], 2).unwrap();
        let mut all = Sockets::default();
        for Sockets { receive, send } in ports.iter().map(|port| port.sockets().unwrap()) {
            all.receive.extend(receive);
            all.send.extend(send);
        }
        let config = UdpConfig { port: ports[0].listen().port(), ..config };
        let adopted = UdpPort::adopt_spread(config, &[], all, 2).unwrap();
        assert_eq!(adopted.iter().map(UdpPort::slots).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn each_port_has_a_part_of_a_range_and_a_fixed_port_cannot_be_spread() {
        let parts: Vec<_> = (0..3).map(|at| part(100..=109, at, 3).unwrap()).collect();
        assert_eq!(parts, [100..=102, 103..=105, 106..=109]);
        assert_eq!((0..3).filter_map(|at| part(7..=8, at, 3)).collect::<Vec<_>>(), [7..=7, 8..=8]);
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let fixed = UdpConfig { source: Source::Fixed(0), ..UdpConfig::new(ip, 0, SocketAddr::new(ip, 9)) };
        assert!(matches!(UdpPort::open_spread(fixed, &[], 2), Err(OpenError::Call("bind", _))));
    }
}
