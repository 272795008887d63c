//! The connection to etcd as the command line describes it: members, TLS, user.

use std::fs::File;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use segue_control::error::{Error, Kind, printable};
use segue_host::file::read_within;
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig};

use crate::args;
use crate::etcd::{CONNECT, Etcd, Login, REQUEST};

/// Largest length of a file of certificates or of a key, bytes.
const MOST: usize = 4 << 20;
/// Usual paths of the system's certificate authorities; the first existing one is used.
const SYSTEM: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// Returns the client of etcd.
///
/// # Errors
/// A member, file or password that cannot be used, by its option.
pub fn etcd(args: &args::Etcd) -> Result<Etcd, Error> {
    let endpoints: Vec<String> =
        args.endpoints.iter().map(|url| endpoint(url, args.allow_plain_http)).collect::<Result<_, _>>()?;
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .timeout_connect(Some(CONNECT))
        .timeout_send_request(Some(REQUEST))
        .timeout_send_body(Some(REQUEST))
        .timeout_recv_response(Some(REQUEST))
        .user_agent(concat!("segue-fleet/", env!("CARGO_PKG_VERSION")));
    if endpoints.iter().any(|url| url.starts_with("https:")) {
        config = config.tls_config(tls(args)?);
    }
    let login = match (&args.user, &args.password_file) {
        (Some(name), Some(file)) => {
            let text =
                String::from_utf8(read(file, "--password-file")?).map_err(|_| unusable(file, "it is no text"))?;
            Some(Login { name: name.clone(), password: text.lines().next().unwrap_or_default().to_owned() })
        }
        _ => None,
    };
    Ok(Etcd::new(config.build().new_agent(), endpoints, login))
}

/// Checks a member's address, and returns it without a slash at its end.
fn endpoint(url: &str, allow_plain: bool) -> Result<String, Error> {
    let url = url.trim_end_matches('/');
    let wrong = |why: &str| {
        let shown = printable(url);
        Error::new(Kind::BadValue, format!("`{shown}` is no member of etcd"), "--endpoints https://198.18.0.1:2379")
            .why(why.to_owned())
    };
    let parsed: ureq::http::Uri = url.parse().map_err(|_| wrong("it is no URL"))?;
    let host = parsed.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("it has no host"))?;
    if parsed.path_and_query().is_some_and(|path| path != "/") || url.contains(['@', '#', '?']) {
        return Err(wrong("it is https://HOST:PORT, without a path and a user"));
    }
    match parsed.scheme_str() {
        Some("https") => Ok(url.to_owned()),
        Some("http") if allow_plain || is_loopback(host) => Ok(url.to_owned()),
        Some("http") => Err(Error::new(
            Kind::Usage,
            format!("{url} has no encryption, and is not on this host"),
            "https://... with --cacert\n--allow-plain-http                              on a trusted network",
        )
        .why("a device on the path could read and change every peer")),
        _ => Err(wrong("it begins with https://, or with http:// on this host")),
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn tls(args: &args::Etcd) -> Result<TlsConfig, Error> {
    let roots = match &args.cacert {
        Some(file) => certificates(file, "--cacert")?,
        None => {
            let file = SYSTEM.iter().map(Path::new).find(|path| path.exists());
            let missing = || {
                Error::new(Kind::Missing, "this system has no list of certificate authorities", "--cacert FILE")
                    .why("https needs one")
            };
            certificates(file.ok_or_else(missing)?, "--cacert")?
        }
    };
    let client = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => {
            let bytes = read(key, "--key")?;
            let parsed = PrivateKey::from_pem(&bytes).map_err(|error| unusable(key, &error.to_string()))?;
            Some(ClientCert::new_with_certs(&certificates(cert, "--cert")?, parsed))
        }
        _ => None,
    };
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .client_cert(client)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build())
}

fn certificates(file: &Path, option: &str) -> Result<Vec<Certificate<'static>>, Error> {
    let bytes = read(file, option)?;
    let found: Vec<_> = ureq::tls::parse_pem(&bytes)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() { Err(unusable(file, "it has no certificate in PEM")) } else { Ok(found) }
}

fn read(file: &Path, option: &str) -> Result<Vec<u8>, Error> {
    File::open(file).and_then(|opened| read_within(opened, MOST)).map_err(|error| {
        Error::system(format!("cannot read {}", file.display()), &error, format!("{option} FILE")).why("it is needed")
    })
}

fn unusable(file: &Path, why: &str) -> Error {
    Error::new(Kind::BadValue, format!("cannot use {}", file.display()), format!("head -n1 {}", file.display()))
        .why(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_this_host_only() {
        for url in ["http://127.0.0.1:2379", "http://[::1]:2379/", "http://localhost:2379", "https://198.18.0.1:2379"] {
            assert_eq!(endpoint(url, false).unwrap(), url.trim_end_matches('/'));
        }
        let refused = endpoint("http://198.18.0.1:2379", false).unwrap_err();
        assert!(refused.hint.contains("--allow-plain-http"), "{refused:?}");
        assert!(endpoint("http://198.18.0.1:2379", true).is_ok());
        // Names that only look local.
        for url in
            ["http://localhost.example.com:2379", "http://127.0.0.1.example.com", "http://127.0.0.1@198.18.0.1:1"]
        {
            assert!(endpoint(url, false).is_err(), "{url}");
        }
        for url in
            ["", "198.18.0.1:2379", "ftp://198.18.0.1", "https://", "https://198.18.0.1:2379/v3", "https://u@h:1"]
        {
            assert!(endpoint(url, true).is_err(), "{url}");
        }
    }
}
