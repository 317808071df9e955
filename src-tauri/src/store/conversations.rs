//! The list of conversations and the search over them.

use std::collections::HashMap;

use kept_engine::documents::Kind;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::values::{id_of_row, row_of_id};
use super::{Store, StoreError};
use crate::contract::{ConversationEntry, FoundPassage, FoundPiece};

/// The most passages that a search returns.
const MAX_FOUND_PASSAGES: usize = 50;
/// The most passages that a search finds, copies of answers in branches included. Showing one takes time, so it is not done
/// for all.
const MAX_HITS: i64 = 4 * MAX_FOUND_PASSAGES as i64;
/// Tokens of a found passage.
const PASSAGE_TOKENS: i64 = 16;
/// Delimiters of a found word within a passage: control characters, which no text has.
const HIT: (char, char) = ('\u{2}', '\u{3}');

impl Store {
    /// All conversations with a question, in no particular order.
    pub async fn conversations(&self) -> Result<Vec<ConversationEntry>, StoreError> {
        let rows = sqlx::query(
            "SELECT conversation.id, conversation.document, json_extract(document.info, '$.name') AS name, coalesce(json_array_length(document.info, '$.pages'), 0) AS pages, json_extract(document.info, '$.kind') AS kind, title, pinned, updated, \
             (SELECT count(*) FROM turn WHERE turn.conversation = conversation.id AND version_of IS NULL) AS questions, \
             (SELECT question FROM turn WHERE turn.conversation = conversation.id ORDER BY id LIMIT 1) AS first \
             FROM conversation JOIN document ON document.id = conversation.document WHERE deleted = 0",
        )
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(conversation_of_row).collect()
    }

    /// Writes a conversation, new or changed.
    pub async fn set_conversation(
        &self,
        conversation: &ConversationEntry,
    ) -> Result<(), StoreError> {
        let (id, document) = (
            row_of_id(conversation.id)?,
            row_of_id(conversation.document_id)?,
        );
        // The first question is the title until the user gives one.
        let title = Some(&conversation.title).filter(|title| **title != conversation.first);
        let mut transaction = self.pool.begin().await?;
        sqlx::query(
            "INSERT INTO conversation (id, document, title, pinned, updated, deleted) VALUES (?, ?, ?, ?, ?, 0) \
             ON CONFLICT (id) DO UPDATE SET document = excluded.document, title = excluded.title, \
             pinned = excluded.pinned, updated = excluded.updated, deleted = 0",
        )
        .bind(id)
        .bind(document)
        .bind(title)
        .bind(conversation.pinned)
        .bind(row_of_id(conversation.updated)?)
        .execute(&mut *transaction)
        .await?;
        sqlx::query("UPDATE turn SET document = ? WHERE conversation = ? AND document <> ?")
            .bind(document)
            .bind(id)
            .bind(document)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        self.set_highest("last_conversation", conversation.id).await
    }

    /// Hides a conversation until it is written again or removed.
    pub async fn hide_conversation(&self, id: u64) -> Result<(), StoreError> {
        sqlx::query("UPDATE conversation SET deleted = 1 WHERE id = ?")
            .bind(row_of_id(id)?)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Removes hidden conversations, and documents that are then in no conversation and not open.
    pub async fn remove_hidden(&self) -> Result<(), StoreError> {
        let removed = sqlx::query("DELETE FROM conversation WHERE deleted = 1")
            .execute(&self.pool)
            .await?;
        if removed.rows_affected() > 0 {
            sqlx::query(
                "DELETE FROM document WHERE id NOT IN (SELECT document FROM conversation) AND id IS NOT \
                 (SELECT json_extract(value, '$.document') FROM setting WHERE name = 'open')",
            )
            .execute(&self.pool)
            .await?;
            self.forget_removed_words().await?;
        }
        Ok(())
    }

    /// Passages of questions, answers and documents that have every word of `query`, best first. The last word may be
    /// the beginning of one.
    pub async fn search(&self, query: &str) -> Result<Vec<FoundPassage>, StoreError> {
        let Some(query) = match_of(query) else {
            return Ok(Vec::new());
        };
        let rows = sqlx::query(
            "WITH hit AS MATERIALIZED (SELECT search.rowid AS row, search.rank AS place, conversation.id AS conversation, conversation.document AS document \
             FROM search JOIN conversation ON conversation.id = CASE search.rowid % 4 \
             WHEN 3 THEN (SELECT id FROM conversation WHERE document = search.rowid / 4 AND deleted = 0 ORDER BY updated DESC LIMIT 1) \
             ELSE (SELECT conversation FROM turn WHERE id = search.rowid / 4) END \
             WHERE search MATCH ?1 AND deleted = 0 ORDER BY search.rank, conversation.id LIMIT ?2) \
             SELECT hit.row AS row, snippet(search, 0, ?3, ?4, '\u{2026}', ?5) AS passage, turn.facts AS facts, hit.conversation AS conversation, hit.document AS document \
             FROM hit CROSS JOIN search ON search.rowid = hit.row LEFT JOIN turn ON hit.row % 4 <> 3 AND turn.id = hit.row / 4 \
             WHERE search MATCH ?1 ORDER BY hit.place, hit.conversation",
        )
        .bind(query)
        .bind(MAX_HITS)
        .bind(HIT.0.to_string())
        .bind(HIT.1.to_string())
        .bind(PASSAGE_TOKENS)
        .fetch_all(&self.pool)
        .await?;
        let mut first = HashMap::new();
        let mut found = Vec::new();
        for row in &rows {
            let passage = passage_of_row(row)?;
            let first = *(first.entry(origin_of_row(row)?)).or_insert(passage.conversation);
            if first == passage.conversation {
                found.push(passage);
            }
        }
        found.truncate(MAX_FOUND_PASSAGES);
        Ok(found)
    }
}

/// What is equal for a turn and its copies in branches, and for a document in all its conversations: document, kind of
/// text, passage, facts of the answer.
fn origin_of_row(row: &SqliteRow) -> Result<(i64, i64, String, Option<String>), StoreError> {
    let at: i64 = row.try_get("row")?;
    let passage = row.try_get("passage")?;
    Ok((
        row.try_get("document")?,
        at % 4,
        passage,
        row.try_get("facts")?,
    ))
}

fn conversation_of_row(row: &SqliteRow) -> Result<ConversationEntry, StoreError> {
    let questions: i64 = row.try_get("questions")?;
    let first: Option<String> = row.try_get("first")?;
    let first = first.unwrap_or_default();
    let title: Option<String> = row.try_get("title")?;
    let kind: String = row.try_get("kind")?;
    Ok(ConversationEntry {
        id: id_of_row(row.try_get("id")?)?,
        title: title.unwrap_or_else(|| first.clone()),
        document: row.try_get("name")?,
        document_id: id_of_row(row.try_get("document")?)?,
        pages: usize::try_from(row.try_get::<i64, _>("pages")?).unwrap_or_default(),
        page_noun: Kind::from_code(&kind).page_noun().to_owned(),
        first,
        questions: usize::try_from(questions).unwrap_or_default(),
        updated: id_of_row(row.try_get("updated")?)?,
        pinned: row.try_get("pinned")?,
    })
}

fn passage_of_row(row: &SqliteRow) -> Result<FoundPassage, StoreError> {
    let at: i64 = row.try_get("row")?;
    let passage: &str = row.try_get("passage")?;
    Ok(FoundPassage {
        conversation: id_of_row(row.try_get("conversation")?)?,
        turn: (at % 4 != 3).then(|| id_of_row(at / 4)).transpose()?,
        pieces: pieces_of(passage),
    })
}

/// The words of a query as a full-text expression; `None` if there is none.
fn match_of(query: &str) -> Option<String> {
    let words: Vec<String> = query
        .split_whitespace()
        .filter(|word| word.chars().any(char::is_alphanumeric))
        .map(|word| format!("\"{}\"", word.replace('"', "\"\"")))
        .collect();
    (!words.is_empty()).then(|| format!("{}*", words.join(" ")))
}

/// Splits a passage at its delimiters, and makes every white space a single space.
fn pieces_of(passage: &str) -> Vec<FoundPiece> {
    let mut pieces: Vec<FoundPiece> = Vec::new();
    let mut hit = false;
    let mut space = true;
    for character in passage.chars() {
        if character == HIT.0 || character == HIT.1 {
            hit = character == HIT.0;
            continue;
        }
        let is_space = character.is_whitespace();
        if is_space && space {
            continue;
        }
        space = is_space;
        let character = if is_space { ' ' } else { character };
        match pieces.last_mut().filter(|piece| piece.hit == hit) {
            Some(piece) => piece.text.push(character),
            None => pieces.push(FoundPiece {
                text: character.to_string(),
                hit,
            }),
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_words_without_operators() {
        assert_eq!(match_of("  "), None);
        assert_eq!(match_of("\" - *"), None);
        assert_eq!(match_of("sea wall").as_deref(), Some("\"sea\" \"wall\"*"));
        assert_eq!(match_of("a\"b OR").as_deref(), Some("\"a\"\"b\" \"OR\"*"));
    }

    #[test]
    fn passages_are_split_at_their_hits() {
        let pieces = pieces_of("\n the \u{2}sea\u{3}\n\n  \u{2}wall\u{3}.");
        let texts: Vec<_> = pieces.iter().map(|p| (p.text.as_str(), p.hit)).collect();
        let expected = [
            ("the ", false),
            ("sea", true),
            (" ", false),
            ("wall", true),
            (".", false),
        ];
        assert_eq!(texts, expected);
    }
}
