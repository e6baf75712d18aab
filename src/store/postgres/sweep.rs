//! The verb that deletes rows whose leases have long expired.

use super::{
    connection::Connection,
    statement::{Statement, Value, millis},
};
use crate::store::{SWEEP_AFTER, StoreError};

/// With `in_turn`, deletes nothing while another connection sweeps in turn.
pub(super) async fn sweep(connection: &mut Connection, limit: u32, in_turn: bool) -> Result<u64, StoreError> {
    let values = vec![Value::Number(limit.into()), Value::Number(millis(SWEEP_AFTER)), Value::Flag(in_turn)];
    let row = connection.fetch_one(&Statement::new(include_str!("sweep.sql"), values)).await?;
    connection.read::<i64>(&row, "swept").map(i64::unsigned_abs)
}
