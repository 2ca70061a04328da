"""Requests and events of a consumer of lite topics."""
