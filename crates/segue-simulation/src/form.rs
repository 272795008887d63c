//! Forms of the driver: the old one, the steps of the patch set one after another, and the new one.

use segue_lan78xx::driver::{Config, Copying, Kick, Resubmit};
use segue_lan78xx::usb::Speed;

/// A form of the driver: a set of its configuration factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The driver of Linux up to 5.16.
    Standard,
    /// `Standard` with a pool of outgoing transfers, each filled until the next frame does not fit.
    TxPool,
    /// `TxPool` with a pool of incoming transfers, whose frames are copied and which the poll resubmits.
    RxPool,
    /// `RxPool` without the driver's own header reserve, so that GRO can merge received packets.
    Gro,
    /// `Gro` with NAPI: the driver of Linux since 5.17.
    Napi,
    /// `Standard` with NAPI and no other change.
    NapiAlone,
}

impl Form {
    /// All forms, in the order of the patch set.
    pub const ALL: [Form; 6] = [Form::Standard, Form::TxPool, Form::RxPool, Form::Gro, Form::Napi, Form::NapiAlone];

    /// Returns the form's name, one word.
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

    /// Returns whether completions are processed by a poll with a budget, which passes packets to the stack itself.
    /// Otherwise a tasklet takes all completions and puts the packets into the stack's queue.
    pub const fn polls(self) -> bool {
        matches!(self, Form::Napi | Form::NapiAlone)
    }

    /// Returns the driver's configuration for this form.
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
