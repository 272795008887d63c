//! Ends of a tunnel as processes in the hosts of the laboratory.

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use segue_gotatun::{Form, MTU};
use segue_lab::{Family, Host, Peer, Process};

/// Private keys of the two ends, each one byte repeated 32 times that X25519's clamping leaves unchanged.
const SECRETS: [u8; 2] = [0x40, 0x48];
/// Public keys of [`SECRETS`].
pub const PUBLICS: [&str; 2] = [
    "d7b5e81d336e578b13b8d706e82d061e3038c96bce66cdcf50d566b96ddbba10",
    "9177b23278cbf0f3d17c36f2acc9b55e9c85f87b220a5386ec370d663e20e337",
];

/// Returns the private key of an endpoint in hexadecimal digits.
pub fn secret(end: Peer) -> String {
    format!("{:02x}", SECRETS[end as usize]).repeat(32)
}

/// Starts an endpoint of the tunnel with the given number in its host, and adds the addresses of that network to its
/// device.
pub fn start(host: &Host, end: Peer, net: u8, form: Form) -> Result<Process, Box<dyn Error>> {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let (device, port) = (format!("got{net}"), 51_820 + u16::from(net));
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let secret_file = std::env::temp_dir().join(format!("segue-gotatun-{}-{number}", std::process::id()));
    std::fs::write(&secret_file, secret(end))?;
    let name = Form::ALL.iter().find(|(_, known)| *known == form).map_or("", |(name, _)| name);
    let peer = format!("{}:{port}", end.other().address(0, Family::V4));
    let mut command = host.command(program());
    command.args(["end", name, &device, &port.to_string(), &peer]).arg(&secret_file).arg(PUBLICS[1 - end as usize]);
    let mut process = Process::spawn(command, b"")?;
    let begun = process.wait_for_line("running", Duration::from_secs(30));
    std::fs::remove_file(secret_file)?;
    begun?;
    configure(host, end, net, &device)?;
    Ok(process)
}

/// Adds the addresses of a network to a device, and brings it up.
pub fn configure(host: &Host, end: Peer, net: u8, device: &str) -> Result<(), Box<dyn Error>> {
    let begin = Instant::now();
    while !host.has_device(device) && begin.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(5));
    }
    for family in Family::ALL {
        host.run("ip", &["addr", "add", &end.prefix(net, *family), "dev", device, "nodad"])?;
    }
    host.run("ip", &["link", "set", device, "up", "mtu", &MTU.to_string()])?;
    Ok(())
}

/// Returns the path of the program: this one, or the one built for the test.
fn program() -> std::path::PathBuf {
    option_env!("CARGO_BIN_EXE_segue-gotatun").map_or_else(|| std::env::current_exe().expect("a program"), Into::into)
}
