"""A broker that is one copy of its group: it follows, leads for terms, and follows again."""
