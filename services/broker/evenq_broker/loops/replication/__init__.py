"""One copy of a broker group: its log, its links to the others, the group record, and the driver of all three."""
