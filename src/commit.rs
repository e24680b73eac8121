//! The commit pipeline: data before metadata, group commit, checkpoints.
