"""Records of a broker as columns of Arrow, for the Spark source and for tables."""
