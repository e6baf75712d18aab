//! The parameters of libpq, and what this store does with each.
//!
//! The store cannot do what some parameters ask for. If such a parameter would make a connection safer, it is refused,
//! and the error says what to do instead. If it is safe to go on without it, it is ignored, with one warning.

use super::uri::refused;
use crate::{store::StoreError, text::printable};

/// One parameter of a URL or of a service.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    /// The environment variable that gives the parameter if nothing else does. Empty if there is no such variable.
    pub(super) variable: &'static str,
    rule: Rule,
}

enum Rule {
    Honoured,
    /// Ignored. The values in the list ask for what the store does anyway. Any other value causes a warning.
    Ignored(&'static [&'static str]),
    /// Refused, unless its value is one of those in `done`.
    Refused {
        /// The values that ask for what the store does anyway.
        done: &'static [&'static str],
        /// The values that would make the connection safer, but that the store cannot provide. If the list is empty,
        /// every value that is not in `done` is one of them.
        safer: &'static [&'static str],
        remedy: &'static str,
    },
}

/// The parameter of this name.
pub(super) fn find(name: &str) -> Result<&'static Parameter, StoreError> {
    let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, known)| known);
    PARAMETERS.iter().find(|known| known.name == name).ok_or_else(|| unknown(name))
}

/// Whether the value must not be shown.
pub(super) fn is_secret(name: &str) -> bool {
    find(name).is_ok_and(|known| {
        known.name == "password" || matches!(known.rule, Rule::Refused { remedy: NO_SECRETS, .. })
    })
}

pub(super) fn all() -> impl Iterator<Item = &'static Parameter> {
    PARAMETERS.iter()
}

impl Parameter {
    /// Whether to warn that this value has no effect.
    pub(super) fn check(&self, value: &str) -> Result<bool, StoreError> {
        match self.rule {
            Rule::Honoured => Ok(false),
            Rule::Ignored(done) => Ok(!done.contains(&value)),
            Rule::Refused { done, .. } if done.contains(&value) => Ok(false),
            // The error does not show the value, which may be a secret.
            Rule::Refused { done, safer, .. } if !safer.is_empty() && !safer.contains(&value) => {
                Err(refused(format!("{} has an unknown value; use {}", self.name, done.join(" or "))))
            }
            Rule::Refused { remedy, .. } => {
                Err(refused(format!("{} asks for something that tenure cannot do; {remedy}", self.name)))
            }
        }
    }
}

fn unknown(name: &str) -> StoreError {
    let lower = name.to_ascii_lowercase();
    let likeness = |known: &str| strsim::normalized_damerau_levenshtein(&lower, known);
    let names =
        PARAMETERS.iter().filter(|known| matches!(known.rule, Rule::Honoured)).map(|known| known.name);
    let nearest = names.clone().max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    let remedy = match nearest.filter(|nearest| likeness(nearest) > 0.7) {
        Some(nearest) => format!("did you mean {nearest}?"),
        None => format!("remove it, or use one of {}", names.collect::<Vec<_>>().join(", ")),
    };
    refused(format!("the parameter {:?} is unknown; {remedy}", printable(name)))
}

const fn honoured(name: &'static str, variable: &'static str) -> Parameter {
    Parameter { name, variable, rule: Rule::Honoured }
}

const fn ignored(name: &'static str, done: &'static [&'static str]) -> Parameter {
    // Its variable is not read: the environment may be meant for other programs, and is no reason for a warning.
    Parameter { name, variable: "", rule: Rule::Ignored(done) }
}

const fn demanding(
    name: &'static str,
    variable: &'static str,
    done: &'static [&'static str],
    remedy: &'static str,
) -> Parameter {
    Parameter { name, variable, rule: Rule::Refused { done, safer: &[], remedy } }
}

/// A refused parameter whose values are all known.
const fn choosing(
    name: &'static str,
    variable: &'static str,
    done: &'static [&'static str],
    safer: &'static [&'static str],
    remedy: &'static str,
) -> Parameter {
    Parameter { name, variable, rule: Rule::Refused { done, safer, remedy } }
}

/// Other names for parameters, which the driver accepts, too.
const ALIASES: &[(&str, &str)] = &[
    ("ssl-mode", "sslmode"),
    ("ssl-root-cert", "sslrootcert"),
    ("ssl-ca", "sslrootcert"),
    ("ssl-cert", "sslcert"),
    ("ssl-key", "sslkey"),
];

const VERIFY: &str = "remove it, and use sslmode=verify-full, with which the server proves its identity";
const NO_SECRETS: &str =
    "remove it; give a password, a password file, or sslcert and an sslkey without a password";

const PARAMETERS: &[Parameter] = &[
    honoured("application_name", "PGAPPNAME"),
    honoured("connect_timeout", "PGCONNECT_TIMEOUT"),
    honoured("dbname", "PGDATABASE"),
    honoured("fallback_application_name", ""),
    honoured("host", "PGHOST"),
    honoured("hostaddr", "PGHOSTADDR"),
    // The driver reads PGOPTIONS by itself.
    honoured("options", ""),
    honoured("passfile", "PGPASSFILE"),
    honoured("password", "PGPASSWORD"),
    honoured("pgbouncer", ""),
    honoured("port", "PGPORT"),
    honoured("schema", ""),
    honoured("service", "PGSERVICE"),
    honoured("servicefile", "PGSERVICEFILE"),
    honoured("sslcert", "PGSSLCERT"),
    honoured("sslkey", "PGSSLKEY"),
    honoured("sslmode", "PGSSLMODE"),
    honoured("sslnegotiation", "PGSSLNEGOTIATION"),
    honoured("sslrootcert", "PGSSLROOTCERT"),
    honoured("statement-cache-capacity", ""),
    honoured("target_session_attrs", ""),
    honoured("user", "PGUSER"),
    // The store's own time-outs detect a dead connection sooner.
    ignored("keepalives", &["1"]),
    ignored("keepalives_count", &[]),
    ignored("keepalives_idle", &[]),
    ignored("keepalives_interval", &[]),
    ignored("tcp_user_timeout", &[]),
    // The driver uses UTF-8, whatever encoding the database has.
    ignored("client_encoding", &["UTF8", "utf8", "UTF-8", "utf-8", "auto"]),
    ignored("gssdelegation", &["0"]),
    ignored("gsslib", &[]),
    ignored("krbsrvname", &[]),
    ignored("load_balance_hosts", &["disable"]),
    ignored("max_protocol_version", &["3.0", "latest"]),
    ignored("ssl_max_protocol_version", &["TLSv1.3"]),
    ignored("sslcompression", &["0"]),
    ignored("sslkeylogfile", &[]),
    ignored("sslsni", &["1"]),
    choosing("channel_binding", "PGCHANNELBINDING", &["prefer", "disable"], &["require"], VERIFY),
    choosing("gssencmode", "PGGSSENCMODE", &["prefer", "disable"], &["require"], VERIFY),
    demanding("min_protocol_version", "PGMINPROTOCOLVERSION", &["3.0"], "remove it: the driver speaks 3.0"),
    demanding("oauth_client_id", "", &[], NO_SECRETS),
    demanding("oauth_client_secret", "", &[], NO_SECRETS),
    demanding("oauth_issuer", "", &[], NO_SECRETS),
    demanding("oauth_scope", "", &[], NO_SECRETS),
    demanding(
        "replication",
        "",
        &["false", "off", "no", "0"],
        "remove it: leases need an ordinary connection",
    ),
    demanding("require_auth", "PGREQUIREAUTH", &[], VERIFY),
    demanding(
        "requirepeer",
        "PGREQUIREPEER",
        &[],
        "remove it, and keep the socket in a directory of its user",
    ),
    demanding("requiressl", "PGREQUIRESSL", &["0"], "use sslmode=require"),
    demanding("scram_client_key", "", &[], NO_SECRETS),
    demanding("scram_server_key", "", &[], NO_SECRETS),
    demanding("ssl", "", &[], "use sslmode=require or sslmode=disable"),
    choosing(
        "ssl_min_protocol_version",
        "PGSSLMINPROTOCOLVERSION",
        &["TLSv1", "TLSv1.1", "TLSv1.2"],
        &["TLSv1.3"],
        "use TLSv1.2, or let the server demand more (its setting ssl_min_protocol_version)",
    ),
    choosing(
        "sslcertmode",
        "PGSSLCERTMODE",
        &["allow"],
        &["require", "disable"],
        "remove it; sslcert and sslkey say what is shown",
    ),
    demanding("sslcrl", "PGSSLCRL", &[], "remove it: tenure cannot recognise revoked certificates"),
    demanding("sslcrldir", "PGSSLCRLDIR", &[], "remove it: tenure cannot recognise revoked certificates"),
    demanding("sslpassword", "", &[], NO_SECRETS),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_make_a_connection_safer_is_never_passed_over() {
        for (name, value) in [
            ("channel_binding", "require"),
            ("gssencmode", "require"),
            ("require_auth", "scram-sha-256"),
            ("requirepeer", "postgres"),
            ("ssl_min_protocol_version", "TLSv1.3"),
            ("sslcertmode", "require"),
            ("sslcrl", "/revoked"),
            ("min_protocol_version", "3.2"),
        ] {
            let refusal = find(name).unwrap().check(value).unwrap_err().to_string();
            assert!(refusal.contains(name) && refusal.contains("; "), "{refusal}");
        }
    }

    #[test]
    fn an_unknown_value_is_told_the_known_ones() {
        for (name, allowed) in [
            ("channel_binding", "prefer or disable"),
            ("gssencmode", "prefer or disable"),
            ("ssl_min_protocol_version", "TLSv1 or TLSv1.1 or TLSv1.2"),
            ("sslcertmode", "use allow"),
        ] {
            let refusal = find(name).unwrap().check("bogus").unwrap_err().to_string();
            assert!(refusal.contains(name) && refusal.contains(allowed), "{refusal}");
        }
    }

    #[test]
    fn a_name_that_is_nearly_known_is_told_the_known_one() {
        for (name, known) in [
            ("ssl_mode", "sslmode"),
            ("applicationname", "application_name"),
            ("Host", "host"),
            ("ssrootcert", "sslrootcert"),
        ] {
            let refusal = find(name).err().unwrap().to_string();
            assert!(refusal.contains(&format!("did you mean {known}?")), "{refusal}");
        }
        let refusal = find("connection_limit").err().unwrap().to_string();
        assert!(refusal.contains("connection_limit") && refusal.contains("remove it"), "{refusal}");
    }

    #[test]
    fn only_what_is_not_done_anyway_is_warned_of() {
        for (name, value, warned) in [
            ("keepalives_idle", "30", true),
            ("keepalives", "1", false),
            ("channel_binding", "prefer", false),
            ("gssencmode", "disable", false),
            ("sslsni", "0", true),
            ("sslmode", "require", false),
        ] {
            assert_eq!(find(name).unwrap().check(value).unwrap(), warned, "{name}={value}");
        }
    }
}
