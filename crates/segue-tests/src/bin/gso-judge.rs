//! Segments the trains and datagrams of the conformance list by the running kernel and prints the differences of its
//! output from the table.
//!
//! ```text
//! gso-judge [PART OF A NAME]...
//! ```
//!
//! It makes devices in the network namespace that it is started in, which should be a fresh one. Each line of its
//! output begins with a word:
//!
//!     rules V6_18                          of which generation the kernel is
//!     lacks wrapped|WHY                    what this kernel cannot be asked
//!     lacks device NAME|WHY
//!     refuses GROUP|NAME                   what it does not take
//!     differs GROUP|NAME|WHERE FRAMES OR DATA DIFFER
//!     same GROUP COUNT                     how many came as the table says
//!
//! The groups: `complete`, trains whose checksum is not owed; `odd`, trains that are none of the plain ones; `wrapped`,
//! trains with a tunnel that an eBPF program puts around them; `device`, trains through tunnel devices, of which a
//! kernel lacks some; `socket`, a socket's trains of datagrams; `inside`, its datagrams longer than the MTU; `ufo`,
//! datagrams that leave by a device for which the kernel makes fragments; `sent`, its own datagrams; `forwarded`, those
//! of others; `again`, fragments of those; `together` and `reversed`, fragments that it puts together.

use std::env;
use std::fs;
use std::io;
use std::process::ExitCode;

use segue_testkit::conformance::{self, Datagram, Odd, Rules, Under, Vector, Wrapping};
use segue_tests::kernel::{Gso, Stack, Underlay, what_differs};

/// Label printed for frames with a difference that the conformance list records for Linux.
const LISTED: &str = "Linux's way";

fn main() -> ExitCode {
    match judge() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("gso-judge: {why}");
            ExitCode::FAILURE
        }
    }
}

fn judge() -> Result<(), String> {
    // What no test asked for is not to be sent.
    let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").map_err(|error| error.to_string())?;
    let rules = Rules::of_kernel(&release).ok_or_else(|| format!("no rules are known for kernel {release}"))?;
    println!("rules {rules:?}");
    let words: Vec<String> = env::args().skip(1).collect();
    trains(&mut Gso::new("w")?, &words)?;
    devices(&words)?;
    let mut datagrams = conformance::datagrams();
    datagrams.retain(|datagram| words.iter().all(|word| datagram.name.contains(word)));
    let gso = Gso::new("u")?;
    plain(&gso, &words).map_err(|error| format!("complete: {error}"))?;
    device(&gso, &datagrams).map_err(|error| format!("ufo: {error}"))?;
    // The kernel's own VLANs are another matter.
    datagrams.retain(|datagram| datagram.link.tags.is_empty());
    let stack = Stack::new()?;
    stack.receives()?;
    receive(&stack, &datagrams).map_err(|error| format!("together: {error}"))?;
    send(&stack, &datagrams)?;
    forward(&stack, &datagrams)
}

/// A comparison, which counts equal results and prints every difference.
struct Comparison {
    name: &'static str,
    same: usize,
}

impl Comparison {
    fn new(name: &'static str) -> Comparison {
        Comparison { name, same: 0 }
    }

    fn compare(&mut self, name: &str, came: &[Vec<u8>], expected: &[Vec<u8>]) {
        if came == expected {
            self.same += 1;
        } else {
            println!("differs {}|{name}|{}", self.name, what_differs(came, expected));
        }
    }

    fn end(self) {
        println!("same {} {}", self.name, self.same);
    }
}

fn trains(gso: &mut Gso, words: &[String]) -> Result<(), String> {
    let mut comparison = Comparison::new("wrapped");
    let (name, bytes) = ("any".into(), vec![0x45; 20]);
    let any = Wrapping { name, under: Under::Ip, bytes, inner_ethernet: 0, tags: Vec::new() };
    if let Err(error) = gso.wrap(&any) {
        println!("lacks wrapped|{error}");
        return Ok(());
    }
    for wrapped in conformance::wrapped() {
        if !words.iter().all(|word| wrapped.name.contains(word)) {
            continue;
        }
        match gso.cut_wrapped(&wrapped) {
            Err(error) => return Err(format!("{}: {error}", wrapped.name)),
            Ok(None) => println!("refuses wrapped|{}", wrapped.name),
            Ok(Some(frames)) => comparison.compare(&wrapped.name, &frames, &wrapped.segments),
        }
    }
    comparison.end();
    Ok(())
}

fn plain(gso: &Gso, words: &[String]) -> io::Result<()> {
    let is_chosen = |vector: &Vector| words.iter().all(|word| vector.name.contains(word));
    let mut comparison = Comparison::new("complete");
    for vector in conformance::vectors().iter().filter(|vector| is_chosen(vector) && vector.can_be_complete()) {
        match gso.cut_complete(vector)? {
            None => println!("refuses complete|{}", vector.name),
            Some(frames) => comparison.compare(&vector.name, &frames, &vector.segments),
        }
    }
    comparison.end();
    let mut comparison = Comparison::new("odd");
    for Odd { vector, unraised } in conformance::odd_vectors().iter().filter(|odd| is_chosen(&odd.vector)) {
        match gso.cut(vector)? {
            None => println!("refuses odd|{}", vector.name),
            Some(frames) if unraised.as_ref() == Some(&frames) => println!("differs odd|{}|{LISTED}", vector.name),
            Some(frames) => comparison.compare(&vector.name, &frames, &vector.segments),
        }
    }
    comparison.end();
    Ok(())
}

fn devices(words: &[String]) -> Result<(), String> {
    let (mut comparison, mut socket, mut inside) =
        (Comparison::new("device"), Comparison::new("socket"), Comparison::new("inside"));
    let underlay = Underlay::new()?;
    for device in conformance::devices().iter().filter(|device| words.iter().all(|word| device.name.contains(word))) {
        let entry = match underlay.open(device) {
            Ok(entry) => entry,
            Err(why) => {
                println!("lacks device {}|{}", device.name, why.replace('\n', " "));
                continue;
            }
        };
        for train in device.trains() {
            match entry.cut(&train).map_err(|error| format!("{}: {error}", train.name))? {
                None => println!("refuses device|{}", train.name),
                Some(frames) => {
                    let first = frames.first().map_or(&[][..], |frame| frame);
                    comparison.compare(&train.name, &frames, &device.segments(&train, &device.tunnels_of(first)));
                }
            }
        }
        for (size, total) in [(1000, 1001), (999, 3333), (1360, 20_000)].into_iter().filter(|_| device.takes_v4()) {
            let frames = entry.send(size, total).map_err(|error| format!("{}: {error}", device.name))?;
            let first = frames.first().map_or(&[][..], |frame| frame);
            let train = device.datagrams(size, total, first);
            socket.compare(&train.name, &frames, &device.segments(&train, &device.tunnels_of(first)));
        }
        for size in [1473, 3000, 9001].into_iter().filter(|_| device.takes_v4()) {
            let frames = entry.send_one(size).map_err(|error| format!("{}: {error}", device.name))?;
            inside.compare(&format!("{} {size}", device.name), &frames, &device.fragments(size, &frames));
        }
    }
    comparison.end();
    socket.end();
    inside.end();
    Ok(())
}

fn device(gso: &Gso, datagrams: &[Datagram]) -> io::Result<()> {
    let mut comparison = Comparison::new("ufo");
    for datagram in datagrams.iter().filter(|datagram| datagram.fills()) {
        match gso.fragment(datagram)? {
            None => println!("refuses ufo|{}", datagram.name),
            Some(frames) => {
                let first = frames.first().map_or(&[][..], |frame| frame);
                let expected = datagram.fragments(datagram.id_of(first));
                if frames != expected && frames == datagram.by_device_of_linux(first) {
                    println!("differs ufo|{}|{LISTED}", datagram.name);
                } else {
                    comparison.compare(&datagram.name, &frames, &expected);
                }
            }
        }
    }
    comparison.end();
    Ok(())
}

fn receive(stack: &Stack, datagrams: &[Datagram]) -> io::Result<()> {
    let sockets = [stack.receiver(false)?, stack.receiver(true)?];
    for is_reversed in [false, true] {
        let mut comparison = Comparison::new(if is_reversed { "reversed" } else { "together" });
        for (number, datagram) in datagrams.iter().enumerate() {
            // Another identification, so that what is left of one is not taken for a part of another.
            let mut frames = datagram.fragments(number as u32 * 2 + u32::from(is_reversed));
            if is_reversed {
                frames.reverse();
            }
            let data = stack.put_together(&sockets[usize::from(datagram.is_v4())], frames.iter())?;
            comparison.compare(&datagram.name, data.as_slice(), std::slice::from_ref(&datagram.data));
        }
        comparison.end();
    }
    Ok(())
}

fn send(stack: &Stack, datagrams: &[Datagram]) -> Result<(), String> {
    let mut comparison = Comparison::new("sent");
    // IPv6 leaves a device for good whose MTU is below 1280.
    for is_v4 in [false, true] {
        for mtu in [68, 576, 1280, 1496, 1500, 1501, 9000] {
            // What an application adds to IP headers is another matter.
            let plain = if is_v4 { 20 } else { 40 };
            let is_its = |d: &&Datagram| (d.is_v4(), d.mtu, d.headers) == (is_v4, mtu, plain);
            let mut chosen = datagrams.iter().filter(is_its).peekable();
            if chosen.peek().is_none() || !is_v4 && mtu < 1280 {
                continue;
            }
            stack.sends(is_v4, true, mtu)?;
            let socket = stack.sender(is_v4).map_err(|error| format!("sent: {error}"))?;
            for datagram in chosen {
                let frames = stack.send(&socket, datagram, datagram.by_linux(0).len());
                let frames = frames.map_err(|error| format!("sent {}: {error}", datagram.name))?;
                let first = frames.first().map_or(&[][..], |frame| frame);
                let (sent, id) = (datagram.as_of(first), datagram.id_of(first));
                let (came, expected) = (without_link(&frames), without_link(&sent.fragments(id)));
                if came != expected && came == without_link(&sent.by_linux(id)) {
                    println!("differs sent|{}|{LISTED}", datagram.name);
                } else {
                    comparison.compare(&datagram.name, &came, &expected);
                }
            }
        }
    }
    comparison.end();
    Ok(())
}

fn without_link(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    frames.iter().map(|frame| frame[14..].to_vec()).collect()
}

fn forward(stack: &Stack, datagrams: &[Datagram]) -> Result<(), String> {
    let (mut comparison, mut again) = (Comparison::new("forwarded"), Comparison::new("again"));
    for mtu in [68, 576, 1500, 1501, 9000] {
        let mut chosen = datagrams.iter().filter(|datagram| datagram.is_v4() && datagram.mtu == mtu).peekable();
        if chosen.peek().is_none() {
            continue;
        }
        stack.sends(true, false, mtu)?;
        for datagram in chosen {
            let expected = without_link(&datagram.forwarded().fragments(0));
            let frames = stack.forward(datagram, &[datagram.frame(false)], expected.len());
            let frames = frames.map_err(|error| format!("forwarded {}: {error}", datagram.name))?;
            comparison.compare(&datagram.name, &without_link(&frames), &expected);

            // Fragments that are cut once more.
            let larger = Datagram { mtu: 4 * mtu + 3, ..datagram.clone() };
            let parts = larger.fragments(0);
            let expected: Vec<Vec<u8>> = larger
                .forwarded()
                .fragments(0)
                .iter()
                .flat_map(|part| Datagram { packet: part[14..].to_vec(), ..datagram.clone() }.fragments(0))
                .collect();
            let frames = stack.forward(datagram, &parts, expected.len());
            let frames = frames.map_err(|error| format!("again {}: {error}", datagram.name))?;
            again.compare(&datagram.name, &without_link(&frames), &without_link(&expected));
        }
    }
    comparison.end();
    again.end();
    Ok(())
}
