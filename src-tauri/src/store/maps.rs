//! The maps of turns.

use kept_engine::{EvictionLog, MapGrid};
use sqlx::Row;

use super::values::{deflate, inflate, of_json, row_of_id, text_of, to_json};
use super::{Store, StoreError};
use crate::state::{EarlierMap, TurnMap};

impl Store {
    /// Gives the turn `to` the map of `from`.
    pub async fn copy_map(&self, from: u64, to: u64) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT OR REPLACE INTO map (turn, bytes, neutral, earlier, earlier_map, attended, by_head, evictions) SELECT ?, bytes, neutral, earlier, earlier_map, attended, by_head, evictions FROM map WHERE turn = ?",
        )
        .bind(row_of_id(to)?)
        .bind(row_of_id(from)?)
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Writes a turn's map, if the turn still exists.
    pub async fn set_map(&self, turn: u64, map: &TurnMap) -> Result<(), StoreError> {
        let earlier = map.earlier.as_ref();
        let texts = earlier.map(|earlier| deflate(to_json(&earlier.texts)?.as_bytes()));
        let grid = earlier.map(|earlier| deflate(&earlier.grid.to_bytes()));
        let evictions = &map.evictions;
        let evictions = (!evictions.is_empty()).then(|| deflate(&evictions.to_bytes()));
        sqlx::query("INSERT OR REPLACE INTO map (turn, bytes, earlier, earlier_map, attended, by_head, evictions) SELECT id, ?, ?, ?, ?, ?, ? FROM turn WHERE id = ?")
            .bind(deflate(&map.document.to_bytes())?)
            .bind(texts.transpose()?)
            .bind(grid.transpose()?)
            .bind(deflate(to_json(&map.attended)?.as_bytes())?)
            .bind(deflate(to_json(&map.by_head)?.as_bytes())?)
            .bind(evictions.transpose()?)
            .bind(row_of_id(turn)?)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Writes what the method of a turn keeps whatever is asked, if the turn has a map.
    pub async fn set_neutral(&self, turn: u64, map: &[u8]) -> Result<(), StoreError> {
        sqlx::query("UPDATE map SET neutral = ? WHERE turn = ?")
            .bind(deflate(map)?)
            .bind(row_of_id(turn)?)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Loads a turn's map.
    pub async fn map(&self, turn: u64) -> Result<Option<TurnMap>, StoreError> {
        let row = sqlx::query(
            "SELECT bytes, earlier, earlier_map, attended, by_head, evictions FROM map WHERE turn = ?",
        )
        .bind(row_of_id(turn)?)
        .fetch_optional(&self.pool)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let (texts, grid): (Option<&[u8]>, Option<&[u8]>) =
            (row.try_get("earlier")?, row.try_get("earlier_map")?);
        let earlier = texts.zip(grid).map(|(texts, grid)| {
            Ok::<_, StoreError>(EarlierMap {
                texts: of_json(&text_of(texts)?)?,
                grid: grid_of(grid)?,
            })
        });
        let (attended, by_head): (Option<&[u8]>, Option<&[u8]>) =
            (row.try_get("attended")?, row.try_get("by_head")?);
        let attended = attended.map(|attended| of_json(&text_of(attended)?));
        let by_head = by_head.map(|by_head| of_json(&text_of(by_head)?));
        let document = grid_of(row.try_get("bytes")?)?;
        let evictions: Option<&[u8]> = row.try_get("evictions")?;
        let evictions = evictions.map(|evictions| log_of(evictions, document.cells()));
        Ok(Some(TurnMap {
            document,
            earlier: earlier.transpose()?,
            attended: attended.transpose()?.unwrap_or_default(),
            by_head: by_head.transpose()?.unwrap_or_default(),
            evictions: evictions.transpose()?.unwrap_or_default(),
        }))
    }

    /// Loads what the method of a turn keeps whatever is asked.
    pub async fn neutral(&self, turn: u64) -> Result<Option<MapGrid>, StoreError> {
        let bytes: Option<Option<Vec<u8>>> =
            sqlx::query_scalar("SELECT neutral FROM map WHERE turn = ?")
                .bind(row_of_id(turn)?)
                .fetch_optional(&self.pool)
                .await?;
        bytes.flatten().map(|bytes| grid_of(&bytes)).transpose()
    }
}

fn grid_of(bytes: &[u8]) -> Result<MapGrid, StoreError> {
    MapGrid::from_bytes(&inflate(bytes)?)
        .map_err(|error| StoreError::Value(format!("a map ({error})")))
}

fn log_of(bytes: &[u8], cells: usize) -> Result<EvictionLog, StoreError> {
    EvictionLog::from_bytes(&inflate(bytes)?, cells)
        .ok_or_else(|| StoreError::Value("a record of evictions".to_owned()))
}
