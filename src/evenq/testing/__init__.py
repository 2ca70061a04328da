"""evenq.testing"""
