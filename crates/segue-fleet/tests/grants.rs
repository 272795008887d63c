//! Test of an agent that etcd refuses: its attempts do not leave one lease of etcd each.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use segue_fleet::args::{Cli, Command};
use segue_fleet::connect;
use segue_fleet::datapath::LocalEndpoint;
use segue_fleet::event::Event;
use segue_fleet::keeper::{self, Terms};

/// `{"Network":"198.19.0.0/16"}` of the key `/coreos.com/network/config`.
const CONFIG: &str = r#"{"kvs":[{"key":"L2NvcmVvcy5jb20vbmV0d29yay9jb25maWc=","value":"eyJOZXR3b3JrIjoiMTk4LjE5LjAuMC8xNiJ9","mod_revision":"1","create_revision":"1"}]}"#;
/// The key of the configuration in base64, as etcd has it.
const CONFIG_KEY: &str = "L2NvcmVvcy5jb20vbmV0d29yay9jb25maWc=";

/// Answers one request like an etcd whose user may read but not write, and reports its path.
fn answer(mut client: TcpStream, number: usize, paths: &mpsc::Sender<String>) -> Option<()> {
    let mut reader = BufReader::new(client.try_clone().ok()?);
    let (mut line, mut len) = (String::new(), 0);
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().to_ascii_lowercase().strip_prefix("content-length:") {
            Some(text) => len = text.trim().parse().ok()?,
            None if line.trim_end().is_empty() => break,
            None => {}
        }
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    let is_config = String::from_utf8_lossy(&body).contains(CONFIG_KEY);
    let (status, text) = match path.as_str() {
        "/v3/kv/range" if is_config => ("200 OK", CONFIG.to_owned()),
        "/v3/kv/range" => ("200 OK", r#"{"header":{"cluster_id":"1","revision":"1"}}"#.to_owned()),
        "/v3/lease/grant" => ("200 OK", format!(r#"{{"ID":"{number}","TTL":"60"}}"#)),
        "/v3/lease/keepalive" => ("200 OK", r#"{"result":{"ID":"1","TTL":"60"}}"#.to_owned()),
        "/v3/lease/revoke" => ("200 OK", "{}".to_owned()),
        _ => ("403 Forbidden", r#"{"code":7,"message":"etcdserver: permission denied"}"#.to_owned()),
    };
    let _ = paths.send(path);
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
    client.write_all(format!("{head}{text}").as_bytes()).ok()
}

#[test]
fn an_agent_that_may_not_write_leaves_one_lease_of_etcd_however_often_it_tries() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, paths) = mpsc::channel();
    thread::spawn(move || {
        for (client, number) in listener.incoming().map_while(Result::ok).zip(1..) {
            answer(client, number, &sender);
        }
    });
    let words = ["segue-fleet", "etcd", "--endpoints", &url, "--public-ip", "198.18.0.1", "--ttl", "60s"];
    let Command::Etcd(args) = Cli::try_parse_from(words).unwrap().command else { panic!() };
    let terms = Terms {
        prefix: args.prefix.clone(),
        address: [198, 18, 0, 1].into(),
        name: "t1".to_owned(),
        end: LocalEndpoint { listen: vec!["fou:8285".to_owned()], ..LocalEndpoint::default() },
        offer: None,
        // The wait between attempts is at most a quarter of it.
        ttl: Duration::from_millis(400),
        before: None,
    };
    let client = connect::etcd(&args).unwrap();
    let (events, inbox) = mpsc::sync_channel(0);
    let (_check, checks) = mpsc::channel();
    let keeper = thread::spawn(move || keeper::run(client, &terms, &events, &checks));
    for _ in 0..10 {
        match inbox.recv_timeout(Duration::from_secs(60)).unwrap() {
            Event::Stale(why) => assert!(why.contains("permission denied"), "{why}"),
            _ => panic!("not a refused attempt"),
        }
    }
    drop(inbox);
    keeper.join().unwrap();
    let paths: Vec<String> = paths.try_iter().collect();
    let count = |path: &str| paths.iter().filter(|asked| *asked == path).count();
    assert!(count("/v3/kv/txn") >= 10, "{paths:?}");
    assert!(count("/v3/lease/grant") <= count("/v3/lease/revoke") + 1, "{paths:?}");
}
