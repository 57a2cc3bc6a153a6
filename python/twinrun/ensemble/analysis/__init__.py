"""Analyses of a study: one module for each, with a table, a picture, a sentence and its tests."""
