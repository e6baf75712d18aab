//! Parses a URL as libpq does: `postgres://user:password@h1:5432,[::1]:5433/database?name=value&…`.
//!
//! A parser for web addresses cannot do this. Such a parser mistakes a list of hosts for a bad port, and refuses a user
//! without a host.

use percent_encoding::percent_decode_str;

use crate::{store::StoreError, text::printable};

/// Everything that the URL gives, decoded, in the order of the text. The parts before the `?` get the names of the
/// parameters that mean the same (`host` and `port` are lists). If a name is there more than once, the last value
/// counts.
pub(super) fn take_apart(url: &str) -> Result<Vec<(String, String)>, StoreError> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| refused(format!("it is not a URL; {FORM}")))?;
    if !["postgres", "postgresql"].contains(&scheme.to_ascii_lowercase().as_str()) {
        let scheme = printable(scheme);
        return Err(refused(format!(
            "the scheme {scheme:?} is not PostgreSQL's; use postgres:// or postgresql://"
        )));
    }
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let parameters: Vec<_> = query.split('&').filter(|pair| !pair.is_empty()).collect();
    check_shape(rest, path, &parameters)?;

    let mut given = Vec::new();
    let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let (hosts, ports) = servers(hosts)?;
    let database = path.strip_prefix('/').unwrap_or_default();
    for (name, value) in [("user", user), ("password", password), ("dbname", database)] {
        if !value.is_empty() {
            given.push((name.to_owned(), decoded(value, name)?));
        }
    }
    for (name, list) in [("host", hosts), ("port", ports)] {
        if list.iter().any(|element| !element.is_empty()) {
            given.push((name.to_owned(), list.join(",")));
        }
    }
    for parameter in parameters {
        given.push(pair(parameter)?);
    }
    Ok(given)
}

pub(super) fn refused(detail: String) -> StoreError {
    StoreError::Url { detail }
}

/// How a URL is written, for error messages.
pub(super) const FORM: &str = "write it as postgres://user:password@host:port/database, special characters in the \
    password percent-encoded (/ is %2F, ? is %3F, # is %23, @ is %40, % is %25)";

/// Refuses a text that would be misread. Above all, that is a URL with a password whose special characters are not
/// percent-encoded. Part of the password would be read as a port, a path or a parameter, and then be shown.
fn check_shape(rest: &str, path: &str, parameters: &[&str]) -> Result<(), StoreError> {
    let has_at = |pair: &&str| pair.split_once('=').map_or(*pair, |(name, _)| name).contains('@');
    match rest.contains('#') || path.contains('@') || parameters.iter().any(has_at) {
        true => Err(refused(format!("it has an '@' or a '#' where none belongs; {FORM}"))),
        false => Ok(()),
    }
}

/// The hosts and the ports. A host or port that is not given is empty.
fn servers(list: &str) -> Result<(Vec<String>, Vec<String>), StoreError> {
    let servers = list.split(',').map(|server| {
        let (host, port) = match server.strip_prefix('[') {
            Some(bracketed) => {
                let (host, after) = bracketed.split_once(']').ok_or_else(unclosed)?;
                let port = if after.is_empty() { Some("") } else { after.strip_prefix(':') };
                (host, port.ok_or_else(unclosed)?)
            }
            None => server.split_once(':').unwrap_or((server, "")),
        };
        // The error does not show the port, which may be the end of a password.
        match port.bytes().all(|byte| byte.is_ascii_digit()) {
            true => Ok((decoded(host, "host")?, port.to_owned())),
            false => {
                Err(refused(format!("a port is no number; put an IPv6 address in brackets, and {FORM}")))
            }
        }
    });
    let servers = servers.collect::<Result<Vec<_>, _>>()?;
    match servers.len() > 1 && servers.iter().any(|(host, _)| host.is_empty()) {
        true => Err(refused("one host of its list is empty; write it as host1,host2".to_owned())),
        false => Ok(servers.into_iter().unzip()),
    }
}

fn unclosed() -> StoreError {
    refused("an IPv6 address is written in brackets, like [::1] or [::1]:5432".to_owned())
}

fn pair(parameter: &str) -> Result<(String, String), StoreError> {
    let Some((name, value)) = parameter.split_once('=') else {
        let name = printable(parameter);
        return Err(refused(format!("the parameter {name:?} has no value; write it as name=value")));
    };
    let name = decoded(name, "name of a parameter")?;
    let value = decoded(value, &printable(&name))?;
    Ok((name, value))
}

/// The text without its percent-encoding. Unlike in a web form, a plus sign stays a plus sign.
fn decoded(text: &str, part: &str) -> Result<String, StoreError> {
    let is_sound = text.split('%').skip(1).all(|after| {
        after.get(..2).is_some_and(|code| code != "00" && code.bytes().all(|byte| byte.is_ascii_hexdigit()))
    });
    let text = percent_decode_str(text).decode_utf8();
    match text.ok().filter(|_| is_sound) {
        Some(text) => Ok(text.into_owned()),
        None => Err(refused(format!(
            "a percent sign in its {part} begins no character; write % as %25, and other special characters in UTF-8"
        ))),
    }
}
