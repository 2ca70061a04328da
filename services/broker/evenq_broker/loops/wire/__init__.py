"""Conversions between the cluster's types and their messages; the only stubs in the loops."""
