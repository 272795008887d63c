//! Tests of what other users, and resources that are used up, can do to instances: none is kept from its start or lost,
//! none that is down is missing from HEALTH, and no other process is ended.

mod common;

use common::{Ran, in_namespace};
use segue_control::model::Instance;
use segue_control::protocol::Response;
use serde_json::Value;

/// Shell functions: a file of one tunnel and of gateways that cannot start, and the state of the tunnel.
const TUNNEL: &str = "tunnel() {
  printf '[[tunnel]]\\ndev = \"sg0\"\\nlocal = \"198.18.0.1\"\\nremote = \"198.18.0.2\"\\nencap = \"gue\"\\n'
}
gateways() {
  for n in $(seq $1); do
    printf '[[gateway]]\\nin = \"late0\"\\nout = \"tap:t%d\"\\nname = \"gw%d\"\\n' $n $n
  done
}
pid() { $SEGUE stat sg0 -j 2>/dev/null | tr ',' '\\n' | sed -n 's/.*\"pid\":\\([1-9][0-9]*\\).*/\\1/p' | head -1; }
another() {
  for n in $(seq 300); do
    new=$(pid)
    [ -n \"$new\" ] && [ \"$new\" != \"$1\" ] && echo $new && return
    sleep 0.05
  done
  cat said >&2
}
";

/// Runs a script of a service in a folder of its own.
fn of_a_service(script: &str) -> Option<Ran> {
    in_namespace(&format!("{TUNNEL}mount -t tmpfs none /mnt; cd /mnt; {script}"))
}

/// Tests that instances that do not start leave descriptors for one that has to be started again, and that those for
/// which there are none are no instances without a problem.
#[test]
fn absent_instances_take_no_descriptors_from_others_and_are_all_named() {
    let Some(ran) = of_a_service(
        "(tunnel; gateways 60) > many.toml
prlimit --nofile=196:196 $SEGUE run -c many.toml > said 2>&1 & service=$!
first=$(another none)
for n in $(seq 200); do $SEGUE stat --health 2>/dev/null | grep -q no.control.socket && break; sleep 0.1; done
kill -KILL $first
second=$(another $first); [ -n \"$second\" ] && echo again
# A service that is busy may not answer in time.
for n in $(seq 50); do
  $SEGUE stat --health > named; health=$?; [ $(grep -c '^gw' named) = 60 ] && break; sleep 0.1
done
cat named; echo \"health $health\"
for n in $(seq 50); do
  $SEGUE metrics | grep '^segue_instances_unanswered [1-9]' > /dev/null && { echo counted; break; }; sleep 0.1
done
kill -TERM $service; wait $service; echo \"end $?\"",
    ) else {
        return;
    };
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.first(), Some(&"again"), "{ran:?}");
    for n in 1..=60 {
        let name = format!("gw{n}: ");
        assert!(lines.iter().any(|line| line.starts_with(&name)), "{name}: {ran:?}");
    }
    let hidden = lines.iter().filter(|line| line.contains("has no control socket for it now")).count();
    assert!(hidden > 40, "{hidden}: {ran:?}");
    assert_eq!(lines[lines.len() - 3..], ["health 1", "counted", "end 0"], "{ran:?}");
}

/// Tests that an instance without a process is down in HEALTH although no file can be made for its control socket.
#[test]
fn an_instance_that_is_down_is_no_instance_less_where_no_socket_can_be_made() {
    let Some(ran) = of_a_service(
        "mkdir sockets; mount -t tmpfs -o nr_inodes=40,mode=755 none sockets; export SEGUE_RUNTIME_DIR=/mnt/sockets
(tunnel; tunnel | sed 's/sg0/sg1/; $a port = 6081') > two.toml
$SEGUE run -c two.toml > said 2>&1 & service=$!
first=$(another none)
is_down() { $SEGUE stat --health 2>/dev/null | grep '^sg0: sg0 is down'; }
n=0; while touch sockets/file$n 2>/dev/null; do n=$((n + 1)); done
# Other instances run on; this one needs a file for its socket.
kill -KILL $first
for n in $(seq 200); do is_down && break; sleep 0.05; done
rm -f sockets/file*
another $first > /dev/null
for n in $(seq 200); do is_down > /dev/null || { echo well; break; }; sleep 0.05; done
kill -TERM $service; wait $service; echo \"end $?\"",
    ) else {
        return;
    };
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("sg0: sg0 is down (`segue run` of /mnt/two.toml "), "{ran:?}");
    assert_eq!(lines[1..], ["well", "end 0"], "{ran:?}");
}

/// Tests that an instance stays down in HEALTH during a reload that leaves it as it is, also while the service answers
/// no client: it waits for the file with the peers of a tunnel.
#[test]
fn an_instance_that_is_down_stays_so_during_a_reload() {
    let Some(ran) = of_a_service(
        "mkfifo pipe; (echo '{\"peers\":[]}' > pipe) &
(tunnel | sed 's|^remote.*|peers = \"/mnt/pipe\"|; /^encap/d'; gateways 1) > two.toml
$SEGUE run -c two.toml > said 2>&1 & service=$!
another none > /dev/null
is_down() { $SEGUE stat --health 2>/dev/null | grep -q '^gw1: '; }
# The service says it too, before there is a socket for it.
for n in $(seq 200); do [ -e $SEGUE_RUNTIME_DIR/gw1.sock ] && is_down && break; sleep 0.05; done
$SEGUE reload > /dev/null 2>&1 & reload=$!
# The pipe can be opened once the service reads it, which it does for five seconds.
exec 8>pipe; is_down && echo down
(echo '{\"peers\":[]}' >&8); exec 8>&-; wait $reload; echo \"reload $?\"
for n in $(seq 200); do is_down && { echo \"still down\"; break; }; sleep 0.05; done
kill -TERM $service; wait $service; echo \"end $?\"",
    ) else {
        return;
    };
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines, ["down", "reload 0", "still down", "end 0"], "{ran:?}");
}

/// Tests that a reload loads no file of peers into a tunnel that is down, which reads it at its next start.
#[test]
fn a_reload_leaves_the_file_of_peers_of_a_tunnel_that_is_down() {
    let Some(ran) = of_a_service(
        "(tunnel; printf '[[tunnel]]\\ndev = \"sg9\"\\nlocal = \"198.18.0.77\"\\nlisten = \"vxlan:4799\"\\n'
echo 'peers = \"/mnt/table\"') > two.toml
echo '{\"peers\":[]}' > table
$SEGUE run -c two.toml > said 2>&1 & service=$!
another none > /dev/null
for n in $(seq 200); do
  $SEGUE stat --health 2>/dev/null | grep -q '^sg9: down' && echo down && break; sleep 0.05
done
$SEGUE reload > /dev/null; echo \"reload $?\"
kill -TERM $service; wait $service; echo \"end $?\"; cat said",
    ) else {
        return;
    };
    assert!(ran.stdout.starts_with("down\nreload 0\nend 0\n"), "{ran:?}");
    assert!(!ran.stdout.contains("has no peer table"), "{ran:?}");
}

/// Tests that a user that holds the names of claims, with full queues, keeps no gateway from its interfaces: neither
/// with packet sockets of others on these, nor with a TAP.
#[test]
fn no_other_user_can_keep_a_gateway_from_its_interfaces() {
    if segue_lab::which("python3").is_none() {
        return segue_lab::skip_this_test("not installed: python3");
    }
    let Some(ran) = of_a_service(
        "cat > hold.py <<'END'
import os, socket, sys, time
os.setgid(65534)
os.setuid(65534)
kept, own = [], int(sys.argv[1])
for other in range(1, 400):
    name = '\\0segue-gateway-%d-%d' % (min(own, other), max(own, other))
    one = socket.socket(socket.AF_UNIX)
    one.bind(name)
    one.listen(0)
    two = socket.socket(socket.AF_UNIX)
    two.connect(name)
    kept += [one, two]
open(1, 'w').write('held')
time.sleep(60)
END
index=$(ip -o link show dev peer0 | cut -d: -f1)
python3 hold.py $index > held & holder=$!
for n in $(seq 200); do [ -s held ] && break; sleep 0.05; done
cat held; echo
# Such as of a program that follows an interface.
python3 -c 'import socket, time
one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88cc)); one.bind((\"peer0\", 0x88cc)); time.sleep(60)' &
$SEGUE gateway --name sg0 peer0 tap:lro0 > said 2>&1 & gateway=$!
first=$(another none); [ -n \"$first\" ] && echo up
$SEGUE gateway --name sg1 peer0 lro0 2>&1 | grep -o 'another gateway already uses'
kill -TERM $gateway; wait $gateway; echo \"end $?\"; kill $holder",
    ) else {
        return;
    };
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines, ["held", "up", "another gateway already uses", "end 0"], "{ran:?}");
}

/// Tests that root ends no process of another user for the owner of a socket.
#[test]
fn root_ends_no_process_that_is_not_of_the_user_of_the_socket() {
    if segue_lab::which("python3").is_none() {
        return segue_lab::skip_this_test("not installed: python3");
    }
    let instance = Instance { name: "fake".to_owned(), kind: "tunnel".to_owned(), ..Instance::default() };
    let answer = Response::Instance(Box::new(instance)).line();
    let Some(ran) = in_namespace(
        &"cd $SEGUE_RUNTIME_DIR; cat > fake.py <<'END'
import os, signal, socket, time
server = socket.socket(socket.AF_UNIX)
server.bind('fake.sock')
os.chown('fake.sock', 65534, 65534)
server.listen()
if os.fork():
    time.sleep(60)
os.setgid(65534)
os.setuid(65534)
while True:
    client, _ = server.accept()
    try:
        client.recv(4096)
        client.send(b'ANSWER\\n')
    except OSError:
        pass
    client.close()
END
python3 fake.py & parent=$!
for n in $(seq 200); do $SEGUE stat fake > /dev/null 2>&1 && break; sleep 0.05; done
$SEGUE stat fake -j | grep -o '\"name\":\"fake\"' | head -1
$SEGUE stop fake; echo \"stop $?\"
kill -0 $parent && echo alive; kill -KILL $parent"
            .replace("ANSWER", &answer),
    ) else {
        return;
    };
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines, ["\"name\":\"fake\"", "stop 1", "alive"], "{ran:?}");
    assert!(ran.stderr.contains("cannot find the process of fake"), "{ran:?}");
}

/// Tests that a tunnel starts, and ends, although no process reads its full stderr, and says later what was lost, in
/// the form of its log.
#[test]
fn an_instance_does_not_wait_for_the_reader_of_its_stderr() {
    for form in ["text", "logfmt"] {
        let script = "mkfifo pipe; exec 9<>pipe; head -c 65536 /dev/zero >&9
$SEGUE tunnel dev sg0 local 198.18.0.1 remote 198.18.0.2 encap gue --log-format FORM 2>pipe 9>&- & tunnel=$!
first=$(another none); [ -n \"$first\" ] && echo up
sleep 1; head -c 65536 <&9 > /dev/null
kill -TERM $tunnel; wait $tunnel; echo \"end $?\"
dd bs=65536 count=4 iflag=nonblock <&9 2>/dev/null; true";
        let Some(ran) = of_a_service(&script.replace("FORM", form)) else { return };
        let lines: Vec<&str> = ran.stdout.lines().collect();
        assert_eq!(lines[..2], ["up", "end 0"], "{form}: {ran:?}");
        assert!(lines[3..].iter().any(|line| line.contains("is down")), "{form}: {ran:?}");
        let lost = lines[2].trim_end_matches('"');
        assert!(lost.ends_with(" lost, since stderr was not read"), "{form}: {ran:?}");
        match form {
            "text" => assert!(lost.starts_with("warning: "), "{ran:?}"),
            _ => {
                assert!(lost.contains(" id=lost msg=\""), "{ran:?}");
                assert!(lines[2..].iter().all(|line| line.starts_with("t=") && line.contains(" id=")), "{ran:?}");
            }
        }
    }
}

/// Tests that a service whose events are not read starts an instance again that was killed, ends, and says how many
/// events were lost.
#[test]
fn a_service_does_not_wait_for_the_reader_of_its_events() {
    let Some(ran) = of_a_service(
        "mkfifo pipe; exec 9<>pipe; head -c 65536 /dev/zero >&9; tunnel > one.toml
$SEGUE run -c one.toml -j >pipe 2>said 9>&- & service=$!
first=$(another none); [ -n \"$first\" ] && echo up
kill -KILL $first
second=$(another $first); [ -n \"$second\" ] && echo again
head -c 65536 <&9 > /dev/null
timeout 60 head -n 2 <&9
kill -TERM $service; wait $service; echo \"end $?\"
dd bs=65536 count=4 iflag=nonblock <&9 2>/dev/null; true",
    ) else {
        return;
    };
    let lines: Vec<&str> = ran.stdout.lines().collect();
    // The first two events come without a further one.
    assert!(lines.len() > 5 && lines[4] == "end 0", "{ran:?}");
    assert_eq!(lines[..2], ["up", "again"], "{ran:?}");
    let event = |line: &&str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let events: Vec<Value> = lines[2..4].iter().chain(&lines[5..]).map(event).collect();
    let lost: Vec<&Value> = events.iter().filter(|event| event["event"] == "lost").collect();
    assert_eq!((&events[0]["event"], &events[1]["event"]), (&"up".into(), &"lost".into()), "{ran:?}");
    // That all are up, the fault, and the end of the instance.
    assert!(lost.len() == 1 && lost[0]["count"].as_u64().is_some_and(|count| count >= 3), "{ran:?}");
    assert_eq!(events[events.len() - 1]["event"], "down", "{ran:?}");
}

/// Tests that an instance loses no event for a supervisor that is slow to read.
#[test]
fn an_instance_waits_until_its_supervisor_reads_its_events() {
    if segue_lab::which("python3").is_none() {
        return segue_lab::skip_this_test("not installed: python3");
    }
    let Some(ran) = of_a_service(
        "cat > parent.py <<'END'
import os, socket, subprocess, sys, time
near, far = socket.socketpair()
read, write = os.pipe()
os.write(write, b' ' * 65536)
child = subprocess.Popen(sys.argv[1:] + [str(os.getpid())], stdin=far, stdout=write)
os.close(write)
while subprocess.run([sys.argv[1], 'stat', 'sg0'], capture_output=True).returncode:
    time.sleep(0.05)
# It has its first event to write now, and another one at its end.
time.sleep(1)
child.terminate()
time.sleep(1)
text = b''
while part := os.read(read, 65536):
    text += part
print(text.decode().strip())
print('end', child.wait())
END
python3 parent.py $SEGUE tunnel dev sg0 local 198.18.0.1 remote 198.18.0.2 encap gue -j --supervised",
    ) else {
        return;
    };
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!((lines.len(), lines[lines.len() - 1]), (3, "end 0"), "{ran:?}");
    for (line, event) in lines.iter().zip(["up", "down"]) {
        let said: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        assert_eq!(said["event"], event, "{ran:?}");
    }
}
