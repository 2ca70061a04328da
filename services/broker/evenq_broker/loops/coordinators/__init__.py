"""The group record: places that all brokers of a group can read and write by compare-and-set."""
