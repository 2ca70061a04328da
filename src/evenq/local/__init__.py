"""evenq.local"""
