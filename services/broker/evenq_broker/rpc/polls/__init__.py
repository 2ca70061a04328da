"""Polls that other brokers wake."""
