"""The group record, kept in one place that all brokers of a group can read and compare-and-set. Nothing uses it yet."""
