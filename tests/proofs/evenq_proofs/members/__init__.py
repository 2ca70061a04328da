"""Members of official SDKs join, leave and are killed while brokers stop and start: what a group then gets, and when."""
