//! The SQL of the PostgreSQL fence. The rule is the server's: functions that `lib/fences/pg.cjs` calls.

use lockkeeper_fence::postgres;
use napi_derive::napi;

use crate::bridge::Bridge;

#[napi]
impl Bridge {
    /// The schema of the fence.
    #[napi]
    pub fn postgres_fence_sql(&self) -> &'static str {
        postgres::SCHEMA_SQL
    }

    /// The rights that an application's role needs for it.
    #[napi]
    pub fn postgres_fence_grants(&self, role: String) -> String {
        postgres::grants_sql(&role)
    }
}
