"""Tables: the history of a topic as Parquet files, written by a program of its own and read by every engine."""
