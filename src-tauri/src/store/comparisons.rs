//! The comparison of a document.

use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use super::values::{deflate, inflate, of_json, row_of_id, to_json};
use super::{Store, StoreError};
use crate::contract::Comparison;
use crate::state::{ComparedMaps, StoredComparison};

/// The run under which the ends of the cells are stored.
const ENDS: i64 = -1;

impl Store {
    /// Writes the comparison of a document, if the document still exists; `None` removes it.
    pub(super) async fn set_comparison(
        &self,
        document: u64,
        comparison: Option<&Comparison>,
    ) -> Result<(), StoreError> {
        let query = match comparison {
            None => sqlx::query("DELETE FROM comparison WHERE document = ?"),
            Some(comparison) => sqlx::query(
                "INSERT INTO comparison (body, document) SELECT ?, id FROM document WHERE id = ? \
                 ON CONFLICT (document) DO UPDATE SET body = excluded.body",
            )
            .bind(to_json(comparison)?),
        };
        let query = query.bind(row_of_id(document)?);
        query.execute(&self.pool).await?;
        Ok(())
    }

    /// Writes what a run of the document's comparison keeps; without `run` the ends of the cells, which remove the maps
    /// of all runs.
    pub(super) async fn set_compared_map(
        &self,
        document: u64,
        run: Option<usize>,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let (document, bytes) = (row_of_id(document)?, deflate(bytes)?);
        let run = match run {
            Some(run) => row_of_id(run as u64)?,
            None => ENDS,
        };
        let mut transaction = self.pool.begin().await?;
        if run == ENDS {
            sqlx::query("DELETE FROM compared_map WHERE document = ?")
                .bind(document)
                .execute(&mut *transaction)
                .await?;
        }
        sqlx::query(
            "INSERT OR REPLACE INTO compared_map (document, run, bytes) \
             SELECT document, ?, ? FROM comparison WHERE document = ?",
        )
        .bind(run)
        .bind(bytes)
        .bind(document)
        .execute(&mut *transaction)
        .await?;
        Ok(transaction.commit().await?)
    }
}

/// The comparison of a document, if it has one.
pub(super) async fn comparison_of(
    connection: &mut SqliteConnection,
    document: u64,
) -> Result<Option<StoredComparison>, StoreError> {
    let document = row_of_id(document)?;
    let body: Option<String> = sqlx::query_scalar("SELECT body FROM comparison WHERE document = ?")
        .bind(document)
        .fetch_optional(&mut *connection)
        .await?;
    let Some(body) = body else { return Ok(None) };
    let comparison = match of_json(&body) {
        Ok(comparison) => comparison,
        Err(error) => {
            tracing::warn!(%error, "a comparison of another version is left out");
            return Ok(None);
        }
    };
    let rows = sqlx::query("SELECT run, bytes FROM compared_map WHERE document = ?")
        .bind(document)
        .fetch_all(connection)
        .await?;
    let mut maps = ComparedMaps::default();
    for row in rows {
        let bytes = inflate(row.try_get("bytes")?)?;
        match usize::try_from(row.try_get::<i64, _>("run")?) {
            Ok(run) => drop(maps.shares.insert(run, bytes)),
            Err(_) => maps.ends = bytes,
        }
    }
    Ok(Some(StoredComparison { comparison, maps }))
}
