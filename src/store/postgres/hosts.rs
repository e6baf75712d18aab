//! The addresses of the servers. The URL names them, as `postgres://h1:5432,h2:5433/db` or
//! `?host=h1,h2&port=5432,5433`. If it does not, the service or the variables PGHOST and PGPORT do.

use std::path::Path;

use super::{settings::ConnectionSettings, uri::refused};
use crate::{store::StoreError, text::printable};

/// Where one server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    /// A name, an address, or the directory of a Unix socket.
    pub(super) host: String,
    /// The IP address to connect to. If it is given, the host is not looked up.
    pub(super) at: Option<String>,
    pub(super) port: u16,
}

/// The addresses, in the order in which they are named. There is at least one.
pub(super) fn addresses(settings: &ConnectionSettings) -> Result<Vec<Address>, StoreError> {
    let list = |name, of| match settings.value(name) {
        Some(list) => elements(list, of),
        None => Ok(Vec::new()),
    };
    let (hosts, at, ports) = (list("host", "host")?, list("hostaddr", "address")?, list("port", "port")?);
    let count = hosts.len().max(at.len()).max(1);
    for (of, list) in [("addresses (hostaddr)", &at), ("ports", &ports)] {
        let is_one_for_all = of == "ports" && list.len() == 1;
        if !list.is_empty() && list.len() != count && !is_one_for_all {
            let given = list.len();
            return Err(refused(format!("it has {given} {of} for {count} hosts; give one for each")));
        }
    }
    if let Some(bad) = at.iter().find(|at| at.parse::<std::net::IpAddr>().is_err()) {
        return Err(refused(format!("hostaddr={:?} is no IP address; use host for a name", printable(bad))));
    }
    (0..count)
        .map(|n| {
            let port = port(ports.get(n).or(ports.first()).copied().unwrap_or_default())?;
            let at = at.get(n).copied();
            let host = hosts.get(n).copied().or(at).map_or_else(|| default_host(port), unbracketed);
            Ok(Address { host, at: at.map(str::to_owned), port })
        })
        .collect()
}

impl Address {
    /// The directory of the Unix socket. `None` if the address is not one of a socket.
    pub(super) fn directory(&self) -> Option<&Path> {
        (self.at.is_none() && self.host.starts_with('/')).then(|| Path::new(&self.host))
    }

    /// Host and port, or the path of the socket, for people.
    pub(super) fn shown(&self) -> String {
        let (host, port) = (printable(&self.host), self.port);
        match self.directory() {
            Some(_) => format!("{host}/.s.PGSQL.{port}"),
            None if host.contains(':') => format!("[{host}]:{port}"),
            None => format!("{host}:{port}"),
        }
    }
}

fn elements<'a>(list: &'a str, of: &str) -> Result<Vec<&'a str>, StoreError> {
    let elements: Vec<_> = list.split(',').map(str::trim).collect();
    // An empty port stands for the default port.
    if of != "port" && elements.contains(&"") {
        return Err(refused(format!("one {of} of its list is empty; write it as {of}1,{of}2")));
    }
    Ok(elements)
}

/// The error does not show the text, which may be the end of a password.
fn port(text: &str) -> Result<u16, StoreError> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ if text.is_empty() => Ok(5432),
        _ => Err(refused("a port is a number from 1 to 65535".to_owned())),
    }
}

fn unbracketed(host: &str) -> String {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    bare.unwrap_or(host).to_owned()
}

/// The directory in which a server on this machine has its socket. `localhost` if there is none.
fn default_host(port: u16) -> String {
    let socket = format!(".s.PGSQL.{port}");
    let has_socket = |directory: &&&str| Path::new(directory).join(&socket).exists();
    let usual = ["/var/run/postgresql", "/run/postgresql", "/tmp", "/private/tmp"];
    usual.iter().find(has_socket).map_or_else(|| "localhost".to_owned(), |directory| (*directory).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str, variables: &[(&str, &str)]) -> Result<Vec<String>, StoreError> {
        let variable = |name: &str| {
            variables.iter().find(|(found, _)| *found == name).map(|(_, value)| (*value).to_owned())
        };
        let addresses = addresses(&ConnectionSettings::with(url, &variable)?)?;
        Ok(addresses.iter().map(Address::shown).collect())
    }

    #[test]
    fn servers_are_named_as_psql_takes_them() {
        for (url, servers) in [
            ("postgres://app@[::1]:5433/db", &["[::1]:5433"][..]),
            ("postgres://[::1]/db", &["[::1]:5432"]),
            ("postgres://app@h1,[fe80::1%25eth0]:5433,h2:1/db", &["h1:5432", "[fe80::1%eth0]:5433", "h2:1"]),
            ("postgres:///db?host=::1,[::2],h3&port=1,,3", &["[::1]:1", "[::2]:5432", "h3:3"]),
            ("postgresql://user:x@/db?host=/run/pg", &["/run/pg/.s.PGSQL.5432"]),
            ("postgresql://user:x@:5433/db?host=/run/pg", &["/run/pg/.s.PGSQL.5433"]),
            ("postgresql://%2Frun%2Fpg,h2:5433/db", &["/run/pg/.s.PGSQL.5432", "h2:5433"]),
            ("postgres://h1,h2/db?hostaddr=10.0.0.1,::2&port=7", &["h1:7", "h2:7"]),
            ("postgres:///db?hostaddr=10.0.0.1,::2", &["10.0.0.1:5432", "[::2]:5432"]),
        ] {
            assert_eq!(shown(url, &[]).unwrap(), servers, "{url}");
        }
    }

    #[test]
    fn lists_in_the_variables_count_where_the_url_names_no_server() {
        let variables = [("PGHOST", "h1,/run/b"), ("PGPORT", "6000,6001")];
        for (url, servers) in [
            ("postgres:///app", &["h1:6000", "/run/b/.s.PGSQL.6001"][..]),
            ("postgres:///app?port=5433", &["h1:5433", "/run/b/.s.PGSQL.5433"]),
            ("postgres://h3:1/app", &["h3:1"]),
            ("postgres://h3,h4/app", &["h3:6000", "h4:6001"]),
            ("postgres:///app?host=h3&port=1", &["h3:1"]),
            ("postgres:///app?hostaddr=::1&port=1", &["[::1]:1"]),
        ] {
            assert_eq!(shown(url, &variables).unwrap(), servers, "{url}");
        }
        let addresses = [("PGHOST", "h1"), ("PGHOSTADDR", "10.0.0.1")];
        assert_eq!(shown("postgres:///app", &addresses).unwrap(), ["h1:5432"]);
        assert_eq!(shown("postgres://h3/app", &addresses).unwrap(), ["h3:5432"]);
    }

    #[test]
    fn lists_that_do_not_fit_are_refused_by_name() {
        for (url, variables, named) in [
            ("postgres:///app?host=h1,h2&hostaddr=::1", [("", "")], "1 addresses (hostaddr) for 2 hosts"),
            ("postgres:///app?hostaddr=db.example", [("", "")], "db.example"),
            ("postgres:///app", [("PGHOST", "h1,,h2")], "one host of its list is empty"),
            ("postgres://h1/app", [("PGPORT", "6000,6001")], "2 ports for 1 hosts"),
            ("postgres://::1/app", [("", "")], "in brackets"),
            ("postgres://[::1/app", [("", "")], "in brackets"),
            ("postgres://[::1]x/app", [("", "")], "in brackets"),
            ("postgres://h1:65536/app", [("", "")], "65535"),
            ("postgres://h1/app?port=0", [("", "")], "65535"),
        ] {
            let refusal = shown(url, &variables).unwrap_err().to_string();
            assert!(refusal.contains(named), "{url}: {refusal}");
        }
    }
}
