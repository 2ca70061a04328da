"""`make demo`: a year of flights through a real cluster, every figure compared with the file."""
