//! Tests of guests' ports in the built program other than traffic: hostile guests next to others, files, memory and
//! rights of the processes, sockets and their options, and the words of docs/virtual-machines.md.

#[path = "common/guests.rs"]
mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Gateway, NAME, Over, PATIENCE, announcement, next_of, send, send_plain, train_between};
use segue_testkit::vhost::{
    Descriptor, FROM_GUEST, Frontend, GUEST_BASE, INDIRECT_TABLE, MEMORY_LEN, NEXT, USER_BASE, WRITE, feature, message,
    region, state,
};
use segue_tests::capture::Directory;
use segue_tests::faults::{field, helpers};
use segue_tests::{Ground, Stat, test_name};

/// Resources that the process that moves packets holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    pid: u64,
    /// Resident memory of the process, kilobytes.
    resident: u64,
    /// Number of mappings of guests' memory.
    mappings: usize,
    files: usize,
}

/// Returns the resources that the worker of a gateway holds.
#[track_caller]
fn held(gateway: &Gateway<'_>) -> Held {
    let pid = Stat::read(&gateway.ground.a, gateway.program(), NAME).json()["pid"].as_u64().expect("a process");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process that runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its resident memory");
    let resident = line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("kilobytes");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let mappings = maps.lines().filter(|line| line.contains("/memfd:front-end")).count();
    let files = fs::read_dir(format!("/proc/{pid}/fd")).expect("its files").count();
    Held { pid, resident, mappings, files }
}

/// Waits until a count, mostly that of the trains that have crossed, has grown by as many.
#[track_caller]
fn cross(crossed: &AtomicUsize, more: usize) {
    let (begin, before) = (Instant::now(), crossed.load(Ordering::Relaxed));
    while crossed.load(Ordering::Relaxed) < before + more {
        assert!(begin.elapsed() < PATIENCE, "the other guests' trains stand still");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Offers one chain of a descriptor to be sent.
fn offer(front: &mut Frontend, descriptor: Descriptor) {
    front.describe(FROM_GUEST, 0, &descriptor);
    front.offer(FROM_GUEST, 0);
}

#[test]
fn each_hostile_guest_is_stopped_by_name_while_the_trains_of_others_cross() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    let directory = Directory::new();
    let gateway = Gateway::between(&ground, &directory, &["left", "right", "bad"], &[]);
    let [mut left, mut right] = ["left", "right"].map(|name| gateway.guest(name, feature::USUAL));
    for (station, guest) in [(0, &mut left), (1, &mut right)] {
        send_plain(guest, 0, &announcement(station));
    }
    assert_eq!(next_of(&mut right)[0].1, announcement(0));
    assert_eq!(next_of(&mut left)[0].1, announcement(1));
    type Wrong = fn(&mut Frontend);
    let wrongs: [(&str, Wrong); 11] = [
        ("stop_ring_loop", |front| {
            offer(front, Descriptor { address: GUEST_BASE + 0x50_0000, len: 64, flags: NEXT, next: 0 });
        }),
        ("stop_ring_index", |front| front.set_offered(FROM_GUEST, 30_000)),
        ("stop_ring_head", |front| {
            front.offer(FROM_GUEST, 256);
        }),
        ("stop_ring_address", |front| offer(front, Descriptor { address: 0, len: 64, flags: 0, next: 0 })),
        ("stop_ring_address", |front| {
            let address = GUEST_BASE + MEMORY_LEN - 10;
            offer(front, Descriptor { address, len: 64, flags: 0, next: 0 });
        }),
        ("stop_ring_indirect", |front| {
            offer(front, Descriptor { address: GUEST_BASE + 0x1f_0000, len: 15, flags: INDIRECT_TABLE, next: 0 });
        }),
        ("stop_ring_direction", |front| {
            offer(front, Descriptor { address: GUEST_BASE + 0x50_0000, len: 64, flags: WRITE, next: 0 });
        }),
        ("stop_memory_lost", |front| {
            let (header, frame) = train_between([2, 2], 1000, 0);
            front.send_packet(0, &header, &frame, &[]);
            front.memory.set_len(0).unwrap();
        }),
        ("stop_queue_index", |front| front.send(message::SET_VRING_NUM, &state(2, 256))),
        ("stop_memory_length", |front| {
            let memory = front.memory.try_clone().unwrap();
            memory.set_len(1 << 45).unwrap();
            let payload = [vec![0; 8], region(1 << 44, 1 << 45, 1 << 50, 0)].concat();
            front.send_with(message::ADD_MEM_REG, 1, &payload, &[memory.as_fd()]);
        }),
        // Silence after three bytes: five seconds.
        ("stop_message_incomplete", |front| front.send_raw(&[1, 0, 0])),
    ];
    let (is_over, crossed) = (AtomicBool::new(false), AtomicUsize::new(0));
    let _guests = thread::scope(|scope| {
        let (is_over, crossed) = (&is_over, &crossed);
        let load = scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let n = crossed.load(Ordering::Relaxed);
                let (header, frame) = train_between([0, 1], 60_000, n);
                left.send_packet(n as u16 % 32, &header, &frame, &[]);
                left.kick(FROM_GUEST);
                // The hostile one's own frames may come too.
                while !next_of(&mut right).iter().any(|(_, came)| *came == frame) {}
                crossed.store(n + 1, Ordering::Relaxed);
            }
            (left, right)
        });
        let _over = Over(is_over);
        cross(crossed, 100);
        let before = held(&gateway);
        let mut expected = BTreeMap::new();
        for (reason, wrong) in wrongs {
            let mut bad = gateway.guest("bad", feature::USUAL);
            wrong(&mut bad);
            bad.kick(FROM_GUEST);
            let count = expected.entry(reason).or_insert(0u64);
            *count += 1;
            cross(crossed, 10);
            gateway.wait_for("bad", reason, *count);
            cross(crossed, 10);
        }
        // A chain that changes all the time between two that are right stops nothing.
        let mut bad = gateway.guest("bad", feature::USUAL);
        send_plain(&mut bad, 4, &announcement(2));
        // Its frames are for itself: the gateway passes them on to no port.
        let address = GUEST_BASE + 0x50_0000;
        bad.write(address + 12, &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
        let begin = Instant::now();
        let mut n = 0u32;
        while begin.elapsed() < Duration::from_millis(500) {
            n = n.wrapping_add(7919);
            let flags = if n & 1 == 0 { NEXT } else { 0 };
            bad.describe(FROM_GUEST, 1, &Descriptor { address: address + 0x1_0000, len: n % 900, flags: 0, next: 0 });
            bad.describe(FROM_GUEST, 0, &Descriptor { address, len: 80 + n % 900, flags, next: 1 });
            if !bad.returned(FROM_GUEST).is_empty() {
                bad.offer(FROM_GUEST, 0);
                bad.kick(FROM_GUEST);
            }
        }
        assert!(!bad.is_closed(), "a chain that changes is no reason to stop");
        cross(crossed, 10);
        drop(bad);
        gateway.wait_for("bad", "guest_connected", 0);
        cross(crossed, 10);
        // A connection of `segue stat` may still be there.
        let begin = Instant::now();
        let mut after = held(&gateway);
        while (after.mappings, after.files) > (before.mappings, before.files) && begin.elapsed() < PATIENCE {
            after = held(&gateway);
        }
        assert!(after.mappings == 2 && after.files <= before.files, "{before:?}, then {after:?}");
        assert!(after.pid == before.pid && after.resident < before.resident + (16 << 10), "{before:?}, then {after:?}");
        is_over.store(true, Ordering::Relaxed);
        load.join().unwrap()
    });
    let stat = gateway.wait_for("right", "guest_ready", 1);
    let crossed = crossed.load(Ordering::Relaxed) as u64;
    // The counters are those of the round before.
    assert!(stat.count("right", "gso", "trains_whole") + 1 >= crossed, "{crossed} trains: {}", stat.json());
    for name in ["left", "right"] {
        assert_eq!(stat.count(name, "numbers", "front_ends"), 1);
    }
}

/// Tests a guest that offers chains without a packet, faster than they are read, for as long as the others' trains
/// cross.
#[test]
fn a_guest_that_sends_nothing_but_empty_chains_without_end_holds_no_other_up() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    let directory = Directory::new();
    let gateway = Gateway::between(&ground, &directory, &["left", "right", "bad"], &[]);
    let [mut left, mut right, mut bad] = ["left", "right", "bad"].map(|name| gateway.guest(name, feature::USUAL));
    for (station, guest) in [(1, &mut left), (2, &mut right)] {
        send_plain(guest, 0, &announcement(station));
    }
    assert_eq!(next_of(&mut right)[0].1, announcement(1));
    assert_eq!(next_of(&mut left)[0].1, announcement(2));
    // Each has a header and no frame.
    for n in 0..256 {
        let descriptor = Descriptor { address: GUEST_BASE + 0x50_0000, len: 12, flags: 0, next: 0 };
        bad.describe(FROM_GUEST, n, &descriptor);
        bad.offer(FROM_GUEST, n);
    }
    let (is_over, offered) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut index = 256_u16;
            while !is_over.load(Ordering::Relaxed) {
                // All that came back is offered again, in steps of the whole ring: the two bytes of an index are not
                // written or read at once here, and of these only the upper one changes.
                let next = (bad.used_index(FROM_GUEST) & 0xff00).wrapping_add(256);
                if next.wrapping_sub(index) < 0x8000 {
                    index = next;
                    bad.set_offered(FROM_GUEST, index);
                }
                bad.kick(FROM_GUEST);
                offered.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _over = Over(&is_over);
        cross(&offered, 1000);
        assert_eq!(send(&mut left, &mut right, 500, 60_000).len(), 500);
        cross(&offered, 1000);
    });
    assert!(!bad.is_closed(), "nothing is wrong with its ring");
    let stat = gateway.wait_for("right", "guest_ready", 1);
    assert!(stat.count("bad", "drops", "vnet_short") > 1000, "{}", stat.json());
    // The counters are those of the round before.
    assert!(stat.count("right", "gso", "trains_whole") + 1 >= 500, "{}", stat.json());
}

/// Tests a front end that keeps its event counter of calls full, and empties it briefly, until the worker checks it at
/// such a time and writes afterwards.
#[test]
fn a_front_end_that_makes_a_call_wait_loses_its_port_and_the_others_go_on() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    let directory = Directory::new();
    let gateway = Gateway::between(&ground, &directory, &["left", "right", "bad"], &[]);
    let [mut left, mut right] = ["left", "right"].map(|name| gateway.guest(name, feature::USUAL));
    for (station, guest) in [(1, &mut left), (2, &mut right)] {
        send_plain(guest, 0, &announcement(station));
    }
    assert_eq!(next_of(&mut right)[0].1, announcement(1));
    assert_eq!(next_of(&mut left)[0].1, announcement(2));
    let before = held(&gateway);
    // Without event indexes there is a call for each packet.
    let mut bad = gateway.guest("bad", feature::USUAL & !feature::EVENT_IDX);
    bad.fill_calls(FROM_GUEST);
    let counter = bad.call_counter(FROM_GUEST);
    let mut other = counter.try_clone().unwrap();
    // Waits until the counter is empty, and fills it; in the end it waits until this process is over.
    thread::spawn(move || while other.write_all(&(u64::MAX - 1).to_ne_bytes()).is_ok() {});
    // A frame for itself, which no other port gets.
    let mut frame = announcement(3);
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 3]);
    // A packet comes back unless the worker waits in the call for the one before, until its port is stopped.
    let comes_back = |bad: &mut Frontend| {
        let sent = Instant::now();
        while bad.returned(FROM_GUEST).is_empty() {
            if sent.elapsed() > Duration::from_millis(50) && bad.is_closed() {
                return false;
            }
            assert!(sent.elapsed() < PATIENCE, "the worker waits, and its wait is not ended");
        }
        true
    };
    let (begin, mut seed) = (Instant::now(), 1u32);
    loop {
        // While the counter is full the worker does not call.
        send_plain(&mut bad, 4, &frame);
        if !comes_back(&mut bad) {
            break;
        }
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let pause = Duration::from_micros(u64::from(seed >> 26));
        send_plain(&mut bad, 4, &frame);
        let sent = Instant::now();
        while sent.elapsed() < pause {
            std::hint::spin_loop();
        }
        (&counter).read_exact(&mut [0; 8]).unwrap();
        if !comes_back(&mut bad) {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "the worker never writes to a counter that was filled after it looked");
    }
    gateway.wait_for("bad", "stop_call_blocked", 1);
    assert_eq!(held(&gateway).pid, before.pid);
    assert_eq!(send(&mut left, &mut right, 5, 30_000).len(), 5);
    // No other front end is taken.
    let begin = Instant::now();
    while UnixStream::connect(gateway.path("bad")).is_ok() {
        assert!(begin.elapsed() < PATIENCE, "another front end is taken");
        thread::sleep(Duration::from_millis(5));
    }
    // That is the only problem: the process that took front ends has nothing more to do.
    for _ in 0..10 {
        let stat = Stat::read(&ground.a, &ground.program, NAME);
        let health = stat.json()["health"].as_array().unwrap();
        assert!(health.iter().all(|one| one["code"] != "process_ended"), "{health:?}");
        let gone = health.iter().find(|one| one["code"] == "guest_gone").expect("the guest is gone");
        assert!(gone["why"].as_str().unwrap().contains("(call_blocked)"), "{gone}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn guests_with_as_many_regions_as_they_may_have_leave_files_for_another_one() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    let directory = Directory::new();
    let names: Vec<String> = (0..14).map(|n| format!("g{n}")).collect();
    // The gateway starts with a low limit and raises it.
    let mut command = ground.a.command("sh");
    command.args(["-c", "ulimit -Sn 256 && exec \"$@\"", "sh"]).arg(&ground.program);
    command.args(["gateway", "-j", "--name", NAME]);
    command.args(names.iter().map(|name| format!("vhost:{}", directory.file(&format!("{name}.sock")).display())));
    let gateway = Gateway::run(&ground, &directory, NAME, command);
    let mut fronts = Vec::new();
    for name in &names[..13] {
        let mut front = Frontend::connect(&gateway.path(name), feature::USUAL);
        front.start();
        // The first region is there; each of the others is a page of the same file, and is acknowledged.
        for n in 1..64u64 {
            let memory = front.memory.try_clone().unwrap();
            let place = region(0x10_0000_0000 + n * 4096, 4096, USER_BASE + (1 << 40) + n * 4096, 0);
            front.send_with(message::ADD_MEM_REG, 1 | 1 << 3, &[vec![0; 8], place].concat(), &[memory.as_fd()]);
            let begin = Instant::now();
            while front.reply().is_none() {
                assert!(begin.elapsed() < PATIENCE, "region {n} of {name}");
                thread::sleep(Duration::from_micros(200));
            }
        }
        fronts.push(front);
    }
    let _last = gateway.guest(&names[13], feature::USUAL);
    let stat = gateway.wait_for(&names[13], "guest_ready", 1);
    for name in &names[..13] {
        assert_eq!(stat.count(name, "numbers", "guest_ready"), 1, "{name}");
    }
}

/// Tests the process that moves packets, which maps the memory of both guests, and the two that talk to their front
/// ends.
#[test]
fn the_processes_that_serve_guests_stay_in_their_sandbox() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    let directory = Directory::new();
    let gateway = Gateway::start(&ground, &directory);
    let [mut left, mut right] = ["left", "right"].map(|name| gateway.guest(name, feature::USUAL));
    assert_eq!(send(&mut left, &mut right, 5, 30_000).len(), 5);
    let worker = u32::try_from(held(&gateway).pid).unwrap();
    let keepers = helpers(worker);
    assert_eq!(keepers.len(), 2, "one for each guest: {keepers:?}");
    for pid in [&[worker][..], &keepers].concat() {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process that runs");
        for (name, value) in [
            ("CapEff", "0000000000000000"),
            ("CapPrm", "0000000000000000"),
            ("CapBnd", "0000000000000000"),
            ("NoNewPrivs", "1"),
            ("Seccomp", "2"),
        ] {
            assert_eq!(field(&status, name), value, "{name} of {pid}: {status}");
        }
        assert_ne!(field(&status, "Uid"), "0", "{pid}: {status}");
    }
    let stat = gateway.wait_for("right", "guest_ready", 1);
    let sandbox = &stat.json()["sandbox"];
    assert!(sandbox["landlock"] == true && sandbox["seccomp"] == true, "{sandbox}");
}

/// Waits for segue at a listening socket.
#[track_caller]
fn accepted(listener: &UnixListener) -> UnixStream {
    listener.set_nonblocking(true).unwrap();
    let begin = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                return stream;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        assert!(begin.elapsed() < PATIENCE, "segue does not connect");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_front_end_that_listens_is_found_again_and_a_socket_has_the_mode_and_owner_of_its_words() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    let directory = Directory::new();
    let (listens, served) = (directory.file("left.sock"), directory.file("right.sock"));
    let words =
        [format!("vhost:{},client", listens.display()), format!("vhost:{},mode=0660,owner=7:8", served.display())];
    // segue is there before the front end.
    let gateway = Gateway::between(&ground, &directory, &[], &[words[0].as_str(), words[1].as_str()]);
    let socket = fs::metadata(&served).unwrap();
    // With the mark of a socket that `segue stat` does not ask.
    assert_eq!((socket.mode() & 0o7777, socket.uid(), socket.gid()), (0o1660, 7, 8));
    let mut right = gateway.guest("right", feature::USUAL);
    for round in 0..2 {
        let listener = UnixListener::bind(&listens).unwrap();
        let mut left = Frontend::over(accepted(&listener), feature::USUAL);
        left.start();
        left.offer_buffers(2048);
        gateway.wait_for("left", "guest_ready", 1);
        assert_eq!(send(&mut left, &mut right, 5, 30_000).len(), 5, "round {round}");
        // The front end restarts, and its socket with it.
        drop((left, listener));
        fs::remove_file(&listens).unwrap();
        gateway.wait_for("left", "guest_connected", 0);
    }
    assert_eq!(gateway.wait_for("left", "front_ends", 2).count("right", "numbers", "front_ends"), 1);
}

#[test]
fn a_second_worker_is_refused_where_a_guest_is_served() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    let directory = Directory::new();
    let [left, right] = ["left.sock", "right.sock"].map(|name| format!("vhost:{}", directory.file(name).display()));
    let tunnel = format!("tunnel dev {left} mode vxlan id 42 local 198.18.0.1 remote 198.18.0.2 workers 2");
    for (line, why) in [
        (format!("gateway {left} {right} --workers 2"), "one queue in each direction"),
        (format!("gateway {left} {right} tap:vms --workers 2"), "a bridge has one worker"),
        (tunnel, "one queue in each direction"),
    ] {
        let output = ground.a.command(&ground.program).args(line.split(' ')).arg("--check").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(!output.status.success() && said.contains(why), "{line}: {said}");
    }
}

fn top(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the fenced blocks of a document in a language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let begin = format!("```{language}\n");
    text.split(&begin).skip(1).map(|rest| rest.split("```").next().unwrap_or_default().to_owned()).collect()
}

/// Returns the words of a command without its line continuations.
fn words(command: &str) -> Vec<String> {
    command.replace("\\\n", " ").split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_options_of_qemu_are_the_same_in_the_document_in_doctor_and_in_the_tests_of_guests() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    let document = top("docs/virtual-machines.md");
    let qemu = blocks(&document, "sh").into_iter().find(|block| block.starts_with("qemu-system-x86_64 ..."));
    let said = words(&qemu.expect("a block of QEMU").replace("/run/segue/vm1.vhost", "PATH"));
    let output = ground.a.command(&ground.program).args(["doctor", "-j"]).output().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a document");
    let checks = value["checks"].as_array().expect("checks");
    let fix = checks.iter().find(|check| check["name"] == "vhost_user").expect("a check")["fix"].as_str().unwrap();
    let lines: Vec<&str> = fix.lines().collect();
    assert_eq!(words(lines[0]), said[2..]);
    // The other forms, each in both.
    for other in ["server=on,wait=off", "vectors=0"] {
        assert!(fix.contains(other) && document.contains(other), "{other}");
    }
    // What the guests of the tests are started with.
    let script = top("lab/vm-run");
    for part in [
        "-object \"memory-backend-memfd,id=mem,size=",
        "M,share=on\" -machine memory-backend=mem",
        "-chardev \"socket,id=c$n,path=$name,reconnect=1\"",
        "-chardev \"socket,id=c$n,path=${name%,server},server=on,wait=off\"",
        "-netdev \"vhost-user,id=n$n,chardev=c$n\"",
        "-device \"virtio-net-pci,netdev=n$n",
        "vectors=0",
    ] {
        assert!(script.contains(part), "{part}");
    }
}

#[test]
fn the_lines_of_the_document_for_guests_are_accepted() {
    let Some(ground) = Ground::apart(test_name!(), &[]) else { return };
    let directory = Directory::new();
    // An interface for gateways, which has no address, and the network of a tunnel.
    for line in [
        "link add eth0 type veth peer name peer0",
        "link set eth0 addrgenmode none up",
        "link set peer0 up",
        "link add wan type veth peer name peer1",
        "addr add 198.18.0.1/24 dev wan",
        "link set wan up",
        "link set peer1 up",
    ] {
        ground.a.run("ip", &line.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let folder = directory.path().display().to_string();
    let guest = format!("vhost:{folder}/");
    let document = top("docs/virtual-machines.md").replace("vhost:/tmp/", &guest).replace("/run/segue", &folder);
    let check = |words: &[String]| {
        let output = ground.a.command(&ground.program).args(words).arg("--check").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {said}");
    };
    let mut count = 0;
    for line in blocks(&document, "sh").iter().flat_map(|block| block.lines()) {
        let line = line.split(" #").next().unwrap_or_default().trim_start_matches("sudo ");
        let words = words(line);
        if let [program, rest @ ..] = &words[..]
            && program == "segue"
            && rest.iter().any(|word| word.starts_with("vhost:"))
        {
            check(rest);
            count += 1;
        }
    }
    assert_eq!(count, 6, "lines with a guest");
    let toml = blocks(&document, "toml").concat().replace("libvirt-qemu:kvm", "0:0");
    let file = directory.file("segue.toml");
    fs::write(&file, toml).unwrap();
    let output = ground.a.command(&ground.program).args(["run", "--check", "-c"]).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
