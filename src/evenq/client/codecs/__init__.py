"""Codecs: values of a program as bodies of messages, in JSON, as pydantic types, or in Avro."""
