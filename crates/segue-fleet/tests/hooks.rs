//! Tests of the commands of flannel's `extension` backend, called as flanneld calls them: without a shell, without a
//! retry, and with stdout and stderr of `pre` taken for the data of the lease. No tunnel runs, and what it would take
//! is the file that the hooks write for it; or a control socket of the test's own has the table.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind};
use segue_control::model::{Instance, PeerTable};
use segue_control::peers::{Change, Changes, Key, Peer, RefusedPeer, Table};
use segue_control::protocol::{Request, Response, Topic};
use segue_lab::Host;
use serde_json::Value;

const GUE: &str = r#"{"mode":"gue","port":6080,"remcsum":true}"#;

/// A directory for one test that stands for /run/segue.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("segue-hooks-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        Folder(path)
    }

    fn output(&self, words: &[&str], input: &str) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_segue-fleet"))
            .args(["hook", "--dev", "sgf0"])
            .args(words)
            .env("SEGUE_RUNTIME_DIR", &self.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    fn call(&self, words: &[&str], input: &str) -> String {
        let output = self.output(words, input);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{words:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn refuse(&self, words: &[&str], input: &str) -> String {
        let output = self.output(words, input);
        assert!(!output.status.success(), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn peers(&self) -> Vec<String> {
        let bytes = fs::read(self.0.join("sgf0.peers.json")).unwrap();
        let table: Value = serde_json::from_slice(&bytes).unwrap();
        table["peers"].as_array().unwrap().iter().map(Value::to_string).collect()
    }

    /// Waits until there are `count` peers.
    fn wait_for(&self, count: usize) {
        let begin = Instant::now();
        while self.peers().len() != count {
            assert!(begin.elapsed() < Duration::from_secs(60), "nothing is swept");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn hosts_are_added_confirmed_and_removed() {
    let folder = Folder::new("added");
    assert_eq!(folder.call(&["pre", "--remcsum"], ""), format!("{GUE}\n"));
    folder.call(&["post", "198.19.0.0/16", "198.19.1.0/24", "198.18.0.1", "--grace", "0"], "");
    for _ in 0..3 {
        folder.call(&["add", "198.19.2.0/24", "198.18.0.2"], GUE);
        folder.call(&["add", "198.19.3.0/24", "198.18.0.3"], r#"{"mode":"fou","port":8285}"#);
        let two = r#"{"encap":"gue","port":6080,"prefix":"198.19.2.0/24","remcsum":true,"remote":"198.18.0.2"}"#;
        let three = r#"{"encap":"fou","port":8285,"prefix":"198.19.3.0/24","remote":"198.18.0.3"}"#;
        assert_eq!(folder.peers(), [two, three]);
    }
    // A host that comes back with another address, and a removal that comes twice.
    folder.call(&["add", "198.19.2.0/24", "198.18.0.9"], GUE);
    assert!(folder.peers()[0].contains("198.18.0.9"));
    for _ in 0..2 {
        folder.call(&["del", "198.19.2.0/24", "198.18.0.9"], GUE);
        assert_eq!(folder.peers().len(), 1);
    }
    let state = fs::read_to_string(folder.0.join("sgf0.fleet.json")).unwrap();
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_eq!(
        (&state["engine"], &state["peers"], &state["subnet"]),
        (&"hook".into(), &1.into(), &"198.19.1.0/24".into())
    );
}

#[test]
fn remote_checksums_are_sent_only_by_a_host_that_takes_them() {
    let folder = Folder::new("remcsum");
    assert_eq!(folder.call(&["pre"], ""), "{\"mode\":\"gue\",\"port\":6080}\n");
    folder.call(&["add", "198.19.2.0/24", "198.18.0.2"], GUE);
    assert!(folder.peers()[0].contains(r#""remcsum":false"#));
}

#[test]
fn what_vanished_while_flanneld_was_down_is_swept() {
    let folder = Folder::new("swept");
    let post = ["post", "198.19.0.0/16", "198.19.1.0/24", "198.18.0.1", "--grace"];
    folder.call(&[&post[..], &["600"]].concat(), "");
    for n in 2..5 {
        folder.call(&["add", &format!("198.19.{n}.0/24"), &format!("198.18.0.{n}")], GUE);
    }
    // flanneld starts again and reports two of three; an old sweeper does nothing.
    folder.call(&[&post[..], &["600"]].concat(), "");
    folder.call(&["add", "198.19.2.0/24", "198.18.0.2"], GUE);
    folder.call(&["add", "198.19.4.0/24", "198.18.0.4"], GUE);
    folder.call(&["sweep", "1", "0"], "");
    assert_eq!(folder.peers().len(), 3);
    folder.call(&["sweep", "2", "0"], "");
    assert_eq!(folder.peers().len(), 2);
    assert!(folder.peers().iter().all(|peer| !peer.contains("198.19.3.0/24")));
    // The one that `post` leaves behind by itself.
    folder.call(&[&post[..], &["1"]].concat(), "");
    folder.call(&["add", "198.19.4.0/24", "198.18.0.4"], GUE);
    folder.wait_for(1);
    assert!(folder.peers()[0].contains("198.19.4.0/24"));
}

#[test]
fn no_host_is_swept_that_flanneld_has_not_come_to_yet() {
    let folder = Folder::new("slow");
    let post = ["post", "198.19.0.0/16", "198.19.1.0/24", "198.18.0.1", "--grace"];
    folder.call(&[&post[..], &["600"]].concat(), "");
    for n in 2..6 {
        folder.must("add", n);
    }
    // Its registry does not answer.
    folder.call(&[&post[..], &["1"]].concat(), "");
    thread::sleep(Duration::from_secs(2));
    assert_eq!(folder.peers().len(), 4);
    // All hosts together take longer than the grace time; one that is refused is one that it has come to, too.
    folder.call(&[&post[..], &["3"]].concat(), "");
    folder.must("add", 2);
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(1200));
        folder.refuse(&["add", "198.19.6.0/24", "198.18.0.6"], "");
    }
    thread::sleep(Duration::from_millis(1200));
    assert_eq!(folder.peers().len(), 4);
}

#[test]
fn a_state_that_cannot_be_read_costs_no_host_and_lets_none_in_unchecked() {
    let folder = Folder::new("unreadable");
    folder.call(&["pre", "--mode", "gue", "--port", "6080", "--remcsum"], "");
    let post = ["post", "198.19.0.0/16", "198.19.1.0/24", "198.18.0.1", "--grace", "600"];
    folder.call(&post, "");
    folder.call(&["add", "198.19.2.0/24", "198.18.0.2"], GUE);
    let [state, table] = ["sgf0.hook.json", "sgf0.peers.json"].map(|name| folder.0.join(name));
    let (good, before) = (fs::read_to_string(&state).unwrap(), fs::read_to_string(&table).unwrap());
    assert!(good.contains(r#""encap":"gue""#), "{good}");
    let shown = folder.0.join("sgf0.fleet.json");
    let read_shown = || -> Value { serde_json::from_slice(&fs::read(&shown).unwrap()).unwrap() };
    assert_eq!(read_shown()["state"], "connected");
    for bad in [good.replace(r#""encap":"gue""#, r#""encap":"later""#), good[..good.len() / 2].to_owned()] {
        fs::write(&state, &bad).unwrap();
        // This host's own subnet, all there is, another host, and one that is to go.
        for words in [["add", "198.19.1.0/24"], ["add", "0.0.0.0/0"], ["add", "198.19.3.0/24"]] {
            let said = folder.refuse(&[words[0], words[1], "198.18.0.3"], GUE);
            assert!(said.contains("cannot be read") && said.contains("restart flanneld"), "{said}");
        }
        folder.refuse(&["del", "198.19.2.0/24", "198.18.0.2"], GUE);
        assert_eq!((fs::read_to_string(&state).unwrap(), fs::read_to_string(&table).unwrap()), (bad, before.clone()));
        // HEALTH has it a minute after the first failure.
        let mut failed = read_shown();
        assert!(failed["error"].as_str().is_some_and(|error| error.contains("cannot be read")), "{failed}");
        failed["since"] = 5.into();
        fs::write(&shown, failed.to_string()).unwrap();
        folder.refuse(&["add", "198.19.3.0/24", "198.18.0.3"], GUE);
        let failed = read_shown();
        assert_eq!((&failed["state"], &failed["since"], &failed["peers"]), (&"stale".into(), &5.into(), &1.into()));
    }
    folder.call(&post, "");
    assert_eq!((&read_shown()["state"], &read_shown()["error"]), (&"connected".into(), &Value::Null));
    assert!(folder.refuse(&["add", "198.19.1.0/24", "198.18.0.3"], GUE).contains("refused"));
    folder.call(&["add", "198.19.3.0/24", "198.18.0.3"], GUE);
}

#[test]
fn a_state_in_a_directory_that_is_not_the_one_of_new_files_costs_no_host() {
    if let Some(why) = segue_lab::unavailable() {
        return segue_lab::skip_this_test(&why);
    }
    let host = Host::new("hooks").unwrap();
    let try_sh = |line: &str| host.run("sh", &["-ec", line]);
    let sh = |line: &str| try_sh(line).unwrap();
    // Root has two directories there, of which the hooks take the first one.
    sh("mount -t tmpfs -o mode=755 run /run; mkdir -m 755 /run/segue; mount -t tmpfs -o mode=755 run /run/segue");
    let hook = |line: &str| {
        let mut command = host.command(env!("CARGO_BIN_EXE_segue-fleet"));
        command.args(["hook", "--dev", "sgf0"]).args(line.split(' '));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(GUE.as_bytes());
        let output = child.wait_with_output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let done = |line: &str| assert_eq!(hook(line), (true, String::new()), "{line}");
    let refused = |line: &str, why: &str| {
        let (is_done, said) = hook(line);
        assert!(!is_done && said.contains(why), "{line}: {said}");
    };
    let add = |n: u8| words("add", n).join(" ");
    let peers = || {
        let count = |folder: &str| {
            let line = format!("cat {folder}/sgf0.peers.json 2>&1 | grep -o prefix | wc -l");
            sh(&line).trim().to_owned()
        };
        ["/run/segue", "/run/segue-root"].map(count)
    };
    // No host before flanneld's own hooks: the network is not known.
    refused(&add(2), "restart flanneld");
    done("pre");
    done(&add(2));
    done(&add(3));
    sh("mount -o remount,ro /run/segue");
    for line in [add(4), add(2), words("del", 2).join(" "), "pre".to_owned()] {
        refused(&line, "cannot open what is known of sgf0");
    }
    assert_eq!(peers(), ["2", "0"]);
    sh("mount -o remount,rw /run/segue");
    done(&add(4));
    assert_eq!(peers(), ["3", "0"]);
    // As by the package, whose service gets the directory: flanneld begins again in the other one.
    if try_sh("chown 40124 /run/segue").is_err() {
        return segue_lab::skip_this_test("a user namespace has one user");
    }
    refused(&add(5), "restart flanneld");
    assert_eq!(peers(), ["3", "0"]);
    // HEALTH takes the state that says so, and not the one before.
    sh("grep '\"state\":\"stale\"' /run/segue-root/sgf0.fleet.json; ! test -e /run/segue/sgf0.fleet.json");
    done("pre");
    done(&add(5));
    assert_eq!(peers(), ["3", "1"]);
    sh("chown 0 /run/segue");
    refused(&add(6), "restart flanneld");
    done("pre");
    done(&add(6));
    assert_eq!(peers(), ["1", "1"]);
    // A state that was left there would be shown in place of the one that is written.
    sh("test -e /run/segue/sgf0.fleet.json; chown 40124 /run/segue");
    done("pre");
    sh("test -e /run/segue-root/sgf0.fleet.json; ! test -e /run/segue/sgf0.fleet.json");
}

#[test]
fn a_file_of_an_earlier_version_costs_no_host() {
    let folder = Folder::begun("earlier");
    folder.must("add", 2);
    folder.must("add", 3);
    let path = folder.0.join("sgf0.hook.json");
    let mut memory: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    memory.as_object_mut().unwrap().remove("adds").unwrap();
    fs::write(&path, memory.to_string()).unwrap();
    folder.must("add", 4);
    assert_eq!(folder.peers().len(), 3);
}

#[test]
fn a_subnet_of_this_hosts_length_goes_before_an_older_one_of_another() {
    let folder = Folder::new("wide");
    folder.call(&["pre", "--remcsum"], "");
    folder.call(&["post", "198.19.0.0/16", "198.19.1.0/24", "198.18.0.1", "--grace", "600"], "");
    let prefixes = || -> Vec<String> {
        let of = |peer: String| serde_json::from_str::<Value>(&peer).unwrap()["prefix"].as_str().unwrap().to_owned();
        folder.peers().into_iter().map(of).collect()
    };
    let overlaps = || {
        let state = fs::read_to_string(folder.0.join("sgf0.fleet.json")).unwrap();
        serde_json::from_str::<Value>(&state).unwrap()["refused"]["overlap"].as_u64().unwrap_or(0)
    };
    // Of two that have another length the one that was there first stays.
    folder.call(&["add", "198.19.128.0/17", "198.18.0.9"], GUE);
    folder.refuse(&["add", "198.19.200.64/26", "198.18.0.8"], GUE);
    assert_eq!((prefixes(), overlaps()), (vec!["198.19.128.0/17".to_owned()], 1));
    // One that is refused for another reason takes no place.
    folder.refuse(&["add", "198.19.130.0/24", "198.18.0.3"], r#"{"mode":"gue","port":0}"#);
    assert_eq!((prefixes(), overlaps()), (vec!["198.19.128.0/17".to_owned()], 1));
    folder.call(&["add", "198.19.130.0/24", "198.18.0.3"], GUE);
    assert_eq!((prefixes(), overlaps()), (vec!["198.19.130.0/24".to_owned()], 2));
    folder.call(&["add", "198.19.200.0/24", "198.18.0.4"], GUE);
    // It does not come back, and neither does a part of one.
    folder.refuse(&["add", "198.19.128.0/17", "198.18.0.9"], GUE);
    folder.refuse(&["add", "198.19.130.7/32", "198.18.0.9"], GUE);
    assert_eq!((prefixes(), overlaps()), (vec!["198.19.130.0/24".to_owned(), "198.19.200.0/24".to_owned()], 4));
    // Several parts that were there first.
    for part in ["198.19.3.0/25", "198.19.3.128/26"] {
        folder.call(&["add", part, "198.18.0.9"], GUE);
    }
    folder.call(&["add", "198.19.3.0/24", "198.18.0.5"], GUE);
    assert_eq!((prefixes().len(), overlaps()), (3, 6));
    assert!(prefixes().contains(&"198.19.3.0/24".to_owned()), "{:?}", prefixes());
}

#[test]
fn a_host_of_another_vxlan_network_is_refused() {
    let folder = Folder::new("vni");
    let ours = folder.call(&["pre", "--mode", "vxlan", "--vni", "7", "--lladdr", "02:00:00:00:00:01"], "");
    assert_eq!(ours, "{\"mode\":\"vxlan\",\"port\":8472,\"vni\":7,\"mac\":\"02:00:00:00:00:01\"}\n");
    let theirs = ours.replace("00:01", "00:02");
    folder.call(&["add", "198.19.2.0/24", "198.18.0.2"], &theirs);
    let before = folder.peers();
    assert!(before.len() == 1 && before[0].contains(r#""vni":7"#), "{before:?}");
    for (data, why) in [(theirs.replace('7', "8"), "the VNI is not"), (ours, "VtepMAC is that of this host")] {
        let text = folder.refuse(&["add", "198.19.3.0/24", "198.18.0.3"], &data);
        assert!(text.contains(why), "{data}: {text}");
        assert_eq!(folder.peers(), before);
    }
}

#[test]
fn a_wrong_host_is_refused_by_name_and_costs_no_other() {
    let folder = Folder::new("wrong");
    folder.call(&["pre", "--remcsum"], "");
    folder.call(&["post", "198.19.0.0/16", "198.19.1.0/24", "198.18.0.1", "--grace", "0"], "");
    folder.call(&["add", "198.19.2.0/24", "198.18.0.2"], GUE);
    let before = folder.peers();
    for (subnet, address, data, why) in [
        ("198.19.3.0", "198.18.0.3", GUE, "ADDRESS-LEN"),
        ("198.19.3.1/24", "198.18.0.3", GUE, "host bits"),
        ("198.20.3.0/24", "198.18.0.3", GUE, "not in the network"),
        ("198.19.1.0/25", "198.18.0.3", GUE, "with that of this host"),
        ("198.19.2.0/25", "198.18.0.3", GUE, "with another lease"),
        ("198.19.3.0/24", "there", GUE, "no IPv4 address"),
        ("198.19.3.0/24", "224.0.0.1", GUE, "multicast"),
        ("198.19.3.0/24", "198.19.9.1", GUE, "carry itself"),
        ("198.19.3.0/24", "198.18.0.1", GUE, "that of this host"),
        ("198.19.3.0/24", "198.18.0.3", "", "not what the backend writes"),
        ("198.19.3.0/24", "198.18.0.3", r#"{"mode":"teleport","port":1}"#, "not what the backend writes"),
        ("198.19.3.0/24", "198.18.0.3", r#"{"mode":"gue","port":0}"#, "not what the backend writes"),
        ("198.19.3.0/24", "198.18.0.3", r#"{"mode":"gue","port":65536}"#, "not what the backend writes"),
        ("198.19.3.0/24", "198.18.0.3", r#"{"mode":"gue","port":"6080"}"#, "not what the backend writes"),
        ("198.19.3.0/24", "198.18.0.3", r#"{"mode":"gue","port":1,"port":2}"#, "not what the backend writes"),
        ("198.19.3.0/24", "198.18.0.3", r#"{"mode":"gue","port":1,"remcsum":1}"#, "not what the backend writes"),
        ("198.19.3.0/24", "198.18.0.3", r#"["gue",6080]"#, "not what the backend writes"),
        ("198.19.3.0/24", "198.18.0.3", r#"{"mode":"vxlan","port":1,"vni":16777216}"#, "not what the backend writes"),
        ("198.19.3.0/24", "198.18.0.3", r#"{"mode":"vxlan","port":1,"vni":-1}"#, "not what the backend writes"),
        ("198.19.3.0/24", "198.18.0.3", r#"{"mode":"vxlan","port":1,"mac":"00:00:00:00:00:00"}"#, "multicast"),
        ("198.19.3.0/+4", "198.18.0.3", GUE, "ADDRESS-LEN"),
        ("198.19.3.0/024", "198.18.0.3", GUE, "ADDRESS-LEN"),
        ("2001:db8:1::/64", "198.18.0.3", GUE, "ADDRESS-LEN"),
        ("198.19.0.0/16", "198.18.0.3", GUE, "not in the network"),
        ("0.0.0.0/0", "198.18.0.3", GUE, "not in the network"),
        ("198.19.3.0/24", "2001:db8::3", GUE, "no IPv4 address"),
        ("198.19.3.0/24", "198.18.0.03", GUE, "no IPv4 address"),
        ("198.19.3.0/24", "0.0.0.0", GUE, "reserved"),
        ("198.19.3.0/24", "127.0.0.1", GUE, "loopback"),
        ("198.19.3.0/24", "255.255.255.255", GUE, "reserved"),
        ("198.19.3.0/24", "198.18.0.3", r#"{"mode":"vxlan","port":1}"#, "no MAC address"),
        ("198.19.3.0/24", "198.18.0.3", r#"{"mode":"vxlan","port":1,"mac":"01:00:00:00:00:01"}"#, "multicast"),
        ("198.19.3.0/24", "198.18.0.3", &" ".repeat(5000), "4096"),
    ] {
        let text = folder.refuse(&["add", subnet, address], data);
        assert!(text.contains(why), "{subnet} {address} {data}: {text}");
        assert_eq!(folder.peers(), before);
    }
}

/// State of a fake tunnel.
#[derive(Default)]
struct FakeState {
    generation: u64,
    peers: BTreeMap<String, Peer>,
    /// Changes by which the tunnel was asked to change its table.
    asked: Vec<Change>,
    /// Whether the tunnel closes instead of answering a change.
    is_silent: bool,
    /// Time that each change takes.
    delay: Duration,
    /// Remote address of peers that the tunnel refuses.
    refused: Option<IpAddr>,
}

impl FakeState {
    fn change(&mut self, change: Change) -> Result<Changes, Error> {
        let mut peers = self.peers.clone();
        let mut refused = Vec::new();
        let is_refused = |peer: &Peer| self.refused == Some(peer.remote);
        match change {
            Change::Sync(Table { peers: wanted, .. }) => {
                let (wrong, good): (Vec<Peer>, Vec<Peer>) = wanted.into_iter().partition(is_refused);
                peers = good.into_iter().map(|peer| (peer.key(), peer)).collect();
                let named = |peer: Peer| RefusedPeer { number: 1, key: peer.key(), why: "a rule".to_owned() };
                refused = wrong.into_iter().map(named).collect();
            }
            Change::Replace(changed) if changed.iter().any(is_refused) => {
                return Err(Error::new(Kind::BadValue, "peer 1 is refused", "-").why("a rule"));
            }
            Change::Replace(changed) => peers.extend(changed.into_iter().map(|peer| (peer.key(), peer))),
            Change::Del(keys) => {
                for key in keys.iter().map(Key::to_string) {
                    peers.remove(&key).ok_or_else(|| Error::new(Kind::NotFound, "it is not in the table", "-"))?;
                }
            }
            Change::Add(_) | Change::Keep(_) => unreachable!("a hook changes entries so"),
        }
        self.generation += u64::from(peers != self.peers);
        self.peers = peers;
        let refused_peers = refused.clone();
        let count = refused.len() as u64;
        Ok(Changes { generation: self.generation, refused: count, refused_peers, ..Changes::default() })
    }

    /// Returns the answer to a request; `None` where the tunnel closes without one.
    fn answer(&mut self, request: Request) -> Option<Response> {
        Some(match request {
            Request::Get(Topic::Stat) => {
                let table = PeerTable { generation: self.generation, ..PeerTable::default() };
                Response::Instance(Box::new(Instance { pid: 7, peers: Some(Box::new(table)), ..Instance::default() }))
            }
            Request::Get(Topic::Peers) => Response::Peers(Some(Box::default())),
            Request::Peers(change) => {
                self.asked.push(change.clone());
                if self.is_silent {
                    return None;
                }
                self.change(change).map_or_else(Response::from, Response::Synced)
            }
            _ => unreachable!("a hook asks nothing else"),
        })
    }
}

/// A fake tunnel: a control socket with a table of peers.
struct FakeTunnel(Arc<Mutex<FakeState>>);

impl FakeTunnel {
    fn start(folder: &Folder) -> FakeTunnel {
        let listener = UnixListener::bind(folder.0.join("sgf0.sock")).unwrap();
        let state = Arc::<Mutex<FakeState>>::default();
        let shared = Arc::clone(&state);
        let serve = move |mut stream: UnixStream| {
            let mut line = Vec::new();
            BufReader::new(stream.try_clone().unwrap()).read_until(b'\n', &mut line).unwrap();
            let Ok(request) = Request::parse(&line) else { return };
            let delay = shared.lock().unwrap().delay;
            if let Request::Peers(_) = &request {
                thread::sleep(delay);
            }
            if let Some(answer) = shared.lock().unwrap().answer(request) {
                stream.write_all(answer.line().as_bytes()).unwrap();
            }
        };
        thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(serve));
        FakeTunnel(state)
    }

    fn set(&self, change: impl FnOnce(&mut FakeState)) {
        change(&mut self.0.lock().unwrap());
    }

    fn is_silent(&self, is_silent: bool) {
        self.set(|state| state.is_silent = is_silent);
    }

    /// Returns the third numbers of the subnets in the tunnel's table.
    fn subnets(&self) -> Vec<u8> {
        let state = self.0.lock().unwrap();
        let third = |key: &String| key.split('.').nth(2).unwrap().parse().unwrap();
        let mut subnets: Vec<u8> = state.peers.keys().map(third).collect();
        subnets.sort_unstable();
        subnets
    }

    /// Returns the names of the changes since the last call.
    fn asked(&self) -> Vec<&'static str> {
        let name = |change: Change| match change {
            Change::Sync(_) => "sync",
            Change::Replace(_) => "replace",
            Change::Del(_) => "del",
            Change::Add(_) | Change::Keep(_) => "other",
        };
        self.0.lock().unwrap().asked.drain(..).map(name).collect()
    }
}

/// Returns the words for a change of the host with the subnet 198.19.N.0/24.
fn words(call: &str, n: u8) -> [String; 3] {
    [call.to_owned(), format!("198.19.{n}.0/24"), format!("198.18.0.{n}")]
}

impl Folder {
    /// Returns a directory with the state that flanneld's first hook has left.
    fn begun(name: &str) -> Folder {
        let folder = Folder::new(name);
        folder.call(&["pre"], "");
        folder
    }

    fn must(&self, call: &str, n: u8) {
        self.call(&words(call, n).each_ref().map(String::as_str), GUE);
    }

    fn fails(&self, call: &str, n: u8) -> String {
        self.refuse(&words(call, n).each_ref().map(String::as_str), GUE)
    }
}

#[test]
fn a_peer_whose_change_failed_is_sent_again_by_the_next_hook() {
    let folder = Folder::begun("lost-add");
    let tunnel = FakeTunnel::start(&folder);
    folder.must("add", 2);
    folder.must("add", 3);
    tunnel.is_silent(true);
    assert!(folder.fails("add", 4).contains("cannot ask sgf0"));
    tunnel.is_silent(false);
    folder.must("add", 4);
    assert_eq!(tunnel.subnets(), [2, 3, 4]);
    // Another host's change brings it as well.
    tunnel.is_silent(true);
    folder.fails("add", 5);
    tunnel.is_silent(false);
    folder.must("add", 6);
    assert_eq!(tunnel.subnets(), [2, 3, 4, 5, 6]);
    // What is in force costs no change, and a new host one.
    tunnel.asked();
    folder.must("add", 5);
    assert_eq!(tunnel.asked(), [""; 0]);
    folder.must("add", 7);
    assert_eq!(tunnel.asked(), ["replace"]);
}

#[test]
fn a_peer_whose_removal_failed_is_removed_by_the_next_hook() {
    let folder = Folder::begun("lost-del");
    let tunnel = FakeTunnel::start(&folder);
    for n in 2..6 {
        folder.must("add", n);
    }
    tunnel.is_silent(true);
    assert!(folder.fails("del", 2).contains("cannot ask sgf0"));
    tunnel.is_silent(false);
    folder.must("del", 2);
    assert_eq!(tunnel.subnets(), [3, 4, 5]);
    // Another host's add brings it as well, and so it is with a sweep.
    tunnel.is_silent(true);
    folder.fails("del", 3);
    tunnel.is_silent(false);
    folder.must("add", 4);
    assert_eq!(tunnel.subnets(), [4, 5]);
    folder.call(&["post", "198.19.0.0/16", "198.19.1.0/24", "198.18.0.1", "--grace", "600"], "");
    folder.must("add", 5);
    tunnel.is_silent(true);
    folder.refuse(&["sweep", "1", "0"], "");
    tunnel.is_silent(false);
    folder.call(&["sweep", "1", "0"], "");
    assert_eq!(tunnel.subnets(), [5]);
    // One that is not known needs no change, and one that only the tunnel has lost is no failure.
    tunnel.asked();
    folder.must("del", 9);
    assert_eq!(tunnel.asked(), [""; 0]);
    tunnel.set(|state| state.peers.clear());
    folder.must("del", 5);
    assert_eq!(tunnel.subnets(), [0; 0]);
}

#[test]
fn no_host_is_swept_after_an_add_for_which_the_tunnel_took_longer_than_the_grace_time() {
    let folder = Folder::new("slow-tunnel");
    let tunnel = FakeTunnel::start(&folder);
    let post = ["post", "198.19.0.0/16", "198.19.1.0/24", "198.18.0.1", "--grace"];
    folder.call(&[&post[..], &["600"]].concat(), "");
    for n in 2..6 {
        folder.must("add", n);
    }
    folder.call(&[&post[..], &["3"]].concat(), "");
    tunnel.set(|state| state.delay = Duration::from_secs(4));
    folder.must("add", 6);
    tunnel.set(|state| state.delay = Duration::ZERO);
    // Before flanneld comes to the next host.
    thread::sleep(Duration::from_millis(300));
    assert_eq!(folder.peers().len(), 5);
    for n in 2..5 {
        folder.must("add", n);
    }
    // The one that it does not come to.
    folder.wait_for(4);
    assert!(folder.peers().iter().all(|peer| !peer.contains("198.19.5.0/24")));
}

#[test]
fn a_tunnel_that_has_lost_its_table_gets_all_of_it_by_the_next_add() {
    let folder = Folder::begun("lost-table");
    let tunnel = FakeTunnel::start(&folder);
    folder.must("add", 2);
    folder.must("add", 3);
    tunnel.set(|state| *state = FakeState::default());
    folder.must("add", 2);
    folder.must("add", 3);
    assert_eq!(tunnel.subnets(), [2, 3]);
    assert_eq!(tunnel.asked(), ["sync"]);
}

#[test]
fn a_peer_that_the_tunnel_refuses_is_not_kept_and_costs_no_other() {
    let folder = Folder::begun("refused");
    folder.must("add", 2);
    folder.must("add", 3);
    folder.must("add", 4);
    // The tunnel is started later, without the file: it gets the whole table, and of a single change only the refusal.
    let tunnel = FakeTunnel::start(&folder);
    tunnel.set(|state| state.refused = "198.18.0.3".parse().ok());
    folder.must("add", 2);
    assert_eq!((tunnel.subnets(), folder.peers().len()), (vec![2, 4], 2));
    for _ in 0..2 {
        assert!(folder.fails("add", 3).contains("a rule"));
        assert_eq!((tunnel.subnets(), folder.peers().len()), (vec![2, 4], 2));
    }
    // What a refused peer was to replace stays, also where the tunnel is asked to take the whole table.
    tunnel.set(|state| state.refused = "198.18.0.44".parse().ok());
    for generation in [0, 7] {
        tunnel.set(|state| state.generation += generation);
        assert!(folder.refuse(&["add", "198.19.4.0/24", "198.18.0.44"], GUE).contains("a rule"));
        assert_eq!((tunnel.subnets(), folder.peers().len()), (vec![2, 4], 2));
        assert!(folder.peers()[1].contains("198.18.0.4\""));
    }
}
