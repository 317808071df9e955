//! Reads and writes the store's rows.

use std::sync::Arc;

use kept_engine::documents::Document;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::comparisons::comparison_of;
use super::values::{deflate, id_of_row, of_json, row_of_id, text_of, to_json};
use super::{Store, StoreError};
use crate::contract::{ModelChoice, Settings, Turn};
use crate::state::{
    CLOSED_BEFORE_END, CLOSED_BEFORE_START, Loaded, ModelEntry, Open, OpenDocument, Remembered,
};

/// Makes a document's text searchable, in place of an earlier one.
async fn index_text(
    connection: &mut SqliteConnection,
    document: i64,
    text: &str,
) -> Result<(), StoreError> {
    sqlx::query("INSERT OR REPLACE INTO search (rowid, body) VALUES (4 * ? + 3, ?)")
        .bind(document)
        .bind(text)
        .execute(connection)
        .await?;
    Ok(())
}

impl Store {
    /// A conversation with its document, as they are at one moment. If its document is `open`, that one is taken: a
    /// huge text takes seconds to read.
    pub async fn conversation(
        &self,
        id: u64,
        open: Option<Arc<OpenDocument>>,
    ) -> Result<Option<Loaded>, StoreError> {
        let mut moment = self.pool.begin().await?;
        let row =
            sqlx::query_scalar("SELECT document FROM conversation WHERE id = ? AND deleted = 0");
        let row = row
            .bind(row_of_id(id)?)
            .fetch_optional(&mut *moment)
            .await?;
        let Some(document) = row else {
            return Ok(None);
        };
        let document = id_of_row(document)?;
        let (document, comparison) = match open.filter(|open| open.facts.id == document) {
            Some(open) => (open, None),
            None => {
                let stored = document_of(&mut moment, document).await?.ok_or_else(|| {
                    StoreError::Value("a conversation without its document".to_owned())
                })?;
                let comparison = comparison_of(&mut moment, document).await?;
                (Arc::new(stored), comparison)
            }
        };
        Ok(Some(Loaded {
            conversation: id,
            document,
            comparison,
            turns: turns_of(&mut moment, id).await?,
        }))
    }

    /// Marks the turns that had not ended when Kept was closed as failed. Returns their conversations.
    async fn interrupt(&self) -> Result<Vec<u64>, StoreError> {
        let mut rows: Vec<i64> = sqlx::query_scalar(
            "UPDATE turn SET error = CASE state WHEN 'waiting' THEN ? ELSE ? END, state = 'failed' \
             WHERE state IN ('waiting', 'asked', 'reading', 'answering') RETURNING conversation",
        )
        .bind(CLOSED_BEFORE_START)
        .bind(CLOSED_BEFORE_END)
        .fetch_all(&self.pool)
        .await?;
        rows.sort_unstable();
        rows.dedup();
        rows.into_iter().map(id_of_row).collect()
    }

    /// Loads the state of an earlier start.
    pub async fn remembered(&self) -> Result<Remembered, StoreError> {
        let interrupted = self.interrupt().await?;
        let settings: Option<Settings> = self.setting("settings").await?;
        let open: Open = self.setting("open").await?.unwrap_or_default();
        let mut connection = self.pool.acquire().await?;
        let (document, comparison) = match open.document {
            Some(id) => (
                document_of(&mut connection, id).await?,
                comparison_of(&mut connection, id).await?,
            ),
            None => (None, None),
        };
        let turns = match open.conversation {
            Some(id) => turns_of(&mut connection, id).await?,
            None => Vec::new(),
        };
        drop(connection);
        Ok(Remembered {
            started_before: settings.is_some(),
            settings,
            models: self.models().await?,
            conversation: open.conversation.filter(|_| document.is_some()),
            conversations: self.conversations().await?,
            interrupted,
            document,
            comparison,
            turns,
            drafts: self.setting("drafts").await?.unwrap_or_default(),
            vaults_to_clear: self.setting("vaults_to_clear").await?.unwrap_or_default(),
            thinking: self.setting("thinking").await?.unwrap_or_default(),
            downloads: self.setting("downloads").await?.unwrap_or_default(),
            speed: self.setting("speed").await?,
            last_document: self.setting("last_document").await?.unwrap_or(0),
            last_turn: self.setting("last_turn").await?.unwrap_or(0),
            last_conversation: self.setting("last_conversation").await?.unwrap_or(0),
        })
    }

    pub(super) async fn setting<T: DeserializeOwned>(
        &self,
        name: &str,
    ) -> Result<Option<T>, StoreError> {
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

    /// Raises a setting, the highest id ever assigned, to `id`.
    pub(super) async fn set_highest(&self, name: &str, id: u64) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO setting (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value \
             WHERE CAST(excluded.value AS INTEGER) > CAST(setting.value AS INTEGER)",
        )
        .bind(name)
        .bind(to_json(&id)?)
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    pub(super) async fn models(&self) -> Result<Vec<ModelEntry>, StoreError> {
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

    /// Writes a document, new or extended.
    pub async fn set_document(&self, document: &OpenDocument) -> Result<(), StoreError> {
        let mut transaction = self.pool.begin().await?;
        let known = sqlx::query("SELECT 1 FROM document WHERE id = ?")
            .bind(row_of_id(document.facts.id)?)
            .fetch_optional(&mut *transaction)
            .await?;
        sqlx::query(
            "INSERT INTO document (id, info, sample, text) VALUES (?, ?, ?, ?) \
             ON CONFLICT (id) DO UPDATE SET info = excluded.info, sample = excluded.sample, text = excluded.text",
        )
        .bind(row_of_id(document.facts.id)?)
        .bind(to_json(&document.info)?)
        .bind(document.facts.sample)
        .bind(deflate(document.text.as_bytes())?)
        .execute(&mut *transaction)
        .await?;
        index_text(
            &mut transaction,
            row_of_id(document.facts.id)?,
            &document.text,
        )
        .await?;
        transaction.commit().await?;
        // Merging the index takes a second per gigabyte.
        if known.is_some() {
            self.forget_removed_words().await?;
        }
        self.set_highest("last_document", document.facts.id).await
    }

    /// Notes what is open, and deletes documents that are neither open nor part of a conversation.
    pub async fn set_open(&self, open: Open) -> Result<(), StoreError> {
        self.set("open", &open).await?;
        let removed = sqlx::query("DELETE FROM document WHERE id IS NOT ? AND id NOT IN (SELECT document FROM conversation)")
            .bind(open.document.map(row_of_id).transpose()?)
            .execute(&self.pool)
            .await?;
        match removed.rows_affected() {
            0 => Ok(()),
            _ => self.forget_removed_words().await,
        }
    }

    /// Merges the index of the search, in which the words of removed texts stay until then.
    pub(super) async fn forget_removed_words(&self) -> Result<(), StoreError> {
        sqlx::query("INSERT INTO search (search) VALUES ('optimize')")
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Adds the texts that are missing in the search, of a store that an earlier version wrote.
    pub(super) async fn index_texts(&self) -> Result<(), StoreError> {
        let missing = sqlx::query(
            "SELECT id, text FROM document WHERE 4 * id + 3 NOT IN (SELECT rowid FROM search)",
        )
        .fetch_all(&self.pool)
        .await?;
        for row in missing {
            let mut transaction = self.pool.begin().await?;
            let text = text_of(row.try_get("text")?)?;
            index_text(&mut transaction, row.try_get("id")?, &text).await?;
            transaction.commit().await?;
        }
        Ok(())
    }

    /// Writes a turn, if its conversation still exists.
    pub async fn set_turn(&self, conversation: u64, turn: &Turn) -> Result<(), StoreError> {
        let facts = turn.facts.as_ref().map(to_json).transpose()?;
        sqlx::query(
            "INSERT INTO turn (id, document, conversation, question, answer, state, error, method, parameters, budget, cache, memory, instructions, model, sources, facts, thinking, windows, version_of) \
             SELECT ?, document, id, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? FROM conversation WHERE id = ? \
             ON CONFLICT (id) DO UPDATE SET answer = excluded.answer, state = excluded.state, error = excluded.error, \
             cache = excluded.cache, memory = excluded.memory, instructions = excluded.instructions, model = excluded.model, thinking = excluded.thinking, \
             sources = excluded.sources, facts = excluded.facts, windows = excluded.windows",
        )
        .bind(row_of_id(turn.id)?)
        .bind(&turn.question)
        .bind(&turn.answer)
        .bind(to_json(&turn.state)?.trim_matches('"').to_owned())
        .bind(&turn.error)
        .bind(&turn.method)
        .bind(to_json(&turn.parameters)?)
        .bind(&turn.budget)
        .bind(&turn.cache)
        .bind(&turn.memory)
        .bind(&turn.instructions)
        .bind(&turn.model)
        .bind(to_json(&turn.sources)?)
        .bind(facts)
        .bind(turn.thinking)
        .bind(to_json(&turn.windows)?)
        .bind(turn.version_of.map(row_of_id).transpose()?)
        .bind(row_of_id(conversation)?)
        .execute(&self.pool)
        .await?;
        self.set_highest("last_turn", turn.id).await
    }

    /// Deletes a turn.
    pub async fn remove_turn(&self, id: u64) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM turn WHERE id = ?")
            .bind(row_of_id(id)?)
            .execute(&self.pool)
            .await?;
        self.forget_removed_words().await
    }
}

async fn document_of(
    connection: &mut SqliteConnection,
    id: u64,
) -> Result<Option<OpenDocument>, StoreError> {
    let row = sqlx::query("SELECT info, sample, text FROM document WHERE id = ?")
        .bind(row_of_id(id)?)
        .fetch_optional(connection)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let info: Document = of_json(row.try_get("info")?)?;
    let text = text_of(row.try_get("text")?)?;
    Ok(Some(OpenDocument::new(
        id,
        info,
        Arc::from(text),
        row.try_get("sample")?,
    )))
}

async fn turns_of(
    connection: &mut SqliteConnection,
    conversation: u64,
) -> Result<Vec<Turn>, StoreError> {
    let rows = sqlx::query(
        "SELECT turn.*, map.turn IS NOT NULL AS has_map, map.neutral IS NOT NULL AS has_lift, map.evictions IS NOT NULL AS has_replay FROM turn LEFT JOIN map ON map.turn = turn.id WHERE conversation = ? ORDER BY id",
    )
    .bind(row_of_id(conversation)?)
    .fetch_all(connection)
    .await?;
    rows.iter().map(turn_of_row).collect()
}

fn turn_of_row(row: &SqliteRow) -> Result<Turn, StoreError> {
    let state: &str = row.try_get("state")?;
    let facts: Option<&str> = row.try_get("facts")?;
    let version_of: Option<i64> = row.try_get("version_of")?;
    Ok(Turn {
        id: id_of_row(row.try_get("id")?)?,
        question: row.try_get("question")?,
        answer: row.try_get("answer")?,
        state: of_json(&format!("\"{state}\""))
            .map_err(|_| StoreError::Value(format!("the state '{state}'")))?,
        error: row.try_get("error")?,
        method: row.try_get("method")?,
        parameters: of_json(row.try_get("parameters")?)?,
        budget: row.try_get("budget")?,
        cache: row.try_get("cache")?,
        memory: row.try_get("memory")?,
        instructions: row.try_get("instructions")?,
        model: row.try_get("model")?,
        sources: of_json(row.try_get("sources")?)?,
        facts: facts.map(of_json).transpose()?,
        has_map: row.try_get("has_map")?,
        thinking: row.try_get("thinking")?,
        windows: of_json(row.try_get("windows")?)?,
        version_of: version_of.map(id_of_row).transpose()?,
        has_lift: row.try_get("has_lift")?,
        has_replay: row.try_get("has_replay")?,
        levels: 0,
        levels_done: false,
    })
}
