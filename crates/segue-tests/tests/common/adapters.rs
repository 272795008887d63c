//! The adapters of the soak: one whose processes stay, behind a gateway to a TAP, and one of a service, which is
//! killed.

use std::io::{PipeWriter, Write};
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{Family, Host, LinkForm, Peer, Process, reach};
use segue_tests::faults::{PATIENCE, Service, tail};
use segue_tests::routed::ip;
use segue_tests::traffic::Place;
use segue_tests::{Ground, Stat};

use crate::common::{carrier, start, until};

/// The addresses of the model's cable and of the adapter's interface, of the one whose processes stay.
const CABLE: [&str; 2] = ["198.19.200.1", "198.19.200.2"];
/// The addresses of the model's cable and of the adapter's interface, of the one that is killed.
const OTHER_CABLE: [&str; 2] = ["198.19.204.1", "198.19.204.2"];

/// Makes the model of an adapter at a host, which a server at `address` has.
#[track_caller]
fn model(host: &Host, ground: &Ground, address: &str, cable: &str) -> (Process, PipeWriter) {
    let words = ["model", "--usbip", &format!("{address}:3240"), "--wire", "tap:cable0", "--commands"];
    let (mut model, commands) = start(host, &ground.program, &words);
    until("model", &mut model, |process| process.stderr().contains("is up"));
    ip(host, &format!("address add {cable}/24 dev cable0"));
    (model, commands)
}

fn place<'a>(host: &'a Host, address: &str) -> Place<'a> {
    Place { host, address: address.parse::<IpAddr>().unwrap() }
}

fn passes([near, far]: [Place<'_>; 2], longest: Duration) -> bool {
    reach((near.host, near.address), (far.host, far.address), longest).is_ok()
}

/// A gateway to a TAP and an adapter at a USB/IP server, between two hosts.
pub(crate) struct Bridge {
    pub(crate) gateway: Process,
    pub(crate) driver: Process,
    pub(crate) model: Process,
    commands: PipeWriter,
    _pipe: PipeWriter,
    pub(crate) ground: Ground,
}

impl Bridge {
    pub(crate) fn start(name: &str) -> Option<Bridge> {
        let ground = Ground::new(name, LinkForm::Nic, &[])?;
        let (a, b) = (&ground.a, &ground.b);
        b.run("ip", &["address", "flush", "dev", "eth0"]).unwrap();
        let mut command = b.command(&ground.program);
        command.args(["gateway", "eth0", "tap:lro0", "--name", "gw1", "-j"]);
        let mut gateway = Process::spawn(command, b"").unwrap();
        gateway.wait_for_line("\"event\":\"up\"", PATIENCE).unwrap();
        ip(b, &format!("address add {}/24 dev lro0", Peer::B.address(0, Family::V4)));
        assert!(passes(Bridge::ends_of_gateway(&ground), PATIENCE), "{}", tail(&gateway));
        let (model, commands) = model(a, &ground, "198.18.0.1", CABLE[0]);
        // Its connection passes the gateway.
        let (mut driver, pipe) = start(b, &ground.program, &["up", "--usb", "usbip://198.18.0.1/1-1"]);
        until("driver", &mut driver, |process| process.stderr().contains("is up") && carrier(b, "lan0"));
        ip(b, &format!("address add {}/24 dev lan0", CABLE[1]));
        let bridge = Bridge { gateway, driver, model, commands, _pipe: pipe, ground };
        bridge.pass();
        Some(bridge)
    }

    fn ends_of_gateway(ground: &Ground) -> [Place<'_>; 2] {
        [(&ground.a, Peer::A), (&ground.b, Peer::B)]
            .map(|(host, end)| Place { host, address: end.address(0, Family::V4) })
    }

    /// Returns the ends of what passes through the gateway, and through the adapter.
    pub(crate) fn ends(&self) -> [[Place<'_>; 2]; 2] {
        let (a, b) = (&self.ground.a, &self.ground.b);
        [Bridge::ends_of_gateway(&self.ground), [place(a, CABLE[0]), place(b, CABLE[1])]]
    }

    /// Waits until datagrams pass through both.
    #[track_caller]
    pub(crate) fn pass(&self) {
        for (ends, process) in self.ends().into_iter().zip([&self.gateway, &self.driver]) {
            assert!(passes(ends, PATIENCE), "{}", tail(process));
        }
    }

    /// Unplugs the adapter, and plugs it in again once the driver has noticed.
    #[track_caller]
    pub(crate) fn replug(&self) {
        let (host, program) = (&self.ground.b, &self.ground.program);
        let is_gone = |stat: &Stat| stat.json()["ports"]["adapter"]["numbers"]["gone"].as_u64() > Some(0);
        writeln!(&self.commands, "unplug").unwrap();
        let stat = Stat::until(host, program, "lan0", PATIENCE, is_gone);
        assert!(is_gone(&stat), "{}", stat.json());
        writeln!(&self.commands, "plug").unwrap();
        let stat = Stat::until(host, program, "lan0", PATIENCE, |stat| !is_gone(stat) && carrier(host, "lan0"));
        assert!(!is_gone(&stat), "{}", stat.json());
        self.pass();
    }
}

/// The model of an adapter at the far host of a service's gateway, whose driver is an instance of the service.
pub(crate) struct Plugged {
    pub(crate) model: Process,
    _commands: PipeWriter,
}

impl Plugged {
    /// Name of the instance.
    pub(crate) const NAME: &'static str = "lan0";
    /// The table of the adapter in the file of the service.
    pub(crate) const TABLE: &'static str = "[[lan78xx]]\ndev = \"lan0\"\nusb = \"usbip://198.19.201.3/1-1\"\n";

    /// Makes the model, and the way to its server, which leads through host B and the gateway.
    #[track_caller]
    pub(crate) fn start(ground: &Ground, far: &Host) -> Plugged {
        ground.b.set_sysctl("ipv4/ip_forward", "1").unwrap();
        ip(&ground.a, "route add 198.19.201.3 via 198.18.0.2");
        ip(far, "route add 198.18.0.1 via 198.19.201.2");
        let (model, commands) = model(far, ground, "198.19.201.3", OTHER_CABLE[0]);
        Plugged { model, _commands: commands }
    }

    /// Returns the ends of what passes through the adapter.
    pub(crate) fn ends<'a>(service: &'a Service, far: &'a Host) -> [Place<'a>; 2] {
        [place(&service.ground.a, OTHER_CABLE[1]), place(far, OTHER_CABLE[0])]
    }

    /// Returns whether datagrams pass through the adapter in both directions within `longest`.
    pub(crate) fn passes(service: &Service, far: &Host, longest: Duration) -> bool {
        let (begin, ends) = (Instant::now(), Plugged::ends(service, far));
        let host = &service.ground.a;
        let address = format!("{}/24", OTHER_CABLE[1]);
        loop {
            // The interface is a new one after each start.
            let is_up =
                carrier(host, "lan0") && host.run("ip", &["address", "replace", &address, "dev", "lan0"]).is_ok();
            if is_up && passes(ends, longest.min(Duration::from_millis(200))) {
                return true;
            }
            if begin.elapsed() >= longest {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}
