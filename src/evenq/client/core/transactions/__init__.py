"""Half messages, and the calls for them."""
