//! Tests of hosts and links, used as in a test of the whole program. Needs the right to make namespaces.

use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use segue_lab::{
    Cpu, DEVICE, Family, Host, LabError, LinkForm, Peer, Process, connect, reach, skip_this_test, unavailable,
};

const PATIENCE: Duration = Duration::from_secs(5);

#[track_caller]
fn skip() -> bool {
    let why = unavailable();
    if let Some(why) = &why {
        skip_this_test(why);
    }
    why.is_some()
}

fn pair(form: LinkForm) -> (Host, Host) {
    let (a, b) = (Host::new("a").unwrap(), Host::new("b").unwrap());
    connect(&a, &b, form).unwrap();
    (a, b)
}

#[test]
fn two_hosts_reach_each_other_over_both_families_at_once() {
    if skip() {
        return;
    }
    let (a, b) = pair(LinkForm::Veth);
    let addresses = a.run("ip", &["addr", "show", "dev", DEVICE]).unwrap();
    assert!(addresses.contains("2001:db8::1/64") && !addresses.contains("tentative"), "{addresses}");
    for family in Family::ALL {
        let (from, to) = (Peer::A.address(0, *family), Peer::B.address(0, *family));
        reach((&a, from), (&b, to), PATIENCE).unwrap();
        reach((&b, to), (&a, from), PATIENCE).unwrap();
        if segue_lab::which("ping").is_some() {
            a.run("ping", &["-c", "1", "-W", "2", &to.to_string()]).unwrap();
        }
    }
}

#[test]
fn a_host_sees_only_its_own_devices_and_control_directory() {
    if skip() {
        return;
    }
    let (a, b) = pair(LinkForm::Veth);
    assert_eq!(a.devices(), ["lo", DEVICE]);
    let listed = a.run("ls", &["/sys/class/net"]).unwrap();
    assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), [DEVICE, "lo"]);
    // A program that keeps sockets there may insist that only its owner can write.
    assert_eq!(a.run("stat", &["-c", "%a %u", "/run/segue"]).unwrap(), "755 0\n");
    a.run("touch", &["/run/segue/sg0.sock"]).unwrap();
    assert_eq!(a.run("ls", &["/run/segue"]).unwrap(), "sg0.sock\n");
    assert_eq!(b.run("ls", &["/run/segue"]).unwrap(), "");
    assert!(!Path::new("/run/segue/sg0.sock").exists());
}

#[test]
fn sockets_opened_inside_are_used_from_outside() {
    if skip() {
        return;
    }
    let (a, b) = pair(LinkForm::Nic);
    let address = (Peer::B.address(0, Family::V6), 5000);
    let listener = b.enter(|| TcpListener::bind(address)).unwrap().unwrap();
    let client = a.enter(|| TcpStream::connect(address)).unwrap().unwrap();
    let (_, peer) = listener.accept().unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    assert_eq!(peer.ip(), Peer::A.address(0, Family::V6));
}

#[test]
fn the_nic_form_has_no_transmit_offload_and_the_veth_form_has() {
    if skip() {
        return;
    }
    let feature = |host: &Host, name: &str| {
        let text = host.run("ethtool", &["-k", DEVICE]).unwrap();
        let value =
            text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": ").map(str::to_string));
        value.unwrap_or_else(|| panic!("no {name} in {text}"))
    };
    let (a, b) = pair(LinkForm::Nic);
    for host in [&a, &b] {
        assert_eq!(feature(host, "tcp-segmentation-offload"), "off");
        assert_eq!(feature(host, "generic-segmentation-offload"), "off");
        assert_eq!(feature(host, "tx-checksumming"), "off");
        assert_eq!(feature(host, "generic-receive-offload"), "on");
    }
    let (a, _b) = pair(LinkForm::Veth);
    assert_eq!(feature(&a, "tcp-segmentation-offload"), "on");
    assert_eq!(feature(&a, "tx-checksumming"), "on");
    assert_eq!(a.run("cat", &["/sys/class/net/eth0/mtu"]).unwrap(), "1500\n");
}

#[test]
fn nothing_is_left_when_hosts_are_dropped() {
    if skip() {
        return;
    }
    let devices = || fs::read_to_string("/proc/self/net/dev").unwrap().lines().count();
    let before = devices();
    let cpu = std::sync::Arc::new(Cpu::new());
    let group = cpu.directory().map(Path::to_path_buf);
    let (mut a, b) = pair(LinkForm::Nic);
    a.account(&cpu);
    let mut sleep = a.command("sleep");
    sleep.arg("60");
    let process = Process::spawn(sleep, b"").unwrap();
    let own = format!("/proc/{}", process.id());
    let namespace = |path: &str| fs::read_link(path).unwrap();
    assert_ne!(namespace(&format!("{own}/ns/net")), namespace("/proc/self/ns/net"));
    if let Some(group) = &group {
        let members = fs::read_to_string(group.join("cgroup.procs")).unwrap();
        assert_eq!(members.trim(), process.id().to_string());
    }
    assert_eq!(devices(), before, "a link of the lab is in the surrounding network");
    drop(process);
    drop((a, b, cpu));
    assert!(!Path::new(&own).exists());
    assert!(group.is_none_or(|group| !group.exists()));
}

#[test]
fn a_panic_takes_the_children_along() {
    if skip() {
        return;
    }
    let id = std::sync::Mutex::new(0);
    let panicked = std::panic::catch_unwind(|| {
        let host = Host::new("a").unwrap();
        let mut sleep = host.command("sleep");
        sleep.arg("60");
        let process = Process::spawn(sleep, b"").unwrap();
        *id.lock().unwrap() = process.id();
        panic!("on purpose");
    });
    assert!(panicked.is_err());
    let id = id.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    assert!(id != 0 && !Path::new(&format!("/proc/{id}")).exists());
}

#[test]
fn a_command_keeps_its_working_directory_and_its_failure_keeps_its_words() {
    if skip() {
        return;
    }
    let host = Host::new("a").unwrap();
    let output = host.command("pwd").current_dir("/usr").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "/usr\n");
    let error = host.run("ip", &["link", "show", "dev", "nothing"]).unwrap_err();
    assert!(matches!(&error, LabError::Command { output, .. } if output.contains("nothing")), "{error}");
    let error = host.run("no-such-program", &[]).unwrap_err();
    assert_eq!(error.kind(), "missing_program");
}

#[test]
fn an_address_that_nobody_has_is_reported_after_the_time_given() {
    if skip() {
        return;
    }
    let host = Host::new("a").unwrap();
    let nowhere = Peer::B.address(0, Family::V4);
    assert!(host.enter(|| UdpSocket::bind((nowhere, 0))).unwrap().is_err());
    let error = reach((&host, nowhere), (&host, nowhere), Duration::from_millis(60)).unwrap_err();
    assert!(error.to_string().contains("198.18.0.2"), "{error}");
}
