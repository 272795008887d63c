//! The client of services: it finds those of this user, and requests a reload or an upgrade of one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::client::{self, ANSWER_TIME, FULL, failure, is_dead, is_full};
use crate::error::{Error, Kind, printable, printable_coloured, printable_line};
use crate::exchange::{query_all, talk};
use crate::place::{self, SERVICE};
use crate::protocol::{Refused, Reloaded, ServiceRequest, ServiceResponse, ServiceState, ServiceTopic, Upgraded};
use crate::suggest::nearest;

/// Longest wait for services that say which instances are down. A service answers between its other events, some of
/// which take seconds; together with [`ANSWER_TIME`] it is less than clients of the metrics have.
const HIDDEN_TIME: Duration = Duration::from_millis(500);

/// A running service of `segue run`.
#[derive(Clone, Debug)]
pub struct Service {
    /// Name of the service: that of its file without the suffix.
    pub name: String,
    /// State that the service reports.
    pub state: ServiceState,
    path: PathBuf,
}

/// Reason why a service has not reloaded.
#[derive(Debug)]
pub enum NotReloaded {
    /// The service has refused: the file is wrong, or an instance did not start.
    Refused(Box<Refused>),
    /// The service was not found, or did not answer.
    Failed(Box<Error>),
}

/// The outcome of the upgrade of a service.
pub type Outcome = Result<Upgraded, NotReloaded>;

/// The result of a query of all services.
#[derive(Debug, Default)]
pub struct Found {
    /// The services that answered, sorted by name.
    pub services: Vec<Service>,
    /// The names of services that are alive and did not answer, with the failures.
    pub failed: Vec<(String, Error)>,
}

/// Requests the state of every service of this user, of all at the same time. A socket without a listener is no
/// failure.
pub fn all() -> Found {
    all_within(ANSWER_TIME)
}

/// Requests the states as [`all`] does; a service has `longest` for its answer.
fn all_within(longest: Duration) -> Found {
    let mut found = Found::default();
    let sockets = sockets();
    let paths: Vec<&Path> = sockets.iter().map(|(_, path)| path.as_path()).collect();
    let answers = query_all(&paths, &ServiceRequest::Get(ServiceTopic::Service).line(), longest);
    for ((name, path), answer) in sockets.iter().zip(answers) {
        match answer.and_then(|answer| state(&answer)) {
            Ok(state) => found.services.push(Service { name: name.clone(), state, path: path.clone() }),
            Err(error) if is_dead(&error) => {}
            Err(error) => {
                let error = failure(name, path, &error);
                let hint = format!("sudo segue reload {}", printable(name));
                let error = if error.kind == Kind::NoPermission { error.hint(hint) } else { error };
                found.failed.push((name.clone(), error));
            }
        }
    }
    found
}

/// Requests the state of every instance as [`client::all`] does. Those that are down and are not found there, since
/// their services have no control sockets for them at the moment, have failed too, as far as these answer soon.
pub fn instances() -> client::Found {
    let mut found = client::all();
    for service in all_within(HIDDEN_TIME).services {
        let file = printable_line(&service.state.file);
        for name in service.state.hidden {
            if found.instances.iter().any(|instance| instance.name == name) {
                continue;
            }
            let why = format!("`segue run` of {file} starts it again, and has no control socket for it now");
            let hint = "df /run; df -i /run                  where it stays so";
            let error = Error::new(Kind::System, format!("{} is down", printable(&name)), hint);
            found.failed.push((name, error.why(why)));
        }
    }
    found
}

/// Requests that a service loads its file again, and waits for the outcome, at most `longest`. It is `wanted` by its
/// name or its file; `None` is the only one that runs.
pub fn reload(wanted: Option<&str>, longest: Duration) -> Result<Reloaded, NotReloaded> {
    let service = find(wanted).map_err(NotReloaded::from)?;
    match call(&service, ServiceRequest::Reload {}, longest)? {
        ServiceResponse::Reloaded(done) => Ok(*done),
        other => Err(not_done(&service, other)),
    }
}

/// Requests that services continue with the program that has replaced theirs, and waits for the outcome of each, at
/// most `longest`. Without `wanted`, all of this user are asked, whatever becomes of others. Returns the outcome by the
/// name of the service; one that does not answer has one too.
///
/// # Errors
/// Where the `wanted` service is not found, or does not answer.
pub fn upgrade(wanted: Option<&str>, longest: Duration) -> Result<Vec<(String, Outcome)>, Error> {
    let found = match wanted {
        Some(wanted) => Found { services: vec![find(Some(wanted))?], failed: Vec::new() },
        None => all(),
    };
    let upgrade = |service: &Service| -> Outcome {
        match call(service, ServiceRequest::Upgrade {}, longest)? {
            ServiceResponse::Upgraded(done) => Ok(*done),
            other => Err(not_done(service, other)),
        }
    };
    let asked = found.services.iter().map(|service| (service.name.clone(), upgrade(service)));
    let silent = hung(found.failed).map(|(name, error)| (name, Err(error.into())));
    Ok(asked.chain(silent).collect())
}

/// Returns those failures that are of services of this user, and not of others.
fn hung(failed: Vec<(String, Error)>) -> impl Iterator<Item = (String, Error)> {
    failed.into_iter().filter(|(_, error)| error.kind != Kind::NoPermission)
}

impl From<Error> for NotReloaded {
    fn from(error: Error) -> NotReloaded {
        NotReloaded::Failed(Box::new(error))
    }
}

/// Sends a request that changes the service, and waits for the answer.
fn call(service: &Service, request: ServiceRequest, longest: Duration) -> Result<ServiceResponse, NotReloaded> {
    let name = printable(&service.name);
    let answer = talk(&service.path, &request.line(), longest).map_err(|error| {
        let made = Error::system(format!("cannot reload {name}"), &error, "segue stat");
        match error.kind() {
            io::ErrorKind::TimedOut => {
                made.why(format!("it has not finished after {} s, and continues", longest.as_secs()))
            }
            _ if is_full(&error) => made.why(FULL),
            io::ErrorKind::PermissionDenied => made
                .kind(Kind::NoPermission)
                .why("only its owner and root may")
                .hint(format!("sudo segue reload {name}")),
            _ => made.why("it ended before it answered"),
        }
    })?;
    ServiceResponse::parse(&answer).map_err(|error| unclear(&name, &error.to_string()).into())
}

fn unclear(name: &str, text: &str) -> Error {
    Error::new(Kind::System, format!("cannot reload {name}: {text}"), "segue --version on both sides")
        .why("its answer is not one that this version understands")
}

/// Returns the reason why a service did not carry out a request, from its answer.
fn not_done(service: &Service, answer: ServiceResponse) -> NotReloaded {
    let name = printable(&service.name);
    match answer {
        ServiceResponse::Refused(mut refused) => {
            refused.text = printable_coloured(&refused.text);
            NotReloaded::Refused(refused)
        }
        ServiceResponse::Error(error) if error.kind == Kind::NoPermission.name() => {
            let Error { message, why, .. } = error.into_error();
            let hint = format!("sudo segue reload {name}");
            let error = Error::new(Kind::NoPermission, format!("cannot reload {name}: {message}"), hint);
            error.why(why.unwrap_or_default()).into()
        }
        ServiceResponse::Error(error) => unclear(&name, &printable_line(&error.message)).into(),
        _ => unclear(&name, "the answer is to another question").into(),
    }
}

/// Finds the service that `wanted` names, by its name or its file.
fn find(wanted: Option<&str>) -> Result<Service, Error> {
    choose(all(), wanted)
}

/// Chooses the service that `wanted` names among those that were found.
fn choose(found: Found, wanted: Option<&str>) -> Result<Service, Error> {
    let Found { mut services, failed } = found;
    let Some(wanted) = wanted else { return single(services, failed) };
    let whole = fs::canonicalize(wanted).ok().map(|path| path.display().to_string());
    // The file says more than a name that another file may have as well.
    if let Some(at) = services.iter().position(|service| whole.as_ref() == Some(&service.state.file)) {
        return Ok(services.remove(at));
    }
    let named: Vec<usize> = (0..services.len()).filter(|&at| services[at].name == wanted).collect();
    match named[..] {
        [] => {}
        [at] => return Ok(services.remove(at)),
        _ => {
            let files = named.iter().map(|&at| services[at].state.file.as_str());
            let message = format!("{} services are called `{}`", named.len(), printable(wanted));
            return Err(Error::new(Kind::Conflict, message, list(files)).why("each has a file of its own"));
        }
    }
    // One that does not answer does not say what file it has; it has its name from it.
    let stem = whole.as_deref().and_then(|file| Path::new(file).file_stem()?.to_str());
    if let Some((_, error)) = failed.into_iter().find(|(name, _)| name == wanted || Some(name.as_str()) == stem) {
        return Err(error);
    }
    let near = nearest(wanted, services.iter().map(|service| service.name.as_str()));
    let hint = match near {
        Some(near) => format!("segue reload {}", printable(near)),
        None if services.is_empty() => "segue run -c FILE".to_owned(),
        None => list(services.iter().map(|service| service.name.as_str())),
    };
    Err(Error::new(Kind::NotFound, format!("no service is called `{}` or follows this file", printable(wanted)), hint)
        .why("a service has the name of its file, without .toml"))
}

/// Returns the only service of this user. One that does not answer counts: it may be the one that is meant.
fn single(mut services: Vec<Service>, failed: Vec<(String, Error)>) -> Result<Service, Error> {
    let mut hung: Vec<(String, Error)> = hung(failed).collect();
    match (services.pop(), hung.pop()) {
        (None, None) => Err(Error::new(Kind::NotFound, "no service runs", "segue run -c FILE")
            .why("no socket of a `segue run` of this user answers; root sees all of /run")),
        (Some(service), None) if services.is_empty() => Ok(service),
        (None, Some((_, error))) if hung.is_empty() => Err(error),
        (service, silent) => {
            services.extend(service);
            hung.extend(silent);
            let answer = services.iter().map(|service| service.name.as_str());
            let names: Vec<&str> = answer.chain(hung.iter().map(|(name, _)| name.as_str())).collect();
            let message = format!("{} services run: say which", names.len());
            Err(Error::new(Kind::Conflict, message, list(names.into_iter())).why("each has a file of its own"))
        }
    }
}

/// Returns a command for each of these services.
fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("segue reload {}", printable(name))).collect::<Vec<_>>().join("\n")
}

/// Reads the state of a service from its answer.
fn state(answer: &[u8]) -> io::Result<ServiceState> {
    match ServiceResponse::parse(answer)? {
        ServiceResponse::Service(state) => Ok(*state),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Returns the name and the path of every socket of a service in the directories of this user, sorted by name, and of
/// one name in the order of the directories.
fn sockets() -> Vec<(String, PathBuf)> {
    let directories = place::to_search();
    let entries = directories.iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten().flatten();
    let mut found: Vec<(String, PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.path();
            Some((path.file_name()?.to_str()?.strip_suffix(SERVICE)?.to_owned(), path))
        })
        .collect();
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns services with these names and files, and one called `hung` that does not answer.
    fn found(services: &[(&str, &str)]) -> Found {
        let service = |(name, file): &(&str, &str)| Service {
            name: (*name).to_owned(),
            state: ServiceState { file: (*file).to_owned(), ..ServiceState::default() },
            path: PathBuf::new(),
        };
        let error = failure("hung", Path::new("/none"), &io::ErrorKind::TimedOut.into());
        Found { services: services.iter().map(service).collect(), failed: vec![("hung".to_owned(), error)] }
    }

    #[test]
    fn of_two_services_with_one_name_neither_is_chosen_and_the_files_are_named() {
        let two = [("edge", "/etc/edge.toml"), ("edge", "/home/edge.toml"), ("core", "/etc/core.toml")];
        let error = choose(found(&two), Some("edge")).unwrap_err();
        assert_eq!((error.kind, error.message.as_str()), (Kind::Conflict, "2 services are called `edge`"));
        assert_eq!(error.hint, "segue reload /etc/edge.toml\nsegue reload /home/edge.toml");
        assert_eq!(choose(found(&two), Some("core")).unwrap().name, "core");
    }

    #[test]
    fn the_file_of_a_service_that_does_not_answer_stands_for_its_name() {
        let path = std::env::temp_dir().join(format!("segue-services-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let file = path.join("hung.toml");
        fs::write(&file, "").unwrap();
        let error = choose(found(&[("edge", "/etc/edge.toml")]), file.to_str()).unwrap_err();
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(error.message, failure("hung", Path::new("/none"), &io::ErrorKind::TimedOut.into()).message);
    }
}
