//! The JSON form of instants and durations: RFC 3339 and whole milliseconds.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

pub(crate) fn rfc3339<S: Serializer>(at: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_millis(*at))
}

pub(super) fn from_rfc3339<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
    humantime::parse_rfc3339(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

pub(crate) fn millis<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(whole_millis(*duration))
}

pub(crate) fn from_millis<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_millis)
}

pub(crate) fn optional_millis<S: Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    duration.map(whole_millis).serialize(serializer)
}

pub(super) fn from_optional_millis<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
}

fn whole_millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use crate::session::{RunPhase, SessionKey};

    #[test]
    fn deserialising_checks_like_the_constructor() {
        let good: SessionKey = serde_json::from_str(r#"{"account":"a","session":"s"}"#).unwrap();
        assert_eq!(good, SessionKey::new("a", "s").unwrap());
        assert!(serde_json::from_str::<SessionKey>(r#"{"account":"","session":"s"}"#).is_err());
        assert!(serde_json::from_str::<RunPhase>(&format!("{:?}", "x".repeat(65))).is_err());
    }
}
