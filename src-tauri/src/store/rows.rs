//! Converts between the store's rows and the app state.

use std::io::{Read, Write};
use std::sync::Arc;

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use kept_engine::MapGrid;
use kept_worker::protocol::DocumentInfo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::Row;
use sqlx::sqlite::{SqlitePool, SqliteRow};

use super::StoreError;
use crate::contract::{ModelChoice, Settings, Turn, TurnState};
use crate::state::{ModelEntry, OpenDocument, Remembered};

/// The open database.
#[derive(Debug, Clone)]
pub struct Store {
    pool: SqlitePool,
}

/// Maximum size of an inflated text or map: far above any document.
const MOST_INFLATED: u64 = 4 << 30;

fn deflate(bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder
        .write_all(bytes)
        .and_then(|()| encoder.finish())
        .map_err(|error| StoreError::Value(format!("a value to compress ({error})")))
}

fn inflate(bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
    let mut inflated = Vec::new();
    DeflateDecoder::new(bytes)
        .take(MOST_INFLATED)
        .read_to_end(&mut inflated)
        .map_err(|error| StoreError::Value(format!("a compressed value ({error})")))?;
    Ok(inflated)
}

fn to_json(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Value(error.to_string()))
}

fn of_json<T: DeserializeOwned>(text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Value(error.to_string()))
}

fn id_of_row(id: i64) -> Result<u64, StoreError> {
    u64::try_from(id).map_err(|_| StoreError::Value(format!("the id {id}")))
}

fn row_of_id(id: u64) -> Result<i64, StoreError> {
    i64::try_from(id).map_err(|_| StoreError::Value(format!("the id {id}")))
}

impl Store {
    pub(super) fn new(pool: SqlitePool) -> Self {
        Self { pool }
    }

    /// Closes the file after all writes.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// Loads the state of an earlier start.
    pub async fn remembered(&self) -> Result<Remembered, StoreError> {
        let settings: Option<Settings> = self.setting("settings").await?;
        let document = self.document().await?;
        let turns = match &document {
            Some(document) => self.turns(document.id).await?,
            None => Vec::new(),
        };
        Ok(Remembered {
            started_before: settings.is_some(),
            settings,
            models: self.models().await?,
            document,
            turns,
            draft: self.setting("draft").await?.unwrap_or_default(),
            thinking: self.setting("thinking").await?.unwrap_or_default(),
            downloads: self.setting("downloads").await?.unwrap_or_default(),
            last_document: self.setting("last_document").await?.unwrap_or(0),
            last_turn: self.setting("last_turn").await?.unwrap_or(0),
        })
    }

    async fn setting<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, StoreError> {
        let value: Option<String> = sqlx::query_scalar("SELECT value FROM setting WHERE name = ?")
            .bind(name)
            .fetch_optional(&self.pool)
            .await?;
        value.map(|value| of_json(&value)).transpose()
    }

    /// Writes a setting.
    pub async fn set(&self, name: &str, value: &impl Serialize) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO setting (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        )
        .bind(name)
        .bind(to_json(value)?)
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    async fn models(&self) -> Result<Vec<ModelEntry>, StoreError> {
        let rows = sqlx::query("SELECT id, label, path, stretch FROM model ORDER BY rowid")
            .fetch_all(&self.pool)
            .await?;
        rows.iter()
            .map(|row| {
                Ok(ModelEntry {
                    choice: ModelChoice {
                        id: row.try_get("id")?,
                        label: row.try_get("label")?,
                        in_box: false,
                        stretch: row.try_get("stretch")?,
                    },
                    path: row.try_get("path")?,
                    opened: true,
                })
            })
            .collect()
    }

    /// Writes a model file.
    pub async fn add_model(&self, model: &ModelEntry) -> Result<(), StoreError> {
        sqlx::query("INSERT OR REPLACE INTO model (id, label, path, stretch) VALUES (?, ?, ?, ?)")
            .bind(&model.choice.id)
            .bind(&model.choice.label)
            .bind(&model.path)
            .bind(&model.choice.stretch)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Deletes a model file from the list.
    pub async fn forget_model(&self, id: &str) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM model WHERE id = ?")
            .bind(id)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn document(&self) -> Result<Option<OpenDocument>, StoreError> {
        let row =
            sqlx::query("SELECT id, info, sample, text FROM document ORDER BY id DESC LIMIT 1")
                .fetch_optional(&self.pool)
                .await?;
        let Some(row) = row else { return Ok(None) };
        let info: DocumentInfo = of_json(row.try_get("info")?)?;
        let text = String::from_utf8(inflate(row.try_get("text")?)?)
            .map_err(|_| StoreError::Value("a text that is not UTF-8".to_owned()))?;
        let id = id_of_row(row.try_get("id")?)?;
        Ok(Some(OpenDocument::new(
            id,
            info,
            Arc::from(text),
            row.try_get("sample")?,
        )))
    }

    /// Replaces the document, or removes it, together with its conversation.
    pub async fn replace_document(
        &self,
        document: Option<&OpenDocument>,
    ) -> Result<(), StoreError> {
        let mut transaction = self.pool.begin().await?;
        sqlx::query("DELETE FROM document")
            .execute(&mut *transaction)
            .await?;
        if let Some(document) = document {
            sqlx::query("INSERT INTO document (id, info, sample, text) VALUES (?, ?, ?, ?)")
                .bind(row_of_id(document.id)?)
                .bind(to_json(&document.info)?)
                .bind(document.sample)
                .bind(deflate(document.text.as_bytes())?)
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        if let Some(document) = document {
            self.set("last_document", &document.id).await?;
        }
        Ok(())
    }

    /// Writes a document that was extended; its conversation is kept.
    pub async fn grow_document(&self, document: &OpenDocument) -> Result<(), StoreError> {
        sqlx::query("UPDATE document SET info = ?, sample = ?, text = ? WHERE id = ?")
            .bind(to_json(&document.info)?)
            .bind(document.sample)
            .bind(deflate(document.text.as_bytes())?)
            .bind(row_of_id(document.id)?)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn turns(&self, document: u64) -> Result<Vec<Turn>, StoreError> {
        let rows = sqlx::query(
            "SELECT turn.*, map.turn IS NOT NULL AS has_map FROM turn LEFT JOIN map ON map.turn = turn.id WHERE document = ? ORDER BY id",
        )
        .bind(row_of_id(document)?)
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(turn_of_row).collect()
    }

    /// Writes a turn.
    pub async fn set_turn(&self, document: u64, turn: &Turn) -> Result<(), StoreError> {
        let facts = turn.facts.as_ref().map(to_json).transpose()?;
        // The document may have been closed before this write.
        sqlx::query(
            "INSERT INTO turn (id, document, question, answer, state, error, method, parameters, budget, cache, memory, model, sources, facts, thinking, windows) \
             SELECT ?, id, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? FROM document WHERE id = ? \
             ON CONFLICT (id) DO UPDATE SET answer = excluded.answer, state = excluded.state, error = excluded.error, \
             sources = excluded.sources, facts = excluded.facts, windows = excluded.windows",
        )
        .bind(row_of_id(turn.id)?)
        .bind(&turn.question)
        .bind(&turn.answer)
        .bind(turn.state.word())
        .bind(&turn.error)
        .bind(&turn.method)
        .bind(to_json(&turn.parameters)?)
        .bind(&turn.budget)
        .bind(&turn.cache)
        .bind(&turn.memory)
        .bind(&turn.model)
        .bind(to_json(&turn.sources)?)
        .bind(facts)
        .bind(turn.thinking)
        .bind(to_json(&turn.windows)?)
        .bind(row_of_id(document)?)
        .execute(&self.pool)
        .await?;
        self.set("last_turn", &turn.id).await
    }

    /// Deletes a conversation.
    pub async fn clear_turns(&self, document: u64) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM turn WHERE document = ?")
            .bind(row_of_id(document)?)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Writes a turn's map, if the turn still exists.
    pub async fn set_map(&self, turn: u64, map: &[u8]) -> Result<(), StoreError> {
        sqlx::query("INSERT OR REPLACE INTO map (turn, bytes) SELECT id, ? FROM turn WHERE id = ?")
            .bind(deflate(map)?)
            .bind(row_of_id(turn)?)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Loads a turn's map.
    pub async fn map(&self, turn: u64) -> Result<Option<MapGrid>, StoreError> {
        let bytes: Option<Vec<u8>> = sqlx::query_scalar("SELECT bytes FROM map WHERE turn = ?")
            .bind(row_of_id(turn)?)
            .fetch_optional(&self.pool)
            .await?;
        bytes
            .map(|bytes| {
                MapGrid::from_bytes(&inflate(&bytes)?)
                    .map_err(|error| StoreError::Value(format!("a map ({error})")))
            })
            .transpose()
    }
}

fn turn_of_row(row: &SqliteRow) -> Result<Turn, StoreError> {
    let state: &str = row.try_get("state")?;
    let facts: Option<&str> = row.try_get("facts")?;
    Ok(Turn {
        id: id_of_row(row.try_get("id")?)?,
        question: row.try_get("question")?,
        answer: row.try_get("answer")?,
        state: TurnState::of_word(state)
            .ok_or_else(|| StoreError::Value(format!("the state '{state}'")))?,
        error: row.try_get("error")?,
        method: row.try_get("method")?,
        parameters: of_json(row.try_get("parameters")?)?,
        budget: row.try_get("budget")?,
        cache: row.try_get("cache")?,
        memory: row.try_get("memory")?,
        model: row.try_get("model")?,
        sources: of_json(row.try_get("sources")?)?,
        facts: facts.map(of_json).transpose()?,
        has_map: row.try_get("has_map")?,
        thinking: row.try_get("thinking")?,
        windows: of_json(row.try_get("windows")?)?,
    })
}
