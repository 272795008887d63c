//! Runs one case of the simulated computers for `segue bench napi`, and answers as JSON.

use segue_simulation::cost::COSTS;
use segue_simulation::fit::{self, TARGETS};
use segue_simulation::{Bursts, Case, Form, Outcome, Target, Traffic, run};
use serde_json::{Value, json};

/// Answers a request for a simulation: `prices`, `fit`, or `TRAFFIC TARGET FORM SEED MILLISECONDS SPEED
/// [MICROSECONDS]`, with the speed in per cent of the target's and a cost of a transfer instead of the fitted one.
/// `None` for anything else.
pub(crate) fn answer(words: &str) -> Option<Result<Value, String>> {
    let words: Vec<&str> = words.split_whitespace().collect();
    match words[..] {
        ["prices"] => Some(Ok(prices())),
        ["fit"] => Some(fitted()),
        [traffic, target, form, seed, millis, speed, ref urb @ ..] if urb.len() < 2 => {
            let urb = match urb.first() {
                Some(urb) => Some(urb.parse::<f64>().ok()? * 1000.0),
                None => None,
            };
            let known = TARGETS.iter().find(|one| one.target.name == target)?.target;
            let speed = known.speed * speed.parse::<f64>().ok()? / 100.0;
            let case = Case {
                target: Target { speed, urb: urb.unwrap_or(known.urb), ..known },
                form: Form::ALL.into_iter().find(|one| one.name() == form)?,
                traffic: Traffic::ALL.into_iter().find(|one| one.name() == traffic)?,
                seed: seed.parse().ok()?,
                millis: millis.parse().ok()?,
            };
            Some(run(case).map(|outcome| metrics(&case, &outcome)).map_err(|error| error.to_string()))
        }
        _ => None,
    }
}

fn metrics(case: &Case, outcome: &Outcome) -> Value {
    let mut value = json!({
        "gbps": outcome.mbps / 1000.0,
        "idle_percent": outcome.idle_percent,
        "service_percent": outcome.service_percent,
        "program_percent": outcome.program_percent,
        "urbs_per_s": outcome.urbs_per_s,
        "wakes_per_s": outcome.wakes_per_s,
        "full_budgets_per_s": outcome.full_budgets_per_s,
        "overflows_per_s": outcome.overflows_per_s,
    });
    for (direction, Bursts { gap_p50_us, gap_p99_us, frames }) in [("rx", outcome.received), ("tx", outcome.sent)] {
        value[format!("{direction}_gap_p50_us")] = gap_p50_us.into();
        value[format!("{direction}_gap_p99_us")] = gap_p99_us.into();
        value[format!("{direction}_burst_frames")] = frames.into();
    }
    if case.traffic == Traffic::UdpRx {
        value["lost_percent"] = outcome.lost_percent.into();
        for (place, lost) in ["switch", "chip", "backlog", "socket"].into_iter().zip(outcome.drops) {
            value[format!("lost_at_{place}")] = lost.into();
        }
    }
    value
}

/// Returns the targets and all costs in nanoseconds on a core of speed 100, for the table's caption.
fn prices() -> Value {
    let mut value = json!({});
    for one in &TARGETS {
        let Target { name, cores, speed, urb } = one.target;
        value[name] = format!("{cores} cores of speed {speed}, {:.2} us a USB transfer (fitted)", urb / 1000.0).into();
    }
    for (name, price) in COSTS.named() {
        value[format!("price_{name}_ns")] = if price.fract() == 0.0 { (price as u64).into() } else { price.into() };
    }
    value
}

/// Returns the cost of a transfer fitted to each target, and the resulting throughput and idle time.
fn fitted() -> Result<Value, String> {
    let mut value = json!({});
    for one in &TARGETS {
        let urb = fit::fit(one).map_err(|error| error.to_string())?;
        let (mbps, idle) = fit::cell(Target { urb, ..one.target }, 3, 300).map_err(|error| error.to_string())?;
        value[one.target.name] = json!({
            "urb_us": urb / 1000.0, "in_force_us": one.target.urb / 1000.0, "mbps": mbps, "idle_percent": idle,
            "published_mbps": one.mbps, "published_idle_percent": one.idle_percent,
        });
    }
    Ok(value)
}
