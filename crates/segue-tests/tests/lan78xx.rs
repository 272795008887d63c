//! Tests of the model of a LAN78xx adapter with the Linux kernel's own driver: a guest with Debian's unmodified lan78xx
//! attaches models that `segue lan78xx model` serves over USB/IP, at super and at high speed, and then `segue lan78xx
//! up` opens one through usbfs. One boot for all.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io::{PipeWriter, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{Host, Process};
use segue_tests::traffic::{self, Digested};
use segue_tests::{Ground, Random, Stat, guest, skip, test_name};
use serde_json::Value;

const BOOT: Duration = Duration::from_secs(90);

fn is_soak() -> bool {
    segue_testkit::is_set("SEGUE_SOAK")
}

/// Returns the time limit for the whole test, seconds.
fn all() -> u64 {
    if is_soak() { 3600 } else { 1200 }
}

/// Returns the length of each file, bytes.
fn file_len() -> u64 {
    match (is_soak(), segue_testkit::is_set("SEGUE_FULL")) {
        (true, _) => 32 << 20,
        (_, true) => 4 << 20,
        _ => 256 << 10,
    }
}

/// Number, chip, USB speed and injected defect of each model.
const MODELS: &[(u8, &str, &str, Option<&str>)] = &[
    (0, "lan7800", "super", None),
    (1, "lan7850", "high", None),
    (2, "lan7800", "super", None),
    (8, "lan7800", "super", Some("lie checksum")),
    (9, "lan7800", "super", Some("lie header")),
];

/// A running model process, with its stdin.
struct Model {
    process: Process,
    commands: PipeWriter,
}

impl Model {
    #[track_caller]
    fn start(host: &Host, program: &Path, (number, chip, speed, lie): (u8, &str, &str, Option<&str>)) -> Model {
        let (stdin, commands) = std::io::pipe().unwrap();
        let cable = format!("cable{number}");
        let mut command = host.command(program);
        command.args(["lan78xx", "model", "--commands", "--chip", chip, "--speed", speed]);
        command.args(["--usbip", &format!("198.18.0.1:{}", 3240 + u16::from(number))]);
        command.args(["--wire", &format!("tap:{cable}"), "--mac", &format!("02:78:00:00:00:0{number}")]);
        command.args(["--name", &format!("model{number}")]).stdin(stdin);
        let mut model = Model { process: Process::spawn(command, b"").unwrap(), commands };
        let begin = Instant::now();
        while !host.has_device(&cable) || !model.process.stderr().contains("is up") {
            let ended = model.process.ended().is_some();
            assert!(!ended && begin.elapsed() < BOOT, "no model: {}", model.process.last_words());
            thread::sleep(Duration::from_millis(5));
        }
        host.run("ip", &["link", "set", &cable, "master", "br0"]).unwrap();
        host.run("ip", &["addr", "add", &format!("198.18.10{number}.1/24"), "dev", "br0"]).unwrap();
        host.run("ip", &["addr", "add", &format!("2001:db8:10{number}::1/64"), "dev", "br0", "nodad"]).unwrap();
        if let Some(lie) = lie {
            model.say(lie);
        }
        model
    }

    fn say(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }
}

/// Sets the MTU of a model's cable and of the interface at its other end.
fn set_mtu(host: &Host, number: u8, mtu: &str) {
    for device in [&format!("cable{number}"), "br0"] {
        host.run("ip", &["link", "set", device, "mtu", mtu]).unwrap();
    }
}

/// Sends datagrams that the guest echoes.
fn datagrams(host: &Host, far: IpAddr, seed: u64) {
    let socket = traffic::inside(host, || UdpSocket::bind("[::]:0")).unwrap();
    let far = match far {
        IpAddr::V4(v4) => IpAddr::V6(v4.to_ipv6_mapped()),
        IpAddr::V6(_) => far,
    };
    socket.connect((far, 5002)).unwrap();
    traffic::echoes(&socket, &[1, 18, 22, 23, 64, 501, 1300, 1472, 1473, 2600, 9000], &mut Random::new(seed));
}

/// Sends datagrams to a group that the guest has joined, and to another one, until the returned value is dropped: the
/// guest's driver writes its filter some time after the join.
fn multicast(host: &Host, number: u8) -> Sender<()> {
    let socket = traffic::inside(host, || UdpSocket::bind(SocketAddr::from(([198, 18, 100 + number, 1], 0)))).unwrap();
    let (end, ended) = mpsc::channel::<()>();
    thread::spawn(move || {
        while ended.recv_timeout(Duration::from_millis(50)) == Err(RecvTimeoutError::Timeout) {
            // The interface may be down for a moment.
            let _ = socket.send_to(b"joined\n", "239.1.2.3:5003");
            let _ = socket.send_to(b"not joined\n", "239.9.9.9:5003");
        }
    });
    end
}

/// Tells the guest, which listens some time after its request, that the request was carried out.
fn acknowledge(host: &Host) {
    let begin = Instant::now();
    while let Err(error) =
        traffic::inside(host, || TcpStream::connect_timeout(&([198, 18, 0, 2], 5999).into(), Duration::from_secs(30)))
    {
        assert!(begin.elapsed() < BOOT, "the guest takes no answer: {error}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the `trace` events of a model, in order: the accesses of its driver.
fn traces(model: &Model) -> Vec<Value> {
    let events = model.process.stdout();
    let events = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["event"] == "trace").collect()
}

/// Registers that only one of the two drivers writes, each with the reason.
const ONLY_ONE: &[(u16, &str)] = &[
    (0x0040, "E2P_CMD: the kernel looks into the EEPROM even where the chip has its address already"),
    (0x0118, "RX_ADDRH: segue writes the address back that it has read"),
    (0x011c, "RX_ADDRL"),
];
/// Register addresses of the perfect filters after the chip's own address: the kernel stores its multicast groups
/// there, segue receives all multicast frames.
const GROUPS: std::ops::Range<u16> = 0x0408..0x0510;
/// Registers to which both drivers must last write the same value, with their names.
const SAME: &[(u16, &str)] = &[
    (0x0080, "USB_CFG0"),
    (0x0090, "BURST_CAP"),
    (0x0094, "BULK_IN_DLY"),
    (0x0098, "INT_EP_CTL"),
    (0x00c8, "FCT_RX_FIFO_END"),
    (0x00cc, "FCT_TX_FIFO_END"),
    (0x00d0, "FCT_FLOW"),
    (0x010c, "FLOW"),
];

/// Checks that both drivers access the same registers and leave the same configuration.
fn compare(kernel: &Value, own: &Value) {
    let written = |trace: &Value| -> BTreeMap<u16, u64> {
        let address = |text: &String| u16::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
        trace["written"].as_object().unwrap().iter().map(|(k, v)| (address(k), v.as_u64().unwrap())).collect()
    };
    let (kernel, own) = (written(kernel), written(own));
    assert!(kernel.len() > 40 && own.len() > 40, "{} and {} registers", kernel.len(), own.len());
    let is_known = |key: u16| GROUPS.contains(&key) || ONLY_ONE.iter().any(|(one, _)| *one == key);
    let keys: BTreeSet<u16> = kernel.keys().chain(own.keys()).copied().collect();
    let alone = |key: &u16| kernel.contains_key(key) != own.contains_key(key) && !is_known(*key);
    let unknown: Vec<u16> = keys.into_iter().filter(alone).collect();
    assert!(unknown.is_empty(), "one driver writes these and the other does not: {unknown:#x?}");
    for (key, name) in SAME {
        let [theirs, ours] = [&kernel, &own].map(|written| written.get(key));
        assert!(ours == theirs && ours.is_some(), "{name}: {ours:x?}, the kernel's driver {theirs:x?}");
    }
}

/// The machine with the kernel's driver, and the models.
struct Test {
    machine: Process,
    models: BTreeMap<u8, Model>,
    /// Files that the sink has received.
    arrived: Receiver<Result<Digested, String>>,
    /// Files that the source has sent.
    sent: Receiver<Result<Digested, String>>,
    /// The sender to groups, while there is one.
    groups: Option<Sender<()>>,
    /// The counters of each model that was unplugged, read before.
    gone: Vec<(u8, Stat)>,
    // Goes after the processes.
    ground: Ground,
}

impl Test {
    fn model(&mut self, number: u8) -> &mut Model {
        self.models.get_mut(&number).unwrap()
    }

    fn stat(&self, number: u8) -> Stat {
        Stat::read(&self.ground.a, &self.ground.program, &format!("model{number}"))
    }

    /// Carries out a request of the guest.
    fn obey(&mut self, number: u8, request: &str) {
        let host = &self.ground.a;
        match request {
            "udp" => {
                datagrams(host, IpAddr::from([198, 18, 100 + number, 2]), 1);
                datagrams(host, format!("2001:db8:10{number}::2").parse().unwrap(), 2);
            }
            "multicast" => self.groups = Some(multicast(host, number)),
            "filtered" => {
                // The group's frames are filtered at twenty a second, others seldom.
                let filtered = |stat: &Stat| stat.count("usb", "numbers", "filtered");
                let least = filtered(&self.stat(number)) + 10;
                let (program, name) = (&self.ground.program, format!("model{number}"));
                let stat = Stat::until(host, program, &name, BOOT, |stat| filtered(stat) >= least);
                assert!(filtered(&stat) >= least, "model {number}: a group that nobody joined was let through");
                self.groups = None;
            }
            "mtu 9000" => set_mtu(host, number, "9000"),
            "unplug" => {
                set_mtu(host, number, "1500");
                let stat = self.stat(number);
                self.gone.push((number, stat));
                self.model(number).say("unplug");
            }
            "trace" => {
                let model = self.model(number);
                let (before, begin) = (traces(model).len(), Instant::now());
                model.say("trace");
                while traces(model).len() == before {
                    assert!(begin.elapsed() < BOOT, "no trace of model {number}");
                    thread::sleep(Duration::from_millis(10));
                }
            }
            other => self.model(number).say(other),
        }
        acknowledge(&self.ground.a);
    }

    /// Carries out the guest's requests until its end, and returns the lines that it has told.
    fn serve(&mut self) -> Vec<String> {
        let begin = Instant::now();
        let mut printed: Vec<String> = Vec::new();
        loop {
            let ended = self.machine.ended().is_some();
            if ended {
                // All of its output is read then.
                self.machine.wait(BOOT).unwrap();
            }
            let text = self.machine.stdout();
            // A line without its end may lack words of the request.
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            let lines: Vec<String> =
                whole.lines().filter_map(|line| line.trim_end().strip_prefix("@ ")).map(String::from).collect();
            for line in &lines[printed.len()..] {
                if let Some((number, request)) = line.split_once(" please ") {
                    self.obey(number.parse().unwrap(), request);
                }
            }
            printed = lines;
            if printed.iter().any(|line| line == "end") {
                return printed;
            }
            let last = || printed.last().map_or("nothing", String::as_str);
            assert!(!ended, "the guest has ended early, after: {}", last());
            let limit = Duration::from_secs(all());
            assert!(begin.elapsed() < limit, "the guest has not come to its end in {limit:?}, last: {}", last());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Checks what the guest has told, and what the models have counted.
    fn judge(&mut self, printed: &[String]) {
        let failed: Vec<&String> =
            printed.iter().filter(|line| line.contains("fail") || line.contains(" no ")).collect();
        let expected_failure = ["9 ping failed"];
        assert_eq!(failed, expected_failure, "what failed in the guest");
        // The driver says this where the chip reports another change of the PHY, or its timer asks for counters, before
        // the work for the first request has run; the work that waits does both (`lan78xx_defer_kevent`). It says so on
        // hardware, too. 4 is EVENT_LINK_RESET, 9 EVENT_STAT_UPDATE.
        let is_harmless = |line: &&String| {
            ["kevent 4 may have been dropped", "kevent 9 may have been dropped"]
                .iter()
                .any(|words| line.contains(*words))
        };
        let complaints: Vec<&String> =
            printed.iter().filter(|line| line.starts_with("complaint")).filter(|line| !is_harmless(line)).collect();
        assert!(complaints.is_empty(), "{complaints:#?}");
        let said = |word: &str| -> Vec<String> {
            printed.iter().filter_map(|line| line.strip_prefix(word)).map(|rest| rest.trim().to_owned()).collect()
        };
        for (number, ..) in &MODELS[..2] {
            assert_eq!(said(&format!("{number} link ")), ["1000Mb/s Full"], "model {number}");
            assert_eq!(said(&format!("{number} slow ")), ["100Mb/s"], "model {number}");
        }
        let wrong: Vec<&String> =
            printed.iter().filter(|line| line.contains("counter") && !line.ends_with(" 0")).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        for mode in ["napi", "standard"] {
            assert_eq!(said(&format!("2 {mode} exit ")), ["0"], "model 2, {mode}");
        }
        assert!(said("8 complaints").iter().all(|count| count != "0"), "an inverted checksum went unnoticed");

        let file = Digested { len: file_len(), sha256: said("file ").concat() };
        assert_eq!(all_of(&self.arrived, 10), vec![Ok(file); 10], "files from the guest");
        let got: Vec<String> =
            printed.iter().filter_map(|line| line.split_once(" got ")).map(|(_, hash)| hash.into()).collect();
        let sent: Vec<String> = all_of(&self.sent, 6).into_iter().map(|sent| sent.unwrap().sha256).collect();
        assert_eq!((sent.len(), &got), (6, &sent), "files to the guest");

        compare(&traces(&self.models[&0])[1], &traces(&self.models[&2])[1]);
        for (number, stat) in &self.gone {
            let note = |key: &str| stat.count("usb", "numbers", key);
            assert!(note("lso_frames") > 0, "model {number}: {}", stat.json());
            let jumbo =
                if *number < 2 { &["rx_greater_1518_byte_frames", "tx_greater_1518_byte_frames"][..] } else { &[] };
            for key in jumbo {
                assert!(stat.count(&format!("cable{number}"), "numbers", key) > 0, "model {number}: no {key}");
            }
            for key in ["lost_sync", "unterminated", "unfit", "bad_lso"] {
                assert_eq!(note(key), 0, "model {number}: {key}");
            }
        }
        let gone: Vec<u8> = self.gone.iter().map(|(number, _)| *number).collect();
        assert_eq!(gone, [0, 1, 2, 2, 2], "models that were unplugged");
        let status = self.machine.wait(BOOT).unwrap();
        assert!(status.success(), "{status}");
    }

    /// Prints the ends of what the guest and the models have said.
    fn show(&self) {
        for (number, model) in &self.models {
            eprintln!("model {number}:\n{}", tail(&model.process.stderr(), 5));
        }
        eprintln!("guest:\n{}\n{}", tail(&self.machine.stdout(), 60), tail(&self.machine.stderr(), 20));
    }
}

/// Returns what a channel gives until it has given `count` values, and what else is in it.
fn all_of<T>(channel: &Receiver<T>, count: usize) -> Vec<T> {
    let first = (0..count).map_while(|_| channel.recv_timeout(BOOT).ok());
    first.collect::<Vec<_>>().into_iter().chain(channel.try_iter()).collect()
}

/// Returns the last lines of a text.
fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Takes files from the guest at port 5010.
fn sink(host: &Host) -> Receiver<Result<Digested, String>> {
    let (tell, arrived) = mpsc::channel();
    let listener = traffic::inside(host, || TcpListener::bind("[::]:5010")).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if tell.send(traffic::receive_file(stream).map_err(|error| error.to_string())).is_err() {
                return;
            }
        }
    });
    arrived
}

/// Gives the guest files at port 5011.
fn source(host: &Host) -> Receiver<Result<Digested, String>> {
    let (tell, sent) = mpsc::channel();
    let listener = traffic::inside(host, || TcpListener::bind("[::]:5011")).unwrap();
    thread::spawn(move || {
        for (seed, stream) in listener.incoming().flatten().enumerate() {
            let got = traffic::send_file(stream, file_len(), seed as u64).map_err(|error| error.to_string());
            if tell.send(got).is_err() {
                return;
            }
        }
    });
    sent
}

#[test]
fn the_kernels_own_driver_takes_the_model_for_an_adapter_at_super_and_high_speed() {
    let (cache, run) = match guest::find() {
        Ok(found) => found,
        Err(why) => return skip(test_name!(), &why),
    };
    let Some(ground) = Ground::apart(test_name!(), &["bash", "cpio", "qemu-system-x86_64"]) else { return };
    let host = &ground.a;
    // The guest's way to the models, and a card of the guest at the other end of their cables: what speaks VLAN there.
    for tap in ["tap0", "tap1"] {
        host.run("ip", &["tuntap", "add", "dev", tap, "mode", "tap"]).unwrap();
        host.run("ip", &["link", "set", tap, "up"]).unwrap();
    }
    host.run("ip", &["addr", "add", "198.18.0.1/24", "dev", "tap0"]).unwrap();
    host.run("ip", &["link", "add", "br0", "type", "bridge"]).unwrap();
    host.run("ip", &["link", "set", "tap1", "master", "br0"]).unwrap();
    host.run("ip", &["link", "set", "br0", "up"]).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lan78xx.sh");
    let mut command = host.command("bash");
    command.arg(run).arg("--cache").arg(cache).args(["--tap", "tap0", "--tap", "tap1"]);
    command.args(["--timeout", &(all() + 50).to_string()]);
    // A machine that leaves the guest no time for long is no fault of its kernel's, which is not to look for such.
    let quiet = "nowatchdog rcupdate.rcu_cpu_stall_suppress=1 workqueue.watchdog_thresh=0 \
                 sysctl.kernel.hung_task_timeout_secs=0";
    command.args(["--append", quiet]);
    command.args(["--env", "MODELS=0 1", "--env", if is_soak() { "CYCLES=20" } else { "CYCLES=2" }]);
    let name = ground.program.file_name().expect("a file").to_string_lossy().into_owned();
    command.arg("--add").arg(&ground.program).arg("--env").arg(format!("PROGRAM={name}"));
    command.arg("--env").arg(format!("FILE_LEN={}", file_len())).arg("--script").arg(script);
    let machine = Process::spawn(command, b"").unwrap();
    let models = MODELS.iter().map(|model| (model.0, Model::start(host, &ground.program, *model))).collect();
    let (arrived, sent) = (sink(host), source(host));
    let mut test = Test { machine, models, arrived, sent, groups: None, gone: Vec::new(), ground };

    let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
        let printed = test.serve();
        test.judge(&printed);
    }));
    if let Err(payload) = outcome {
        test.show();
        // Once more, since a log may be cut to its end.
        let why =
            payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
        panic!("{}", why.unwrap_or("the test failed"));
    }
}
