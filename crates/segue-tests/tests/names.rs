//! Tests of tunnels whose remote is a name: without an address, with a new one, and with a resolver that is silent,
//! late or away.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use segue_lab::{Host, LinkForm, Process};
use segue_tests::capture::Directory;
use segue_tests::{Ground, sys, test_name, until};
use serde_json::Value;

/// Longest time for a start or a reload without a wait for names; both once waited for 6 seconds.
const SOON: Duration = Duration::from_secs(5);
/// Time before an answer for which no start, no reload and no upgrade waits.
const LATE: Duration = Duration::from_secs(15);
/// A file of host names without one of a peer.
const LOCAL: &str = "127.0.0.1 localhost\n";
/// A file of host names with one peer.
const PEER: &str = "127.0.0.1 localhost\n198.18.0.2 peer.invalid\n";

/// Returns a `[[tunnel]]` of a configuration, with a key of its own.
fn table(dev: &str, remote: &str, port: u16, key: u8) -> String {
    let ends = format!("dev = \"{dev}\"\nlocal = \"198.18.0.1\"\nremote = \"{remote}\"\n");
    format!("[[tunnel]]\n{ends}encap = \"gue\"\nport = {port}\nkey = {key}\n")
}

/// Puts a file with this content in place of a program, as a package does.
fn install(program: &Path, content: &[u8]) {
    let beside = program.with_extension("new");
    fs::write(&beside, content).expect("a file");
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)).expect("its mode");
    fs::rename(&beside, program).expect("a file in its place");
}

/// A service on one host, with a private hosts file.
struct Near<'a> {
    host: &'a Host,
    program: PathBuf,
    directory: Directory,
    service: Process,
}

impl<'a> Near<'a> {
    /// Starts the service `near` of `program` at a host, with these host names and tunnels.
    fn start(host: &'a Host, program: &Path, hosts: &str, tunnels: &str) -> Near<'a> {
        let directory = Directory::new();
        let (names, file) = (directory.file("hosts"), directory.file("near.toml"));
        fs::write(&names, hosts).expect("a file");
        host.run("mount", &["--bind", &names.display().to_string(), "/etc/hosts"]).expect("a mount");
        fs::write(&file, tunnels).expect("a file");
        let mut command = host.command(program);
        command.args(["run", "-c"]).arg(&file);
        let service = Process::spawn(command, b"").expect("segue starts");
        Near { host, program: program.to_owned(), directory, service }
    }

    fn write_hosts(&self, text: &str) {
        fs::write(self.directory.file("hosts"), text).expect("a file");
    }

    fn write_tunnels(&self, text: &str) {
        fs::write(self.directory.file("near.toml"), text).expect("a file");
    }

    /// Runs `segue` with the given words, separated by blanks; returns whether it succeeds, its stdout and its stderr.
    fn segue(&self, line: &str) -> (bool, String, String) {
        let output = self.host.command(&self.program).args(line.split(' ')).output().expect("segue runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    }

    /// Reloads the file, which must succeed, and returns the messages about it.
    #[track_caller]
    fn reload(&self) -> String {
        let (is_done, _, stderr) = self.segue("reload near");
        assert!(is_done, "{stderr}");
        stderr
    }

    fn instance(&self, name: &str) -> Option<Value> {
        let document: Value = serde_json::from_str(&self.segue(&format!("stat {name} -j")).1).ok()?;
        document["instances"].get(0).cloned()
    }

    /// Returns the id of the process of an instance, if there is one.
    fn pid(&self, name: &str) -> Option<u64> {
        self.instance(name)?["pid"].as_u64().filter(|pid| *pid != 0)
    }

    /// Waits until HEALTH reports that an instance does not run for the given reason, and returns the problem.
    #[track_caller]
    fn await_absent(&self, name: &str, reason: &str) -> Value {
        until(&format!("{name} is not absent for `{reason}`: {}", self.service.stderr()), || {
            let state = self.instance(name)?;
            let problem = state["health"].get(0)?;
            let is_it = problem["what"].as_str()?.contains(reason) && problem["code"] == "down" && state["pid"] == 0;
            is_it.then(|| problem.clone())
        })
    }

    /// Waits until tunnel `name` runs in the process of the instance `of`, with the remote 198.18.0.2.
    #[track_caller]
    fn await_tunnel(&self, name: &str, of: &str) {
        self.await_remote(name, of, &["198.18.0.2:"]);
    }

    /// Waits until tunnel `name` runs in the process of the instance `of`, with a remote that begins with one of these.
    #[track_caller]
    fn await_remote(&self, name: &str, of: &str, remotes: &[&str]) {
        until(&format!("{name} does not have the remote {remotes:?}: {}", self.service.stderr()), || {
            let state = self.instance(of).filter(|state| state["pid"] != 0)?;
            let remote = state["tunnels"][name]["remote"].as_str()?;
            (remotes.iter().any(|begin| remote.starts_with(begin)) && self.host.has_device(name)).then_some(())
        });
    }
}

#[test]
fn a_remote_whose_name_has_no_address_is_absent_until_it_has_one_and_costs_no_other_tunnel() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    // One has a port of its own, the other one that of a tunnel that runs.
    let named = table("red", "peer.invalid", 6090, 2) + &table("green", "peer.invalid", 6080, 3);
    let tunnels = table("blue", "198.18.0.2", 6080, 1) + &named;
    let near = Near::start(&ground.a, &ground.program, LOCAL, &tunnels);
    let unknown = "cannot find the address of `peer.invalid`";
    for name in ["red", "green"] {
        near.await_absent(name, unknown);
    }
    let before = until("blue does not run", || near.pid("blue"));

    // A reload changes nothing of that, takes in another name without an address, and says what each waits for.
    near.write_tunnels(&(tunnels.clone() + &table("black", "other.invalid", 6070, 4)));
    let said = near.reload();
    let other = "absent black (cannot find the address of `other.invalid`";
    assert!(said.contains(other) && said.contains("absent red (") && said.contains("absent green ("), "{said}");
    for name in ["red", "green"] {
        near.await_absent(name, unknown);
    }
    near.await_absent("black", "cannot find the address of `other.invalid`");
    assert_eq!(near.pid("blue"), Some(before));

    // A name of the other family is another mistake, and no tunnel has stopped.
    near.write_hosts("127.0.0.1 localhost\n2001:db8::2 six.invalid\n");
    near.write_tunnels(&(tunnels.clone() + &table("black", "six.invalid", 6070, 4)));
    let said = near.reload();
    let why = "`six.invalid` has no IPv4 address, and `local 198.18.0.1` is one";
    assert!(said.contains(&format!("absent black ({why}")) && !said.contains("stopped"), "{said}");
    let problem = near.await_absent("black", why);
    assert!(problem["fix"].as_str().is_some_and(|fix| fix.contains("a name with an IPv4 address")), "{problem}");
    assert_eq!(near.pid("blue"), Some(before));

    // Without a request the names are looked up again.
    near.write_hosts(&format!("{PEER}198.18.0.2 six.invalid\n"));
    for (name, of) in [("red", "red"), ("green", "blue"), ("black", "black")] {
        near.await_tunnel(name, of);
    }
    assert!(ground.a.has_device("blue"));

    // What runs is not ended because its name is unknown for a while: neither by a reload nor by a fault.
    near.write_hosts(LOCAL);
    let before = ["red", "blue"].map(|name| near.pid(name));
    let said = near.reload();
    assert!(said.contains("peer.invalid keeps 198.18.0.2 (") && said.contains("six.invalid keeps"), "{said}");
    assert_eq!(["red", "blue"].map(|name| near.pid(name)), before);
    // A name that has no address takes the place of no tunnel that runs.
    near.write_tunnels(&tunnels.replace("peer.invalid", "new.invalid"));
    let (is_done, _, stderr) = near.segue("reload near");
    assert!(!is_done && stderr.contains("cannot find the address of `new.invalid`"), "{stderr}");
    assert!(ground.a.has_device("red") && ground.a.has_device("green"));
    let before = near.pid("blue").expect("blue runs");
    sys::signal(u32::try_from(before).expect("a process id"), libc::SIGKILL).expect("a signal");
    until("blue is not started again", || near.pid("blue").filter(|pid| *pid != before));
    near.await_tunnel("green", "blue");
}

#[test]
fn a_tunnel_whose_port_another_one_got_in_its_pause_joins_that() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let tunnels = table("blue", "198.18.0.2", 6080, 1) + &table("green", "peer.invalid", 6080, 2);
    let near = Near::start(&ground.a, &ground.program, LOCAL, &tunnels);
    near.await_absent("green", "cannot find the address of `peer.invalid`");
    // The pause after the last fault is 16 s, of which all but the last 3 are for another tunnel.
    for _ in 0..8 {
        let pid = until("blue is not started again", || near.pid("blue"));
        sys::signal(u32::try_from(pid).expect("a process id"), libc::SIGKILL).expect("a signal");
        until("blue has not ended", || (near.pid("blue") != Some(pid)).then_some(()));
    }
    near.write_hosts(PEER);
    near.await_tunnel("green", "green");
    near.await_tunnel("blue", "green");
    near.await_tunnel("green", "green");
    // As after a start of the service.
    let said = near.reload();
    assert!(!said.contains("restarted"), "{said}");
    for name in ["blue", "green"] {
        assert!(ground.a.has_device(name), "{name}: {said}");
    }
}

#[test]
fn a_tunnel_that_does_not_start_gets_the_address_that_its_name_has_then() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let tunnels = table("blue", "198.18.0.2", 6080, 1) + &table("red", "peer.invalid", 6090, 2);
    // No route leads there.
    let near = Near::start(&ground.a, &ground.program, "203.0.113.9 peer.invalid\n", &tunnels);
    near.await_absent("red", "no route to 203.0.113.9");
    near.write_hosts(PEER);
    near.await_tunnel("red", "red");
}

#[test]
fn the_knobs_of_tunnels_are_set_that_came_up_in_another_order_than_that_of_the_file() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let rest = table("green", "peer.invalid", 6080, 2) + &table("white", "198.18.0.2", 6080, 3);
    let near = Near::start(&ground.a, &ground.program, LOCAL, &(table("blue", "198.18.0.2", 6080, 1) + &rest));
    near.await_absent("green", "cannot find the address of `peer.invalid`");
    near.write_hosts(PEER);
    for name in ["blue", "green", "white"] {
        near.await_tunnel(name, "blue");
    }
    let set = "net.gro.dev.blue.max_burst = 40000\n";
    near.write_tunnels(&(table("blue", "198.18.0.2", 6080, 1) + set + &rest));
    near.reload();
    let (_, value, stderr) = near.segue("set blue net.gro.dev.blue.max_burst");
    assert!(value.contains("40000"), "{value}{stderr}");
    for name in ["blue", "green", "white"] {
        near.await_tunnel(name, "blue");
    }
    // Now the process has the order of the file.
    let before = near.pid("blue");
    let said = near.reload();
    assert!(said.contains(" 1 unchanged") && !said.contains("handed over"), "{said}");
    assert_eq!(near.pid("blue"), before);
}

#[test]
fn a_silent_resolver_delays_neither_other_tunnels_nor_a_reload_nor_an_upgrade() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    // Each lookup that waits for it takes 20 seconds, and one by one they take a minute and more.
    let longest = Duration::from_secs(45);
    let silent = ground.b.enter(|| UdpSocket::bind("198.18.0.2:53")).expect("the host").expect("a socket");
    let directory = Directory::new();
    let (resolver, program) = (directory.file("resolv.conf"), directory.file("segue"));
    fs::write(&resolver, "nameserver 198.18.0.2\noptions timeout:20 attempts:1\n").expect("a file");
    ground.a.run("mount", &["--bind", &resolver.display().to_string(), "/etc/resolv.conf"]).expect("a mount");
    let mut content = fs::read(&ground.program).expect("the program");
    install(&program, &content);

    let hosts = "127.0.0.1 localhost\n198.18.0.2 here.invalid\n";
    let absent: String = (1..=4).map(|n| table(&format!("d{n}"), &format!("d{n}.invalid"), 6070 + n, 1)).collect();
    let tunnels = table("blue", "198.18.0.2", 6080, 1) + &table("red", "here.invalid", 6090, 2) + &absent;
    let begin = Instant::now();
    let near = Near::start(&ground.a, &program, hosts, &tunnels);
    for name in ["blue", "red"] {
        near.await_tunnel(name, name);
    }
    assert!(begin.elapsed() < longest, "the start took {:?}", begin.elapsed());
    near.await_absent("d1", "cannot find the address of `d1.invalid`");

    // A name that has no answer for a while keeps its address, and what needs none does not wait.
    let before = [near.pid("blue"), near.pid("red")];
    near.write_hosts(LOCAL);
    near.write_tunnels(&(tunnels + &table("white", "198.18.0.2", 6060, 1)));
    let begin = Instant::now();
    let said = near.reload();
    assert!(begin.elapsed() < SOON, "the reload took {:?}", begin.elapsed());
    let no_answer = "the resolver has not answered yet";
    for text in [
        format!("absent d1 (cannot find the address of `d1.invalid`: {no_answer})"),
        format!("here.invalid keeps 198.18.0.2 ({no_answer})"),
        "started white".to_owned(),
    ] {
        assert!(said.contains(&text), "{text}: {said}");
    }
    near.await_tunnel("white", "white");
    assert_eq!([near.pid("blue"), near.pid("red")], before);

    content.push(1);
    install(&program, &content);
    let begin = Instant::now();
    let (is_done, stdout, stderr) = near.segue("reload --upgrade near -j");
    assert!(is_done && begin.elapsed() < longest, "{:?}: {stdout}{stderr}", begin.elapsed());
    let done: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"));
    assert_eq!(done["services"][0]["handed_over"], Value::from(["blue", "red", "white"].as_slice()), "{done}");
    for name in ["blue", "red", "white"] {
        near.await_tunnel(name, name);
    }
    drop(silent);
}

/// A name server at host B, which answers every name with one address after a delay.
struct NameServer {
    /// The last byte of the address 198.18.0.x, and the time before each answer.
    answer: Arc<Mutex<(u8, Duration)>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NameServer {
    /// Starts the server, and configures host A to use it.
    fn start(ground: &Ground, directory: &Directory, answer: (u8, Duration)) -> NameServer {
        let resolver = directory.file("resolv.conf");
        fs::write(&resolver, "nameserver 198.18.0.2\noptions timeout:20 attempts:1\n").expect("a file");
        ground.a.run("mount", &["--bind", &resolver.display().to_string(), "/etc/resolv.conf"]).expect("a mount");
        let socket = ground.b.enter(|| UdpSocket::bind("198.18.0.2:53")).expect("the host").expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a time");
        let (answer, is_over) = (Arc::new(Mutex::new(answer)), Arc::new(AtomicBool::new(false)));
        let serve = {
            let (answer, is_over) = (Arc::clone(&answer), Arc::clone(&is_over));
            move || {
                // All answers are sent, and the port is closed, when the scope ends.
                thread::scope(|scope| {
                    let mut query = [0; 512];
                    while !is_over.load(Ordering::Relaxed) {
                        let Ok((len, client)) = socket.recv_from(&mut query) else { continue };
                        let (last, delay) = *answer.lock().expect("no panic");
                        let Some(answer) = response(&query[..len], last) else { continue };
                        let socket = &socket;
                        scope.spawn(move || {
                            thread::sleep(delay);
                            socket.send_to(&answer, client).expect("an answer is sent");
                        });
                    }
                });
            }
        };
        NameServer { answer, is_over, thread: Some(thread::spawn(serve)) }
    }

    /// Sets the last byte of the address, and the time before each answer.
    fn set(&self, answer: (u8, Duration)) {
        *self.answer.lock().expect("no panic") = answer;
    }

    /// Ends the server: host B refuses queries then.
    fn stop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no panic");
        }
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Returns the response (RFC 1035, section 4.1) to a query with one question: the address 198.18.0.`last`, or no record
/// if the question is not for an IPv4 address.
fn response(query: &[u8], last: u8) -> Option<Vec<u8>> {
    // After the header: labels up to an empty one, type and class.
    let end = 12 + query.get(12..)?.iter().position(|byte| *byte == 0)? + 5;
    let is_a = query.get(end - 4..end)? == [0, 1, 0, 1];
    let mut response = query[..end].to_vec();
    // A response without an error, one question, and one answer or none.
    response[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
    if is_a {
        // The name of the question, type A, class IN, a TTL of 0, four bytes.
        response.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 198, 18, 0, last]);
    }
    Some(response)
}

#[test]
fn an_answer_after_a_reload_moves_its_tunnel_and_a_refused_query_moves_none() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let directory = Directory::new();
    let mut server = NameServer::start(&ground, &directory, (2, Duration::ZERO));
    let tunnels = table("blue", "198.18.0.2", 6080, 1) + &table("red", "peer.invalid", 6090, 2);
    let near = Near::start(&ground.a, &ground.program, LOCAL, &tunnels);
    for name in ["blue", "red"] {
        near.await_tunnel(name, name);
    }
    let blue = near.pid("blue");

    // The answer takes longer than a reload waits, and shorter than one ever waited.
    server.set((3, Duration::from_secs(3)));
    let said = near.reload();
    assert!(said.contains("peer.invalid keeps 198.18.0.2 (the resolver has not answered yet)"), "{said}");
    near.await_remote("red", "red", &["198.18.0.3:"]);
    assert_eq!(near.pid("blue"), blue);

    // A server that is away says nothing about the name.
    server.stop();
    let red = until("red does not run", || near.pid("red"));
    let said = near.reload();
    assert!(said.contains("2 unchanged") && said.contains("peer.invalid keeps 198.18.0.3 ("), "{said}");
    assert_eq!([near.pid("blue"), near.pid("red")], [blue, Some(red)]);
}

#[test]
fn an_answer_after_a_reload_reads_no_file_of_peers_again() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let directory = Directory::new();
    let server = NameServer::start(&ground, &directory, (2, Duration::ZERO));
    let file = directory.file("peers.json");
    fs::write(&file, r#"{"peers":[]}"#).expect("a file");
    let ends = "dev = \"white\"\nlocal = \"198.18.0.1\"\naddr = \"198.19.1.1/24\"\n";
    let white = format!("[[tunnel]]\n{ends}peers = \"{}\"\n", file.display());
    let near = Near::start(&ground.a, &ground.program, LOCAL, &(white + &table("red", "peer.invalid", 6090, 2)));
    near.await_tunnel("red", "red");
    let peers = || {
        let listed: Value = serde_json::from_str(&near.segue("peer list white -j").1).ok()?;
        Some(listed["peers"].as_array()?.len())
    };
    assert_eq!(until("white does not run", peers), 0);

    server.set((3, Duration::from_secs(3)));
    near.reload();
    // It is for the next reload.
    fs::write(&file, r#"{"peers":[{"prefix":"198.19.7.0/24","remote":"198.18.0.4"}]}"#).expect("a file");
    until("the answer moves no tunnel", || near.service.stderr().contains("restarted red").then_some(()));
    assert_eq!(peers(), Some(0));
    server.set((3, Duration::ZERO));
    near.reload();
    assert_eq!(peers(), Some(1));
}

#[test]
fn a_start_does_not_wait_for_a_late_answer_with_which_its_tunnels_come_up() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let directory = Directory::new();
    let server = NameServer::start(&ground, &directory, (2, LATE));
    // One has a port of its own, the other one that of a tunnel that starts at once.
    let named = table("red", "peer.invalid", 6090, 2) + &table("green", "peer.invalid", 6080, 3);
    let begin = Instant::now();
    let near = Near::start(&ground.a, &ground.program, LOCAL, &(table("blue", "198.18.0.2", 6080, 1) + &named));
    near.await_tunnel("blue", "blue");
    assert!(begin.elapsed() < SOON, "the start took {:?}", begin.elapsed());
    for name in ["red", "green"] {
        near.await_absent(name, "cannot find the address of `peer.invalid`");
    }
    // The query of the start is not repeated: another one would have another answer, at once.
    server.set((3, Duration::ZERO));
    near.await_tunnel("red", "red");
    near.await_tunnel("green", "blue");
}

#[test]
fn a_service_of_which_nothing_else_starts_waits_for_late_answers() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let directory = Directory::new();
    let _server = NameServer::start(&ground, &directory, (2, Duration::from_secs(4)));
    let alone = Near::start(&ground.a, &ground.program, LOCAL, &table("white", "peer.invalid", 6070, 1));
    alone.await_tunnel("white", "white");

    // Another program has the port of the tunnel whose remote is an address.
    let taken = ground.a.enter(|| UdpSocket::bind("198.18.0.1:6080")).expect("the host").expect("a socket");
    let tunnels = table("blue", "198.18.0.2", 6080, 1) + &table("red", "peer.invalid", 6090, 2);
    let near = Near::start(&ground.a, &ground.program, LOCAL, &tunnels);
    near.await_tunnel("red", "red");
    near.await_absent("blue", "cannot listen on UDP 198.18.0.1:6080");
    drop(taken);
    near.await_tunnel("blue", "blue");
}

#[test]
fn an_upgrade_loses_no_answer_that_is_awaited() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let directory = Directory::new();
    let program = directory.file("segue");
    let mut content = fs::read(&ground.program).expect("the program");
    install(&program, &content);
    let server = NameServer::start(&ground, &directory, (2, Duration::ZERO));
    let tunnels = table("blue", "198.18.0.2", 6080, 1) + &table("red", "peer.invalid", 6090, 2);
    let near = Near::start(&ground.a, &program, LOCAL, &tunnels);
    for name in ["blue", "red"] {
        near.await_tunnel(name, name);
    }

    server.set((3, LATE));
    let said = near.reload();
    assert!(said.contains("peer.invalid keeps 198.18.0.2 (the resolver has not answered yet)"), "{said}");
    // The query of the reload ends with its program; that of the next one is answered at once.
    server.set((4, Duration::ZERO));
    content.push(1);
    install(&program, &content);
    let (is_done, stdout, stderr) = near.segue("reload --upgrade near -j");
    assert!(is_done, "{stdout}{stderr}");
    let done: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"));
    assert_eq!(done["services"][0]["is_new"], true, "{done}");
    let blue = near.pid("blue");
    // With the first address the upgrade took longer than the answer.
    near.await_remote("red", "red", &["198.18.0.3:", "198.18.0.4:"]);
    assert_eq!(near.pid("blue"), blue);
}

#[test]
fn the_names_of_one_command_are_looked_up_side_by_side() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &[]) else { return };
    let directory = Directory::new();
    // One after the other they take 30 seconds.
    let _server = NameServer::start(&ground, &directory, (2, Duration::from_secs(3)));
    let tunnel = |n: usize| format!("dev t{n} local 198.18.0.1 remote n{n}.invalid encap gue key {n}");
    let line = (1..=10).map(tunnel).collect::<Vec<_>>().join(" also ");
    let mut command = ground.a.command(&ground.program);
    command.arg("tunnel").args(line.split(' '));
    let begin = Instant::now();
    let tunnels = Process::spawn(command, b"").expect("segue starts");
    for n in 1..=10 {
        let up = || ground.a.has_device(&format!("t{n}")).then_some(());
        until(&format!("t{n} does not come up: {}", tunnels.stderr()), up);
    }
    assert!(begin.elapsed() < Duration::from_secs(20), "the start took {:?}", begin.elapsed());
}
