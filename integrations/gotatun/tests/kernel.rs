//! Test of segue's forms with a kernel's WireGuard: a guest with Debian's Linux is the other end of one tunnel for
//! each. Files pass in both directions and families, and are compared by their SHA-256.

mod common;

use std::collections::BTreeSet;
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use segue_gotatun::Form;
use segue_lab::{Family, Host, Peer, Process};

/// Number of each tunnel and form of its end at the host; kernel.sh has the other ends.
const TUNNELS: [(u8, Form); 2] = [(1, Form::TunUdp), (2, Form::Tun)];
/// Length of each file in bytes, one for each form, family and direction.
const LEN: usize = 2 << 20;
const BOOT: Duration = Duration::from_secs(120);
const PATIENCE: Duration = Duration::from_secs(150);

type Checked = Result<(), Box<dyn Error>>;

/// A booting or running guest.
struct Guest(Process);

impl Guest {
    /// Boots the guest, whose only interface is at a tap of the host.
    fn boot(host: &Host, cache: &Path, run: &Path) -> Result<Guest, Box<dyn Error>> {
        host.run("ip", &["tuntap", "add", "dev", "tap0", "mode", "tap"])?;
        host.run("ip", &["addr", "add", &Peer::A.prefix(0, Family::V4), "dev", "tap0"])?;
        host.run("ip", &["link", "set", "tap0", "up"])?;
        let mut command = host.command("bash");
        command.arg(run).arg("--cache").arg(cache).args(["--tap", "tap0", "--timeout", "600"]);
        let (secret, public) = (base64(&common::secret(Peer::B)), base64(common::PUBLICS[0]));
        for (name, value) in [("FILE_LEN", LEN.to_string()), ("SECRET", secret), ("PUBLIC", public)] {
            command.arg("--env").arg(format!("{name}={value}"));
        }
        command.arg("--script").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel.sh"));
        Ok(Guest(Process::spawn(command, b"")?))
    }

    /// Returns the rest of each of the guest's lines that begin with a word.
    fn said(&self, word: &str) -> Vec<String> {
        let text = self.0.stdout();
        let lines = text.lines().filter_map(|line| line.trim_end().strip_prefix("@ ")?.strip_prefix(word));
        lines.map(|rest| rest.trim().to_owned()).collect()
    }
}

/// Converts a key from hexadecimal digits to base64, as wg(8) expects.
fn base64(key: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: String = key.chars().map(|digit| format!("{:04b}", digit.to_digit(16).expect("a digit"))).collect();
    let letters = bits.as_bytes().chunks(6).map(|group| {
        let number = group.iter().fold(0, |number, bit| 2 * number + usize::from(bit - b'0'));
        char::from(LETTERS[number << (6 - group.len())])
    });
    // A key of 32 bytes leaves two bits of the last letter unused.
    letters.chain(['=']).collect()
}

/// Returns the SHA-256 of bytes in hexadecimal digits.
fn sha256(bytes: &[u8]) -> io::Result<String> {
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.take().expect("a pipe").write_all(bytes)?;
    let said = child.wait_with_output()?.stdout;
    Ok(String::from_utf8_lossy(&said).split_whitespace().next().unwrap_or_default().to_owned())
}

/// Returns the directory of the guest made by `lab/vm-build` and the script that boots it, or the missing parts.
fn find() -> Result<(PathBuf, PathBuf), String> {
    if let Some(reason) = segue_lab::unavailable() {
        return Err(reason);
    }
    let needed = ["bash", "cpio", "ping", "qemu-system-x86_64"];
    if let Some(name) = needed.into_iter().find(|name| segue_lab::which(name).is_none()) {
        return Err(format!("{name} is not installed"));
    }
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cache = std::env::var_os("SEGUE_VM_CACHE").map_or_else(|| top.join("target/vm"), PathBuf::from);
    match ["vmlinux", "initrd.cpio"].iter().find(|file| !cache.join(file).exists()) {
        Some(file) => Err(format!("no {file} in {} (lab/vm-build)", cache.display())),
        None => Ok((cache, top.join("lab/vm-run"))),
    }
}

/// Pings the guest through each tunnel, and sends files that it hashes.
fn from_the_host(host: &Host) -> Checked {
    for (net, form) in TUNNELS {
        for family in Family::ALL {
            let far = Peer::B.address(net, *family);
            let begin = Instant::now();
            for size in ["56", "777", "2500"] {
                // The first ones may be lost before the handshake is over.
                while let Err(error) = host.run("ping", &["-c", "1", "-W", "2", "-s", size, &far.to_string()]) {
                    if begin.elapsed() > PATIENCE {
                        return Err(format!("{form:?}: {error}").into());
                    }
                }
            }
            let data: Vec<u8> = (0..LEN).map(|n| (n * 3 + n / 251 + usize::from(net)) as u8).collect();
            let mut stream = host.enter(|| TcpStream::connect_timeout(&(far, 5001).into(), PATIENCE))??;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            stream.write_all(&data)?;
            stream.shutdown(Shutdown::Write)?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            let sent = sha256(&data)?;
            if answer.split_whitespace().next() != Some(sent.as_str()) {
                return Err(format!("{form:?}: {far} got a file with the hash {answer}, sent was {sent}").into());
            }
        }
    }
    Ok(())
}

/// Returns the sender of a file and the file's hash.
fn receive(mut stream: TcpStream) -> io::Result<(IpAddr, String)> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let peer = stream.peer_addr()?.ip().to_canonical();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    Ok((peer, sha256(&bytes)?))
}

/// Runs the guest's half of the test: it pings the host through each tunnel, and sends its file.
fn from_the_guest(host: &Host, guest: &mut Guest) -> Checked {
    let expected: BTreeSet<IpAddr> = TUNNELS
        .iter()
        .flat_map(|(net, _)| Family::ALL.iter().map(move |family| Peer::B.address(*net, *family)))
        .collect();
    let (listener, flows) = (host.enter(|| TcpListener::bind("[::]:5010"))??, expected.len());
    let (tell, hear) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming().take(flows) {
            if tell.send(stream.and_then(receive)).is_err() {
                return;
            }
        }
    });
    let turn = SocketAddr::from((Peer::B.address(0, Family::V4), 5999));
    drop(host.enter(|| TcpStream::connect_timeout(&turn, PATIENCE))??);
    guest.0.wait_for_line("@ end", PATIENCE)?;

    let file = guest.said("file").concat();
    let mut senders = BTreeSet::new();
    for _ in 0..flows {
        let (peer, hash) = hear.recv_timeout(Duration::from_secs(30))??;
        if hash != file {
            return Err(format!("a file from {peer} with the hash {hash}, sent was {file}").into());
        }
        senders.insert(peer);
    }
    if senders != expected {
        return Err(format!("files came from {senders:?}").into());
    }
    Ok(())
}

/// Checks the results that the guest reports, and that its kernel's WireGuard carried all files.
fn judge(guest: &Guest) {
    let clients: Vec<String> = guest.said("client");
    assert_eq!(clients, ["1 4 ok", "1 6 ok", "2 4 ok", "2 6 ok"]);
    let transfers = guest.said("transfer");
    assert_eq!(transfers.len(), TUNNELS.len(), "{transfers:?}");
    for line in transfers {
        let counts: Vec<usize> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        // The number of the tunnel, bytes received, bytes sent: a file of each family in both directions.
        assert!(counts.len() == 3 && counts[1..].iter().all(|bytes| *bytes > 2 * LEN), "{line}");
    }
}

/// Runs a guest once; returns `false` if its network card stopped working, in which case nothing was tested.
fn is_exchanged(cache: &Path, run: &Path) -> Result<bool, Box<dyn Error>> {
    let host = Host::new("a")?;
    let mut guest = Guest::boot(&host, cache, run)?;
    guest.0.wait_for_line("@ ready", BOOT)?;
    let mut ends = Vec::new();
    for (net, form) in TUNNELS {
        ends.push(common::start(&host, Peer::A, net, form)?);
    }
    if let Err(error) = from_the_host(&host).and_then(|()| from_the_guest(&host, &mut guest)) {
        let itself = Peer::B.address(0, Family::V4).to_string();
        if guest.0.ended().is_some() || host.run("ping", &["-c", "3", "-i", "0.3", "-W", "2", &itself]).is_ok() {
            return Err(format!("{error}\n{}\n{}", guest.0.stdout(), guest.0.stderr()).into());
        }
        eprintln!("{error}");
        return Ok(false);
    }
    judge(&guest);
    let status = guest.0.wait(Duration::from_secs(30))?;
    assert!(status.success(), "{status}: {}", guest.0.stdout());
    Ok(true)
}

#[test]
fn the_wireguard_of_a_kernel_understands_it() -> Result<(), Box<dyn Error>> {
    let (cache, run) = match find() {
        Ok(found) => found,
        Err(why) => {
            segue_lab::skip_this_test(&why);
            return Ok(());
        }
    };
    // An emulated network card may stand still, rarely, and then nothing passes, with segue or without.
    if !is_exchanged(&cache, &run)? {
        eprintln!("the guest's own interface did not answer any more; once again from the beginning");
        assert!(is_exchanged(&cache, &run)?, "the guest's own interface stood still twice");
    }
    Ok(())
}
