"""evenq.cli"""
