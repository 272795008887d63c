//! Tests of the metrics: they equal the numbers of `segue stat`, promtool accepts them, and the documentation, the
//! dashboard and the alert rules name metrics that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use segue_lab::Family::V4;
use segue_lab::{Host, LinkForm, Peer, Process, skip, which};
use segue_tests::Carrier::Gue;
use segue_tests::Inside::Gre;
use segue_tests::inject::Traced;
use segue_tests::{Ground, Pair, Shape, Stat, capture, find_program, test_name, traffic, until};
use serde_json::Value;

const NET: u8 = 1;
const PATIENCE: Duration = Duration::from_secs(60);

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Starts `segue metrics` at A with the given words, and returns the address served.
fn serving(host: &Host, program: &Path, words: &[&str]) -> (Process, Option<SocketAddr>) {
    let mut command = host.command(program);
    command.args(["metrics", "-j"]).args(words);
    served_by(command)
}

/// Starts a `segue metrics -j`, and returns the address served.
fn served_by(command: Command) -> (Process, Option<SocketAddr>) {
    let mut process = Process::spawn(command, b"").unwrap();
    let up = process.wait_for_line("\"event\":\"up\"", PATIENCE);
    up.unwrap_or_else(|error| panic!("{error}\n{}", process.last_words()));
    let said = process.stdout();
    let event: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    let place = event["places"][0].as_str().unwrap();
    let address = place.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics"));
    (process, address.map(|address| address.parse().unwrap()))
}

/// Sends `request` and returns the status line with the headers, and the body.
fn answer(stream: impl Read + Write, request: &str) -> (String, String) {
    try_answer(stream, request).unwrap_or_else(|why| panic!("{why}"))
}

/// Returns what [`answer`] does, or what came instead of an answer.
fn try_answer(mut stream: impl Read + Write, request: &str) -> Result<(String, String), String> {
    let mut text = String::new();
    let done = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut text));
    match (done, text.split_once("\r\n\r\n")) {
        (Ok(_), Some((head, body))) => Ok((head.to_owned(), body.to_owned())),
        (done, _) => Err(format!("no end of the headers: {done:?}, {text:?}")),
    }
}

fn get(host: &Host, address: SocketAddr, path: &str, headers: &str) -> (String, String) {
    let stream = traffic::inside(host, || TcpStream::connect(address)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    answer(stream, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n"))
}

/// Parses the text format: samples with their labels. Panics at a line that is none.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let mut described = BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (what, name) = (words.next().unwrap(), words.next().unwrap());
            assert!(matches!(what, "HELP" | "TYPE") && words.next().is_some(), "{line}");
            described.insert(name.to_owned());
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let name = series.split('{').next().unwrap();
        assert!(described.contains(name), "{line} has no help");
        let value = value.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
        assert!(samples.insert(series.to_owned(), value).is_none(), "{series} is there twice");
    }
    samples
}

/// Runs promtool on `text`; `None` if it is not installed.
fn promtool(words: &[&str], text: &str) -> Option<(bool, String)> {
    let program = which("promtool")?;
    let mut command = Command::new(program);
    let mut child = command
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool starts");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

/// Returns the metrics that the program lists.
fn listed(program: &Path) -> Vec<Value> {
    let output = Command::new(program).args(["metrics", "--list", "-j"]).output().unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).expect("a document");
    value["families"].as_array().unwrap().clone()
}

fn names(program: &Path) -> BTreeSet<String> {
    listed(program).iter().map(|family| family["name"].as_str().unwrap().to_owned()).collect()
}

/// Asserts that the help of a metric has the sentence of each reason that is shown, which is that of `segue help`.
fn assert_sentences(ground: &Ground, samples: &BTreeMap<String, f64>, text: &str) {
    let shown = samples.keys().filter(|series| !series.starts_with("segue_reason_info{")).filter_map(|series| {
        let (name, labels) = series.split_once('{')?;
        let (_, reason) = labels.split_once("reason=\"")?;
        Some((name, reason.split('"').next()?))
    });
    let mut reasons = 0;
    for (name, reason) in shown {
        let prefix = format!("# HELP {name} ");
        let help = text.lines().find_map(|line| line.strip_prefix(&prefix)).expect("a help");
        let (_, own) = help.split_once(&format!(" {reason}: ")).unwrap_or_else(|| panic!("{reason}: {help}"));
        let sentence = own.split(". ").next().unwrap();
        let page = ground.a.run(ground.program.to_str().unwrap(), &["help", reason]).unwrap();
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(page.contains(sentence), "{reason}: {sentence}: {page}");
        reasons += 1;
    }
    assert!(reasons >= 3, "{text}");
}

#[test]
fn what_is_served_is_what_stat_shows_and_promtool_accepts_it() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &["promtool"]) else { return };
    let pair = Pair::start(&ground, Shape::new(Gre, Gue, V4), NET);
    traffic::file(pair.place(Peer::A, V4), pair.place(Peer::B, V4), 1 << 20, 7);
    // A tunnel with a key, and datagrams without one: drops with a reason.
    let mut keyed = ground.a.command(&ground.program);
    keyed.args("tunnel dev sg9 local 198.18.0.1 remote 198.18.0.2 encap gue encap-dport 6099 key 9 -j".split(' '));
    let mut keyed = Process::spawn(keyed, b"").unwrap();
    keyed.wait_for_line("\"event\":\"up\"", PATIENCE).unwrap();
    let speaker = traffic::inside(&ground.b, || std::net::UdpSocket::bind("198.18.0.2:0")).unwrap();
    let begin = Instant::now();
    while Stat::read(&ground.a, &ground.program, "sg9").dropped("gre_mismatch") == 0 {
        assert!(begin.elapsed() < PATIENCE, "nothing was dropped");
        // GUE with GRE without a key around nothing.
        speaker.send_to(&[0, 47, 0, 0, 0, 0, 8, 0, 0x45, 0, 0, 20], "198.18.0.1:6099").unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }

    let (mut server, address) = serving(&ground.a, &ground.program, &["--listen", "127.0.0.1:0"]);
    let address = address.unwrap();
    let (head, text) = get(&ground.a, address, "/metrics", "");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
    let (accepted, said) = promtool(&["check", "metrics"], &text).unwrap();
    assert!(accepted && said.is_empty(), "promtool: {said}\n{text}");

    let samples = samples(&text);
    let stat = Stat::read(&ground.a, &ground.program, &Shape::device(NET));
    let port = Shape::device(NET);
    for (direction, side) in [("receive", "inside"), ("transmit", "inside")] {
        let series =
            format!("segue_bytes_total{{name=\"{port}\",port=\"{port}\",side=\"{side}\",direction=\"{direction}\"}}");
        let shown = samples.get(&series).unwrap_or_else(|| panic!("no {series} in\n{text}"));
        let (counted, now) = (*shown as u64, stat.count(&port, direction, "bytes"));
        assert!(counted >= 1000 && counted <= now, "{series}: {counted}, {now} in segue stat");
    }
    let reason = "segue_drops_total{name=\"sg9\",port=\"udp\",side=\"outside\",reason=\"gre_mismatch\"}";
    assert!(samples.get(reason).is_some_and(|count| *count >= 1.0), "{text}");
    let help = text.lines().find(|line| line.starts_with("# HELP segue_drops_total ")).unwrap();
    let sentence = "gre_mismatch: Key, checksum or sequence number are not present as this tunnel has them, or the key is another.";
    assert!(help.contains(sentence), "{help}");
    assert_sentences(&ground, &samples, &text);
    assert!(samples.values().all(|value| value.is_finite()));
    let touched = samples.iter().filter(|(series, _)| series.split('{').next().unwrap().ends_with("_total"));
    assert!(
        touched.clone().count() > 20 && touched.into_iter().all(|(_, value)| *value > 0.0),
        "a series of 0: {text}"
    );
    for series in samples.keys() {
        let name = series.split('{').next().unwrap();
        assert!(names(&ground.program).contains(name), "{name} is not listed");
    }

    let (head, text) = get(&ground.a, address, "/metrics", "Accept: application/openmetrics-text;version=1.0.0\r\n");
    assert!(head.contains("application/openmetrics-text; version=1.0.0") && text.ends_with("# EOF\n"), "{head}");
    let (head, text) = get(&ground.a, address, "/healthz", "");
    let healthy = head.starts_with("HTTP/1.1 200 ") && text == "ok\n";
    let sick = head.starts_with("HTTP/1.1 503 ") && text.contains("sg");
    assert!(healthy || sick, "{head}\n{text}");
    for (path, status) in [("/", "200"), ("/nothing", "404"), ("/metrics/", "404")] {
        assert!(get(&ground.a, address, path, "").0.starts_with(&format!("HTTP/1.1 {status} ")), "{path}");
    }
    assert!(server.stop(PATIENCE).is_some_and(|status| status.success()));
}

#[test]
fn clients_that_misbehave_are_bounded_and_others_are_served() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    ground.a.run("ip", &["link", "set", "lo", "up"]).unwrap();
    let (mut server, address) = serving(&ground.a, &ground.program, &["--listen", "127.0.0.1:0"]);
    let address = address.unwrap();
    let connect = || {
        let stream = traffic::inside(&ground.a, || TcpStream::connect(address)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let (head, _) = answer(connect(), "nonsense\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    let (head, _) = answer(connect(), "POST /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 405 ") && head.contains("Allow: GET, HEAD"), "{head}");
    let (head, body) = answer(connect(), "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && body.is_empty(), "{head}");
    let (head, _) = answer(connect(), &format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(9000)));
    assert!(head.starts_with("HTTP/1.1 431 "), "{head}");
    // More silent clients than the server takes: the oldest gives way to one with a request, before its time is over.
    let silent: Vec<TcpStream> = (0..40).map(|_| connect()).collect();
    let (head, body) = get(&ground.a, address, "/metrics", "");
    assert!(head.starts_with("HTTP/1.1 200 ") && body.contains("\nsegue_instances 0\n"), "{head}\n{body}");
    let is_open = |stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        let mut stream = stream;
        stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    let open: Vec<bool> = silent.iter().map(is_open).collect();
    assert!(!open[0] && open[39], "{open:?}");
    drop(silent);
    let (head, body) = get(&ground.a, address, "/healthz", "");
    assert!(head.starts_with("HTTP/1.1 503 ") && body == "nothing runs\n", "{head}\n{body}");
    assert!(server.stop(PATIENCE).is_some_and(|status| status.success()));
}

#[test]
fn clients_that_do_not_read_their_answers_give_way_to_another_one() {
    let Some(ground) = Ground::apart(test_name!(), &["ss"]) else { return };
    ground.a.run("ip", &["link", "set", "lo", "up"]).unwrap();
    // So that an answer does not lie in the buffers of its connection.
    for key in ["ipv4/tcp_wmem", "ipv4/tcp_rmem"] {
        ground.a.set_sysctl(key, "4096 4096 4096").unwrap();
    }
    let tunnel = |number: u16| {
        let words = format!("tunnel dev sg{number} local 127.0.0.1 remote 127.0.0.2 encap gue port 609{number} -j");
        let mut command = ground.a.command(&ground.program);
        command.args(words.split(' '));
        let mut tunnel = Process::spawn(command, b"").unwrap();
        tunnel.wait_for_line("\"event\":\"up\"", PATIENCE).unwrap();
        tunnel
    };
    let _tunnels: Vec<Process> = (1..7).map(tunnel).collect();
    let (mut server, address) = serving(&ground.a, &ground.program, &["--listen", "127.0.0.1:0"]);
    let address = address.unwrap();
    let request = |_| {
        let mut stream = traffic::inside(&ground.a, || TcpStream::connect(address)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        stream
    };
    // More than the server takes.
    let slow: Vec<TcpStream> = (0..40).map(request).collect();
    let (head, _) = get(&ground.a, address, "/healthz", "");
    // Those whose time is not over are still served.
    let port = format!(":{}", address.port());
    let served = ground.a.run("ss", &["-Htn", "state", "established", "sport", "=", &port]).unwrap();
    let served = served.lines().count();
    assert!(head.starts_with("HTTP/1.1 ") && served >= 20, "{served} are served: {head}");
    drop(slow);
    assert!(server.stop(PATIENCE).is_some_and(|status| status.success()));
}

/// Serves a socket that reads nothing and answers a byte at a time, for about two minutes in all.
fn trickle(path: &Path) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                for _ in 0..240 {
                    if stream.write_all(b" ").is_err() {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(500));
                }
            });
        }
    });
}

#[test]
fn instances_that_do_not_answer_or_answer_slowly_hold_up_no_scrape_of_the_others() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    ground.a.run("ip", &["link", "set", "lo", "up"]).unwrap();
    let directory = capture::Directory::new();
    let segue = |words: &str| {
        let mut command = ground.a.command(&ground.program);
        command.env("SEGUE_RUNTIME_DIR", directory.path()).args(words.split(' '));
        command
    };
    let tunnel = segue("tunnel dev sg9 local 198.18.0.1 remote 198.18.0.2 encap gue -j");
    let mut tunnel = Process::spawn(tunnel, b"").unwrap();
    tunnel.wait_for_line("\"event\":\"up\"", PATIENCE).unwrap();
    // In front of the tunnel and behind it.
    let slow = ["slow", "very-slow"];
    slow.iter().for_each(|name| trickle(&directory.file(&format!("{name}.sock"))));
    let mute = ["mute", "very-mute"];
    let _mute = mute.map(|name| UnixListener::bind(directory.file(&format!("{name}.sock"))).unwrap());
    // A service whose main loop does something else.
    let _busy = UnixListener::bind(directory.file("busy.service")).unwrap();
    let (mut server, address) = served_by(segue("metrics -j --listen 127.0.0.1:0"));
    let connect = || {
        let stream = traffic::inside(&ground.a, || TcpStream::connect(address.unwrap())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    // A client has five seconds for its request, beside the time of scrapes. On a busy machine they may be over too
    // early, and there is another attempt, at a time for which the answer of the last scrape does not serve.
    let scraped = (0..5).find_map(|_| {
        std::thread::sleep(Duration::from_millis(300));
        let (mut first, second) = (connect(), connect());
        // Both are accepted once a later one has its answer, so that their time has begun.
        get(&ground.a, address.unwrap(), "/", "");
        first.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").ok()?;
        std::thread::sleep(Duration::from_millis(500));
        // This request comes while the instances are asked for the first one.
        let (head, _) = try_answer(second, "GET /metrics HTTP/1.1\r\n\r\n").ok()?;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        try_answer(first, "").ok()
    });
    let (head, text) = scraped.expect("answers for two clients, one of which waits for the scrape of the other");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(samples(&text).get("segue_instance_info{name=\"sg9\",kind=\"tunnel\"}"), Some(&1.0), "{text}");
    let (head, text) = get(&ground.a, address.unwrap(), "/healthz", "");
    let is_named = |name: &&str| text.contains(&format!("cannot ask {name}: "));
    assert!(head.starts_with("HTTP/1.1 503 ") && slow.iter().chain(&mute).all(is_named), "{head}\n{text}");
    assert!(server.stop(PATIENCE).is_some_and(|status| status.success()), "{}", server.last_words());
}

#[test]
fn a_client_that_cannot_be_accepted_waits_and_costs_no_processor_time() {
    let Some(ground) = Ground::apart(test_name!(), &["strace"]) else { return };
    ground.a.run("ip", &["link", "set", "lo", "up"]).unwrap();
    let (mut server, address) = serving(&ground.a, &ground.program, &["--listen", "127.0.0.1:0"]);
    let directory = capture::Directory::new();
    let begin = Instant::now();
    let traced = Traced::attach(server.id(), Some(("accept4", "error=EMFILE")), &directory.file("calls"));
    let client = traffic::inside(&ground.a, || TcpStream::connect(address.unwrap())).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let calls = traced.detach();
    // A pause takes 100 ms, and there is one call in front of it.
    let most = 5 * (begin.elapsed().as_millis() as u64 / 100 + 1);
    assert!((1..=most).contains(&calls.injected), "more than {most} attempts: {calls:?}");
    let (head, _) = answer(client, "GET / HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(server.stop(PATIENCE).is_some_and(|status| status.success()));
}

#[test]
fn a_unix_socket_a_file_and_the_service_show_the_same_names() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    let directory = capture::Directory::new();
    let (socket, file) = (directory.file("metrics"), directory.file("segue.prom"));
    let configuration = format!(
        "[metrics]\nlisten = [\"unix:{}\"]\ntextfile = \"{}\"\nevery = 1\n\n[[tunnel]]\ndev = \"sg1\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\n",
        socket.display(),
        file.display()
    );
    let path = directory.file("segue.toml");
    std::fs::write(&path, configuration).unwrap();
    let mut command = ground.a.command(&ground.program);
    command.args(["run", "-j", "-c"]).arg(&path);
    let mut service = Process::spawn(command, b"").unwrap();
    let ready = service.wait_for_line("\"event\":\"ready\"", PATIENCE);
    ready.unwrap_or_else(|error| panic!("{error}\n{}", service.last_words()));

    let info = "segue_instance_info{name=\"sg1\",kind=\"tunnel\"}";
    let begin = Instant::now();
    // An answer from before the tunnel was up may serve for a moment.
    loop {
        let stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        let (_, served) = answer(stream, "GET /metrics HTTP/1.1\r\n\r\n");
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        if [&served, &written].iter().all(|text| samples(text).get(info) == Some(&1.0)) {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{served}\n{written}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(service.stop(PATIENCE).is_some_and(|status| status.success()), "{}", service.last_words());
    assert!(!socket.exists() && !file.exists(), "both are removed");
}

#[test]
fn nothing_serves_metrics_unless_the_file_says_where() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Veth, &["ss"]) else { return };
    let directory = capture::Directory::new();
    let tunnel = "[[tunnel]]\ndev = \"sg1\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\n";
    let metrics = "[metrics]\nlisten = [\"127.0.0.1\"]\n\n";
    for (name, before, expected) in [("without.toml", "", None), ("with.toml", metrics, Some("127.0.0.1:9780"))] {
        let path = directory.file(name);
        std::fs::write(&path, format!("{before}{tunnel}")).unwrap();
        let mut command = ground.a.command(&ground.program);
        command.args(["run", "-j", "-c"]).arg(&path);
        let mut service = Process::spawn(command, b"").unwrap();
        let ready = service.wait_for_line("\"event\":\"ready\"", PATIENCE);
        ready.unwrap_or_else(|error| panic!("{error}\n{}", service.last_words()));
        let listed = ground.a.run("ss", &["-Hltn"]).unwrap();
        let places: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().nth(3)).collect();
        assert_eq!(places, expected.into_iter().collect::<Vec<_>>(), "{listed}");
        assert!(service.stop(PATIENCE).is_some_and(|status| status.success()), "{}", service.last_words());
    }
}

#[test]
fn the_dashboard_and_the_rules_name_metrics_that_exist() {
    let Some(program) = find_program() else { return skip(test_name!(), "the program is not built") };
    let known = names(&program);
    assert!(known.len() > 20);
    let dashboard = std::fs::read_to_string(repository().join("contrib/grafana/segue.json")).unwrap();
    let document: Value = serde_json::from_str(&dashboard).expect("JSON");
    let panels = document["panels"].as_array().unwrap();
    assert!(panels.len() >= 6 && panels.iter().all(|panel| !panel["targets"][0]["expr"].is_null()), "{panels:?}");
    let rules = std::fs::read_to_string(repository().join("contrib/prometheus/segue.rules.yml")).unwrap();
    for (file, text) in [("segue.json", &dashboard), ("segue.rules.yml", &rules)] {
        let code: String =
            text.lines().filter(|line| !line.trim_start().starts_with('#')).map(|l| format!("{l}\n")).collect();
        let words = code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
        let used: BTreeSet<&str> = words.filter(|word| word.starts_with("segue_")).collect();
        assert!(used.len() >= 6, "{file}: {used:?}");
        for name in used {
            assert!(known.contains(name), "{file} names {name}, which does not exist");
        }
    }
    let folder = repository().join("contrib/prometheus");
    for words in [["check", "rules", "segue.rules.yml"], ["test", "rules", "segue.rules-test.yml"]] {
        let Some(promtool) = which("promtool") else { return skip(test_name!(), "not installed: promtool") };
        let output = Command::new(promtool).args(words).current_dir(&folder).output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "promtool {words:?}: {said}");
    }
}

#[test]
fn the_dashboard_tells_hosts_with_instances_of_the_same_name_apart() {
    let text = std::fs::read_to_string(repository().join("contrib/grafana/segue.json")).unwrap();
    let document: Value = serde_json::from_str(&text).expect("JSON");
    let variables = document["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|variable| variable["name"] == "instance"), "{variables:?}");
    let panels = document["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    // A table has no legend: what the reasons mean is the same on every host.
    for target in targets.filter(|target| target["format"] != "table") {
        let (query, legend) = (target["expr"].as_str().unwrap(), target["legendFormat"].as_str().unwrap());
        assert!(query.split(" by (").skip(1).all(|labels| labels.starts_with("job, instance, name")), "{query}");
        assert!(query.split('{').skip(1).all(|labels| labels.starts_with("instance=~\"$instance\",")), "{query}");
        assert!(legend.starts_with("{{instance}} {{name}}"), "{query}: {legend}");
    }
}

#[test]
fn the_documentation_lists_every_metric() {
    let Some(program) = find_program() else { return skip(test_name!(), "the program is not built") };
    let (begin, end) = ("<!-- metrics: begin -->\n", "<!-- metrics: end -->");
    let path = repository().join("docs/metrics.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut table = String::from("| metric | type | labels | `segue stat -j` | meaning |\n|---|---|---|---|---|\n");
    for family in listed(&program) {
        let text = |key: &str| family[key].as_str().unwrap().replace('|', "\\|");
        let labels: Vec<&str> =
            family["labels"].as_array().unwrap().iter().map(|label| label.as_str().unwrap()).collect();
        let stat = if text("stat").is_empty() { String::new() } else { format!("`{}`", text("stat")) };
        table +=
            &format!("| `{}` | {} | {} | {stat} | {} |\n", text("name"), text("type"), labels.join(", "), text("help"));
    }
    let (before, rest) = text.split_once(begin).expect("the begin of the table");
    let (found, after) = rest.split_once(end).expect("the end of the table");
    if std::env::var_os("SEGUE_BLESS").is_some() {
        return std::fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
    }
    assert_eq!(found, table, "docs/metrics.md; SEGUE_BLESS=1 writes it anew");
}

/// Returns the metrics in the manual page of `segue metrics`, each with the text of its entry.
fn documented(program: &Path) -> BTreeMap<String, String> {
    let directory = capture::Directory::new();
    let folder = directory.file("man");
    let made = Command::new(program).args(["help", "--manual"]).arg(&folder).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let page = std::fs::read_to_string(folder.join("segue-metrics.1")).unwrap();
    let (_, rest) = page.split_once("\n.SH \"METRICS\"\n").expect("a section of the page");
    let section = rest.split("\n.SH ").next().unwrap();
    let entries = section.split(".TP\n").skip(1).map(|entry| entry.split_once('\n').expect("a term and its text"));
    let plain = |text: &str| text.trim_end().replace("\\-", "-");
    entries
        .map(|(term, text)| (term.trim_start_matches("\\fB").trim_end_matches("\\fR").to_owned(), plain(text)))
        .collect()
}

#[test]
fn exposition_json_and_manual_have_the_same_metrics() {
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    let families = listed(&ground.program);
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let labels =
        |family: &Value| -> BTreeSet<String> { family["labels"].as_array().unwrap().iter().map(text).collect() };
    let manual = documented(&ground.program);
    let by_list: BTreeSet<String> = families.iter().map(|family| text(&family["name"])).collect();
    assert_eq!(manual.keys().cloned().collect::<BTreeSet<_>>(), by_list);
    for family in &families {
        let entry = &manual[family["name"].as_str().unwrap()];
        let head = format!("{} Type: {}.", text(&family["help"]), text(&family["type"]));
        assert!(entry.starts_with(&head), "{entry}, and not {head}");
        assert!(labels(family).iter().all(|label| entry.contains(label.as_str())), "{entry} lacks a label");
        assert!(entry.contains(family["stat"].as_str().unwrap()), "{entry} lacks its place");
    }

    let pair = Pair::start(&ground, Shape::new(Gre, Gue, V4), NET);
    traffic::file(pair.place(Peer::A, V4), pair.place(Peer::B, V4), 1 << 20, 7);
    let segue = |words: &[&str]| {
        let output = ground.a.command(&ground.program).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    // A counter may leave 0 between two calls.
    let shown = until("exposition and JSON show other metrics", || {
        let exposition = segue(&["metrics"]);
        let types = exposition.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        let by_exposition: BTreeSet<String> = types.map(str::to_owned).collect();
        let document: Value = serde_json::from_str(&segue(&["metrics", "-j"])).expect("JSON");
        let families = document["families"].as_array().expect("families").clone();
        let by_json: BTreeSet<String> = families.iter().map(|family| text(&family["name"])).collect();
        (by_json == by_exposition).then_some(families)
    });
    assert!(shown.len() > 20, "{shown:?}");
    for family in &shown {
        let known = families.iter().find(|known| known["name"] == family["name"]);
        let known = known.unwrap_or_else(|| panic!("{} is not in the list", family["name"]));
        assert_eq!(family["type"], known["type"], "{}", family["name"]);
        for sample in family["samples"].as_array().expect("samples") {
            let of_sample: BTreeSet<String> = sample["labels"].as_object().unwrap().keys().cloned().collect();
            assert_eq!(of_sample, labels(known), "{}", family["name"]);
        }
    }
}

#[test]
fn of_many_tunnels_on_one_socket_those_that_were_used_have_series() {
    const TUNNELS: u16 = 100;
    let Some(ground) = Ground::new(test_name!(), LinkForm::Nic, &[]) else { return };
    let directory = capture::Directory::new();
    let path = directory.file("many.toml");
    let tunnel = |n: u16| {
        format!(
            "[[tunnel]]\ndev = \"t{n}\"\nlocal = \"198.18.0.1\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\nkey = {n}\n"
        )
    };
    std::fs::write(&path, (0..TUNNELS).map(tunnel).collect::<String>()).unwrap();
    let mut command = ground.a.command(&ground.program);
    command.args(["run", "-j", "-c"]).arg(&path);
    let mut service = Process::spawn(command, b"").unwrap();
    let ready = service.wait_for_line("\"event\":\"ready\"", Duration::from_secs(60));
    ready.unwrap_or_else(|error| panic!("{error}\n{}", service.last_words()));
    let (_server, address) = serving(&ground.a, &ground.program, &["--listen", "127.0.0.1:0"]);
    ground.a.run("ip", &["addr", "add", "198.19.7.1/30", "dev", "t7"]).unwrap();
    let sender = traffic::inside(&ground.a, || std::net::UdpSocket::bind("198.19.7.1:0")).unwrap();
    sender.send_to(b"x", "198.19.7.2:9").unwrap();
    let used = "segue_packets_total{name=\"t0\",port=\"t7\",side=\"inside\",direction=\"receive\"}";
    let begin = Instant::now();
    let text = loop {
        let (_, text) = get(&ground.a, address.unwrap(), "/metrics", "");
        if samples(&text).contains_key(used) {
            break text;
        }
        assert!(begin.elapsed() < PATIENCE, "{} bytes without {used}", text.len());
        std::thread::sleep(Duration::from_millis(300));
    };
    // Interfaces without an address send nothing but the kernel's own solicitations.
    let of = |port: &str| text.lines().filter(|line| line.contains(&format!("port=\"{port}\""))).count();
    assert!(of("t7") >= 8 && (0..TUNNELS).all(|n| of(&format!("t{n}")) < 40), "{text}");
    let drops = |line: &&str| line.starts_with("segue_drops_total{") && line.contains("port=\"t");
    assert_eq!(text.lines().filter(drops).count(), 0, "{text}");
    drop(service);
}
