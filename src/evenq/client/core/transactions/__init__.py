"""Half messages: what a producer knows of one, and what it sends to servers."""
