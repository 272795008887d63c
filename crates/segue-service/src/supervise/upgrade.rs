//! Live upgrade: the service continues with the program that has replaced its own file, without losing a packet.
//!
//! The service executes the new program in its own process (execve(2)), with exactly the descriptors that [`Kept`]
//! lists: those of its instances, its control socket, and the clients that wait for the outcome. Before that it has
//! asked the new program whether it understands that list. Then the new program hands each tunnel over to a process of
//! its own ([`crate::handover`]), one after the other.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::iter;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind as ErrorKind, printable_line};
use segue_control::event::{LogEntry, LogEvent};
use segue_control::protocol::{ServiceResponse, Upgraded};
use segue_host::file::Identity;
use segue_host::names::{CachedAddress, Names};
use segue_host::process;
use segue_host::sys;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::child::Instance;
use super::handle::KeptProcess;
use super::lookup::LateAnswers;
use super::requests::{Change, KeptRequests, Requests};
use super::service::{Configuration, Service, confine, end};
use super::spec::{InstancePlan, InstanceSpec, Kind};

/// The option of `segue run` with the number of the descriptor that holds the state of the previous program.
pub const OPTION: &str = "--resume";
/// The version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Longest time for the new program to answer whether it can continue.
const ANSWER: Duration = Duration::from_secs(10);
/// Longest time to look up names whose addresses the previous program has not passed on: less than [`ANSWER`].
const LOOKUP: Duration = Duration::from_secs(6);
/// Interval at which the answer is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The state that a service passes to the program that replaces its own. Later versions only add to it.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    /// The version of the program before.
    version: String,
    instances: Vec<KeptInstance>,
    requests: KeptRequests,
    /// The names whose answers were awaited: their lookups end with the program that began them.
    awaited: BTreeSet<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptInstance {
    kind: Kind,
    name: String,
    words: Vec<String>,
    knobs: Vec<(String, String)>,
    process: Option<KeptProcess>,
    /// Addresses of the names in `words`, so that the new program does not wait for a resolver.
    #[serde(default)]
    names: Vec<(String, IpAddr)>,
    /// The interface for each of `names`: a name may have another address in another tunnel. Empty from 0.2.0.
    #[serde(default)]
    devs: Vec<String>,
    /// Knobs that a reload could not set.
    #[serde(default)]
    unset: BTreeSet<String>,
}

impl KeptInstance {
    /// Returns the remotes' names of a running instance for which the preceding program passed on no addresses, because
    /// its processes looked them up themselves.
    fn unknown(&self) -> Vec<String> {
        let is_name = |word: &str| word.parse::<IpAddr>().is_err() && !word.contains('%');
        let named = |pair: &&[String]| pair[0] == "remote" && is_name(&pair[1]);
        match self.process {
            Some(_) if self.names.is_empty() => {
                self.words.windows(2).filter(named).map(|pair| pair[1].clone()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the addresses that the previous program has passed on.
    fn cached(&self) -> impl Iterator<Item = CachedAddress> {
        let devs = self.devs.iter().cloned().chain(iter::repeat(String::new()));
        let names = self.names.iter().cloned();
        names.zip(devs).map(|((host, address), dev)| CachedAddress { dev, host, address })
    }
}

impl Kept {
    /// Reads the state that the preceding program left in the descriptor with the given number.
    pub fn read(number: RawFd) -> Result<Kept, Error> {
        let wrong = |why: String| {
            Error::new(ErrorKind::Usage, format!("{OPTION} {number} is for `segue run` alone"), "segue help reload")
                .why(why)
        };
        let fd = process::take_inherited(number).ok_or_else(|| wrong("there is no such descriptor".to_owned()))?;
        let mut text = Vec::new();
        let mut file = File::from(fd);
        // The previous client has read it to its end.
        let read = file.rewind().and_then(|()| file.read_to_end(&mut text));
        read.map_err(|error| wrong(error.to_string()))?;
        segue_control::json::read(&text).map_err(|error| wrong(printable_line(&error.to_string())))
    }

    /// Returns the specifications of the instances, or the first reason why this program does not understand one.
    pub fn specs(&self, configuration: &dyn Configuration) -> Result<Vec<InstanceSpec>, Error> {
        let found = Names::look_up(self.instances.iter().flat_map(KeptInstance::unknown), LOOKUP);
        let spec = |kept: &KeptInstance| {
            let names = if kept.names.is_empty() { found.clone() } else { Names::default().or(kept.cached()) };
            let spec = configuration.spec(kept.kind, &kept.name, &kept.words, &kept.knobs, &names)?;
            match &spec.unresolved {
                Some(unresolved) if kept.process.is_some() => Err((*unresolved.error).clone()),
                _ => Ok(spec),
            }
        };
        self.instances.iter().map(spec).collect()
    }
}

impl Service {
    /// Continues with the program that has replaced this one. Returns where nothing has replaced it, or where the
    /// change was refused; the clients that wait get that answer. Returns also where a stop or a reload was requested
    /// meanwhile, of which the new program would not know; the upgrade is still due then.
    pub(super) fn upgrade(&mut self) {
        let program = self.newer_program();
        if program.is_some() {
            // What stands in for instances without a process has threads; one that is not up yet could not be handed
            // over.
            self.instances.iter_mut().for_each(Instance::stand_down);
            self.settle();
            if self.stop || self.reload {
                return;
            }
        }
        self.requests.begin(Change::Upgrade);
        let refused = program.and_then(|program| self.change_program(&program).err());
        let same = Upgraded {
            file: self.configuration.name(),
            before: VERSION.to_owned(),
            version: VERSION.to_owned(),
            ..Upgraded::default()
        };
        let text = refused.as_ref().map_or_else(String::new, |error| {
            self.complain(error);
            self.out.text_of(error)
        });
        let response = refused.as_ref().map_or(Ok(ServiceResponse::Upgraded(Box::new(same))), Err);
        self.requests.answer(response, &text);
        self.reported = self.status();
        self.notify.ready(&self.reported);
    }

    /// Replaces the process's program by the new one. Returns only where that fails.
    fn change_program(&mut self, program: &Path) -> Result<(), Error> {
        let refused = |what: &str, error: &io::Error| {
            Error::system(what, error, "systemctl restart segue, where packets may be lost")
                .why("the service continues with the program that it has")
        };
        self.notify.reloading();
        // The next one is that of the new program, which is asked for its answer first, and then looks names up.
        self.notify.alive();
        let (kept, mut fds) = self.keep();
        let state = sys::memory_file(c"segue-run").and_then(|mut file| {
            file.write_all(&serde_json::to_vec(&kept).unwrap_or_default())?;
            Ok(file)
        });
        let state = state.map_err(|error| refused("cannot describe the instances", &error))?;
        process::set_inherited(state.as_fd(), true).map_err(|error| refused("cannot pass the instances on", &error))?;
        try_program(program, &state)?;
        fds.push(state.as_fd());
        let set = |inherited: bool| fds.iter().try_for_each(|fd| process::set_inherited(*fd, inherited));
        let environment: Vec<(OsString, OsString)> = environment().collect();
        let error = match set(true) {
            Ok(()) => process::replace_program(program, &arguments(env::args_os(), &state, &[]), &environment),
            Err(error) => error,
        };
        // The programs that this one starts get none of them.
        let _ = set(false);
        Err(refused(&format!("cannot execute {}", program.display()), &error))
    }

    /// Returns the path of this program, if another file has replaced it.
    fn newer_program(&self) -> Option<PathBuf> {
        let path = self.program.as_ref()?;
        let is = |path: &Path| fs::metadata(path).map(|data| Identity::from(&data));
        let (new, own) = (is(path).ok()?, is("/proc/self/exe".as_ref()).ok()?);
        (new != own).then(|| path.clone())
    }

    /// Describes the instances, the control socket and the waiting clients, with their descriptors.
    fn keep(&self) -> (Kept, Vec<BorrowedFd<'_>>) {
        let (requests, mut fds) = self.requests.kept();
        let mut instances = Vec::new();
        for instance in &self.instances {
            let spec = &instance.spec;
            let cached = spec.cached_addresses().into_iter();
            let (names, devs) = cached.map(|CachedAddress { dev, host, address }| ((host, address), dev)).unzip();
            let process = instance.kept().map(|(process, own)| {
                fds.extend(own);
                process
            });
            instances.push(KeptInstance {
                kind: spec.kind,
                name: spec.name.clone(),
                words: spec.words(),
                knobs: spec.knobs(),
                process,
                names,
                devs,
                unset: instance.unset.clone(),
            });
        }
        (Kept { version: VERSION.to_owned(), instances, requests, awaited: self.awaited_names() }, fds)
    }

    /// Runs the service from the replacement of its program to its end: takes over the state `kept` by the preceding
    /// program, and hands the tunnels over to processes of this program. `specs` are those of [`Kept::specs`].
    pub fn resume(&mut self, kept: Kept, specs: Vec<InstanceSpec>) -> Result<(), Error> {
        let Kept { version, instances, requests, awaited } = kept;
        self.notify.alive();
        let _ = process::adopt_orphans();
        match Requests::of_kept(requests) {
            Ok(requests) => self.requests = requests,
            Err(error) => self.complain(
                &Error::system(
                    "the control socket of the service was lost",
                    &error,
                    "kill -HUP instead of segue reload",
                )
                .why("it could not be taken over from the program before"),
            ),
        }
        for (kept, spec) in instances.into_iter().zip(specs) {
            let running = kept.process.and_then(|process| Instance::of_kept(spec.clone(), process));
            let mut instance = running.unwrap_or_else(|| Instance::new(spec));
            instance.unset = kept.unset;
            if !instance.runs() {
                (instance.again, instance.is_awaited) = (Some(Instant::now()), false);
            }
            self.instances.push(instance);
        }
        confine(self.instances.iter().map(|instance| &instance.spec), true)?;
        self.late = LateAnswers::begin(awaited);
        let done = self.renew(version);
        let mut event = json!(done);
        event["event"] = json!("upgraded");
        self.say(&LogEntry::new(LogEvent::Upgraded, done.text()), event);
        self.requests.answer(Ok(ServiceResponse::Upgraded(Box::new(done))), "");
        self.reported = self.status();
        self.notify.ready(&self.reported);
        self.attend();
        Ok(())
    }

    /// Replaces the processes of the preceding program by processes of this one, if no packet is lost by that.
    fn renew(&mut self, before: String) -> Upgraded {
        let (file, version) = (self.configuration.name(), VERSION.to_owned());
        let mut done = Upgraded { file, before, version, is_new: true, ..Upgraded::default() };
        let specs: Vec<(InstanceSpec, bool)> =
            self.instances.iter().map(|instance| (instance.spec.clone(), instance.is_up())).collect();
        for (spec, is_up) in specs {
            let name = spec.name.clone();
            let shared = spec.shared(&spec);
            if is_up && matches!(spec.plan, InstancePlan::Metrics) {
                let at = self.instances.iter().position(|instance| instance.spec.name == name);
                at.into_iter().for_each(|at| end(self.instances.remove(at), &*self.out, &mut self.notify));
                match self.start_all(vec![Instance::new(spec.clone())]) {
                    Ok(()) => done.restarted.push(name),
                    Err(error) => {
                        self.complain(&error);
                        self.put_back(vec![Instance::new(spec)]);
                        done.failed.push(name);
                    }
                }
            } else if !is_up {
                done.restarted.push(name);
            } else if shared.len() < spec.members() || shared.is_empty() {
                done.kept.push(name);
            } else {
                match self.succeed(&name, &spec, &shared) {
                    Ok(true) => done.handed_over.push(name),
                    Ok(false) => done.restarted.push(name),
                    Err(error) => {
                        self.complain(&error);
                        done.failed.push(name);
                    }
                }
            }
        }
        done
    }
}

/// Runs the new program only to check whether it understands `state`.
fn try_program(program: &Path, state: &File) -> Result<(), Error> {
    let refused = |why: String| {
        let what = format!("{} cannot continue this service", program.display());
        Error::new(ErrorKind::System, what, format!("{} run --check FILE", program.display())).why(why)
    };
    let failed = |error: io::Error| refused(error.to_string());
    let mut command = Command::new(program);
    let words = arguments(env::args_os(), state, &["--check"]);
    command.args(words.into_iter().skip(1)).env_clear().envs(environment());
    let output = sys::memory_file(c"segue-answer").map_err(failed)?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output.try_clone().map_err(failed)?);
    let mut child = command.spawn().map_err(failed)?;
    let until = Instant::now() + ANSWER;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => std::thread::sleep(POLL_INTERVAL),
            other => {
                let _ = child.kill();
                let _ = child.wait();
                let why = other.map_or_else(|error| error.to_string(), |_| "it does not answer".to_owned());
                return Err(refused(why));
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    let (mut text, mut output) = (Vec::new(), output);
    let _ = output.rewind().and_then(|()| output.read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(refused(if line.is_empty() { status.to_string() } else { printable_line(line) }))
}

/// Returns the command line `words` of this process with the descriptor that holds the state, and with further
/// options.
fn arguments(words: impl Iterator<Item = OsString>, state: &File, more: &[&str]) -> Vec<OsString> {
    let is_option = |word: &OsString| {
        word.as_encoded_bytes().strip_prefix(OPTION.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
    };
    let mut words: Vec<OsString> = words.filter(|word| !is_option(word)).collect();
    // In front of what may follow a `--`.
    let at = words.iter().position(|word| word == "run").map_or(words.len(), |at| at + 1);
    let resume = OsString::from(format!("{OPTION}={}", state.as_raw_fd()));
    words.splice(at..at, iter::once(resume).chain(more.iter().map(OsString::from)));
    words
}

/// Returns the environment for the new program: this program's, without the sockets taken over from the service
/// manager.
fn environment() -> impl Iterator<Item = (OsString, OsString)> {
    env::vars_os().filter(|(name, _)| !name.as_encoded_bytes().starts_with(b"LISTEN_"))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_new_program_gets_its_options_in_front_of_a_file_that_follows_two_dashes() {
        let state = sys::memory_file(c"segue-run").unwrap();
        let resume = format!("--resume={}", state.as_raw_fd());
        for (words, expected) in [
            ("segue run -- a.toml", format!("segue run {resume} --check -- a.toml")),
            // A program that was itself a successor.
            ("segue -j run --resume=3 -c a.toml", format!("segue -j run {resume} --check -c a.toml")),
        ] {
            let words = || words.split(' ').map(OsString::from);
            let given = |more| arguments(words(), &state, more).join(" ".as_ref()).into_string().unwrap();
            assert_eq!(given(&["--check"]), expected);
            assert_eq!(given(&[]), expected.replace(" --check", ""));
        }
    }

    #[test]
    fn what_is_kept_is_read_as_it_was_written_and_less_is_read_too() {
        let process = KeptProcess { pid: 7, line: 8, stdout: 9, text: b"{\"ev".to_vec(), is_up: true };
        let words = ["dev", "sg0", "remote", "peer"].map(str::to_owned).to_vec();
        let knobs = vec![("net.gro.dev.sg0.max_bytes".to_owned(), "1".to_owned())];
        let (names, devs) = (vec![("peer".to_owned(), IpAddr::from([198, 18, 0, 2]))], vec!["sg0".to_owned()]);
        let (kind, name, process) = (Kind::Tunnel, "sg0".to_owned(), Some(process));
        let instance = KeptInstance {
            kind,
            name,
            words,
            knobs,
            process,
            names,
            devs,
            unset: BTreeSet::from(["net.gro.enable".to_owned()]),
        };
        let awaited = BTreeSet::from(["other".to_owned()]);
        let (version, requests) = ("0.2.0".to_owned(), KeptRequests::default());
        let kept = Kept { version, instances: vec![instance], requests, awaited };
        let text = serde_json::to_string(&kept).unwrap();
        let read = |text: &str| segue_control::json::read::<Kept>(text.as_bytes());
        assert_eq!(read(&text).unwrap(), kept);
        // However many there are, and however short they are, they do not take more memory than a document may.
        let short = json!({ "kind": "tunnel", "name": "a", "words": ["dev", "a"], "knobs": [], "process": null });
        for instance in [json!(kept.instances[0]), short] {
            let many = json!({ "instances": vec![instance; 2000] });
            assert_eq!(read(&many.to_string()).unwrap().instances.len(), 2000);
        }
        assert!(text.contains(r#""kind":"tunnel""#) && text.contains(r#""names":[["peer","198.18.0.2"]]"#), "{text}");
        let less: Kept = serde_json::from_str(r#"{"version":"0.2.0","of_later":1}"#).unwrap();
        assert!(less.version == "0.2.0" && less.awaited.is_empty());
        assert!(kept.instances[0].unknown().is_empty());
        let cached =
            |kept: &Kept| kept.instances[0].cached().map(|cached| (cached.dev, cached.host)).collect::<Vec<_>>();
        assert_eq!(cached(&kept), [("sg0".to_owned(), "peer".to_owned())]);
        // The interfaces came with the version after 0.2.0.
        let mut without: Value = serde_json::from_str(&text).unwrap();
        without["instances"][0].as_object_mut().and_then(|instance| instance.remove("devs")).unwrap();
        assert_eq!(cached(&serde_json::from_value(without).unwrap()), [(String::new(), "peer".to_owned())]);
        // A program that passed on no addresses had names all the same.
        let mut old: Value = serde_json::from_str(&text).unwrap();
        let instance = &mut old["instances"][0];
        instance.as_object_mut().and_then(|instance| instance.remove("names")).unwrap();
        let words = "dev remote remote peer also dev b remote ::1 also dev c remote fe80::1%eth0 also dev d remote six";
        instance["words"] = words.split(' ').collect();
        let old: Kept = serde_json::from_value(old).unwrap();
        assert!(["peer", "six"].iter().all(|name| old.instances[0].unknown().iter().any(|other| other == name)));
        assert!(!old.instances[0].unknown().iter().any(|name| name.contains(':')));
    }
}
