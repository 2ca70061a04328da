"""Diagnosis for operators: groups, messages, traces."""
