//! Tests of reloads of a service whose tunnel has a peer table: the table that the tunnel has afterwards.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{LinkForm, Process};
use segue_tests::capture::Directory;
use segue_tests::{Ground, Stat, test_name, traffic};
use serde_json::Value;

const DEVICE: &str = "pt0";
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `segue peer ... -j` at A with the given words. Returns its output where it succeeds.
fn peer(ground: &Ground, words: &[&str]) -> Option<Value> {
    let mut command = ground.a.command(&ground.program);
    let output = command.arg("peer").args(words).arg("-j").output().expect("segue peer starts");
    output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("one JSON value"))
}

/// Returns a table of one peer.
fn of_one(remote: &str) -> String {
    format!(r#"{{"peers":[{{"prefix":"198.19.7.0/24","remote":"{remote}"}}]}}"#)
}

/// A service at A with one tunnel, whose table is empty at first.
struct Service<'g> {
    ground: &'g Ground,
    _process: Process,
    folder: Directory,
}

impl Service<'_> {
    /// Starts the service, and waits until its tunnel answers.
    #[track_caller]
    fn start(ground: &Ground) -> Service<'_> {
        let folder = Directory::new();
        fs::write(folder.file("segue.toml"), Service::tunnel("none", "198.19.1.1/24")).unwrap();
        let mut command = ground.a.command(&ground.program);
        command.arg("run").arg("-c").arg(folder.file("segue.toml"));
        let process = Process::spawn(command, b"").expect("segue run starts");
        let begin = Instant::now();
        while peer(ground, &["list", DEVICE]).is_none() {
            assert!(begin.elapsed() < PATIENCE, "the service is not up");
            thread::sleep(Duration::from_millis(50));
        }
        Service { ground, _process: process, folder }
    }

    /// Returns the text of the tunnel in the file of the service.
    fn tunnel(peers: &str, address: &str) -> String {
        format!("[[tunnel]]\ndev = \"{DEVICE}\"\npeers = \"{peers}\"\nlocal = \"198.18.0.1\"\naddr = \"{address}\"\n")
    }

    fn write(&self, peers: &str, address: &str) {
        fs::write(self.folder.file("segue.toml"), Service::tunnel(peers, address)).unwrap();
    }

    /// Reloads the file, which must succeed or not, and returns what is said.
    #[track_caller]
    fn reloads(&self, succeeds: bool) -> String {
        let output = self.ground.a.command(&self.ground.program).arg("reload").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), succeeds, "{said}");
        said
    }

    /// Reloads a file with the text of the tunnel and with [`OTHER`], which is refused for the latter.
    #[track_caller]
    fn is_refused(&self, own: &str) {
        fs::write(self.folder.file("segue.toml"), own.to_owned() + OTHER).unwrap();
        let said = self.reloads(false);
        assert!(said.contains("6099"), "{said}");
    }

    /// Replaces the table.
    #[track_caller]
    fn sync(&self, table: &str) {
        let file = self.folder.file("sync.json");
        fs::write(&file, table).unwrap();
        peer(self.ground, &["sync", DEVICE, file.to_str().unwrap()]).expect("the table is taken");
    }

    /// Returns the number of the table, and its remotes.
    fn remotes(&self) -> (u64, Vec<String>) {
        let listed = peer(self.ground, &["list", DEVICE]).expect("a table");
        let remotes =
            listed["peers"].as_array().unwrap().iter().map(|peer| peer["remote"].as_str().unwrap().to_owned());
        (listed["generation"].as_u64().unwrap(), remotes.collect())
    }
}

/// A tunnel that cannot have its port where [`occupied`] has it.
const OTHER: &str = "[[tunnel]]\ndev = \"pt1\"\nlocal = \"198.18.0.1\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\n\
    port = 6099\nencap-dport = 6099\n";

/// Takes the port of [`OTHER`].
fn occupied(ground: &Ground) -> UdpSocket {
    traffic::inside(&ground.a, || UdpSocket::bind("198.18.0.1:6099")).expect("a port")
}

#[test]
fn a_tunnel_that_a_refused_reload_has_ended_gets_its_table_back() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let service = Service::start(&ground);
    let before = (42, vec!["198.18.0.3".to_owned()]);
    let synced = format!(r#"{{"generation":42,{}"#, &of_one("198.18.0.3")[1..]);
    service.sync(&synced);
    // A tunnel cannot have its port, and the one with the table is to go, is to have another address, or a file.
    let _taken = occupied(&ground);
    let file = service.folder.file("peers.json");
    fs::write(&file, of_one("198.18.0.4")).unwrap();
    let with_file = Service::tunnel(file.to_str().unwrap(), "198.19.1.1/24");
    for own in [String::new(), Service::tunnel("none", "198.19.1.2/24"), with_file] {
        service.is_refused(&own);
        assert_eq!(service.remotes(), before, "{own}");
    }
}

#[test]
fn a_refused_reload_gives_a_tunnel_its_table_back_whatever_its_file_has_by_now() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let service = Service::start(&ground);
    let [file, moved] = ["peers.json", "moved.json"].map(|name| service.folder.file(name));
    fs::write(&file, of_one("198.18.0.4")).unwrap();
    service.write(file.to_str().unwrap(), "198.19.1.1/24");
    service.reloads(true);
    let before = (1, vec!["198.18.0.4".to_owned()]);
    assert_eq!(service.remotes(), before);
    let _taken = occupied(&ground);
    let with = |file: &Path| Service::tunnel(file.to_str().unwrap(), "198.19.1.2/24");
    // Another table, of which nothing says that it is later.
    fs::write(&file, of_one("198.18.0.5")).unwrap();
    service.is_refused(&with(&file));
    assert_eq!(service.remotes(), before, "another table");
    fs::rename(&file, &moved).unwrap();
    service.is_refused(&with(&moved));
    assert_eq!(service.remotes(), before, "no file");
    fs::write(&file, "[]").unwrap();
    service.is_refused("");
    assert_eq!(service.remotes(), before, "no table");
}

#[test]
fn no_tunnel_ends_for_a_file_of_peers_that_is_no_table() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let service = Service::start(&ground);
    let file = service.folder.file("peers.json");
    fs::write(&file, of_one("198.18.0.4")).unwrap();
    service.write(file.to_str().unwrap(), "198.19.1.1/24");
    service.reloads(true);
    let state = || {
        let stat = Stat::read(&ground.a, &ground.program, DEVICE);
        (stat.json()["pid"].as_u64().expect("a number"), service.remotes())
    };
    let before = state();
    // Its address differs, so that it would start anew; with the file of now it could not, whatever its address.
    fs::write(&file, "[]").unwrap();
    service.write(file.to_str().unwrap(), "198.19.1.2/24");
    assert!(service.reloads(false).contains("this is no table"));
    assert_eq!(state(), before);
    service.write("/none/peers.json", "198.19.1.1/24");
    assert!(service.reloads(false).contains("/none/peers.json"));
    assert_eq!(state(), before);
}

#[test]
fn a_tunnel_that_starts_anew_with_a_pipe_has_the_table_that_it_has_read_from_it() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["mkfifo"]) else { return };
    let service = Service::start(&ground);
    let pipe = service.folder.file("pipe");
    ground.a.run("mkfifo", &[pipe.to_str().unwrap()]).unwrap();
    for (remote, address) in [("198.18.0.4", "198.19.1.1/24"), ("198.18.0.5", "198.19.1.2/24")] {
        service.sync(&format!(r#"{{"generation":42,{}"#, &of_one("198.18.0.3")[1..]));
        service.write(pipe.to_str().unwrap(), address);
        // It is written once the start of the tunnel reads it.
        let (pipe, table) = (pipe.clone(), of_one(remote));
        let written = thread::spawn(move || fs::write(pipe, table));
        service.reloads(true);
        written.join().unwrap().unwrap();
        assert_eq!(service.remotes(), (1, vec![remote.to_owned()]));
        let stat = Stat::read(&ground.a, &ground.program, DEVICE);
        assert!(stat.json()["peers"]["file_refused"].as_str().is_none_or(str::is_empty), "{}", stat.json()["peers"]);
    }
}

#[test]
fn a_reload_keeps_the_table_and_loads_that_of_a_file_again() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let service = Service::start(&ground);
    let file = service.folder.file("peers.json");
    let synced = format!(r#"{{"generation":42,{}"#, &of_one("198.18.0.3")[1..]);
    service.sync(&synced);
    service.reloads(true);
    assert_eq!(service.remotes(), (42, vec!["198.18.0.3".to_owned()]), "nothing has changed");
    service.write("none", "198.19.1.2/24");
    service.reloads(true);
    assert_eq!(service.remotes(), (42, vec!["198.18.0.3".to_owned()]), "the tunnel was made anew");
    // A file that was not there before has the table from now on, also when it changes.
    fs::write(&file, of_one("198.18.0.4")).unwrap();
    service.write(file.to_str().unwrap(), "198.19.1.2/24");
    service.reloads(true);
    assert_eq!(service.remotes(), (1, vec!["198.18.0.4".to_owned()]));
    fs::write(&file, of_one("198.18.0.5")).unwrap();
    service.reloads(true);
    assert_eq!(service.remotes(), (2, vec!["198.18.0.5".to_owned()]));
    // One that is wrong leaves the table of before, and the state says why.
    let state = || {
        let stat = Stat::read(&ground.a, &ground.program, DEVICE);
        let of = |key: &str, health: &Value| health[0][key].as_str().unwrap_or_default().to_owned();
        let refused = stat.json()["peers"]["file_refused"].as_str().unwrap_or_default().to_owned();
        (refused, of("code", &stat.json()["health"]), of("why", &stat.json()["health"]))
    };
    fs::write(&file, "[]").unwrap();
    service.reloads(true);
    assert_eq!(service.remotes(), (2, vec!["198.18.0.5".to_owned()]));
    let (refused, code, why) = state();
    let is_named = refused.contains("this is no table") && why == refused;
    assert!(is_named && code == "peers_refused", "{refused}, {code}, {why}");
    // Of single entries that are wrong each is refused by its name, and the others are in force: also at a start.
    let own = r#"{"prefix":"198.19.8.0/24","remote":"198.18.0.1"}"#;
    let foreign = r#"{"prefix":"198.19.9.0/24","remote":"198.18.0.9","encap":"ipip"}"#;
    fs::write(&file, of_one("198.18.0.5").replace("]}", &format!(",{own},{foreign}]}}"))).unwrap();
    for address in ["198.19.1.2/24", "198.19.1.3/24"] {
        service.write(file.to_str().unwrap(), address);
        service.reloads(true);
        assert_eq!(service.remotes(), (2, vec!["198.18.0.5".to_owned()]), "{address}");
        let stat = Stat::read(&ground.a, &ground.program, DEVICE);
        let named = stat.json()["peers"]["refused_named"].as_array().cloned().unwrap_or_default();
        let said: Vec<&str> = named.iter().filter_map(|refused| refused["why"].as_str()).collect();
        assert!(said.len() == 2 && said[0].contains("this end of the tunnel") && said[1].contains("ipip"), "{said:?}");
        assert_eq!(state().1, "peers_refused");
    }
    fs::write(&file, of_one("198.18.0.6")).unwrap();
    service.reloads(true);
    assert_eq!((service.remotes(), state()), ((3, vec!["198.18.0.6".to_owned()]), Default::default()));
    // So it is where the tunnel starts anew, and where another process takes it over.
    for (number, remote, more) in [(4, "198.18.0.7", ""), (5, "198.18.0.8", "weak-sandbox = true\n")] {
        fs::write(&file, of_one(remote)).unwrap();
        let text = Service::tunnel(file.to_str().unwrap(), "198.19.1.4/24") + more;
        fs::write(service.folder.file("segue.toml"), text).unwrap();
        service.reloads(true);
        assert_eq!(service.remotes(), (number, vec![remote.to_owned()]));
    }
}
