"""Records of a broker as columns of Arrow."""
