//! The client of services: it finds those of this user, and requests a reload or an upgrade of one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::client::{ANSWER_TIME, FULL, is_full};
use crate::error::{Error, Kind, printable};
use crate::exchange::talk;
use crate::place::{self, SERVICE};
use crate::protocol::{
    Failure, Refused, Reloaded, ServiceRequest, ServiceResponse, ServiceState, ServiceTopic, Upgraded,
};
use crate::suggest::nearest;

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

/// Returns the services of this user that answer, by name.
pub fn all() -> Vec<Service> {
    let found =
        sockets().into_iter().filter_map(|(name, path)| Some(Service { state: query(&path).ok()?, name, path }));
    found.collect()
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
/// most `longest`. Without `wanted`, all that run are asked.
pub fn upgrade(wanted: Option<&str>, longest: Duration) -> Result<Vec<Upgraded>, NotReloaded> {
    let services = wanted.map_or_else(|| Ok(all()), |wanted| find(Some(wanted)).map(|service| vec![service]));
    let upgrade = |service: &Service| match call(service, ServiceRequest::Upgrade {}, longest)? {
        ServiceResponse::Upgraded(done) => Ok(*done),
        other => Err(not_done(service, other)),
    };
    services?.iter().map(upgrade).collect()
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
        ServiceResponse::Refused(refused) => NotReloaded::Refused(refused),
        ServiceResponse::Error(error) if error.kind == Kind::NoPermission.name() => {
            let Failure { message, why, .. } = *error;
            let hint = format!("sudo segue reload {name}");
            let error = Error::new(Kind::NoPermission, format!("cannot reload {name}: {message}"), hint);
            error.why(why.unwrap_or_default()).into()
        }
        ServiceResponse::Error(error) => unclear(&name, &error.message).into(),
        _ => unclear(&name, "the answer is to another question").into(),
    }
}

/// Finds the service that `wanted` names.
fn find(wanted: Option<&str>) -> Result<Service, Error> {
    let mut services = all();
    let list = |services: &[Service]| {
        services
            .iter()
            .map(|service| format!("segue reload {}", printable(&service.name)))
            .collect::<Vec<_>>()
            .join("\n")
    };
    let Some(wanted) = wanted else {
        return match services.len() {
            1 => Ok(services.remove(0)),
            0 => Err(Error::new(Kind::NotFound, "no service runs", "segue run -c FILE")
                .why("no socket of a `segue run` of this user answers; root sees all of /run")),
            _ => {
                Err(Error::new(Kind::Conflict, format!("{} services run: say which", services.len()), list(&services))
                    .why("each has a file of its own"))
            }
        };
    };
    let whole = fs::canonicalize(wanted).ok().map(|path| path.display().to_string());
    // The file says more than a name that another file may have as well.
    let at = services.iter().position(|service| whole.as_ref() == Some(&service.state.file));
    if let Some(at) = at.or_else(|| services.iter().position(|service| service.name == wanted)) {
        return Ok(services.remove(at));
    }
    let near = nearest(wanted, services.iter().map(|service| service.name.as_str()));
    let hint = match near {
        Some(near) => format!("segue reload {}", printable(near)),
        None if services.is_empty() => "segue run -c FILE".to_owned(),
        None => list(&services),
    };
    Err(Error::new(Kind::NotFound, format!("no service is called `{}` or follows this file", printable(wanted)), hint)
        .why("a service has the name of its file, without .toml"))
}

fn query(path: &Path) -> io::Result<ServiceState> {
    match ServiceResponse::parse(&talk(path, &ServiceRequest::Get(ServiceTopic::Service).line(), ANSWER_TIME)?)? {
        ServiceResponse::Service(state) => Ok(*state),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Returns the name and the path of every socket of a service in the directories of this user.
fn sockets() -> Vec<(String, PathBuf)> {
    let directories = place::to_search();
    let entries = directories.iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten().flatten();
    let mut found: Vec<(String, PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.path();
            Some((path.file_name()?.to_str()?.strip_suffix(SERVICE)?.to_owned(), path))
        })
        .collect();
    found.sort();
    found
}
