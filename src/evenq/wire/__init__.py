"""The wire: generated stubs, conversion between model and protobuf, errors and codes, and the client side of gRPC."""
