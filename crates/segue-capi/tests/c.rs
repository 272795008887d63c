//! Tests of the C interface by a C program: the header compiles without warnings as C99 and C++17, the library exports
//! what the header declares and nothing else, what is installed has its soname and versions of symbols, structs have
//! the same layout on both sides, and every vector of the conformance list, split, joined, sent through a tunnel and
//! taken out of one, gives the same bytes or the same error as in Rust, with nothing leaked and no byte read past an
//! end.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use segue::easy::{Joiner, ReadError, Splitter};
use segue::encap::{Carrier, Config, Decapsulator, Encapsulator, GreOptions, Mode};
use segue::gro::Profile;
use segue::gso::{Frames, Limits, split_linear};
use segue::hash::Key;
use segue::packet::{Frag, Packet, Start};
use segue::reason::Reason;
use segue::virtio::{self, Form, Loaded, TUN_OFFLOADS, VirtioNet};
use segue_testkit::Rng;
use segue_testkit::conformance::{self, GsoKind, Under, Vector, Wrapping, odd_vectors, vectors, wrapped};
use segue_testkit::flow;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
/// System libraries that a static Rust library needs.
const SYSTEM: [&str; 4] = ["-lpthread", "-ldl", "-lm", "-lc"];

/// Returns the library of this name that was built with this test, from the newest build.
fn library(name: &str) -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let found = [deps.clone(), deps.parent().unwrap().to_path_buf()].into_iter().flat_map(|folder| {
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("libsegue_capi"))
            .collect::<Vec<_>>()
    });
    let newest = found
        .filter(|path| path.extension().is_some_and(|extension| extension == name))
        .max_by_key(|path| path.metadata().and_then(|data| data.modified()).unwrap());
    newest.unwrap_or_else(|| panic!("no libsegue_capi.{name} in {}", deps.display()))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    assert!(!said.contains("warning"), "{command:?}:\n{said}");
    String::from_utf8(output.stdout).unwrap()
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn compile(out: &Path, options: &[&str]) {
    let mut command = Command::new("cc");
    command.args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-g", "-I"]);
    command.arg(format!("{HERE}/include")).args(options).arg(format!("{HERE}/c/judge.c")).arg(library("a"));
    run(command.args(SYSTEM).arg("-o").arg(out));
}

/// Returns the packet or train that a device delivers for a vector.
fn unit(vector: &Vector, skip: usize) -> Vec<u8> {
    let gso_type = match vector.gso.kind {
        GsoKind::Tcp4 => virtio::GSO_TCPV4,
        GsoKind::Tcp6 => virtio::GSO_TCPV6,
        _ => virtio::GSO_UDP_L4,
    };
    let header = VirtioNet {
        flags: virtio::NEEDS_CSUM,
        gso_type: gso_type | if vector.gso.has_cwr { virtio::GSO_ECN } else { 0 },
        gso_size: vector.gso.size as u16,
        csum_start: (vector.csum_start - skip) as u16,
        csum_offset: vector.csum_offset as u16,
        ..VirtioNet::default()
    };
    [&header.emit(Form::Basic)[..10], &vector.frame[skip..]].concat()
}

/// Records of a test file, each a length and its bytes.
#[derive(Default)]
struct Records(Vec<u8>);

impl Records {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend((bytes.len() as u32).to_ne_bytes());
        self.0.extend(bytes);
    }

    fn put_all(&mut self, packets: &[Vec<u8>]) {
        self.put(&(packets.len() as i32).to_ne_bytes());
        packets.iter().for_each(|packet| self.put(packet));
    }

    /// Adds an input that the engine refuses; returns no packets.
    fn refuse(&mut self, base: i32, reason: impl Reason) -> Vec<Vec<u8>> {
        self.put(&(base - reason.index() as i32).to_ne_bytes());
        Vec::new()
    }
}

/// Adds a packet or train from a device with the engine's result: the packets, or the reason of the refusal.
fn add_split(unit: &[u8], cases: &mut Records, results: &mut Records) -> Vec<Vec<u8>> {
    cases.put(b"s");
    cases.put(unit);
    let packets: Vec<Vec<u8>> = match Splitter::virtio(Form::Basic, Start::Ethernet).read(unit) {
        Ok(packets) => packets
            .iter()
            .map(|packet| {
                let mut bytes = Vec::new();
                packet.append_to(&mut bytes, (0, 0));
                bytes
            })
            .collect(),
        Err(ReadError::Header(reason)) => return results.refuse(-100, reason),
        Err(ReadError::Split(reason)) => return results.refuse(-200, reason),
        Err(error) => panic!("{error}"),
    };
    results.put_all(&packets);
    packets
}

/// Adds every `step`th vector as a case of splitting, with its expected packets.
fn add_splits(step: usize, cases: &mut Records, results: &mut Records) {
    let odd = odd_vectors().into_iter().map(|odd| odd.vector);
    for vector in vectors().into_iter().chain(odd).step_by(step) {
        assert!(vector.segments.len() <= 64, "{} fits the places of the program", vector.name);
        assert!(add_split(&unit(&vector, 0), cases, results) == vector.segments, "{}", vector.name);
    }
}

/// Adds every `step`th train in a tunnel: as a case of splitting, and of decapsulation where `segue.h` has such a
/// tunnel.
fn add_wrapped(step: usize, cases: &mut Records, results: &mut Records) {
    let (mut split, mut taken_out) = (0, 0);
    for wrapped in wrapped().into_iter().step_by(step) {
        let headers = wrapped.frame.len() - wrapped.inner.frame.len();
        let moved = Vector { csum_start: wrapped.inner.csum_start + headers, frame: wrapped.frame, ..wrapped.inner };
        let packets = add_split(&unit(&moved, 0), cases, results);
        assert!(packets.is_empty() || packets == wrapped.segments, "{}", wrapped.name);
        split += usize::from(!packets.is_empty());
        let skip = 14 + 4 * wrapped.wrapping.tags.len();
        let Some(far) = tunnel_of(&wrapped.wrapping, &wrapped.segments[0][skip..]) else { continue };
        cases.put(b"T");
        cases.put(&far.record());
        let mut decap = Decapsulator::new(far.turned()).unwrap();
        for segment in &wrapped.segments {
            cases.put(b"d");
            cases.put(&segment[skip..]);
            taken_out += add_decap(&mut decap, &segment[skip..], results).len();
        }
    }
    assert!(
        split * step > 500 && taken_out * step > 1000,
        "{split} trains in tunnels are split, {taken_out} packets taken out"
    );
}

/// Adds a packet to decapsulate, with the expected inner packet.
fn add_decap(decap: &mut Decapsulator, bytes: &[u8], results: &mut Records) -> Vec<Vec<u8>> {
    let mut packet = Packet::default();
    if let Err(reason) = decap.pull_packet(Frag::all(bytes), &mut packet) {
        return results.refuse(-400, reason);
    }
    let inside = linear(&packet);
    results.put_all(&inside);
    inside
}

/// Adds a batch to be joined, and the trains that `joiner` makes of it.
fn add_join(packets: &[Vec<u8>], joiner: &mut Joiner, cases: &mut Records, results: &mut Records) -> usize {
    cases.put(b"j");
    cases.put(&(packets.len() as u32).to_ne_bytes());
    packets.iter().for_each(|packet| cases.put(packet));
    let (mut batch, mut trains) = (joiner.batch(), Vec::new());
    packets.iter().for_each(|packet| _ = batch.push(packet));
    while let Some(train) = batch.pop() {
        trains.push(train.pieces().flatten().copied().collect::<Vec<u8>>());
    }
    results.put_all(&trains);
    trains.len()
}

/// Adds batches of a stream, whose packets begin with `link`, as cases of joining.
fn add_joins(link: &[u8], mut joiner: Joiner, cases: &mut Records, results: &mut Records) {
    let sent = flow::mixed(&mut Rng::new(3), 9, 1000).into_iter().map(|sent| sent.bytes);
    let framed = |bytes: Vec<u8>| match (link, bytes[0] >> 4) {
        ([], _) => bytes,
        (link, 4) => [link, &[8, 0], &bytes].concat(),
        (link, _) => [link, &[0x86, 0xdd], &bytes].concat(),
    };
    let stream: Vec<Vec<u8>> = sent.map(framed).collect();
    for packets in stream.chunks(64) {
        add_join(packets, &mut joiner, cases, results);
    }
}

/// Adds every `step`th case of GRO as one batch, for a joiner of each profile that the C interface has.
fn add_cases(step: usize, cases: &mut Records, results: &mut Records) {
    for (number, profile) in [Profile::Strict, Profile::linux()].into_iter().enumerate() {
        cases.put(b"J");
        cases.put(&[1, number as u8]);
        let config = segue::gro::Config { profile, ..segue::gro::Config::vpn(Key([0, 0])) };
        let joiner = Joiner::virtio(config, Limits::tun(TUN_OFFLOADS[0]), Form::Basic);
        let (mut joiner, mut before, mut after) = (joiner.starting_with(Start::Ethernet), 0, 0);
        for case in conformance::cases().into_iter().step_by(step) {
            let frames: Vec<Vec<u8>> = case.frames.into_iter().map(|frame| frame.bytes).collect();
            before += frames.len();
            after += add_join(&frames, &mut joiner, cases, results);
        }
        assert!(after < before, "{after} trains of {before} packets");
    }
}

/// Parameters of a tunnel of `segue.h`.
#[derive(Clone, Copy)]
struct Endpoints {
    mode: u8,
    carrier: u8,
    local: IpAddr,
    remote: IpAddr,
}

impl Endpoints {
    /// Returns all kinds of tunnels between two hosts.
    fn all() -> impl Iterator<Item = Endpoints> {
        let hosts = [("198.18.0.1", "198.18.0.2"), ("2001:db8::1", "2001:db8::2")];
        (0..16).map(move |kind| {
            let (local, remote) = hosts[kind >> 3];
            let (mode, carrier) = ((kind >> 2 & 1) as u8, (kind & 3) as u8);
            Endpoints { mode, carrier, local: local.parse().unwrap(), remote: remote.parse().unwrap() }
        })
    }

    /// Returns the record that describes the tunnel to the C program.
    fn record(self) -> Vec<u8> {
        let bytes = |address| match address {
            IpAddr::V4(address) => [&address.octets()[..], &[0; 12]].concat(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let version = if self.local.is_ipv4() { 4 } else { 6 };
        [vec![self.mode, self.carrier, version], bytes(self.local), bytes(self.remote)].concat()
    }

    fn config(self) -> Config {
        let mode = [Mode::Ip, Mode::Gre(GreOptions::default())][usize::from(self.mode)];
        let carrier = [Carrier::Bare, Carrier::Fou, Carrier::Gue { remcsum: false }, Carrier::Gue { remcsum: true }];
        // The key of the C program, {1, 2}.
        let seed = [[1, 0, 0, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0, 0, 0]].concat().try_into().unwrap();
        Config { seed, ..Config::new(mode, carrier[usize::from(self.carrier)], self.local, self.remote) }
    }

    /// Returns the configuration of the tunnel's remote end.
    fn turned(self) -> Config {
        Endpoints { local: self.remote, remote: self.local, ..self }.config()
    }
}

/// Returns the tunnel of `segue.h` to which a packet of the list belongs, judged by its outer IP header, if there is
/// one.
fn tunnel_of(wrapping: &Wrapping, packet: &[u8]) -> Option<Endpoints> {
    let words = || wrapping.name.split('/').filter(|word| !matches!(*word, "vlan" | "eth"));
    let mode = u8::from(matches!(wrapping.under, Under::Gre));
    let carrier = if words().any(|word| word == "gue") { 2 } else { u8::from(words().any(|word| word == "fou")) };
    if words().any(|word| matches!(word, "vxlan" | "geneve")) {
        return None;
    }
    let address = |at: usize| match packet[0] >> 4 {
        4 => IpAddr::from(<[u8; 4]>::try_from(&packet[12 + 4 * at..][..4]).unwrap()),
        _ => IpAddr::from(<[u8; 16]>::try_from(&packet[8 + 16 * at..][..16]).unwrap()),
    };
    Some(Endpoints { mode, carrier, local: address(0), remote: address(1) })
}

/// Returns the packets of a train, each complete.
fn linear(packet: &Packet<&[u8]>) -> Vec<Vec<u8>> {
    let mut frames = Frames::new();
    split_linear(packet, &Limits::NONE, &mut frames).unwrap();
    frames.frames().iter().map(|frame| frames.bytes(frame).to_vec()).collect()
}

/// Adds every `step`th vector, each sent through one kind of tunnel in turn, with the expected packets.
fn add_tunnels(step: usize, cases: &mut Records, results: &mut Records) {
    let odd = odd_vectors().into_iter().map(|odd| odd.vector);
    // Packets of these tunnels begin with an IP header.
    let vectors: Vec<Vector> =
        vectors().into_iter().filter(|vector| !vector.name.starts_with("vlan")).chain(odd).collect();
    for (turn, ends) in Endpoints::all().enumerate() {
        cases.put(b"T");
        cases.put(&ends.record());
        let (mut encap, mut decap) =
            (Encapsulator::new(ends.config()).unwrap(), Decapsulator::new(ends.turned()).unwrap());
        for (number, vector) in vectors.iter().enumerate() {
            // The sizes of the vectors are in turn too.
            if !number.is_multiple_of(step) || !(number / step + number / 8 + turn).is_multiple_of(16) {
                continue;
            }
            let unit = unit(vector, 14);
            cases.put(b"t");
            cases.put(&unit);
            let (header, mut packet) = (VirtioNet::parse(&unit, Form::Basic).unwrap(), Packet::default());
            let loaded = virtio::load(&header, Frag::all(&unit[10..]), Start::Ip, &mut packet);
            assert_eq!(loaded, Ok(Loaded::Ready));
            encap.push(&mut packet).unwrap();
            let packets = linear(&packet);
            results.put_all(&packets);
            let inside = packets.iter().flat_map(|packet| add_decap(&mut decap, packet, results));
            assert!(inside.eq(vector.segments.iter().map(|segment| &segment[14..])), "{}", vector.name);
        }
    }
}

/// Returns every `step`th case for the program, and the results that it must write.
fn cases(step: usize) -> (Records, Records) {
    let (mut cases, mut results) = (Records::default(), Records::default());
    add_splits(step, &mut cases, &mut results);
    add_joins(&[], Joiner::tun(Key([0, 0]), TUN_OFFLOADS[0]), &mut cases, &mut results);
    add_cases(step, &mut cases, &mut results);
    add_wrapped(step, &mut cases, &mut results);
    add_tunnels(step, &mut cases, &mut results);
    (cases, results)
}

/// Runs a program on cases, checks its results, and returns what it printed.
fn judge(program: &mut Command, folder: &Path, (cases, results): (Records, Records)) -> String {
    let files = (folder.join("cases"), folder.join("results"));
    fs::write(&files.0, &cases.0).unwrap();
    program.env("RUST_BACKTRACE", "0").arg(&files.0).arg(&files.1);
    let output = program.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?}: {}\n{said}", output.status);
    let came = fs::read(&files.1).unwrap();
    let differs = came.iter().zip(&results.0).position(|(a, b)| a != b);
    assert!(came == results.0, "{} and {} bytes, first different: {differs:?}", came.len(), results.0.len());
    String::from_utf8(output.stdout).unwrap()
}

/// Prints that a test does not run, and records it for tools/run-tests.
fn skip(test: &str, why: &str) {
    println!("skipped: {why}");
    if let Some(skips) = std::env::var_os("SEGUE_SKIPS") {
        let mut skips = fs::OpenOptions::new().append(true).open(skips).unwrap();
        writeln!(skips, "c::{test}: {why}").unwrap();
    }
}

#[test]
fn a_c_program_gets_the_bytes_of_the_engine_under_address_sanitizer() {
    let folder = folder("asan");
    let program = folder.join("judge");
    compile(&program, &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    judge(Command::new(&program).env("ASAN_OPTIONS", "detect_leaks=1"), &folder, cases(1));
}

/// Returns the text of docs/adopting.md.
fn guide() -> String {
    fs::read_to_string(format!("{HERE}/../../docs/adopting.md")).unwrap()
}

/// Returns the C program in the guide.
fn program_of(guide: &str) -> &str {
    guide.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap()
}

#[test]
fn the_program_of_the_guide_compiles_and_runs() {
    let folder = folder("guide");
    let (file, program) = (folder.join("vpn.c"), folder.join("vpn"));
    fs::write(&file, program_of(&guide())).unwrap();
    let mut command = Command::new("cc");
    command.args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I"]).arg(format!("{HERE}/include"));
    command.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    run(command.arg(&file).arg(library("a")).args(SYSTEM).arg("-o").arg(&program));
    run(&mut Command::new(&program));
}

#[test]
fn a_c_program_leaks_nothing_under_valgrind() {
    under_valgrind("a_c_program_leaks_nothing_under_valgrind", 23);
}

#[test]
fn full_size_every_vector_leaks_nothing_under_valgrind() {
    under_valgrind("full_size_every_vector_leaks_nothing_under_valgrind", 1);
}

/// Runs every `step`th case under valgrind, which ends with a fault or a leak.
fn under_valgrind(test: &str, step: usize) {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skip(test, "valgrind is not installed");
    }
    let folder = folder(test);
    let program = folder.join("judge");
    compile(&program, &["-O1"]);
    let options = ["--quiet", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite,indirect"];
    judge(Command::new("valgrind").args(options).arg(&program), &folder, cases(step));
}

#[test]
fn full_size_chains_of_dpdk_are_cut_and_joined_without_a_copy() {
    let flags = |what: &str| {
        let found = Command::new("pkg-config").args([what, "libdpdk"]).output();
        let found = found.ok().filter(|found| found.status.success())?;
        Some(String::from_utf8(found.stdout).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    let Some((cflags, libs)) = flags("--cflags").zip(flags("--libs")) else {
        return skip("full_size_chains_of_dpdk_are_cut_and_joined_without_a_copy", "libdpdk-dev is not installed");
    };
    let folder = folder("dpdk");
    let program = folder.join("mbufs");
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-DALLOW_EXPERIMENTAL_API"]).args(cflags);
    command.arg(format!("-I{HERE}/include")).arg(format!("{HERE}/../../integrations/dpdk/mbufs.c"));
    run(command.arg("-o").arg(&program).arg(library("a")).args(SYSTEM).args(libs));
    let (mut cases, mut results) = (Records::default(), Records::default());
    add_splits(1, &mut cases, &mut results);
    let joiner = Joiner::tun(Key([0, 0]), TUN_OFFLOADS[0]).starting_with(Start::Ethernet);
    add_joins(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], joiner, &mut cases, &mut results);
    let said = judge(&mut Command::new(&program), &folder, (cases, results));
    let counts: Vec<usize> = said.split_whitespace().map(|word| word.parse().unwrap()).collect();
    println!("rte_gso cuts {} of {} trains, segue all", counts[0], counts[1]);
    // It has TCP over IPv4 alone.
    assert!(counts[0] > 0 && counts[0] < counts[1], "{counts:?}");
}

#[test]
fn the_header_compiles_as_c99_and_as_cpp17_without_warnings() {
    let folder = folder("header");
    let strict = ["-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror", "-fsyntax-only"];
    for (compiler, standard, name) in
        [("cc", "-std=c99", "a.c"), ("c++", "-std=c++17", "a.cpp"), ("cc", "-std=c11", "b.c")]
    {
        let file = folder.join(name);
        fs::write(&file, "#include \"segue.h\"\n#include \"segue.h\"\nint main(void) { return 0; }\n").unwrap();
        run(Command::new(compiler).arg(standard).args(strict).arg(format!("-I{HERE}/include")).arg(&file));
    }
}

/// Returns the functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = fs::read_to_string(format!("{HERE}/include/segue.h")).unwrap();
    let names = header.split('(').filter_map(|before| before.rsplit([' ', '*', '\n']).next());
    names.filter(|name| name.starts_with("segue_")).map(str::to_owned).collect()
}

#[test]
fn the_library_exports_what_the_header_declares_and_nothing_else() {
    let symbols = run(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(library("so")));
    let exported: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| line.split(' ').nth(2))
        .map(|name| name.split('@').next().unwrap().to_owned())
        .collect();
    assert_eq!(exported, declared());
    let listed = fs::read_to_string(format!("{HERE}/segue.map")).unwrap();
    let listed: BTreeSet<String> =
        listed.split([';', '{', '}', '\n', ' ']).filter(|word| word.starts_with("segue_")).map(str::to_owned).collect();
    assert_eq!(listed, declared(), "segue.map lists the same");
}

#[test]
fn what_is_installed_has_soname_and_versions_and_links_by_pkg_config() {
    let test = "what_is_installed_has_soname_and_versions_and_links_by_pkg_config";
    if Command::new("pkg-config").arg("--version").output().is_err() {
        return skip(test, "pkg-config is not installed");
    }
    let folder = folder("installed");
    let root = folder.join("root");
    let _ = fs::remove_dir_all(&root);
    let mut install = Command::new(format!("{HERE}/install"));
    run(install.env("DESTDIR", &root).env("PREFIX", "/opt/segue").env("LIBRARY", library("a")));
    let said = readelf(&["-V"], &root.join("opt/segue/lib/libsegue.so"));
    assert!(said.contains("Name: SEGUE_0"), "{said}");
    links_by_pkg_config(&folder, &root, "@@SEGUE_0");
}

#[test]
fn full_size_what_cargo_c_installs_links_by_pkg_config() {
    let test = "full_size_what_cargo_c_installs_links_by_pkg_config";
    if Command::new("pkg-config").arg("--version").output().is_err() {
        return skip(test, "pkg-config is not installed");
    }
    let top = format!("{HERE}/../..");
    // Its libraries have no symbol versions, which rustc does not set.
    let mut command = Command::new(format!("{top}/tools/cargo-tool"));
    let tool = command.args(["cargo-c", "0.10.22", "--debug"]).output().unwrap();
    let said = String::from_utf8_lossy(&tool.stderr);
    if !tool.status.success() {
        return skip(test, &format!("no cargo-c: {}", said.trim().lines().last().unwrap_or_default()));
    }
    let found = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{found}", String::from_utf8(tool.stdout).unwrap().trim());
    let folder = folder("cargo-c");
    let root = folder.join("root");
    let _ = fs::remove_dir_all(&root);
    for word in ["cbuild", "cinstall"] {
        let mut command = Command::new("cargo");
        command.args([word, "--release", "--locked", "--package", "segue-capi"]).current_dir(&top).env("PATH", &path);
        command.args(["--prefix", "/opt/segue", "--libdir", "lib", "--destdir"]).arg(&root);
        let output = command.arg("--target-dir").arg(folder.join("target")).output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    links_by_pkg_config(&folder, &root, "");
}

fn readelf(options: &[&str], file: &Path) -> String {
    run(Command::new("readelf").env("LC_ALL", "C").arg("--wide").args(options).arg(file))
}

/// Checks the libraries that are installed below `root` with the prefix /opt/segue: what they export, under names that
/// end in `version`, and the programs of the guide and of these tests, compiled by pkg-config.
fn links_by_pkg_config(folder: &Path, root: &Path, version: &str) {
    let lib = root.join("opt/segue/lib");
    assert!(lib.join("libsegue.a").exists() && root.join("opt/segue/share/man/man3/segue.3").exists());
    // Through both links.
    let shared = lib.join("libsegue.so");
    let said = readelf(&["-d"], &shared);
    assert!(said.contains("Library soname: [libsegue.so.0]"), "{said}");
    let symbols = readelf(&["--dyn-syms"], &shared);
    let exported: BTreeSet<String> = symbols
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.len() > 7 && words[3] == "FUNC" && words[6] != "UND")
        .map(|words| words[7].to_owned())
        .collect();
    assert_eq!(exported, declared().iter().map(|name| format!("{name}{version}")).collect::<BTreeSet<_>>());

    let shell = |words: &str| {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(words).current_dir(folder);
        run(shell.env("PKG_CONFIG_LIBDIR", lib.join("pkgconfig")).env("PKG_CONFIG_SYSROOT_DIR", root));
    };
    let guide = guide();
    let command = guide.split('`').find(|words| words.starts_with("cc ")).expect("the guide has the command");
    fs::write(folder.join("vpn.c"), program_of(&guide)).unwrap();
    for compiler in ["cc", "clang"] {
        if Command::new(compiler).arg("--version").output().is_err() {
            continue;
        }
        shell(&command.replacen("cc", compiler, 1));
        let program = folder.join("a.out");
        assert!(readelf(&["-d"], &program).contains("Shared library: [libsegue.so.0]"));
        run(Command::new(&program).env("LD_LIBRARY_PATH", &lib));
        shell(&format!("{compiler} -std=c99 -O1 -o judge '{HERE}/c/judge.c' $(pkg-config --cflags --libs segue)"));
        judge(Command::new(folder.join("judge")).env("LD_LIBRARY_PATH", &lib), folder, cases(23));
    }
}

#[test]
fn the_manual_page_has_every_function_with_its_arguments() {
    let words = |text: &str| {
        let spaced = text.replace(['(', ')', ',', ';', '"'], " ").replace('*', " * ");
        spaced.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let page = fs::read_to_string(format!("{HERE}/segue.3")).unwrap();
    let synopsis = page.split(".Sh DESCRIPTION").next().unwrap();
    let mut listed = BTreeSet::new();
    for function in synopsis.split(".Ft ").skip(1) {
        let macros =
            |line: &str| line.split_once(' ').filter(|(word, _)| word.starts_with('.')).map(|(_, rest)| words(rest));
        let (kind, rest) = function.split_once('\n').unwrap();
        let rest = rest.lines().filter_map(macros).flatten();
        listed.insert(words(kind).into_iter().chain(rest).collect::<Vec<_>>());
    }
    let header = fs::read_to_string(format!("{HERE}/include/segue.h")).unwrap();
    for name in declared() {
        let at = header.find(&format!("{name}(")).unwrap();
        let start = header[..at].rfind(['\n', ';', '/']).unwrap() + 1;
        let end = at + header[at..].find(';').unwrap();
        let declaration = words(&header[start..end]);
        assert!(listed.contains(&declaration), "{declaration:?}");
    }
    assert_eq!(listed.len(), declared().len());
    if Command::new("mandoc").arg("-h").output().is_ok() {
        run(Command::new("mandoc").args(["-T", "lint", "-W", "error"]).arg(format!("{HERE}/segue.3")));
    }
}

#[test]
fn structs_have_the_layout_that_is_listed() {
    let folder = folder("layout");
    let structs = [
        ("segue_out", "base room len"),
        ("segue_buf", "base len csum"),
        ("segue_piece", "base len"),
        ("segue_train", "first count len segments"),
        ("segue_chain", "pieces count csum"),
        ("segue_joiner_config", "size key offloads header_len ethernet profile"),
        ("segue_tunnel_config", "size mode carrier version port local remote key"),
    ];
    let mut source = String::from("#include <stdio.h>\n#include \"segue.h\"\nint main(void) {\n");
    for (name, fields) in structs {
        source += &format!("printf(\"{name} %zu\", sizeof(struct {name}));\n");
        for field in fields.split(' ') {
            source += &format!("printf(\" {field}@%zu\", offsetof(struct {name}, {field}));\n");
        }
        source += "puts(\"\");\n";
    }
    source += "return 0;\n}\n";
    let (file, program) = (folder.join("layout.c"), folder.join("layout"));
    fs::write(&file, source).unwrap();
    run(Command::new("cc").arg(format!("-I{HERE}/include")).arg(&file).arg("-o").arg(&program));
    assert_eq!(run(&mut Command::new(&program)), segue_capi::structs::layout());
    if cfg!(all(target_pointer_width = "64", target_arch = "x86_64")) {
        let listed = fs::read_to_string(format!("{HERE}/layout.txt")).unwrap();
        assert_eq!(segue_capi::structs::layout(), listed, "a changed layout needs a new soname");
    }
}
