"""The loops of this program: they carry out the decisions of `core`."""
