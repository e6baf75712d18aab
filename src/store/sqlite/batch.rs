//! The items of one call, on their way to SQL.

use std::time::Duration;

/// The items of one call, as `json_each` spreads them.
pub(super) fn batch(items: impl Iterator<Item = serde_json::Value>) -> String {
    serde_json::Value::Array(items.collect()).to_string()
}

/// Whole milliseconds, bounded far above the longest ttl so that the sum with a clock never overflows.
pub(super) fn millis(duration: Duration) -> u32 {
    duration.as_millis().try_into().unwrap_or(u32::MAX)
}
