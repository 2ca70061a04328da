"""Long polls: the calls that wait, and what wakes them."""
