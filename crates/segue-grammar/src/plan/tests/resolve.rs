//! Tests of tunnel plans for a given link.

use segue_control::error::Error;
use segue_host::netlink::Link;
use segue_service::tunnel::resolve::{Ready, ready};

use crate::parse::parse;
use crate::plan::plan;
use crate::tunnel::KEYWORDS;

fn on_link(line: &str, mtu: u32, route_mtu: Option<u32>) -> Result<Ready, Error> {
    let tokens: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let plan = plan(&parse("segue tunnel", KEYWORDS, &tokens).unwrap(), (None, None), &[]).unwrap();
    let link = Link { index: 2, name: "eth0".into(), mtu, ethernet: true, ..Link::default() };
    ready(plan, "198.18.0.1".parse().unwrap(), &link, route_mtu)
}

const LINE: &str = "dev sg0 mode ipip remote 198.18.0.2 encap gue encap-remcsum";

#[test]
fn the_mtu_is_the_links_less_the_headers() {
    assert_eq!(on_link(LINE, 1500, None).unwrap().mtu, 1460);
    assert_eq!(on_link(LINE, 1500, Some(1400)).unwrap().mtu, 1360);
    assert_eq!(on_link(LINE, 65_536, None).unwrap().mtu, 65_495);
    assert_eq!(on_link(&format!("{LINE} mtu 1300"), 1500, None).unwrap().mtu, 1300);
}

#[test]
fn a_train_fills_one_send_of_the_socket() {
    let ready = on_link(LINE, 1500, None).unwrap();
    let segment = ready.mtu - 52;
    let segments = (ready.gso_max_size() - 321) / segment;
    assert_eq!(segments, 44);
    assert!(segments * (ready.mtu + 12) <= 65_507 && (segments + 1) * (ready.mtu + 12) > 65_507);
    assert!(on_link(LINE, 65_536, None).unwrap().gso_max_size() <= 65_535);
}

#[test]
fn a_link_too_small_for_ipv6_inside_is_refused_with_a_number() {
    let line = "dev sg0 mode sit remote 198.18.0.2 encap gue addr 2001:db8::1/64";
    let error = on_link(line, 1300, None).unwrap_err();
    assert_eq!(error.kind.exit_code(), 1);
    assert!(error.hint.ends_with("mtu 1312"), "{}", error.hint);
}

#[test]
fn an_mtu_that_does_not_fit_is_said_aloud() {
    let notes = on_link(&format!("{LINE} mtu 1500"), 1500, None).unwrap().notes();
    assert!(notes.iter().any(|note| note.contains("mtu auto is 1460") && note.contains("fit eth0 and")), "{notes:?}");
    let notes = on_link(&format!("{LINE} mtu 1500"), 1500, Some(1400)).unwrap().notes();
    assert!(notes.iter().any(|note| note.contains("1360 bytes do not fit the route through eth0")), "{notes:?}");
}
