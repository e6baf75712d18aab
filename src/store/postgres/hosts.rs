//! The servers that a URL names, in libpq's syntax: `postgres://h1:5432,h2:5433/db`, or `?host=h1,h2&port=5432,5433`.
//!
//! The URL is taken apart before it is parsed, since to a parser of URLs `5432,h2:5433` is a bad port.

use url::Url;

use super::target::{refused, unreadable};
use crate::store::StoreError;

/// One URL per server, in the order of the text, alike in all but host and port. At least one.
///
/// Of a parameter that is given more than once, the last counts.
pub(super) fn split(text: &str) -> Result<Vec<Url>, StoreError> {
    let urls = by_authority(text)?;
    let (hosts, ports) = (parameter(&urls[0], "host"), parameter(&urls[0], "port"));
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
    let given_as_parameters = hosts.iter().any(Option::is_some);
    let servers = hosts.into_iter().enumerate().map(|(n, host)| {
        let base = if given_as_parameters { &urls[0] } else { &urls[n] };
        with_server(base, host, ports.get(n).or(ports.first()).copied())
    });
    Ok(servers.collect())
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
