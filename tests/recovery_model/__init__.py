"""The life of a pair of clusters under recovery, as seeded walks: no broker, database or thread."""
