//! Tests of the settings of a running gateway: read, refused, and changed under load without loss.

mod common;
#[path = "common/numbered.rs"]
mod numbered;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use common::SEGUE;
use numbered::Numbered;
use segue_lab::{DEVICE, Family, Host, LinkForm, Peer, Process};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);
/// Name of the TAP in the third host.
const TAP: &str = "lro0";
/// Name of the gateway's instance.
const NAME: &str = "gw0";

/// A sender, and a gateway whose TAP is in a third host.
struct Bump {
    sender: Host,
    gateway: Host,
    receiver: Host,
    segue: Process,
}

impl Bump {
    #[track_caller]
    fn new(options: &[&str]) -> Option<Bump> {
        if let Some(reason) = segue_lab::unavailable() {
            segue_lab::skip_this_test(&reason);
            return None;
        }
        let [sender, gateway, receiver] = ["sender", "gateway", "receiver"].map(|name| Host::new(name).unwrap());
        segue_lab::connect(&sender, &gateway, LinkForm::Veth).unwrap();
        gateway.run("ip", &["link", "set", "dev", DEVICE, "addrgenmode", "none"]).unwrap();
        gateway.run("ip", &["addr", "flush", "dev", DEVICE]).unwrap();
        let mut command = gateway.command(SEGUE);
        command.args(["gateway", DEVICE, &format!("tap:{TAP}@{}", receiver.net_path()), "-j", "--name", NAME]);
        command.args(options);
        let mut segue = Process::spawn(command, b"").unwrap();
        segue.wait_for_line("\"event\":\"up\"", PATIENCE).unwrap();
        receiver.run("ip", &["addr", "add", &Peer::B.prefix(0, Family::V4), "dev", TAP]).unwrap();
        Some(Bump { sender, gateway, receiver, segue })
    }

    /// Runs `segue set gw0` with these words and returns its JSON.
    #[track_caller]
    fn set(&self, words: &[&str]) -> Value {
        let text = self.gateway.run(SEGUE, &[&["set", NAME], words, &["-j"]].concat()).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn values(&self) -> BTreeMap<String, Value> {
        let knobs = self.set(&[])["knobs"].as_array().cloned().unwrap_or_default();
        knobs.into_iter().map(|knob| (knob["name"].as_str().unwrap().to_owned(), knob["value"].clone())).collect()
    }

    /// Runs segue and returns status, standard output and standard error.
    fn run(&self, words: &str) -> (Option<i32>, String, String) {
        let output = self.gateway.command(SEGUE).args(words.split(' ')).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    fn port(&self, name: &str) -> Value {
        let text = self.gateway.run(SEGUE, &["stat", "-j"]).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["instances"][0]["ports"][name].clone()
    }

    /// Sends `len` bytes over a connection from the sender to the receiver, which must get them unchanged.
    fn stream(&self, len: usize) {
        let address = SocketAddr::new(Peer::B.address(0, Family::V4), 5001);
        let listener = self.receiver.enter(|| TcpListener::bind(address)).unwrap().unwrap();
        let mut client = self.sender.enter(|| TcpStream::connect_timeout(&address, PATIENCE)).unwrap().unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        let data = segue_testkit::Rng::new(len as u64).bytes(len);
        let got = thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let mut got = Vec::new();
                server.read_to_end(&mut got).map(|_| got)
            });
            client.write_all(&data).unwrap();
            drop(client);
            reader.join().unwrap().unwrap()
        });
        assert!(got == data);
    }

    fn numbered(&self) -> Numbered {
        let at = |end: Peer| SocketAddr::new(end.address(0, Family::V4), 5002);
        Numbered::start((&self.sender, at(Peer::A)), (&self.receiver, at(Peer::B)), 600)
    }
}

#[test]
fn knobs_are_listed_read_and_set_with_what_they_were() {
    let Some(bump) = Bump::new(&["--set", "net.gso.dev.lro0.max_burst=20000", "--max-packets", "44"]) else { return };
    let values = bump.values();
    for (name, value) in [
        ("net.inet.tcp.gso", 1),
        ("net.inet.udp.gso", 1),
        ("net.gso.dev.lro0.max_burst", 20_000),
        ("net.gso.dev.eth0.max_burst", 65_535),
        ("net.gso.dev.lro0.enable_gso", 1),
        ("net.gro.dev.eth0.max_packets", 44),
        ("net.gro.dev.eth0.enable_gro", 1),
        ("net.ack.dev.eth0.enable_ack", 0),
    ] {
        let name = name.replace("eth0", DEVICE);
        assert_eq!(values.get(&name), Some(&value.into()), "{name} in {values:?}");
    }
    let set = bump.set(&["net.inet.tcp.gso", "0", "net.gso.dev.lro0.max_burst=30000"]);
    assert_eq!(set["schema"], "segue.set/1");
    assert_eq!(set["changed"][0]["name"], "net.inet.tcp.gso");
    assert_eq!((&set["changed"][0]["before"], &set["changed"][0]["value"]), (&1.into(), &0.into()));
    assert_eq!((&set["knobs"][1]["value"], &set["knobs"][1]["default"]), (&30_000.into(), &65_535.into()));
    assert_eq!(bump.set(&["net.inet.tcp.gso"])["knobs"][0]["value"], 0);
    let (code, stdout, _) = bump.run("set gw0 net.inet.tcp.gso on");
    assert_eq!((code, stdout.as_str()), (Some(0), "net.inet.tcp.gso: 0 -> 1\n"));
    let (code, stdout, stderr) = bump.run("set gw0 net.inet.tcp.gso");
    assert_eq!((code, stdout.as_str()), (Some(0), "1\n"), "{stderr}");
    let (code, stdout, _) = bump.run("set gw0 net.inet.tcp.gso 0 --check");
    assert_eq!((code, bump.values()["net.inet.tcp.gso"].clone()), (Some(0), 1.into()), "{stdout}");
    assert!(bump.segue.stdout().contains(r#""event":"set""#), "the gateway says what was changed");
}

#[test]
fn bad_names_and_values_get_the_good_ones_and_change_nothing() {
    let Some(bump) = Bump::new(&[]) else { return };
    let before = bump.values();
    for (words, message, good) in [
        ("net.inet.tcp.gsoo 1", "no knob is called `net.inet.tcp.gsoo`", "net.inet.tcp.gso;"),
        ("net.gso.dev.eth9.enable_gso 1", "no knob is called `net.gso.dev.eth9.enable_gso`", "enable_gso;"),
        ("net.inet.tcp.gso 2", "`2` is not a value of net.inet.tcp.gso", "0 or 1"),
        ("net.gso.dev.lro0.max_burst 65536", "`65536` is not a value of", "576 to 65535 bytes"),
        ("net.gro.dev.lro0.profile linx", "`linx` is not a value of", "strict, linux:6.18 or lro"),
        ("net.inet.udp.gso 0 net.inet.tcp.gso x", "`x` is not a value of net.inet.tcp.gso", "0 or 1"),
        ("net.inet.udp.gso 0 net.inet.tcp.gso", "`net.inet.tcp.gso` needs a value", "segue set"),
    ] {
        let (code, stdout, stderr) = bump.run(&format!("set gw0 {words}"));
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{words}: {stderr}");
        assert!(stderr.contains(message) && stderr.contains(good), "{words}: {stderr}");
        let (code, stdout, _) = bump.run(&format!("set gw0 {words} -j"));
        let error: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((code, error["error"]["message"].as_str().unwrap().contains(message)), (Some(2), true), "{error}");
    }
    for (words, message) in [
        ("net.gso.stats 0", "net.gso.stats cannot be set"),
        ("net.ack.dev.lro0.enable_ack 1", "net.ack.dev.lro0.enable_ack needs net.gro.dev.lro0.profile lro"),
        (
            "net.gro.dev.lro0.profile lro net.ack.dev.lro0.enable_ack 1 net.gro.dev.lro0.profile strict",
            "net.ack.dev.lro0.enable_ack needs net.gro.dev.lro0.profile lro",
        ),
    ] {
        let (code, _, stderr) = bump.run(&format!("set gw0 {words}"));
        assert!(code == Some(2) && stderr.contains(message), "{words}: {stderr}");
    }
    assert_eq!(bump.values(), before);
    // The profile can change only after ACK aggregation is off; the order within one command does not matter.
    bump.set(&["net.gro.dev.lro0.profile", "lro", "net.ack.dev.lro0.enable_ack", "1"]);
    let (code, _, stderr) = bump.run("set gw0 net.gro.dev.lro0.profile linux");
    assert!(code == Some(2) && stderr.contains("first net.ack.dev.lro0.enable_ack 0"), "{stderr}");
    bump.set(&["net.ack.dev.lro0.enable_ack", "0", "net.gro.dev.lro0.profile", "strict"]);
    assert_eq!(bump.values(), before);
    let (code, _, stderr) = bump.run("set gw9");
    assert!(code == Some(1) && stderr.contains("no running instance is called `gw9`"), "{stderr}");
}

#[test]
fn the_profile_keeps_the_version_that_it_was_started_with() {
    for (started, is) in [("linux:6.12", "linux:6.12"), ("linux:7.3", "linux:7.0"), ("lro", "linux:6.18")] {
        let Some(bump) = Bump::new(&["--profile", started]) else { return };
        let name = format!("net.gro.dev.{DEVICE}.profile");
        let now = if started == "lro" { "lro" } else { is };
        assert_eq!(bump.values()[&name], now);
        bump.set(&[&name, "strict"]);
        bump.set(&[&name, "linux"]);
        assert_eq!(bump.values()[&name], is);
    }
}

#[test]
fn every_knob_flipped_under_load_loses_no_datagram_and_keeps_their_order() {
    let Some(bump) = Bump::new(&[]) else { return };
    let mut stream = bump.numbered();
    stream.pass(2000);
    for round in 0..2 {
        for (name, value) in bump.values() {
            let other = match (&value, name.rsplit('.').next()) {
                (Value::String(_), _) => ["linux", "lro"][round].to_owned(),
                (_, Some("max_burst")) => "5000".to_owned(),
                (_, Some("max_packets")) => "3".to_owned(),
                (_, Some("hold_us")) => "100".to_owned(),
                _ if value == 0 => "1".to_owned(),
                _ => "0".to_owned(),
            };
            // This may be refused: one knob requires a value of another one.
            bump.run(&format!("set gw0 {name} {other}"));
            stream.pass(200);
            let back = value.as_str().map_or(value.to_string(), str::to_owned);
            bump.set(&[&name, &back]);
            stream.pass(200);
        }
    }
    assert!(stream.finish() > 2000);
}

#[test]
fn gso_off_cuts_on_entry_and_gso_on_lets_the_train_survive_live() {
    let Some(bump) = Bump::new(&[]) else { return };
    let gso = |key: &str| bump.port(TAP)["gso"][key].as_u64().unwrap();
    let stage = |port: &str, stage: &str| {
        let seen = bump.port(port)["stages"][stage].clone();
        [seen["packets"].as_u64().unwrap(), seen["segments"].as_u64().unwrap()]
    };
    bump.stream(3_000_000);
    assert_eq!((gso("trains_cut"), gso("cut_on_entry")), (0, 0), "the TAP takes trains by itself");
    let whole = gso("trains_whole");
    assert!(whole > 30, "{}", bump.port(TAP));
    let [units, packets] = stage(TAP, "gso");
    assert!(packets > 5 * units, "trains reach the port: {units} units, {packets} packets");

    bump.set(&["net.gso.dev.lro0.enable_gso", "0"]);
    bump.stream(3_000_000);
    // Both numbers are of one moment: a late packet may come between two of them.
    let [all_units, all_packets] = stage(TAP, "gso");
    let [cut_units, cut_packets] = [all_units - units, all_packets - packets];
    assert_eq!(cut_units, cut_packets, "behind the entry there are single packets only");
    assert!(gso("cut_on_entry") > 30 && gso("made_on_entry") > 2000);
    assert_eq!((gso("trains_cut"), gso("trains_whole")), (0, whole));

    bump.set(&["net.gso.dev.lro0.enable_gso", "1", "net.gso.dev.lro0.tso", "0"]);
    let on_entry = gso("cut_on_entry");
    bump.stream(3_000_000);
    assert!(gso("trains_cut") > 30 && gso("packets_made") > 2000, "cut in front of the port");
    assert_eq!((gso("cut_on_entry"), gso("trains_whole")), (on_entry, whole));

    let stats = bump.set(&["net.gso.stats"]);
    assert_eq!(stats["stats"][0]["ports"][TAP]["trains_cut"], gso("trains_cut"));
    let why = bump.gateway.run(SEGUE, &["stat", NAME, "--why", "--raw"]).unwrap();
    for word in ["STAGE", "receive", "entry", "gso", "transmit"] {
        assert!(why.contains(word), "{word} is missing in\n{why}");
    }
}

#[test]
fn the_largest_burst_bounds_what_the_port_is_handed() {
    let Some(bump) = Bump::new(&[]) else { return };
    bump.set(&["net.gso.dev.lro0.max_burst", "10000"]);
    bump.stream(3_000_000);
    let transmit = bump.port(TAP)["transmit"].clone();
    let mean = transmit["bytes"].as_f64().unwrap() / transmit["packets"].as_f64().unwrap();
    assert!(transmit["trains"].as_u64() > Some(200) && mean <= 10_000.0, "{transmit}");
}
