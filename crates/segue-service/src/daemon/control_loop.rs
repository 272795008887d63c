//! The control loop: it handles signals and requests of the supervisor while another thread moves packets.

use std::os::fd::AsFd;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use segue_control::error::{Error, Kind};
use segue_control::event::{LogEntry, LogEvent};
use segue_control::model::{Complaint, Instance};
use segue_host::signals::{SignalAction, Signals};
use segue_host::sys::{self, Want};

use super::kernel::Forwarding;
use super::show;
use crate::fault::Vitals;
use crate::handover::{Line, Ports, Record};
use crate::heartbeat::{Clocks, Thread};
use crate::report::Report;
use crate::socket_file::SocketFile;

/// Interval at which the loop checks the progress of the packet threads.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Longest wait for the packet loop to end by itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// Event sources of the control loop, and the state from which it answers requests.
pub(super) struct ControlLoop<'a> {
    pub(super) signals: &'a mut Signals,
    pub(super) line: Option<&'a Line>,
    pub(super) ports: &'a Ports,
    pub(super) socket: &'a SocketFile,
    pub(super) hurry: Option<Box<dyn Fn() + Send>>,
    pub(super) forwarding: Option<Forwarding>,
    pub(super) vitals: &'a Vitals,
    /// Processor time of the workers from 1 on, for the supervisor.
    pub(super) clocks: Option<Clocks>,
}

/// Handles events until a signal requests the end or the packet loop has ended.
pub(super) fn wait(
    control: &mut ControlLoop<'_>,
    ended: &AtomicBool,
    snapshot: &impl Fn() -> Instance,
    out: &dyn Report,
) -> Result<(), Error> {
    let mut forwards = false;
    loop {
        control.vitals.beat(Thread::Signals);
        control.clocks.iter_mut().for_each(Clocks::note);
        let mut fds = vec![(control.signals.as_fd(), Want::Read)];
        fds.extend(control.line.map(|line| (line.as_fd(), Want::Read)));
        let ready = sys::poll(&fds, CHECK_INTERVAL)
            .map_err(|error| Error::system("cannot wait", &error, "start again").why("the kernel refused to poll"))?;
        if ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        let complaint = control.forwarding.as_ref().and_then(Forwarding::complaint);
        if let Some(Complaint { what, why, .. }) = complaint.as_ref().filter(|_| !forwards) {
            out.event(&LogEntry::new(LogEvent::Forwarding, format!("{what}: {}", why.as_deref().unwrap_or_default())));
        }
        forwards = complaint.is_some();
        if let (Some(line), Some(true)) = (control.line, ready.get(1)) {
            let answered = line.receive(Duration::ZERO).and_then(|(record, _)| match record {
                Record::Request => control.ports.give(line),
                _ => Ok(()),
            });
            // The supervisor has ended, which ends this process as well, by a signal.
            if answered.is_err() {
                control.line = None;
            }
        }
        while let Ok(Some((action, _))) = control.signals.receive() {
            match action {
                SignalAction::Stop => return Ok(()),
                SignalAction::StopNow => leave_now(control.socket),
                SignalAction::Counters => {
                    let instance = snapshot();
                    let text = format!("{}: {}", instance.name, show::counters_text(&instance));
                    out.event(&LogEntry::new(LogEvent::Counters, text).with("instance", &*instance.name));
                }
                SignalAction::Child | SignalAction::Hangup => {}
            }
        }
    }
}

/// Ends the process at once; the kernel removes the interface with its descriptor.
fn leave_now(socket: &SocketFile) -> ! {
    socket.remove();
    process::exit(i32::from(Kind::Interrupted.exit_code()))
}

/// Waits for the packet loop to end; interrupts the loop's waits after a while.
pub(super) fn hurry(control: &ControlLoop<'_>, ended: &AtomicBool) {
    let Some(hurry) = &control.hurry else { return };
    let until = Instant::now() + PATIENCE;
    while !ended.load(Ordering::Relaxed) {
        if Instant::now() >= until {
            return hurry();
        }
        thread::sleep(Duration::from_millis(10));
    }
}
