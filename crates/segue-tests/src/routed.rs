//! Two hosts in two networks with `segue gateway --route` between them.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use segue_lab::{Family, Host, Process};

use crate::traffic::{self, Place};
use crate::{Ground, Stat, skip};

/// Time within which the router must be up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Name of the router's instance.
pub const ROUTER: &str = "gw0";
/// Names of the router's interfaces: towards the client, and towards the server.
pub const PORTS: [&str; 2] = ["in", "out"];

/// A client, a router and a server. The server has no IPv4 route to the client's network.
#[derive(Debug)]
pub struct Routed {
    /// The router's process, dropped before its host.
    pub process: Process,
    /// The hosts of the test: host A is the client, host B the server.
    pub ground: Ground,
    /// Host that runs the router.
    pub router: Host,
}

/// Returns an address in network 1, the client's, or 2, the server's. The router is 1, the hosts are 2; 9 is the NAT's.
pub fn address(family: Family, net: u8, host: u8) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([198, 18, net, host]),
        Family::V6 => IpAddr::from([0x2001, 0xdb8, u16::from(net), 0, 0, 0, 0, u16::from(host)]),
    }
}

/// Runs `ip` with the words of a line.
#[track_caller]
pub fn ip(host: &Host, line: &str) {
    host.run("ip", &line.split(' ').collect::<Vec<_>>()).unwrap();
}

impl Routed {
    /// Makes hosts joined like cards without offloads, and starts the router with `options`. `None` where the test
    /// cannot run here, which is then noted.
    #[track_caller]
    pub fn new(name: &str, tools: &[&str], options: &[&str]) -> Option<Routed> {
        let ground = Ground::apart(name, tools)?;
        let Ok(router) = Host::new("router") else {
            skip(name, "no third host could be made");
            return None;
        };
        for (host, net, port) in [(&ground.a, 1, PORTS[0]), (&ground.b, 2, PORTS[1])] {
            ip(host, &format!("link add eth0 type veth peer name {port} netns {}", router.net_path()));
            for (host, device, number) in [(host, "eth0", 2), (&router, port, 1)] {
                let features = ["-K", device, "tso", "off", "gso", "off", "tx", "off", "gro", "on"];
                host.run("ethtool", &features).unwrap();
                ip(host, &format!("addr add {}/24 dev {device}", address(Family::V4, net, number)));
                ip(host, &format!("addr add {}/64 dev {device} nodad", address(Family::V6, net, number)));
                ip(host, &format!("link set {device} up"));
            }
        }
        // Over IPv6 the host's own stack answers too where it has no route, forwarding or not, and may be the first. It
        // keeps to one error in so many milliseconds.
        router.set_sysctl("ipv6/icmp/ratelimit", "1000000").unwrap();
        ip(&ground.a, &format!("route add default via {}", address(Family::V4, 1, 1)));
        ip(&ground.a, &format!("-6 route add default via {}", address(Family::V6, 1, 1)));
        ip(&ground.b, &format!("-6 route add default via {}", address(Family::V6, 2, 1)));
        let mut command = router.command(&ground.program);
        command.args(["gateway", PORTS[0], PORTS[1], "--route", "--name", ROUTER, "-j"]).args(options);
        let mut process = Process::spawn(command, b"").expect("segue starts");
        process.wait_for_line("\"event\":\"up\"", PATIENCE).unwrap();
        Some(Routed { process, ground, router })
    }

    /// Returns the client's host and its address.
    pub fn client(&self, family: Family) -> Place<'_> {
        Place { host: &self.ground.a, address: address(family, 1, 2) }
    }

    /// Returns the server's host and its address.
    pub fn server(&self, family: Family) -> Place<'_> {
        Place { host: &self.ground.b, address: address(family, 2, 2) }
    }

    /// Reads the counters of the router.
    #[track_caller]
    pub fn stat(&self) -> Stat {
        Stat::read(&self.router, &self.ground.program, ROUTER)
    }

    /// Adds routes to the router's kernel, each given as the words after `ip route add`, and waits until the router
    /// has read them and every earlier change of the kernel's tables.
    #[track_caller]
    pub fn add_routes(&self, lines: &[&str]) {
        let routes = |stat: &Stat| stat.json()["workers"][0]["routes"].as_u64().expect("a number of routes");
        let mut before = routes(&self.stat());
        loop {
            thread::sleep(Duration::from_millis(50));
            match routes(&self.stat()) {
                now if now == before => break,
                now => before = now,
            }
        }
        for line in lines {
            ip(&self.router, &format!("route add {line}"));
        }
        let wanted = before + lines.len() as u64;
        let done = |stat: &Stat| routes(stat) >= wanted;
        let stat = Stat::until(&self.router, &self.ground.program, ROUTER, PATIENCE, done);
        assert!(done(&stat), "the router has not read {lines:?}: {}", stat.json());
    }

    /// Runs another command of `segue` in the router's host.
    pub fn segue(&self, words: &[&str]) -> Output {
        self.router.command(&self.ground.program).args(words).output().expect("segue starts")
    }
}

/// A UDP echo server in a host, stopped on drop.
#[derive(Debug)]
pub struct Echo {
    /// UDP port on which the echo server listens.
    pub port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Echo {
    /// Starts the server at an address; `port` 0 lets the kernel choose.
    #[track_caller]
    pub fn start(at: Place<'_>, port: u16) -> Echo {
        let socket = traffic::inside(at.host, || UdpSocket::bind((at.address, port))).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a time limit");
        let port = socket.local_addr().expect("an address").port();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let echo = move || {
            let mut bytes = vec![0; 1 << 16];
            while !stopped.load(Ordering::Relaxed) {
                match socket.recv_from(&mut bytes) {
                    Ok((len, from)) => drop(socket.send_to(&bytes[..len], from)?),
                    Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        };
        Echo { port, stop, thread: Some(thread::spawn(echo)) }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(ended, Some(Ok(Ok(())))), "the echo failed: {ended:?}");
    }
}
