//! Tests that tunnels share a port exactly where they may.

use segue_service::tunnel::group::clash;
use segue_service::tunnel::plan::Plan;

use crate::parse::parse_each;
use crate::plan::plan;
use crate::tunnel::KEYWORDS;

fn plans(line: &str) -> Vec<Plan> {
    let tokens: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let each = parse_each("segue tunnel", KEYWORDS, &tokens).unwrap();
    each.iter().map(|parsed| plan(parsed, (None, None), &[]).unwrap()).collect()
}

const A: &str = "dev a remote 198.18.0.2 encap gue";

#[test]
fn distinguishable_tunnels_share_a_port() {
    for others in [
        "dev b remote 198.18.0.3 encap gue",
        "dev b remote 198.18.0.2 encap gue key 1 also dev c remote 198.18.0.2 encap gue key 0",
        "dev b remote 198.18.0.2 encap gue mode ipip also dev c remote 198.18.0.2 encap gue mode sit encap-remcsum",
        "dev b remote 198.18.0.2 encap gue mode gretap mtu 1300 encap-dport 6080",
    ] {
        assert!(clash(&plans(&format!("{A} also {others}"))).is_none(), "{others}");
    }
    assert!(clash(&plans(A)).is_none());
    assert!(clash(&plans("dev a remote 198.18.0.2")).is_none(), "alone it needs no port");
    let vxlan = "dev a mode vxlan id 1 remote 198.18.0.2 fdb 0:0:0:0:0:0,198.18.0.3";
    assert!(clash(&plans(&format!("{vxlan} also dev b mode vxlan id 2 remote 198.18.0.3"))).is_none());
}

#[test]
fn indistinguishable_tunnels_are_refused_with_the_keyword() {
    for (others, at, word, message) in [
        ("dev a remote 198.18.0.3 encap gue", 1, "dev", "`a` is given twice"),
        ("dev b remote 198.18.0.2 encap gue", 1, "remote", "`a` and `b` would take the same packets of 198.18.0.2"),
        (
            "dev b remote 198.18.0.3 encap gue noencap-csum",
            1,
            "encap-csum",
            "`a` and `b` cannot share a port: `encap-csum` differs",
        ),
        ("dev b remote 198.18.0.3 encap gue port 7", 1, "port", "`a` and `b` cannot share a port: `port` differs"),
        (
            "dev b remote 198.18.0.3 encap fou encap-dport 6080",
            1,
            "encap",
            "`a` and `b` cannot share a port: `encap` differs",
        ),
        (
            "dev b remote 198.18.0.3 port 6080 encap gue local 198.18.0.1",
            1,
            "local",
            "`a` and `b` cannot share a port: `local` differs",
        ),
        ("dev b remote 198.18.0.3", 1, "encap", "`a` and `b` cannot share a port: `encap` differs"),
    ] {
        let clash = clash(&plans(&format!("{A} also {others}"))).expect(others);
        assert_eq!((clash.at, clash.word, clash.message.as_str()), (at, word, message), "{others}");
    }
    let bare = "dev a remote 198.18.0.2 mode ipip also dev b remote 198.18.0.3 mode gre";
    assert_eq!(clash(&plans(bare)).unwrap().word, "mode");
    assert!(clash(&plans("dev a remote 198.18.0.2 key 1 also dev b remote 198.18.0.2 key 2 mode gretap")).is_none());
    let fou = "dev a remote 198.18.0.2 encap fou encap-dport 5 mode ipip also dev b remote 198.18.0.3 encap fou encap-dport 5";
    assert_eq!(clash(&plans(fou)).unwrap().word, "mode");
    let vxlan = "dev a mode vxlan id 1 remote 198.18.0.2 also dev b mode vxlan id 1 remote 198.18.0.3 fdb 0:0:0:0:0:0,198.18.0.2";
    assert!(clash(&plans(vxlan)).unwrap().message.ends_with("packets of 198.18.0.2"));
}
