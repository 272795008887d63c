//! The supervisor, which waits for the packet process, and ends it when it makes no progress.

use std::os::fd::AsFd;
use std::path::Path;
use std::process;
use std::time::{Duration, Instant};

use landlock::AccessFs;
use segue_control::confinement::weak;
use segue_control::error::{Error, Kind};
use segue_control::event::{LogEntry, LogEvent};
use segue_host::capability::Capability;
use segue_host::process::{Change, change, forget_environment, limit_capabilities};
use segue_host::sandbox::{Signalling, restrict};
use segue_host::signals::{SignalAction, Signals};
use segue_host::sys::{self, Ended, Pid, Want};
use segue_port::vhost;

use super::confinement::{SandboxConfig, failed};
use super::filter;
use super::helper::Watched;
use crate::heartbeat::{How, Stall, Watch};
use crate::report::Report;
use crate::socket_file::SocketFile;

/// Interval at which the heartbeat is checked.
const TICK: Duration = Duration::from_millis(250);
/// Interval of the checks while no packet comes: a service may have many idle instances.
const CALM_TICK: Duration = Duration::from_secs(1);
/// Longest wait for the end of a killed process.
const LAST: Duration = Duration::from_secs(5);
/// Shortest time between two messages about a process that is stopped again and again.
const QUIET: Duration = Duration::from_secs(60);

/// Waits for `child`, watches its heartbeat and the state of its helpers, passes signals on to it, removes the socket,
/// and exits with the child's status.
pub(super) fn run(
    child: Pid,
    signals: &mut Signals,
    socket: &SocketFile,
    life: &SandboxConfig<'_>,
    out: &dyn Report,
) -> ! {
    // The devices belong to the child alone: an interface must go when the child ends. This closes the old descriptor
    // of `signals` as well, which nothing uses again, since this function never returns.
    sys::close_from(3);
    forget_environment();
    let end = |error: &Error| -> ! {
        let _ = sys::kill(child, libc::SIGKILL);
        out.error(error);
        // Its interfaces and ports are free once it has ended.
        let begin = Instant::now();
        while begin.elapsed() < LAST && !matches!(change(child), Ok(Some(Change::Ended(_))) | Err(_)) {
            let _ = sys::poll(&[], Duration::from_millis(2));
        }
        finish(Ended::Exit(1), socket, life, out)
    };
    match Signals::new() {
        Ok(again) => std::mem::forget(std::mem::replace(signals, again)),
        Err(error) => end(&Error::system("cannot read signals", &error, "segue doctor").why("in the supervisor")),
    }
    let mut watch = Watch::new(life.vitals.heartbeat.clone(), life.limits, child);
    let mut helpers: Vec<Watched<'_>> = life.helpers.iter().map(Watched::new).collect();
    if let Err(error) = confine(socket, life) {
        end(&error);
    }
    let (mut is_stopping, mut now, mut looked, mut told) = (false, false, Instant::now(), [None; 2]);
    let mut tick = TICK;
    loop {
        life.vitals.grant_to_supervisor();
        // The child may have ended before SIGCHLD could be read, and a signal may come without it.
        loop {
            match change(child) {
                Ok(Some(Change::Ended(Ended::Signal(libc::SIGKILL)))) if now => {
                    finish(Ended::Exit(130), socket, life, out)
                }
                Ok(Some(Change::Ended(ended))) => finish(ended, socket, life, out),
                // Packets do not wait until another process sends SIGCONT.
                Ok(Some(Change::Stopped(number))) => {
                    resume((child, "process that moves packets"), number, &mut told[0], life.name, out);
                }
                // An error says nothing about the child, unless it is that there is none.
                Err(error) if error.raw_os_error() != Some(libc::ECHILD) => break,
                Ok(None) => break,
                Err(_) => finish(Ended::Exit(1), socket, life, out),
            }
        }
        // One that has ended is not watched any more: another process may have its number.
        let mut lost = None;
        helpers.retain(|Watched { helper, looped, .. }| match change(helper.pid) {
            Ok(Some(Change::Stopped(number))) => {
                resume((helper.pid, helper.task.as_str()), number, &mut told[1], life.name, out);
                true
            }
            Ok(Some(Change::Ended(ended))) => {
                // One whose connection the child has closed ends without an error.
                if helper.has_begun && ended != Ended::Exit(0) {
                    lost = Some((*helper, ended, *looped));
                }
                false
            }
            Ok(None) => true,
            Err(error) => error.raw_os_error() != Some(libc::ECHILD),
        });
        if let Some((helper, ended, looped)) = lost
            && !is_stopping
        {
            let error = helper_ended(life.name, &helper.task, ended, looped);
            // This process could only start one with its own rights, which are none. A service starts all of them
            // again; without one, the packets of the other ports go on.
            if life.is_managed {
                end(&error);
            }
            out.event(&LogEntry::new(LogEvent::Port, error.message).with("instance", life.name));
        }
        let _ = sys::poll(&[(signals.as_fd(), Want::Read)], tick);
        while let Ok(Some((action, number))) = signals.receive() {
            match action {
                SignalAction::Child => {}
                SignalAction::StopNow => {
                    now = true;
                    let _ = sys::kill(child, libc::SIGKILL);
                }
                SignalAction::Stop | SignalAction::Counters | SignalAction::Hangup => {
                    is_stopping |= action == SignalAction::Stop;
                    let _ = sys::kill(child, number);
                }
            }
        }
        let passed = looked.elapsed();
        if passed >= tick {
            looked = Instant::now();
            // One that is being ended may take its time.
            let stall = watch.check(passed, tick).filter(|stall| !(now && stall.how == How::Ended));
            if let Some(stall) = stall {
                end(&stalled(life.name, stall));
            }
            // A front end may make it wait; its guest's port stops then, and no other.
            if watch.is_late() {
                let _ = sys::kill(child, vhost::INTERRUPT);
            }
            for one in &mut helpers {
                if one.loops(life.limits.cpu) {
                    let _ = sys::kill(one.helper.pid, libc::SIGKILL);
                }
            }
            tick = if watch.is_asleep() { CALM_TICK } else { TICK };
        }
    }
}

/// Lets a process continue that signal `number` has stopped, and reports that, at most once in [`QUIET`].
fn resume((pid, task): (Pid, &str), number: i32, told: &mut Option<Instant>, name: &str, out: &dyn Report) {
    let _ = sys::kill(pid, libc::SIGCONT);
    if told.is_none_or(|told| told.elapsed() >= QUIET) {
        *told = Some(Instant::now());
        let text = format!("{name}: signal {number} stopped the {task}; it was continued");
        out.event(&LogEntry::new(LogEvent::Stopped, text).with("instance", name));
    }
}

/// Returns the error for the end of a process that opens devices, or accepts connections; `looped` is its processor
/// time without a round, if it was ended for that.
fn helper_ended(name: &str, task: &str, ended: Ended, looped: Option<Duration>) -> Error {
    let how = match (looped, ended) {
        (Some(used), _) => format!("used {:.1} s of processor time without a round", used.as_secs_f64()),
        (None, Ended::Exit(status)) => format!("ended with status {status}"),
        (None, Ended::Signal(number)) => format!("was ended by signal {number}"),
    };
    let why = match looped {
        Some(_) => "a fault of segue: the process was ended",
        None => "a fault of segue, a signal from another process, or the kernel had no memory left",
    };
    let hint = "start again; report it with the output of segue --version -v -j";
    Error::new(Kind::Internal, format!("{name}: the {task} {how}"), hint).why(why).names_instance()
}

/// Drops all privileges but signals to the child and the removal of the socket.
fn confine(socket: &SocketFile, life: &SandboxConfig<'_>) -> Result<(), Error> {
    let refused = |error: &std::io::Error| failed("cannot confine the supervisor", error);
    sys::drop_bounding_set();
    limit_capabilities(&[Capability::Kill]).map_err(|error| refused(&error))?;
    sys::no_new_privs().map_err(|error| refused(&error))?;
    let folder = socket.folder().map(Path::to_owned);
    let removes: Vec<_> = folder.map(|folder| (folder, AccessFs::RemoveFile.into())).into_iter().collect();
    // The child says what is missing here.
    let landlock = restrict(&removes, &[], Signalling::AnyProcess).map_err(|error| refused(&error))?;
    let seccomp = filter::apply(filter::Purpose::Waiting, &filter::Allowed::default());
    match (landlock, seccomp) {
        (true, Ok(())) => Ok(()),
        _ if life.is_weak => Ok(()),
        _ => Err(weak("the supervisor cannot be confined")),
    }
}

fn stalled(name: &str, Stall { thread, how }: Stall) -> Error {
    let what = match how {
        How::Cpu(used) => {
            format!("{name}: the {thread} used {:.1} s of processor time without a round", used.as_secs_f64())
        }
        How::Wall(passed) => format!("{name}: the {thread} did not report for {} s", passed.as_secs()),
        How::Ended => format!("{name}: the {thread} has ended, and its process has not"),
    };
    let why = match how {
        How::Ended => "a fault of the kernel in a call of that thread (dmesg shows it): the process was ended",
        How::Cpu(_) | How::Wall(_) => "a fault of segue: the process was ended",
    };
    Error::new(Kind::Internal, what, "start again; report it with the output of segue --version -v -j")
        .why(why)
        .names_instance()
}

fn finish(ended: Ended, socket: &SocketFile, life: &SandboxConfig<'_>, out: &dyn Report) -> ! {
    socket.remove();
    process::exit(match ended {
        Ended::Exit(status) => status,
        Ended::Signal(number) => {
            let what = format!("{}: the process that moves packets was ended by signal {number}", life.name);
            let hint = "start again; report it with the output of segue --version -v -j";
            let why = "a fault of segue, a signal from another process, or the kernel had no memory left";
            out.error(&Error::new(Kind::Internal, what, hint).why(why).names_instance());
            1
        }
    })
}
