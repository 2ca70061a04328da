"""evenq.client"""
