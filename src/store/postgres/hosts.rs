//! The servers that a URL names, in libpq's syntax: `postgres://h1:5432,h2:5433/db`, or `?host=h1,h2&port=5432,5433`; or
//! the variables PGHOST and PGPORT, where the URL names none.
//!
//! The URL is taken apart before it is parsed, since to a parser of URLs `5432,h2:5433` is a bad port.

use url::Url;

use super::target::{refused, unreadable};
use crate::store::StoreError;

/// One URL per server, in the order of the text, alike in all but host and port. At least one.
///
/// Of a parameter that is given more than once, the last counts.
pub(super) fn split(text: &str) -> Result<Vec<Url>, StoreError> {
    split_with(text, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

fn split_with(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Vec<Url>, StoreError> {
    let urls = by_authority(text)?;
    let (hosts, ports) = (hosts(&urls, &variable)?, ports(&urls, &variable));
    let hosts: Vec<Option<&str>> = match &hosts {
        Some(list) => elements(list, "host")?.into_iter().map(Some).collect(),
        None => vec![None; urls.len()],
    };
    let ports = match &ports {
        Some(list) => elements(list, "port")?,
        None => Vec::new(),
    };
    if ports.len() > 1 && ports.len() != hosts.len() {
        return Err(refused(format!(
            "it has {} ports for {} hosts; give one port for all of them, or one for each",
            ports.len(),
            hosts.len()
        )));
    }
    let given_apart = hosts.iter().any(Option::is_some);
    let servers = hosts.into_iter().enumerate().map(|(n, host)| {
        let base = if given_apart { &urls[0] } else { &urls[n] };
        with_server(base, host, ports.get(n).or(ports.first()).copied())
    });
    Ok(servers.collect())
}

/// The list that is not in the authority: the parameter, or the variable where the URL says nothing. One server in the
/// variable is the driver's to find.
fn hosts(urls: &[Url], variable: impl Fn(&str) -> Option<String>) -> Result<Option<String>, StoreError> {
    let named = parameter(&urls[0], "host");
    let in_authority = urls.iter().any(|url| url.host_str().is_some_and(|host| !host.is_empty()));
    let several = urls.len() > 1 || named.as_ref().is_some_and(|list| list.contains(','));
    let one_address = |name: &str, address: &str| match several || address.contains(',') {
        true => Err(refused(format!(
            "{name} is the address of one server only; name several servers as hosts, postgres://h1,h2/db"
        ))),
        false => Ok(()),
    };
    if let Some(address) = parameter(&urls[0], "hostaddr") {
        one_address("hostaddr", &address)?;
        return Ok(named);
    }
    if named.is_some() || in_authority {
        return Ok(named);
    }
    match variable("PGHOSTADDR") {
        Some(address) => one_address("PGHOSTADDR", &address).map(|()| None),
        None => Ok(variable("PGHOST").filter(|list| list.contains(','))),
    }
}

/// As for the hosts.
fn ports(urls: &[Url], variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let in_authority = urls.iter().any(|url| url.port().is_some());
    let from_variable = || variable("PGPORT").filter(|list| list.contains(',') && !in_authority);
    parameter(&urls[0], "port").or_else(from_variable)
}

/// Takes a parameter that is ours out of the URL.
pub(super) fn take(url: &mut Url, name: &str) -> Option<String> {
    let value = parameter(url, name)?;
    let others: Vec<_> = url.query_pairs().into_owned().filter(|(other, _)| other != name).collect();
    url.set_query(None);
    if !others.is_empty() {
        url.query_pairs_mut().extend_pairs(others);
    }
    Some(value)
}

/// One URL per host between the user and the path.
fn by_authority(text: &str) -> Result<Vec<Url>, StoreError> {
    let text = text.trim();
    let Some((scheme, rest)) = text.split_once("://") else { return Ok(vec![parsed(text)?]) };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let hosts_at = authority.rfind('@').map_or(0, |at| at + 1);
    let (user, hosts) = authority.split_at(hosts_at);
    if !hosts.contains(',') {
        return Ok(vec![parsed(text)?]);
    }
    let one = |host: &&str| parsed(&format!("{scheme}://{user}{host}{path}"));
    elements(hosts, "host")?.iter().map(one).collect()
}

fn parsed(url: &str) -> Result<Url, StoreError> {
    Url::parse(url).map_err(unreadable)
}

fn parameter(url: &Url, name: &str) -> Option<String> {
    url.query_pairs().filter(|(found, _)| found == name).last().map(|(_, value)| value.into_owned())
}

fn elements<'a>(list: &'a str, of: &str) -> Result<Vec<&'a str>, StoreError> {
    let elements: Vec<_> = list.split(',').collect();
    if elements.len() > 1 && elements.contains(&"") {
        return Err(refused(format!("one {of} of its list is empty; write it as {of}1,{of}2")));
    }
    Ok(elements)
}

fn with_server(base: &Url, host: Option<&str>, port: Option<&str>) -> Url {
    let mut url = base.clone();
    for (name, value) in [("host", host), ("port", port)] {
        if let Some(value) = value {
            take(&mut url, name);
            url.query_pairs_mut().append_pair(name, value);
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_among(url: &str, variables: &[(&str, &str)]) -> Result<Vec<String>, StoreError> {
        let variable = |name: &str| {
            variables.iter().find(|(found, _)| *found == name).map(|(_, value)| (*value).to_owned())
        };
        Ok(split_with(url, variable)?.into_iter().map(String::from).collect())
    }

    #[test]
    fn lists_in_the_variables_are_split_where_the_url_names_no_server() {
        let variables = [("PGHOST", "h1,/run/b"), ("PGPORT", "6000,6001")];
        for (url, servers) in [
            (
                "postgres:///app",
                &["postgres:///app?host=h1&port=6000", "postgres:///app?host=%2Frun%2Fb&port=6001"][..],
            ),
            (
                "postgres:///app?port=5433",
                &["postgres:///app?host=h1&port=5433", "postgres:///app?host=%2Frun%2Fb&port=5433"],
            ),
            ("postgres://h3:1/app", &["postgres://h3:1/app"]),
            ("postgres://h3,h4/app", &["postgres://h3/app?port=6000", "postgres://h4/app?port=6001"]),
            ("postgres:///app?host=h3&port=1", &["postgres:///app?host=h3&port=1"]),
            ("postgres:///app?hostaddr=::1&port=1", &["postgres:///app?hostaddr=%3A%3A1&port=1"]),
        ] {
            assert_eq!(split_among(url, &variables).unwrap(), servers, "{url}");
        }
        let one = [("PGHOST", "h1"), ("PGPORT", "6000")];
        assert_eq!(
            split_among("postgres:///app", &one).unwrap(),
            ["postgres:///app"],
            "the driver's to find"
        );
    }

    #[test]
    fn a_list_where_none_can_be_is_refused_by_name() {
        for (url, variables, named) in [
            ("postgres:///app?hostaddr=::1,::2", [("", "")], "hostaddr"),
            ("postgres:///app?host=h1,h2&hostaddr=::1", [("", "")], "hostaddr"),
            ("postgres:///app", [("PGHOSTADDR", "::1,::2")], "PGHOSTADDR"),
            ("postgres:///app", [("PGHOST", "h1,,h2")], "one host of its list is empty"),
            ("postgres://h1/app", [("PGPORT", "6000,6001")], "2 ports for 1 hosts"),
        ] {
            let refusal = split_among(url, &variables).unwrap_err().to_string();
            assert!(refusal.contains(named), "{url}: {refusal}");
        }
    }
}
