"""Typed columns of a table: values of JSON and protobuf bodies as columns beside the plain ones."""
