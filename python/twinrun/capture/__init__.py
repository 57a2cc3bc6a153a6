"""Captured histories: `Run` writes them while a program runs (run); packing and restoring of records
(records).
"""
