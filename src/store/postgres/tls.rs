//! How a connection is encrypted, and how the server proves its identity. The parameters mean what they mean to libpq,
//! even where the driver gives them another meaning.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::{environment::expanded, settings::ConnectionSettings, uri::refused};
use crate::{
    store::StoreError,
    text::{printable, printable_path},
};

#[derive(Debug, Clone)]
pub(super) struct Tls {
    mode: PgSslMode,
    /// A file with more authorities to trust. `None` if only those that the system trusts count.
    root: Option<PathBuf>,
    /// Our own certificate and key.
    own: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    pub(super) fn of(settings: &ConnectionSettings) -> Result<Self, StoreError> {
        let in_home =
            |name| expanded(name, &format!("~/.postgresql/{name}")).ok().filter(|file| file.exists());
        let root = match settings.value("sslrootcert") {
            Some("system") => None,
            Some(_) => settings.path("sslrootcert")?,
            None => in_home("root.crt"),
        };
        let mode = mode(settings, root.is_some())?;
        let certificate = settings.path("sslcert")?.or_else(|| in_home("postgresql.crt"));
        let key = settings.path("sslkey")?.or_else(|| in_home("postgresql.key"));
        let own = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, Some(_)) if settings.value("sslkey").is_some() => {
                return Err(refused("sslkey needs its certificate; name it with sslcert".to_owned()));
            }
            (Some(_), None) if settings.value("sslcert").is_some() => {
                return Err(refused("sslcert needs its key; name it with sslkey".to_owned()));
            }
            _ => None,
        };
        Ok(Self { mode, root, own })
    }

    /// These settings without encryption, for a Unix socket: nothing leaves the machine there.
    pub(super) fn over_a_socket(self) -> Self {
        Self { mode: PgSslMode::Disable, ..self }
    }

    /// Whether this build can do what the parameters ask for.
    pub(super) fn is_built_in(&self) -> bool {
        let is_asked = !matches!(self.mode, PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer);
        HAS_TLS || !is_asked
    }

    /// Whether the server's certificate must be for its name.
    pub(super) fn verifies_the_name(&self) -> bool {
        matches!(self.mode, PgSslMode::VerifyFull)
    }

    pub(super) fn has_files(&self) -> bool {
        self.root.is_some() || self.own.is_some()
    }

    /// Fails if one of the files cannot be read, because the driver's error would not name it. This reads the file
    /// system.
    pub(super) fn check_files(&self) -> Result<(), StoreError> {
        if matches!(self.mode, PgSslMode::Disable) {
            return Ok(());
        }
        let own = self.own.iter().flat_map(|(certificate, key)| [("sslcert", certificate), ("sslkey", key)]);
        let root = self.root.iter().map(|root| ("sslrootcert", root));
        root.chain(own).try_for_each(|(name, file)| readable(name, file))
    }

    pub(super) fn apply(&self, options: PgConnectOptions) -> PgConnectOptions {
        #[cfg(all(any(feature = "tls-ring", feature = "tls-aws-lc-rs"), not(feature = "tls-native")))]
        if matches!(self.mode, PgSslMode::VerifyCa) {
            choose_a_provider();
        }
        let options = options.ssl_mode(self.mode);
        let options = match &self.root {
            Some(root) => options.ssl_root_cert(root),
            // This replaces what the driver has read from PGSSLROOTCERT: it takes any value, even `system`, for a file
            // name.
            None => options.ssl_root_cert_from_pem(Vec::new()),
        };
        match &self.own {
            Some((certificate, key)) => options.ssl_client_cert(certificate).ssl_client_key(key),
            None => options,
        }
    }
}

const HAS_TLS: bool = cfg!(any(feature = "tls-ring", feature = "tls-aws-lc-rs", feature = "tls-native"));

pub(super) const MISSING: &str = "sslmode=require, verify-ca and verify-full need TLS, which this build of tenure does \
                                  not have; turn on one of its features tls-ring, tls-aws-lc-rs and tls-native";

/// Installs a default crypto provider for rustls if the process has none. To verify only by authority (`verify-ca`),
/// the driver uses the default provider, and rustls panics if two are linked and none was installed. In all other cases
/// the driver names its provider.
#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc-rs"))]
#[cfg_attr(feature = "tls-native", allow(dead_code, reason = "the system's library is taken instead"))]
fn choose_a_provider() {
    use rustls::crypto::CryptoProvider;

    if CryptoProvider::get_default().is_none() {
        #[cfg(feature = "tls-ring")]
        let own = rustls::crypto::ring::default_provider();
        #[cfg(not(feature = "tls-ring"))]
        let own = rustls::crypto::aws_lc_rs::default_provider();
        // An error means that another thread has just installed one, which is just as good.
        let _ = own.install_default();
    }
}

/// The mode of encryption. `allow` counts as `prefer`: both accept any server, and `prefer` encrypts if the server can.
/// As in libpq, `require` becomes `verify-ca` if there is a file of authorities, and `sslrootcert=system` needs
/// `verify-full`.
fn mode(settings: &ConnectionSettings, has_root: bool) -> Result<PgSslMode, StoreError> {
    let by_system = settings.value("sslrootcert") == Some("system");
    let word = settings.value("sslmode").unwrap_or(if by_system { "verify-full" } else { "prefer" });
    let mode = match word {
        "disable" => PgSslMode::Disable,
        "allow" | "prefer" => PgSslMode::Prefer,
        "require" if has_root => PgSslMode::VerifyCa,
        "require" => PgSslMode::Require,
        "verify-ca" => PgSslMode::VerifyCa,
        "verify-full" => PgSslMode::VerifyFull,
        other => {
            return Err(refused(format!(
                "sslmode={:?} is unknown; use disable, allow, prefer, require, verify-ca or verify-full",
                printable(other)
            )));
        }
    };
    if by_system && !matches!(mode, PgSslMode::VerifyFull) {
        return Err(refused("sslrootcert=system needs sslmode=verify-full".to_owned()));
    }
    match settings.value("sslnegotiation") {
        None | Some("postgres") => Ok(mode),
        // The driver still asks the server first, which every server understands.
        Some("direct") if !matches!(mode, PgSslMode::Disable | PgSslMode::Prefer) => Ok(mode),
        Some("direct") => Err(refused("sslnegotiation=direct needs sslmode=require or stronger".to_owned())),
        Some(other) => {
            Err(refused(format!("sslnegotiation={:?} is unknown; use postgres or direct", printable(other))))
        }
    }
}

fn readable(name: &str, file: &Path) -> Result<(), StoreError> {
    match File::open(file) {
        Ok(_) => Ok(()),
        Err(error) => Err(refused(format!(
            "{name}={:?} cannot be read: {error}; name one that can be read",
            printable_path(file)
        ))),
    }
}

#[cfg(test)]
mod tests {
    /// If both providers are linked, rustls panics until one is installed.
    #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc-rs"))]
    #[test]
    fn verifying_by_authority_never_meets_a_process_without_a_provider() {
        super::choose_a_provider();
        super::choose_a_provider();
        let _ = rustls::ClientConfig::builder().with_root_certificates(rustls::RootCertStore::empty());
    }
}
