"""Options of reads, streams and writes, and their checks."""
