"""Half messages: stored, asked about, ended."""
