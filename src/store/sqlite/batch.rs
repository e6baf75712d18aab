//! The items of one call, as values for SQL.

use std::{collections::HashMap, time::Duration};

use crate::session::SessionKey;

/// The items of one call as a JSON array, for `json_each`.
pub(super) fn batch(items: impl Iterator<Item = serde_json::Value>) -> String {
    serde_json::Value::Array(items.collect()).to_string()
}

/// Whole milliseconds. The greatest `u32` is far above the longest ttl, and keeps the sum with a clock from
/// overflowing.
pub(super) fn millis(duration: Duration) -> u32 {
    duration.as_millis().try_into().unwrap_or(u32::MAX)
}

/// The places of the items in the batch, by their keys. A row that was written identifies its item only by its key.
pub(super) fn places<'a>(
    items: impl Iterator<Item = (usize, &'a SessionKey)>,
) -> HashMap<(&'a str, &'a str), usize> {
    items.map(|(place, key)| ((key.account(), key.session()), place)).collect()
}
