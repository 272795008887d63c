//! The choice of this host's subnet, by flannel's rules: the one of its lease in the registry, else the one of its
//! previous lease, else one of the first hundred free ones at random.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use crate::config::Config;
use crate::lease;
use crate::network::Network;
use crate::roster::Record;

/// Number of free subnets among which one is chosen at random, so that hosts that start together seldom choose the same
/// one.
const CHOICE: usize = 100;

/// The subnet to use for this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This host's own lease, found in the registry.
    Own(Network, Box<Record>),
    /// A free subnet was found.
    Free(Network),
    /// No subnet is free.
    Exhausted,
}

/// The subnets that are leased, and this host's own lease among them.
#[derive(Debug)]
pub struct Leased<'a> {
    directory: &'a str,
    config: &'a Config,
    /// The address of this host.
    address: Ipv4Addr,
    /// The subnet that this host had.
    before: Option<Network>,
    own: Option<(Network, Record)>,
    /// Each with whether it has an entry whose key is of the form that hosts write, without an IPv6 part.
    taken: BTreeMap<Network, bool>,
}

impl<'a> Leased<'a> {
    /// Returns a network without leases, for the host with this address, which had the subnet `before`.
    pub fn new(directory: &'a str, config: &'a Config, address: Ipv4Addr, before: Option<Network>) -> Leased<'a> {
        Leased { directory, config, address, before, own: None, taken: BTreeMap::new() }
    }

    /// Adds an entry of the registry; they come in the order of their keys.
    pub fn add(&mut self, record: Record) {
        // A key that names all of the network, or more, is no host's lease and takes nothing.
        let subnet = lease::subnet_of(&record.key, self.directory).ok();
        let Some(subnet) = subnet.filter(|subnet| self.config.has_place_for(*subnet)) else { return };
        let is_usual = lease::key_of(subnet, self.directory).as_bytes() == record.key;
        let has_usual = self.taken.entry(subnet).or_default();
        // The entry of a host goes before one of another spelling, which comes after it.
        let is_second = *has_usual && !is_usual;
        *has_usual |= is_usual;
        if is_second || !self.in_range(subnet) || lease::public_address(&record.value) != Some(self.address) {
            return;
        }
        // Of several, that of the time before, else the oldest.
        let rank = |subnet, record: &Record| (Some(subnet) != self.before, record.created);
        if self.own.as_ref().is_none_or(|(other, old)| rank(subnet, &record) < rank(*other, old)) {
            self.own = Some((subnet, record));
        }
    }

    /// Returns whether this configuration would give the subnet. As in flannel, a lease of another is none to go on
    /// with.
    fn in_range(&self, subnet: Network) -> bool {
        let Config { subnet_len, subnet_min, subnet_max, .. } = self.config;
        subnet.prefix_len() == *subnet_len && (*subnet_min..=*subnet_max).contains(&subnet.first())
    }

    /// Chooses a subnet for this host. `random` is any number.
    pub fn choose(mut self, random: u64) -> Choice {
        if let Some((subnet, record)) = self.own.take() {
            return Choice::Own(subnet, Box::new(record));
        }
        let config = self.config;
        let taken: Vec<Network> = self.taken.keys().copied().collect();
        // Subnets in order of their first addresses can be nested: what counts is the highest end so far.
        let ends: Vec<u32> = taken
            .iter()
            .scan(0, |highest, subnet| {
                *highest = u32::from(subnet.last()).max(*highest);
                Some(*highest)
            })
            .collect();
        let is_free = |subnet: Network| {
            let below = taken.partition_point(|other| other.first() <= subnet.last());
            below == 0 || ends[below - 1] < u32::from(subnet.first())
        };
        if let Some(subnet) = self.before.filter(|subnet| self.in_range(*subnet) && is_free(*subnet)) {
            return Choice::Free(subnet);
        }
        let step = 1usize << (32 - u32::from(config.subnet_len));
        let free: Vec<Network> = (u32::from(config.subnet_min)..=u32::from(config.subnet_max))
            .step_by(step)
            .filter_map(|first| Network::new(first.into(), config.subnet_len))
            .filter(|subnet| is_free(*subnet))
            .take(CHOICE)
            .collect();
        match free.len() {
            0 => Choice::Exhausted,
            len => Choice::Free(free[(random % len as u64) as usize]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: &str = "/n/subnets";
    const US: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 9);

    fn config() -> Config {
        Config::parse(br#"{"Network":"198.19.0.0/21","SubnetLen":24,"Backend":{"Type":"vxlan"}}"#).unwrap()
    }

    fn net(text: &str) -> Network {
        Network::parse(text).unwrap()
    }

    fn taken(key: &str, address: &str, created: i64) -> Record {
        let value = format!(r#"{{"PublicIP":"{address}"}}"#).into_bytes();
        Record { key: format!("{DIRECTORY}/{key}").into_bytes(), value, created, modified: created, lease: 5 }
    }

    fn chosen(records: &[Record], before: Option<&str>, random: u64) -> Choice {
        chosen_in(&config(), records, before, random)
    }

    fn chosen_in(config: &Config, records: &[Record], before: Option<&str>, random: u64) -> Choice {
        let mut leased = Leased::new(DIRECTORY, config, US, before.map(net));
        records.iter().cloned().for_each(|record| leased.add(record));
        leased.choose(random)
    }

    #[test]
    fn the_lease_of_this_host_is_taken_up_again() {
        let records = [taken("198.19.2.0-24", "198.18.0.1", 1), taken("198.19.3.0-24", "198.18.0.9", 2)];
        let Choice::Own(subnet, record) = chosen(&records, None, 0) else { panic!() };
        assert_eq!((subnet, *record), (net("198.19.3.0/24"), records[1].clone()));
        let two = [taken("198.19.5.0-24", "198.18.0.9", 1), taken("198.19.3.0-24", "198.18.0.9", 2)];
        assert!(matches!(chosen(&two, None, 0), Choice::Own(subnet, _) if subnet == net("198.19.5.0/24")));
        assert!(matches!(chosen(&two, Some("198.19.3.0/24"), 0), Choice::Own(s, _) if s == net("198.19.3.0/24")));
    }

    #[test]
    fn a_lease_of_another_length_is_not_this_hosts() {
        let records = [
            taken("198.19.0.0-21", "198.18.0.9", 1),
            taken("198.19.4.0-22", "198.18.0.9", 2),
            taken("198.19.1.0-26", "198.18.0.9", 3),
        ];
        // What is left of them is the second and the third subnet.
        assert_eq!(chosen(&records, None, 0), Choice::Free(net("198.19.2.0/24")));
        assert_eq!(chosen(&records, Some("198.19.4.0/22"), 1), Choice::Free(net("198.19.3.0/24")));
        let with_own = [&records[..], &[taken("198.19.3.0-24", "198.18.0.9", 4)]].concat();
        assert!(matches!(chosen(&with_own, None, 0), Choice::Own(subnet, _) if subnet == net("198.19.3.0/24")));
    }

    #[test]
    fn a_lease_with_an_ipv6_part_is_not_this_hosts_where_another_has_the_subnet() {
        let dual = taken("198.19.2.0-24&2001:db8::-64", "198.18.0.9", 1);
        let records = [taken("198.19.2.0-24", "198.18.0.1", 5), dual.clone()];
        assert_eq!(chosen(&records, Some("198.19.2.0/24"), 0), Choice::Free(net("198.19.1.0/24")));
        let alone = [taken("198.19.2.0-24&2001:db7::-64", "198.18.0.1", 5), dual.clone()];
        assert_eq!(chosen(&alone, None, 0), Choice::Own(net("198.19.2.0/24"), Box::new(dual)));
    }

    #[test]
    fn a_lease_outside_the_range_of_subnets_is_not_this_hosts() {
        // The first subnet is not given away.
        let records = [taken("198.19.0.0-24", "198.18.0.9", 1)];
        assert_eq!(chosen(&records, None, 0), Choice::Free(net("198.19.1.0/24")));
        let narrow = br#"{"Network":"198.19.0.0/21","SubnetMin":"198.19.3.0","SubnetMax":"198.19.4.0"}"#;
        let narrow = Config::parse(narrow).unwrap();
        let records = [taken("198.19.1.0-24", "198.18.0.9", 1), taken("198.19.3.0-24", "198.18.0.1", 2)];
        let found = chosen_in(&narrow, &records, Some("198.19.1.0/24"), 0);
        assert_eq!(found, Choice::Free(net("198.19.4.0/24")));
    }

    #[test]
    fn a_key_of_the_whole_network_or_more_takes_nothing() {
        for wide in ["198.19.0.0-21", "198.19.0.0-16", "0.0.0.0-0"] {
            let records = [taken(wide, "198.18.0.1", 1), taken("198.19.1.0-24", "198.18.0.2", 2)];
            assert_eq!(chosen(&records, None, 0), Choice::Free(net("198.19.2.0/24")), "{wide}");
        }
    }

    #[test]
    fn the_subnet_of_the_time_before_is_taken_where_it_is_free() {
        assert_eq!(chosen(&[], Some("198.19.4.0/24"), 3), Choice::Free(net("198.19.4.0/24")));
        let records = [taken("198.19.4.0-24", "198.18.0.1", 1)];
        assert_eq!(chosen(&records, Some("198.19.4.0/24"), 0), Choice::Free(net("198.19.1.0/24")));
        for foreign in ["198.19.0.0/24", "198.19.4.0/25", "198.20.1.0/24"] {
            assert_eq!(chosen(&[], Some(foreign), 0), Choice::Free(net("198.19.1.0/24")), "{foreign}");
        }
    }

    #[test]
    fn only_free_subnets_are_given_and_the_first_one_never() {
        // A malformed value takes its subnet all the same, and so does one of another size.
        let mut records = vec![taken("198.19.1.0-24", "?", 1), taken("198.19.2.0-23", "198.18.0.2", 2)];
        records.push(taken("198.19.4.128-25", "198.18.0.3", 3));
        let free: Vec<Network> = ["198.19.5.0/24", "198.19.6.0/24", "198.19.7.0/24"].map(net).to_vec();
        for random in 0..9 {
            let Choice::Free(subnet) = chosen(&records, None, random) else { panic!() };
            assert_eq!(subnet, free[(random % 3) as usize]);
        }
        records.push(taken("198.19.4.0-22", "198.18.0.4", 4));
        assert_eq!(chosen(&records, None, 0), Choice::Exhausted);
        // A key that cannot be read takes nothing.
        assert_ne!(chosen(&[taken("198.19.1.0_24", "198.18.0.3", 1)], None, 0), Choice::Exhausted);
    }
}
