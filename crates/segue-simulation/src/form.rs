//! The forms of the driver: the older one, the steps of the patch set one upon the other, the newer one.

use segue_lan78xx::driver::{Config, Copying, Kick, Resubmit};
use segue_lan78xx::usb::Speed;

/// A form of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Linux up to 5.16.
    Standard,
    /// The pool of outgoing transfers, filled until the next frame does not fit.
    TxPool,
    /// Besides, the pool of incoming transfers, whose frames are copied and which go back from the poll.
    RxPool,
    /// Besides, no header reserve of the driver's own, so that received packets can be joined.
    Gro,
    /// Besides, NAPI: Linux since 5.17.
    Napi,
    /// The older form with nothing but NAPI.
    NapiAlone,
}

impl Form {
    /// All of them, in the order of the patch set.
    pub const ALL: [Form; 6] = [Form::Standard, Form::TxPool, Form::RxPool, Form::Gro, Form::Napi, Form::NapiAlone];

    /// Its name, one word.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Standard => "standard",
            Form::TxPool => "tx-pool",
            Form::RxPool => "rx-pool",
            Form::Gro => "gro",
            Form::Napi => "napi",
            Form::NapiAlone => "napi-alone",
        }
    }

    /// Whether completions are dealt with by a poll with a budget that hands packets to the stack itself; otherwise by a
    /// tasklet that takes all there are and puts them into the stack's queue.
    pub const fn polls(self) -> bool {
        matches!(self, Form::Napi | Form::NapiAlone)
    }

    /// The driver's factors.
    pub const fn config(self) -> Config {
        let mut config = Config::standard(Speed::Super);
        let napi = Config::napi(Speed::Super);
        if matches!(self, Form::TxPool | Form::RxPool | Form::Gro | Form::Napi) {
            config.tx_transfers = napi.tx_transfers;
            config.tx_transfer_len = napi.tx_transfer_len;
            config.tx_fresh = false;
            config.pack_trains = true;
            config.kick = Kick::WhenIdle;
            config.lso = napi.lso;
        }
        if matches!(self, Form::RxPool | Form::Gro | Form::Napi) {
            config.rx_transfers = napi.rx_transfers;
            config.rx_transfer_len = napi.rx_transfer_len;
            config.copying = Copying::EachFrame;
            config.resubmit = Resubmit::InPoll;
            config.burst_cap = napi.burst_cap;
            config.bulk_in_delay = napi.bulk_in_delay;
        }
        config.gro = matches!(self, Form::Gro | Form::Napi);
        config.budget = if self.polls() { napi.budget } else { None };
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_lead_from_the_older_form_to_the_newer() {
        assert_eq!(Form::Standard.config(), Config::standard(Speed::Super));
        assert_eq!(Form::Napi.config(), Config::napi(Speed::Super));
        let steps: Vec<Config> = Form::ALL.iter().map(|form| form.config()).collect();
        for (at, pair) in steps.windows(2).enumerate() {
            assert_ne!(pair[0], pair[1], "{at}");
        }
    }
}
