//! The schema, as the changes that led to it.

use sqlx::SqlSafeStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// Number, name and SQL of each change.
const CHANGES: [(i64, &str, &str); 15] = [
    (
        1,
        "last conversation",
        include_str!("../../migrations/0001_last_conversation.sql"),
    ),
    (
        2,
        "parameters",
        include_str!("../../migrations/0002_parameters.sql"),
    ),
    (
        3,
        "models",
        include_str!("../../migrations/0003_models.sql"),
    ),
    (4, "cache", include_str!("../../migrations/0004_cache.sql")),
    (
        5,
        "memory",
        include_str!("../../migrations/0005_memory.sql"),
    ),
    (
        6,
        "conversations",
        include_str!("../../migrations/0006_conversations.sql"),
    ),
    (
        7,
        "versions",
        include_str!("../../migrations/0007_versions.sql"),
    ),
    (
        8,
        "neutral",
        include_str!("../../migrations/0008_neutral.sql"),
    ),
    (
        9,
        "earlier",
        include_str!("../../migrations/0009_earlier.sql"),
    ),
    (
        10,
        "attended",
        include_str!("../../migrations/0010_attended.sql"),
    ),
    (
        11,
        "by head",
        include_str!("../../migrations/0011_by_head.sql"),
    ),
    (
        12,
        "evictions",
        include_str!("../../migrations/0012_evictions.sql"),
    ),
    (
        13,
        "search",
        include_str!("../../migrations/0013_search.sql"),
    ),
    (
        14,
        "instructions",
        include_str!("../../migrations/0014_instructions.sql"),
    ),
    (
        15,
        "comparisons",
        include_str!("../../migrations/0015_comparisons.sql"),
    ),
];

/// All changes; a file has those that it lacks applied. (The macro `migrate!` does the same and builds SQLite twice.)
pub(super) fn migrator() -> Migrator {
    let changes = CHANGES.into_iter().map(|(version, name, sql)| {
        let sql = sql.into_sql_str();
        Migration::new(version, name.into(), MigrationType::Simple, sql, false)
    });
    Migrator::with_migrations(changes.collect())
}
